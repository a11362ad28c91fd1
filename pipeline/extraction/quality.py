"""Rates faces for recognition: pose, sharpness, contrast, each in [0, 1].

The measures follow ISO/IEC 29794-5 and its reference implementation OFIQ, unless another predicted the training
people's false non-matches better (error-versus-discard curves: docs/accuracy.md). They work on batches, without loops
over faces or waits for the device.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np

from pipeline.runtime.arrays import like, module_of
from pipeline.types import Array, Detections, FaceCrops, FloatArray

# Landmarks of a mean frontal face: x right, y down, z towards the camera; origin between the eyes, unit the eye
# distance, eyes and mouth at z = 0. x and y are medians of MTCNN landmarks of news photos, the nose's z is derived from
# the eyes' foreshortening in turned faces.
_FACE_MODEL = (
    (-0.50, 0.00, 0.00),
    (0.50, 0.00, 0.00),
    (0.00, 0.58, 0.50),
    (-0.435, 1.07, 0.00),
    (0.435, 1.07, 0.00),
)
_EYES_TO_MOUTH = _FACE_MODEL[3][1]
# The smallest configurable face, 12 pixels, has an eye distance of 4.
_MIN_EYE_DISTANCE_PX = 1.0

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
# The central four fifths of the box, without background and hair.
_INNER = 0.82
# Grid over that region, coarser than most originals: enlargement does not count as blur, and sensor noise averages out.
_CELLS = 40

# Evidence for a face: the detector's log odds plus the log ratio of edges at the landmarks to those between. It exceeds
# 9 for 99 of 100 portraits. This value makes the quality threshold reject 97 of 100 faces detected in portraits rotated
# by 180 degrees.
_EVIDENCE_HALF = 7.0
_WINDOW = 0.12  # standard deviation of windows, in eye distances
_CHEEK, _FOREHEAD = 0.55, -0.6  # positions from the eyes (0) to the mouth (1)

# Above the variance of 8-bit quantisation (grey levels^2): a flat crop has no sharp edges.
_GRADIENT_FLOOR = 1.0
# Logistic in the log of the sharpness ratio.
_SHARPNESS_HALF = 1.03
_SHARPNESS_STEEPNESS = 5.0

# Logistics in the logs of the spread (grey levels) and of its evenness.
_SPREAD_HALF = 9.0
_SPREAD_STEEPNESS = 4.0
_EVENNESS_HALF = 0.6
_EVENNESS_STEEPNESS = 6.0
_PATCH_CELLS = 5  # side of the patches for evenness, an eighth of the region
# False detections can divide by zero.
_IGNORED: Final[dict[str, Any]] = {"divide": "ignore", "invalid": "ignore", "over": "ignore"}
# Grey levels: the spread of a blank patch, and 8-bit noise. The first is smaller, so that flattening never adds
# evenness.
_BLANK, _NOISE = 0.1, 0.5


def assess_quality(crops: FaceCrops, detections: Detections) -> Array:
    """Rates n faces from crops [n, 3, S, S], landmarks [n, 5, 2] and scores [n], on the crops' device: [n, 3] float32
    in [0, 1] in the order of `types.QUALITIES`, higher is better.

    Rows are independent; mirroring only changes rounding. The vendor's labels: excellent from 0.7, good 0.6, marginal
    0.45, poor 0.3, very poor below.
    """
    share, xp = _INNER * crops.box_share, module_of(crops.pixels)
    with np.errstate(**_IGNORED):
        cells = _cells(crops.pixels, share)
        trust = _trust(detections.scores, cells, _in_cells(detections.landmarks, crops, share))
        return xp.stack([center_pose(detections.landmarks) * trust, _sharpness(cells), _contrast(cells)], axis=1)


def center_pose(landmarks: Array) -> Array:
    """(cos yaw * cos pitch * cos roll)^2 of faces from landmarks [n, 5, 2] float32 (x, y) in pixels: [n].

    A mean face is fitted under weak perspective in closed form. It gives the image of the face's plane, a 2 x 2 matrix
    B, and the offset v of a nose of unit height. For scale s and angle a between face and camera directions, det B =
    s^2 cos a and |v|^2 = s^2 sin^2 a determine s and cos a = cos yaw * cos pitch, whatever the face's proportions. Roll
    is B's rotation.

    For the mean face the angle is exact, and so is the product for rotation about one axis; tilted by 25 and 15 degrees
    and rolled by 20 it is 0.03 low, because successive angles split a rotation differently. With realistic heads, a
    metre from the camera, and landmark noise of 3 % of the eye distance (standard deviation), the angle's root mean
    square error is 4.3 to 7.5 degrees up to 50; perspective adds 3 degrees to faces turned down, noise 5 to frontal
    ones. A wide open mouth reads as pitch. Near-frontal portraits rotated in the plane by 10 to 30 degrees and detected
    again have an error of 2.5 degrees, by 40 of 4.5 (scripts/bench/bench_quality.py at commit b63d31e).

    0 for landmarks that coincide, are collinear, mirrored or not finite, and for roll of 90 degrees or more.
    """
    xp = module_of(landmarks)
    fitted = like(landmarks, _fit_matrix()) @ (landmarks - landmarks.mean(axis=1, keepdims=True))
    across, down, nose = fitted[:, 0], fitted[:, 1], fitted[:, 2]
    area = across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]
    along, askew = across[:, 0] + down[:, 1], across[:, 1] - down[:, 0]
    is_face = area >= _MIN_EYE_DISTANCE_PX**2
    with np.errstate(**_IGNORED):
        turn = xp.square(nose).sum(axis=1) / area
        cos_tilt = 2 / (turn + xp.sqrt(xp.square(turn) + 4))
        cos_roll = (along / xp.hypot(along, askew)).clip(min=0)
        return xp.where(is_face, xp.square(cos_tilt * cos_roll), 0.0).clip(max=1)


@functools.cache
def _fit_matrix() -> FloatArray:
    """[4, 5]: landmarks -> least-squares images of the model's axes and origin."""
    fit: FloatArray = np.linalg.pinv(np.column_stack([_FACE_MODEL, np.ones(5)])).astype(np.float32)
    return fit


