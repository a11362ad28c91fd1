"""Ways to cut the embedder's input from a photo: what `bench_crops` compares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from pipeline.config import AlignSettings
from pipeline.extraction.align import PIXEL_CENTRE, cut_crops, sample_crops, warp_crops
from pipeline.extraction.images.batch import ImageBatch
from pipeline.types import Detections

SIZE: Final = 160
_SAMPLES: Final = 2  # a side of a pixel, where a frame is turned
Recipe = Callable[[ImageBatch, Detections], torch.Tensor]  # -> crops [n, 3, SIZE, SIZE] float32 in [0, 255]
Frame = tuple[
    torch.Tensor, torch.Tensor, torch.Tensor
]  # centre [n, 2], size [n, 2] and angle [n] (radians) in the image

# Where the landmarks lie in the detector's box, from (0, 0) to (1, 1), and the box's width over its height: medians
# over the photos of the training people.
_IN_BOX: Final = ((0.2815, 0.3907), (0.7439, 0.3830), (0.5161, 0.5865), (0.3170, 0.7590), (0.7291, 0.7537))
_ASPECT: Final = 0.7499


def box(batch: ImageBatch, found: Detections, margin: int, size: int = SIZE) -> torch.Tensor:
    """As `run` cuts it: averaged where it shrinks, interpolated where it grows."""
    return cut_crops(batch, found, AlignSettings(margin_px=margin), size).pixels


def box_resampled(batch: ImageBatch, found: Detections, margin: int, mode: str) -> torch.Tensor:
    """The same frame, resampled by one of torch's ways alone."""
    frames = cut_crops(batch, found, AlignSettings(margin_px=margin), SIZE).frames.long().tolist()
    cut = []
    for image, (x0, y0, x1, y1) in zip(found.image_index.tolist(), frames, strict=True):
        x, y = torch.arange(x0, x1).float(), torch.arange(y0, y1).float()
        points = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).view(1, -1, 2)
        pixels = batch.sample(torch.tensor([image]), points).view(1, y1 - y0, x1 - x0, 3).permute(0, 3, 1, 2)
        smooth = {} if mode == "area" else {"align_corners": False}
        cut.append(functional.interpolate(pixels, size=(SIZE, SIZE), mode=mode, **smooth))
    return torch.cat(cut)


def square(batch: ImageBatch, found: Detections, margin: int) -> torch.Tensor:
    """The box made square first, so that the face keeps its proportions."""
    low, high = found.boxes[:, :2], found.boxes[:, 2:]
    centre, half = (low + high) / 2, (high - low).amax(dim=1, keepdim=True) / 2
    squared = Detections(
        found.image_index, torch.cat([centre - half, centre + half], dim=1), found.landmarks, found.scores
    )
    return box(batch, squared, margin)


def five_point(batch: ImageBatch, found: Detections) -> torch.Tensor:
    """Turned upright and scaled by the landmarks, as SFace has it: the tight template of 112 px."""
    return warp_crops(batch, found, SIZE)


def framed(batch: ImageBatch, found: Detections, frame: Callable[[Detections], Frame], margin: int) -> torch.Tensor:
    """The margin around a frame that may be turned and that the image's edge does not cut."""
    centre, size, angle = frame(found)
    step = size / (SIZE - margin)
    turn = torch.stack([angle.cos(), angle.sin()], dim=1)
    across, down = step[:, :1] * turn, step[:, 1:] * torch.stack([-turn[:, 1], turn[:, 0]], dim=1)
    origin = centre - PIXEL_CENTRE - (across + down) * (SIZE - 1) / 2
    return sample_crops(batch, found.image_index, across, down, origin, SIZE, _SAMPLES)


def by_box(found: Detections) -> Frame:
    low, high = found.boxes[:, :2], found.boxes[:, 2:]
    return (low + high) / 2, high - low, torch.zeros(len(found))


def by_landmarks(found: Detections) -> Frame:
    """The box that a mean face with these landmarks has, turned as they are."""
    template = torch.tensor(_IN_BOX) * torch.tensor([_ASPECT, 1.0])
    centre, middle = found.landmarks.mean(dim=1), template.mean(dim=0)
    points, model = found.landmarks - centre[:, None], template - middle
    real = (points * model).sum(dim=(1, 2)) / model.square().sum()
    imaginary = (points[:, :, 1] * model[:, 0] - points[:, :, 0] * model[:, 1]).sum(dim=1) / model.square().sum()
    x, y = (torch.tensor([_ASPECT / 2, 0.5]) - middle).tolist()
    offset = torch.stack([real * x - imaginary * y, imaginary * x + real * y], dim=1)
    scale = torch.hypot(real, imaginary)
    return centre + offset, scale[:, None] * torch.tensor([_ASPECT, 1.0]), torch.atan2(imaginary, real)


def by_both(found: Detections) -> Frame:
    """Half way between the two, upright."""
    (centre, size, _), (other_centre, other_size, _) = by_box(found), by_landmarks(found)
    return (centre + other_centre) / 2, torch.sqrt(size * other_size), torch.zeros(len(found))


def by_box_turned(found: Detections) -> Frame:
    (centre, size, _), (_, _, angle) = by_box(found), by_landmarks(found)
    return centre, size, angle


def by_both_turned(found: Detections) -> Frame:
    (centre, size, _), (_, _, angle) = by_both(found), by_landmarks(found)
    return centre, size, angle


def mirrored(batch: ImageBatch, found: Detections, recipe: Recipe) -> torch.Tensor:
    """The mirror image."""
    return recipe(batch, found).flip(3)


_FRAMES: Final = {
    "box, turned": by_box_turned,
    "box and landmarks": by_both,
    "box and landmarks, turned": by_both_turned,
}
_PLAIN: Final[dict[str, Recipe]] = {
    **{f"box, margin {margin}": partial(box, margin=margin) for margin in (14, 24, 32, 40, 48)},
    **{f"box, margin 32, {mode}": partial(box_resampled, margin=32, mode=mode) for mode in ("bilinear", "area")},
    "box, margin 38, size 192": partial(box, margin=38, size=192),
    "square, margin 32": partial(square, margin=32),
    "five-point": five_point,
    **{f"{name}, margin 32": partial(framed, frame=frame, margin=32) for name, frame in _FRAMES.items()},
}
MIRROR: Final = ", mirror image"
RECIPES: Final[dict[str, Recipe]] = {
    **_PLAIN,
    **{f"{name}{MIRROR}": partial(mirrored, recipe=recipe) for name, recipe in _PLAIN.items()},
}
# What is compared unless told otherwise.
COMPARED: Final = (*_PLAIN, f"box, margin 32{MIRROR}")
