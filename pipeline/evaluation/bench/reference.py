"""The reference: what a user would write today with the same models and the README of facenet-pytorch.

`MTCNN(keep_all=True)` finds and cuts the faces of a list of PIL images of equal size, `InceptionResnetV1` embeds those
of the whole list at once, without gradients. Images of other sizes wait for another list. Only the EXIF turn is added,
so that both sides see the same picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from facenet_pytorch import MTCNN, InceptionResnetV1
from PIL import Image, ImageOps

from pipeline.config import DetectSettings
from pipeline.evaluation.bench.parity import Extracted, Faces
from pipeline.models.files.converted import read_converted
from pipeline.models.networks.inception_resnet import CLASSIFIER
from pipeline.models.weights import ResolvedWeights

ARCHITECTURE = "inception-resnet-v1"  # the one embedder that facenet-pytorch has
# Of images of one size that are done at once. One, 8 and 32 images in a list took 145, 120 and 106 ms of one core an
# image at 250 x 250, 416, 393 and 400 at 1 MP, 393, 410 and 364 in a mix with group photos.
LIST_IMAGES, LIST_PIXELS = 32, 24_000_000
_ORIENTATION_TAG = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations whose rows are the columns of the upright picture


class ReferenceChain:
    """Files to faces, a list of images of one size at a time."""

    def __init__(self, weights: ResolvedWeights, settings: DetectSettings, margin_px: int, device: str) -> None:
        self.device = torch.device(device)
        self.mtcnn = make_reference(settings, device)
        self.mtcnn.margin = margin_px
        self.network = reference_network(weights).to(self.device)
        self._lists: Sequence[Sequence[Path]] = []

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        """Takes the lists of files, each of images of one size."""
        self._lists = lists

    def __call__(self, numbers: Iterable[int]) -> dict[Path, Extracted]:
        """The faces of the files of these lists."""
        found: dict[Path, Extracted] = {}
        for number in numbers:
            files = self._lists[number]
            found.update(zip(files, self.extract([read_image(file) for file in files]), strict=True))
        return found

    @torch.no_grad()
    def extract(self, images: Sequence[Image.Image]) -> list[Extracted]:
        """The faces of images of one size."""
        boxes, scores, landmarks = self.mtcnn.detect(list(images), landmarks=True)
        crops = [c for c in self.mtcnn.extract(list(images), boxes, None) if c is not None]
        embeddings = self.network(torch.cat(crops).to(self.device)).cpu().numpy() if crops else np.zeros((0, 512))
        ends = np.cumsum([0 if b is None else len(b) for b in boxes])
        parts = np.split(embeddings.astype(np.float32), ends[:-1])
        found = [faces_of(*one) for one in zip(boxes, landmarks, scores, strict=True)]
        return [Extracted(f.boxes, f.landmarks, f.scores, own) for f, own in zip(found, parts, strict=True)]


def make_reference(settings: DetectSettings, device: str) -> MTCNN:
    """facenet-pytorch's detector with the thresholds of `settings`."""
    thresholds = [settings.pnet_threshold, settings.rnet_threshold, settings.onet_threshold]
    return MTCNN(
        keep_all=True,
        min_face_size=settings.min_face_px,
        thresholds=thresholds,
        factor=settings.factor,
        device=device,
    )


def faces_of(boxes: Any, landmarks: Any, scores: Any) -> Faces:
    """The faces of one image that `MTCNN.detect` was given; it answers None for none."""
    count = 0 if boxes is None else len(boxes)
    arrays = (boxes, landmarks, scores) if count else ((), (), ())
    first, points, third = (np.asarray(a, dtype=np.float32) for a in arrays)
    return Faces(first.reshape(count, 4), points.reshape(count, 5, 2), third.reshape(count))


def reference_network(weights: ResolvedWeights) -> Any:
    """facenet-pytorch's InceptionResnetV1 as it stands there, with the weights that facepipe uses."""
    tensors: Mapping[str, torch.Tensor]
    if weights.path.suffix == ".safetensors":
        tensors = read_converted(weights.path)
    else:
        tensors = torch.load(weights.path, map_location="cpu", weights_only=True)
    network = InceptionResnetV1(pretrained=None).eval()
    network.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(CLASSIFIER)})
    return network


def read_image(file: Path) -> Image.Image:
    """The upright picture in RGB. Raises whatever Pillow raises of a file that it cannot read."""
    with Image.open(file) as image:
        ImageOps.exif_transpose(image, in_place=True)
        upright: Image.Image = image.convert("RGB")
        return upright


def image_size(file: Path) -> tuple[int, int]:
    """(width, height) of the upright picture, from the file's header."""
    with Image.open(file) as image:
        sideways = image.getexif().get(_ORIENTATION_TAG) in _SIDEWAYS
        return (image.height, image.width) if sideways else (image.width, image.height)


def equal_sized(files: Sequence[Path], most_images: int, most_pixels: int) -> list[list[Path]]:
    """`files` in lists of one size, the large ones first; at least one image each, else within both limits."""

    ordered = sorted(((image_size(file), file) for file in files), reverse=True)
    lists: list[list[Path]] = []
    for (width, height), same in groupby(ordered, key=lambda each: each[0]):
        lists += _pieces([file for _, file in same], max(1, min(most_images, most_pixels // (width * height))))
    return lists


def _pieces(files: Sequence[Path], length: int) -> Iterator[list[Path]]:
    return (list(files[start : start + length]) for start in range(0, len(files), length))
