"""How good each face is for recognition: pose, sharpness, contrast, each in [0, 1].

The measures follow ISO/IEC 29794-5 and its reference implementation OFIQ where they can: all work on batches, on
the device, without a loop over faces and without waiting for the device.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import adaptive_avg_pool2d

from pipeline.types import Detections, FaceCrops, Quality

# The five landmarks of a mean frontal face: x right, y down, z towards the camera; origin between the eyes, unit
# the eyes' distance, the eyes and the corners of the mouth in the plane z = 0. The plane's figures are medians
# of MTCNN landmarks of news photos; the nose's height is what the eyes' foreshortening says over those turned away.
_FACE_MODEL = (
    (-0.50, 0.00, 0.00),
    (0.50, 0.00, 0.00),
    (0.00, 0.58, 0.50),
    (-0.435, 1.07, 0.00),
    (0.435, 1.07, 0.00),
)
# A face of 12 pixels, the smallest that can be asked for, has eyes four apart; below one there is no face.
_MIN_EYE_DISTANCE_PX = 1.0

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
# Background and hair stay out: of the box, the central four fifths (three quarters of a crop with margin 14 px, with
# which the maps below were fitted).
_INNER = 0.75 * 160 / 146
# Pixels of the inner region where sharpness is judged: a third of a crop's 160. Coarser than most faces'
# originals, so that enlargement to the crop's size does not count as blur, and sensor noise averages out.
_SHARPNESS_PX = 40
# Variance of the quantisation to 8 bits and then some (grey levels^2): a flat crop has no sharp edges.
_GRADIENT_FLOOR = 1.0
# Logistic in the logarithm of the sharpness ratio: where it is one half, and how steep.
_SHARPNESS_HALF = 1.03
_SHARPNESS_STEEPNESS = 7.0

_LEVELS = 256
# 3.5 bits are 11 grey levels in effect: a portrait flattened more than ten-fold, in which one hardly sees a face.
_CONTRAST_ZERO_BITS = 3.5
_CONTRAST_FULL_BITS = 8.0


@torch.inference_mode()
def assess_quality(crops: FaceCrops, detections: Detections) -> Quality:
    """Rates n faces, from their crops [n, 3, S, S] and their landmarks [n, 5, 2], on the device of the crops.

    Each value depends on its own face only, and a mirrored face has the same (up to rounding). The vendor's
    labels for all three: excellent from 0.7, good 0.6, marginal 0.45, poor 0.3, very poor below.
    """
    inner = _inner(crops.pixels, _INNER * crops.box_share)
    return Quality(center_pose(detections.landmarks), _sharpness(inner), _contrast(inner))


def center_pose(landmarks: torch.Tensor) -> torch.Tensor:
    """(cos yaw * cos pitch * cos roll)^2 of faces whose landmarks are [n, 5, 2] float32 (x, y) in pixels: [n].

    A mean face is fitted under weak perspective in closed form. The fit gives the image of the face's plane, a
    2 x 2 matrix B, and the offset v of a nose of unit height from that plane. With scale s and the angle a
    between the face's direction and the camera's, det B = s^2 cos a and |v|^2 = s^2 sin^2 a: two equations for s
    and cos a = cos yaw * cos pitch, which need no opinion on how broad or long this face is. Roll is the
    rotation part of B.

    For the mean face under weak perspective the angle to the camera is exact, and so is the product while the
    face turns about one axis; tilted by 25 and 15 degrees and rolled by 20 it comes out 0.03 low, because angles
    taken one after the other split the same rotation differently. Landmarks off by 3 % of the eyes' distance
    (standard deviation) move the angle by 4 degrees, a nose a fifth higher than the mean by 7 at 40, and a wide
    open mouth reads as a face turned up or down.

    0 where there is no such face: landmarks that coincide, lie on a line or are mirrored, a face turned by 90
    degrees or more in the picture, non-finite values.
    """
    centred = landmarks - landmarks.mean(dim=1, keepdim=True)
    across, down, nose, _ = torch.matmul(_fit_matrix(landmarks.device), centred).unbind(dim=1)
    area = across[:, 0] * down[:, 1] - across[:, 1] * down[:, 0]
    turn = nose.square().sum(dim=1) / area
    cos_tilt = 2 / (turn + torch.sqrt(turn.square() + 4))
    along, askew = across[:, 0] + down[:, 1], across[:, 1] - down[:, 0]
    cos_roll = (along / torch.hypot(along, askew)).clamp(min=0)
    is_face = area >= _MIN_EYE_DISTANCE_PX**2
    return torch.where(is_face, (cos_tilt * cos_roll).square(), 0.0).clamp(max=1)


def _fit_matrix(device: torch.device) -> torch.Tensor:
    """[4, 5]: five landmarks -> the least-squares images of the model's three axes and of its origin."""
    model = torch.tensor(_FACE_MODEL, dtype=torch.float64)
    design = torch.cat([model, torch.ones(5, 1, dtype=torch.float64)], dim=1)
    fit: torch.Tensor = torch.linalg.pinv(design)
    return fit.to(device, torch.float32, non_blocking=True)


