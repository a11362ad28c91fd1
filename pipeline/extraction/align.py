"""Crops faces from original pixels: box with margin, or upright and scaled by the landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.config import PILLOW, AlignSettings
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.arrays import floats, integers, like, module_of, on_host
from pipeline.types import Array, Detections, FaceCrops, FloatArray

# Landmarks in a 112 x 112 crop, pixel centres at integers: the template of Deng et al. 2019, "ArcFace", as in OpenCV's
# FaceRecognizerSF::alignCrop.
FIVE_POINT_TEMPLATE: Final = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
FIVE_POINT_SIZE: Final = 112
# The detector's origin is the image's corner, that of templates and samples the first pixel's centre. (Ignoring it
# raises SFace's FNMR at FMR 1e-4 on the training people of LFW view 1 from 1.31 % to 1.45 %.)
PIXEL_CENTRE: Final = 0.5
# At most 8 x 8 samples per pixel: gaps begin at faces over 900 pixels, but grain still averages out.
_MAX_SAMPLES_LOG2: Final = 3
_SAMPLES_AT_ONCE: Final = 2_000_000  # about 150 MB
_MIN_SPREAD: Final = 1e-12  # square pixels; avoids 0 / 0 for coincident landmarks


def cut_crops(batch: ImageBatch, detections: Detections, settings: AlignSettings, size: int) -> FaceCrops:
    """One size x size crop per face, framed as in facenet-pytorch's `extract_face`.

    The frame is the box grown by `margin_px` crop pixels (half on each side), clipped to the image, truncated to whole
    pixels, and stretched to a square. With `settings.resampling` `pillow` crops equal the reference's, on the CPU bit
    for bit.
    """
    xp = module_of(detections.boxes)
    low, high = detections.boxes[:, :2], detections.boxes[:, 2:]
    margin = settings.margin_px * (high - low) / (size - settings.margin_px) / 2
    limit = xp.flip(batch.sizes[detections.image_index], (1,))
    first = xp.minimum(integers((low - margin).clip(min=0)), limit - 1)
    last = xp.minimum(integers(high + margin), limit)
    frames = xp.concatenate([first, xp.maximum(last, first + 1)], axis=1)
    resample = batch.pillow_crops if settings.resampling == PILLOW else batch.smooth_crops
    pixels = resample(detections.image_index, frames, size)
    return FaceCrops(pixels, floats(frames), (size - settings.margin_px) / size)


def warp_crops(batch: ImageBatch, detections: Detections, size: int = FIVE_POINT_SIZE) -> Array:
    """One size x size crop per face, by the similarity that brings its landmarks nearest to the template.

    Returns [n, 3, size, size] float32 RGB in [0, 255], black outside the image. Up to 1.4 times the crop's scale it
    interpolates linearly, like OpenCV's `FaceRecognizerSF.alignCrop` without its rounding; above, it averages 2 x 2, 4
    x 4 or 8 x 8 samples per pixel, where the reference skips pixels. Waits once for the device.
    """
    frames = _crop_to_image(detections.landmarks - PIXEL_CENTRE, like(detections.landmarks, _template(size)))
    crops = batch.empty((len(detections), 3, size, size))
    steps = on_host(frames[0])
    with np.errstate(divide="ignore"):  # coincident landmarks
        detail = np.nan_to_num(np.log2(np.hypot(steps[:, 0], steps[:, 1]))).round().clip(0, _MAX_SAMPLES_LOG2)
    for level in np.unique(detail):
        samples = 2 ** int(level)
        members = np.flatnonzero(detail == level)
        at_once = max(1, _SAMPLES_AT_ONCE // (size * samples) ** 2)
        for start in range(0, len(members), at_once):
            part = like(crops, members[start : start + at_once])
            crops[part] = _sampled(batch, detections.image_index[part], [each[part] for each in frames], size, samples)
    return crops


def _template(size: int) -> FloatArray:
    """[5, 2]: the template for a size x size crop."""
    scaled = (np.array(FIVE_POINT_TEMPLATE) + PIXEL_CENTRE) * (size / FIVE_POINT_SIZE) - PIXEL_CENTRE
    return scaled.astype(np.float32)


def _crop_to_image(landmarks: Array, template: Array) -> tuple[Array, Array, Array]:
    """The similarity from crop to image for landmarks [n, 5, 2], as three [n, 2]: image vectors of one crop step right
    and one down, and the image point of crop pixel (0, 0).

    It inverts the least-squares fit to the template (Umeyama 1991, "Least-squares estimation of transformation
    parameters between two point patterns"). In the plane rotation and scale are one complex number q / v, with q the
    sum of conj(landmark) * template and v that of |landmark|^2, about their means, so no decomposition is needed; the
    inverse is v * conj(q) / |q|^2. Coincident landmarks give steps of 0 and a crop of one colour.
    """
    xp = module_of(landmarks)
    centre, target = landmarks.mean(axis=1), template.mean(axis=0)
    source, target_points = landmarks - centre[:, None], template - target
    real = (source * target_points).sum(axis=(1, 2))
    imaginary = (source[:, :, 0] * target_points[:, 1] - source[:, :, 1] * target_points[:, 0]).sum(axis=1)
    spread = xp.square(source).sum(axis=(1, 2))
    factor = spread / (xp.square(real) + xp.square(imaginary)).clip(min=_MIN_SPREAD)
    across = xp.stack([real, -imaginary], axis=1) * factor[:, None]
    down = xp.stack([imaginary, real], axis=1) * factor[:, None]
    return across, down, centre - target[0] * across - target[1] * down


def _sampled(batch: ImageBatch, image_index: Array, frames: Sequence[Array], size: int, samples: int) -> Array:
    """Crops [n, 3, size, size] float32 of images [n], each pixel the mean of samples x samples.

    `frames` are those of `_crop_to_image`, [n, 2] each, counted from pixel centres.
    """
    across, down, origin = frames
    steps = like(origin, (np.arange(size * samples, dtype=np.float32) + np.float32(0.5)) / samples - np.float32(0.5))
    x = steps[None, None, :, None] * across[:, None, None]
    y = steps[None, :, None, None] * down[:, None, None]
    points = origin[:, None, None] + x + y
    pixels = batch.sample(image_index, points.reshape(len(points), -1, 2))
    # NumPy's mean over such short axes takes twice as long.
    parts = pixels.reshape(-1, size, samples, size, samples, 3)
    rows = sum(parts[:, :, k] for k in range(samples))
    means = sum(rows[:, :, :, k] for k in range(samples)) / samples**2
    return module_of(means).moveaxis(means, -1, 1)
