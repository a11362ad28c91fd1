"""Cuts the embedder's input from original pixels: the face box with a margin, or the face turned upright and scaled by
its five landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pipeline.config import PILLOW, AlignSettings
from pipeline.extraction.images.batch import ImageBatch
from pipeline.runtime.arrays import floats, integers, like, module_of, on_host
from pipeline.types import Array, Detections, FaceCrops, FloatArray

# The places of the five landmarks in a crop of 112 x 112 pixels, pixel centres at whole numbers: the template of Deng
# et al. 2019, "ArcFace", as OpenCV's FaceRecognizerSF::alignCrop has it.
FIVE_POINT_TEMPLATE: Final = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
FIVE_POINT_SIZE: Final = 112
# The detector counts from the image's corner, templates and samples from the centre of its first pixel. (Ignoring that
# raises SFace's FNMR at FMR 1e-4 on the training people of LFW view 1 from 1.31 % to 1.45 %.)
PIXEL_CENTRE: Final = 0.5
# At most 8 x 8 samples a pixel: with faces over 900 pixels there are gaps between them, but so many average out grain.
_MAX_SAMPLES_LOG2: Final = 3
_SAMPLES_AT_ONCE: Final = 2_000_000  # about 150 MB
_MIN_SPREAD: Final = 1e-12  # square pixels; avoids 0 / 0 for landmarks that coincide


def cut_crops(batch: ImageBatch, detections: Detections, settings: AlignSettings, size: int) -> FaceCrops:
    """One crop of size x size per face, framed as facenet-pytorch's `extract_face` does.

    The frame is the box grown by `margin_px` pixels of the crop (half on each side), clipped to the image, its corners
    truncated to whole pixels; a frame that is not square is stretched. `settings.resampling` chooses how pixels are
    averaged; with `pillow` the crops equal the reference's, on the CPU bit for bit.
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
    """One crop of size x size per face, turned and scaled so that its landmarks come as near to the template as a
    similarity can bring them.

    Returns [n, 3, size, size] float32 RGB in [0, 255]; outside the image is black. Faces up to 1.4 times the crop's
    scale are interpolated linearly, and equal OpenCV's `FaceRecognizerSF.alignCrop` except for its rounding to whole
    numbers. Larger ones are averaged from 2 x 2, 4 x 4 or 8 x 8 samples a pixel, where the reference skips pixels.
    Waits once for the device.
    """
    frames = _crop_to_image(detections.landmarks - PIXEL_CENTRE, like(detections.landmarks, _template(size)))
    crops = batch.empty((len(detections), 3, size, size))
    steps = on_host(frames[0])
    with np.errstate(divide="ignore"):  # landmarks that coincide
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
    """[5, 2]: the template for a crop of size x size, pixel centres at whole numbers."""
    scaled = (np.array(FIVE_POINT_TEMPLATE) + PIXEL_CENTRE) * (size / FIVE_POINT_SIZE) - PIXEL_CENTRE
    return scaled.astype(np.float32)


def _crop_to_image(landmarks: Array, template: Array) -> tuple[Array, Array, Array]:
    """The similarity from a crop's pixels to the image's, for landmarks [n, 5, 2]: the image vectors of one step to the
    right and one step down in the crop, and the image point of the crop's pixel (0, 0); [n, 2] each.

    Umeyama 1991, "Least-squares estimation of transformation parameters between two point patterns", gives the rotation
    and scale that bring the landmarks nearest to the template; this is their inverse. In the plane both are one complex
    number q / v, with q the sum of conj(landmark) * template and v that of |landmark|^2, about their means, so no
    decomposition is needed; the inverse is v * conj(q) / |q|^2. Landmarks that coincide give steps of 0, and a crop of
    one colour.
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
    """Crops [n, 3, size, size] float32 of the images [n], each pixel the mean of samples x samples.

    `frames`: for each crop the image vectors of one step to the right and one step down, and the image point of its
    pixel (0, 0), counted from pixel centres; [n, 2] each.
    """
    across, down, origin = frames
    steps = like(origin, (np.arange(size * samples, dtype=np.float32) + np.float32(0.5)) / samples - np.float32(0.5))
    x = steps[None, None, :, None] * across[:, None, None]
    y = steps[None, :, None, None] * down[:, None, None]
    points = origin[:, None, None] + x + y
    pixels = batch.sample(image_index, points.reshape(len(points), -1, 2))
    # Slice by slice: NumPy's mean over such short axes takes twice as long.
    parts = pixels.reshape(-1, size, samples, size, samples, 3)
    rows = sum(parts[:, :, k] for k in range(samples))
    means = sum(rows[:, :, :, k] for k in range(samples)) / samples**2
    return module_of(means).moveaxis(means, -1, 1)