def _cells(pixels: Array, share: float) -> Array:
    """Mean luminance of 40 x 40 cells of the central `share` of crops [n, 3, S, S]: [n, 40, 40] float32.

    Exact area averages: the crop's size and margin do not matter.
    """
    weights = like(pixels, _cell_weights(pixels.shape[-1], share))
    luma = _LUMA[0] * pixels[:, 0] + _LUMA[1] * pixels[:, 1] + _LUMA[2] * pixels[:, 2]
    return weights @ luma @ weights.T


@functools.cache
def _cell_weights(size: int, share: float) -> FloatArray:
    """[40, size]: the fraction of each cell of `_cells` that each pixel of a row covers."""
    side = size * share / _CELLS
    first = (size * (1 - share) / 2 + side * np.arange(_CELLS))[:, None]
    pixel = np.arange(size)
    overlap = np.minimum(first + side, pixel + 1) - np.maximum(first, pixel)
    weights: FloatArray = (overlap.clip(min=0) / side).astype(np.float32)
    return weights


def _in_cells(landmarks: Array, crops: FaceCrops, share: float) -> Array:
    """[n, 5, 2]: image landmarks in cells, from the corner of the region of `_cells`."""
    low, high = crops.frames[:, None, :2], crops.frames[:, None, 2:]
    return ((landmarks - low) / (high - low) - (1 - share) / 2) * (_CELLS / share)


def _trust(scores: Array, cells: Array, landmarks: Array) -> Array:
    """[n] in [0, 1]: probability that landmarks [n, 5, 2] are a face's, from scores [n] and cells [n, 40, 40].

    In portraits rotated by 180 degrees the detector sometimes places upright landmarks, eyes on the cheeks; only low
    scores and the picture reveal it. Adding both keeps flat pictures or glasses alone from making a face implausible.
    """
    xp = module_of(scores)
    odds = scores.clip(1e-6, 1 - 1e-6)
    evidence = xp.log(odds / (1 - odds)) + _feature_gain(cells, landmarks)
    return xp.nan_to_num(1 / (1 + xp.exp(_EVIDENCE_HALF - evidence)), nan=0.0)


