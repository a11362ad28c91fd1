"""Photos made worse by known amounts: what `bench_quality` lays over them, and what our stages then find.

Blur and size are told as shares and pixels of the face box, so that they mean the same for every photo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from lfw_embeddings import Methods, embed_crops, nearest_centre
from PIL import Image, ImageFilter

from pipeline.extraction.align import cut_crops
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.quality import assess_quality
from pipeline.types import BoolArray, Detections, FloatArray

BATCH = 24
_GREY = 127

# A photo and the width of its face in pixels -> the photo made worse.
Damage = Callable[[Image.Image, float], Image.Image]


@dataclass(frozen=True)
class Faces:
    """Of n photos the face nearest the centre; NaN where none was found."""

    boxes: FloatArray  # [n, 4]
    landmarks: FloatArray  # [n, 5, 2]
    scores: FloatArray  # [n]
    quality: FloatArray  # [n, 3]
    embeddings: FloatArray  # [n, d]

    @property
    def found(self) -> BoolArray:
        has_face: BoolArray = np.isfinite(self.scores)
        return has_face


def blur(photo: Image.Image, width: float, sigma: float) -> Image.Image:
    """Gaussian, sigma as a share of the face's width."""
    return photo.filter(ImageFilter.GaussianBlur(sigma * width))


def flatten(photo: Image.Image, _width: float, scale: float) -> Image.Image:
    """The grey levels drawn towards the middle."""
    levels = (np.asarray(photo, dtype=np.float64) - _GREY) * scale + _GREY
    return Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))


def roll(photo: Image.Image, _width: float, degrees: float) -> Image.Image:
    """Turned clockwise about the centre; what was outside is black."""
    return photo.rotate(-degrees, Image.Resampling.BICUBIC)


def mirror(photo: Image.Image, _width: float) -> Image.Image:
    return photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def shrink(photo: Image.Image, width: float, face_px: float) -> Image.Image:
    """So that the face is `face_px` wide."""
    size = (round(side * face_px / width) for side in photo.size)
    return photo.resize(tuple(size), Image.Resampling.LANCZOS)


# By kind, from weak to strong.
STEPS: dict[str, dict[str, Damage]] = {
    "blur": {f"{s:g}": partial(blur, sigma=s) for s in (0.01, 0.015, 0.02, 0.03, 0.04)},
    "contrast": {f"{s:g}": partial(flatten, scale=s) for s in (0.7, 0.5, 0.3, 0.2, 0.15)},
    "roll": {f"{a:g}": partial(roll, degrees=a) for a in (10, 20, 30, 40, 50)},
    "size": {f"{w:g}": partial(shrink, face_px=w) for w in (60, 40, 30, 24)},
    "mirror": {"mirror": mirror},
}


def find(methods: Methods, photos: Sequence[Image.Image], embed: bool = True) -> Faces:
    """Detects, rates and, if asked, embeds the faces, as `run` does."""
    faces = _none(len(photos), methods.embedder.embedding_size if embed else 0)
    for start in range(0, len(photos), BATCH):
        batch = ImageBatch([np.array(p) for p in photos[start : start + BATCH]], methods.embedder.device)
        _fill(methods, faces, start, batch, nearest_centre(methods.detector(batch), batch), embed)
    return faces


def rated(
    methods: Methods, photos: Sequence[Image.Image], boxes: FloatArray, landmarks: FloatArray, scores: FloatArray
) -> Faces:
    """Rates faces [n] whose places in the photos are known."""
    faces = _none(len(photos), 0)
    for start in range(0, len(photos), BATCH):
        batch = ImageBatch([np.array(p) for p in photos[start : start + BATCH]], methods.embedder.device)
        rows = start + np.flatnonzero(np.isfinite(scores[start : start + BATCH]))
        places = (torch.from_numpy(a[rows]).to(batch.device) for a in (boxes, landmarks, scores))
        found = Detections(torch.from_numpy(rows - start).to(batch.device), *places)
        _fill(methods, faces, start, batch, found, embed=False)
    return faces


def _none(count: int, embedding_size: int) -> Faces:
    shapes = ((4,), (5, 2), (), (3,), (embedding_size,))
    return Faces(*(np.full((count, *shape), np.nan, np.float32) for shape in shapes))


def _fill(methods: Methods, faces: Faces, start: int, batch: ImageBatch, found: Detections, embed: bool) -> None:
    rows = start + found.image_index.cpu().numpy()
    crops = cut_crops(batch, found, methods.settings.align, methods.embedder.input_size)
    rated = assess_quality(crops, found)
    faces.boxes[rows] = found.boxes.cpu().numpy()
    faces.landmarks[rows] = found.landmarks.cpu().numpy()
    faces.scores[rows] = found.scores.cpu().numpy()
    faces.quality[rows] = torch.stack([rated.center_pose, rated.sharpness, rated.contrast], dim=1).cpu().numpy()
    if embed and len(rows):
        faces.embeddings[rows] = methods.centred(embed_crops(methods.embedder, crops.pixels))
