"""Ways to cut the embedder's input from a photo: what `bench_crops` compares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch.nn import functional

from pipeline.align import _crop_to_image, _grid, _template, cut_crops
from pipeline.config import AlignSettings
from pipeline.imagebatch import ImageBatch
from pipeline.types import Detections

SIZE: Final = 160
Recipe = Callable[[ImageBatch, Detections], torch.Tensor]  # -> crops [n, 3, SIZE, SIZE] float32 in [0, 255]


def box(batch: ImageBatch, found: Detections, margin: int) -> torch.Tensor:
    """As `run` cuts it: averaged where it shrinks, interpolated where it grows."""
    return cut_crops(batch, found, AlignSettings(margin_px=margin), SIZE).pixels


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


def five_point(batch: ImageBatch, found: Detections, scale: float, samples: int = 2) -> torch.Tensor:
    """Turned upright and scaled by the landmarks; `scale` 1 is the tight template of 112 px, less shows more around."""
    template = _template(SIZE, found.landmarks.device)
    middle = (SIZE - 1) / 2
    across, down, origin = _crop_to_image(found.landmarks, (template - middle) * scale + middle)
    points = _grid(across, down, origin, SIZE, samples)
    pixels = batch.sample(found.image_index, points.flatten(1, 2)).view(*points.shape[:3], 3)
    return functional.avg_pool2d(pixels.permute(0, 3, 1, 2), samples)


def flipped(batch: ImageBatch, found: Detections, recipe: Recipe) -> torch.Tensor:
    """The mirror image."""
    return recipe(batch, found).flip(3)


_PLAIN: dict[str, Recipe] = {
    **{f"box-{margin}": partial(box, margin=margin) for margin in (14, 24, 32, 40, 48)},
    "box-32-bilinear": partial(box_resampled, margin=32, mode="bilinear"),
    "box-32-area": partial(box_resampled, margin=32, mode="area"),
    "square-32": partial(square, margin=32),
    **{f"five-{scale}": partial(five_point, scale=scale) for scale in (0.6, 0.7, 0.8)},
}
FLIPPED: Final = ("box-32", "box-40", "five-0.7")  # whose mirror images are embedded as well, to average both
RECIPES: Final[dict[str, Recipe]] = {
    **_PLAIN,
    **{f"{name}-mirror": partial(flipped, recipe=_PLAIN[name]) for name in FLIPPED},
}