def _inner(pixels: torch.Tensor, share: float) -> torch.Tensor:
    """The luminance of the central `share` of crops [n, 3, S, S]: [n, 1, s, s] float32 in [0, 255]."""
    size = pixels.shape[-1]
    edge = round(size * (1 - share) / 2)
    red, green, blue = pixels[:, :, edge : size - edge, edge : size - edge].unbind(dim=1)
    return (_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue).unsqueeze(1)


def _sharpness(luma: torch.Tensor) -> torch.Tensor:
    """[n] from the luminance [n, 1, s, s] of the inner region: r^k / (r^k + h^k), r^2 = |Laplacian|^2 / |gradient|^2.

    r is the root of a ratio of two spectral moments, the mean squared frequency of the gradient. A Gaussian blur
    multiplies the spectrum by exp(-(sigma f)^2) and so lowers r strictly, whatever the picture; a change of
    contrast or brightness cancels out. The gradient's floor makes noise in a flat crop no sharpness.
    """
    y = adaptive_avg_pool2d(luma, _SHARPNESS_PX)
    centre = y[:, :, 1:-1, 1:-1]
    left, right, up, down = y[:, :, 1:-1, :-2], y[:, :, 1:-1, 2:], y[:, :, :-2, 1:-1], y[:, :, 2:, 1:-1]
    laplacian = ((left + right) + (up + down) - 4 * centre).square().mean(dim=(1, 2, 3))
    gradient = ((right - left).square() + (down - up).square()).mean(dim=(1, 2, 3)) / 4
    ratio = torch.sqrt(laplacian / (gradient + _GRADIENT_FLOOR))
    power = (ratio / _SHARPNESS_HALF) ** _SHARPNESS_STEEPNESS
    return power / (1 + power)


def _contrast(luma: torch.Tensor) -> torch.Tensor:
    """[n] from the luminance [n, 1, s, s] of the inner region: its histogram's entropy, 3.5 bits -> 0, 8 bits -> 1.

    ISO/IEC 29794-5 measures the dynamic range by that entropy. Its plain share of 8 bits is of no use to a gate:
    a portrait flattened ten-fold still has 4.3 bits.
    """
    levels = luma.round().clamp(0, _LEVELS - 1).long().flatten(start_dim=1)
    faces = torch.arange(len(luma), device=luma.device)[:, None]
    counts = torch.zeros(len(luma) * _LEVELS, device=luma.device)
    # scatter_add, because bincount would wait for the device; sums of ones below 2^24 are exact in any order.
    index = (levels + faces * _LEVELS).flatten()
    counts.scatter_add_(0, index, torch.ones_like(index, dtype=torch.float32))
    share = counts.view(-1, _LEVELS) / levels.shape[1]
    bits = -torch.xlogy(share, share).sum(dim=1) / math.log(2)
    return ((bits - _CONTRAST_ZERO_BITS) / (_CONTRAST_FULL_BITS - _CONTRAST_ZERO_BITS)).clamp(0, 1)