def _feature_gain(cells: Array, landmarks: Array) -> Array:
    """[n]: log ratio of horizontal edges at eyes, nose and mouth, which are strong on upright faces, to those at
    cheeks, bridge of the nose and forehead, which are smooth. NaN for NaN landmarks."""
    xp = module_of(cells)
    vertical = xp.zeros_like(cells)
    vertical[:, 1:-1] = xp.square((cells[:, 2:] - cells[:, :-2]) / 2)
    eyes, nose, mouth = landmarks[:, :2], landmarks[:, 2:3], landmarks[:, 3:].mean(axis=1, keepdims=True)
    between = eyes.mean(axis=1, keepdims=True)
    across, down = eyes[:, 1] - eyes[:, 0], mouth - between
    broad, tall = xp.hypot(across[:, 0], across[:, 1]), xp.hypot(down[:, 0, 0], down[:, 0, 1])
    scale = xp.maximum(broad, tall / _EYES_TO_MOUTH)  # the eye distance of a frontal view
    features = [eyes, nose, mouth]
    smooth = [eyes + _CHEEK * down, between, between + _FOREHEAD * down]
    edges = _windowed(vertical, xp.concatenate([*features, *smooth], axis=1), _WINDOW * scale)
    logarithms = xp.log(edges + _GRADIENT_FLOOR)
    return logarithms[:, :4].sum(axis=1) - logarithms[:, 4:].sum(axis=1)


def _windowed(cells: Array, points: Array, sigma: Array) -> Array:
    """[n, p]: means of cells [n, 40, 40] around points [n, p, 2] with Gaussian weights of sigma [n] cells."""
    xp = module_of(cells)
    centres = like(cells, np.arange(_CELLS, dtype=np.float32) + np.float32(0.5))
    near = points.clip(0, _CELLS)[..., None]  # outside landmarks move to the nearest edge
    # Narrower windows would fall between cells.
    logarithms = -xp.square((centres - near) / sigma.clip(min=0.5)[:, None, None, None]) / 2
    weights = xp.exp(logarithms - xp.amax(logarithms, axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    across, down = weights[:, :, 0], weights[:, :, 1]
    return ((down @ cells) * across).sum(axis=-1)


def _sharpness(cells: Array) -> Array:
    """[n], from luminance cells [n, 40, 40]: r^k / (r^k + h^k), r^2 = |Laplacian|^2 / |gradient|^2.

    r^2 is the gradient's mean squared frequency. Gaussian blur multiplies the spectrum by exp(-(sigma f)^2), so it
    strictly lowers r; contrast and brightness cancel out. The gradient's floor keeps noise in flat crops from counting.
    """
    centre = cells[:, 1:-1, 1:-1]
    left, right, up, down = cells[:, 1:-1, :-2], cells[:, 1:-1, 2:], cells[:, :-2, 1:-1], cells[:, 2:, 1:-1]
    xp = module_of(cells)
    laplacian = xp.square((left + right) + (up + down) - 4 * centre).mean(axis=(1, 2))
    gradient = (xp.square(right - left) + xp.square(down - up)).mean(axis=(1, 2)) / 4
    ratio = xp.sqrt(laplacian / (gradient + _GRADIENT_FLOOR))
    return _logistic(ratio, _SHARPNESS_HALF, _SHARPNESS_STEEPNESS)


def _contrast(cells: Array) -> Array:
    """[n], from luminance cells [n, 40, 40]: spread of luminance, and its evenness.

    The spread is the standard deviation; its logistic saturates for portraits, so only flattened faces score low.
    Evenness, the geometric over the arithmetic mean of 64 patches' standard deviations, is low if shadows, glare or
    over-exposure blank parts of the face. The dynamic range of ISO/IEC 29794-5, the histogram's entropy, rises with
    harder shadows.
    """
    xp = module_of(cells)
    spread = xp.sqrt(xp.square(cells - cells.mean(axis=(1, 2), keepdims=True)).mean(axis=(1, 2)))
    across = _CELLS // _PATCH_CELLS
    parts = cells.reshape(-1, across, _PATCH_CELLS, across, _PATCH_CELLS)
    offset = parts - parts.mean(axis=(2, 4), keepdims=True)
    patches = xp.sqrt(xp.square(offset).mean(axis=(2, 4))).reshape(-1, across**2)
    evenness = xp.exp(xp.log(patches + _BLANK).mean(axis=1)) / (patches.mean(axis=1) + _NOISE)
    return _logistic(spread, _SPREAD_HALF, _SPREAD_STEEPNESS) * _logistic(evenness, _EVENNESS_HALF, _EVENNESS_STEEPNESS)


def _logistic(value: Array, half: float, steepness: float) -> Array:
    """Logistic in the log of values >= 0: v^k / (v^k + h^k), 0 at 0 and one half at h."""
    power = (value / half) ** steepness
    return power / (1 + power)
