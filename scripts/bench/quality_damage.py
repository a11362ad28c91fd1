"""Photos made worse by known amounts, and what facepipe finds in them: for `bench_quality`.

Blur is a share of the face box, size is its width in pixels, so that they mean the same for every photo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from PIL import Image, ImageFilter

from pipeline.extraction.extractor import BatchExtractor
from pipeline.store.records import QUALITIES
from pipeline.types import BoolArray, DecodedImage, FloatArray

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
    """Pulls the grey levels towards the middle."""
    levels = (np.asarray(photo, dtype=np.float64) - _GREY) * scale + _GREY
    return Image.fromarray(levels.round().clip(0, 255).astype(np.uint8))


def roll(photo: Image.Image, _width: float, degrees: float) -> Image.Image:
    """Turns it clockwise about the centre; new corners are black."""
    return photo.rotate(-degrees, Image.Resampling.BICUBIC)


def mirror(photo: Image.Image, _width: float) -> Image.Image:
    return photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def shrink(photo: Image.Image, width: float, face_px: float) -> Image.Image:
    """Shrinks the photo until the face is `face_px` wide."""
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


def find(extractor: BatchExtractor, photos: Sequence[Image.Image]) -> Faces:
    """Detects, rates and embeds the faces, as `facepipe run` does."""
    shapes = ((4,), (5, 2), (), (3,), (extractor.embedder.embedding_size,))
    faces = Faces(*(np.full((len(photos), *shape), np.nan, np.float32) for shape in shapes))
    for start in range(0, len(photos), BATCH):
        images = [DecodedImage(np.array(photo), "", "") for photo in photos[start : start + BATCH]]
        for row, (image, table) in enumerate(zip(images, extractor.extract(images), strict=True), start):
            if len(table):
                _fill(faces, row, table, image)
    return faces


def _fill(faces: Faces, row: int, table: pa.Table, image: DecodedImage) -> None:
    """Row `row` of `faces` from the face of `table` that is nearest the centre of `image`."""
    boxes = np.stack([table[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1)
    offsets = boxes[:, :2] + boxes[:, 2:] - np.array([image.width, image.height])
    face = int((offsets**2).sum(axis=1).argmin())
    values = table.slice(face, 1).to_pylist()[0]
    faces.boxes[row] = boxes[face]
    faces.landmarks[row] = np.reshape(values["landmarks"], (5, 2))
    faces.scores[row] = values["confidence"]
    faces.quality[row] = [values[name] for name in QUALITIES]
    faces.embeddings[row] = values["embedding"]
