"""The reference: the loop that facenet-pytorch's README suggests.

`MTCNN(keep_all=True)` detects the faces of a list of PIL images of equal size; a network embeds all of them at once,
without gradients. With facenet-pytorch's own InceptionResnetV1, MTCNN also cuts the crops. facenet-pytorch has no
SFace: there each face is aligned by its landmarks and goes through facepipe's plain torch network. EXIF orientations
are applied, so that both sides see the same picture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from facenet_pytorch import MTCNN, InceptionResnetV1
from PIL import Image, ImageOps
from torch.nn import functional

from pipeline.config import DetectSettings
from pipeline.evaluation.bench.parity import Extracted, Faces
from pipeline.extraction.align import FIVE_POINT_TEMPLATE, PIXEL_CENTRE
from pipeline.models.files.converted import read_converted
from pipeline.models.load import load_torch_network
from pipeline.models.networks.inception_resnet import CLASSIFIER
from pipeline.models.registry import FIVE_POINT
from pipeline.models.weights import ResolvedWeights
from pipeline.types import FloatArray

# The longest list of images of one size. Lists of one, 8 and 32 images took 145, 120 and 106 ms of one core an image at
# 250 x 250, 416, 393 and 400 at 1 MP, 393, 410 and 364 in a mix with group photos.
LIST_IMAGES, LIST_PIXELS = 32, 24_000_000
MAX_TIMES_LOG2 = 3
_ORIENTATION_TAG = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that swap rows and columns

Embed = Callable[[torch.Tensor], torch.Tensor]


class ReferenceChain:
    """Files to faces, a list of images of one size at a time."""

    def __init__(self, weights: ResolvedWeights, settings: DetectSettings, margin_px: int, device: str) -> None:
        self.device = torch.device(device)
        self.mtcnn = make_reference(settings, device)
        self.mtcnn.margin = margin_px
        self.embed = reference_embedder(weights, self.device)
        self._weight_set = weights.weight_set
        self._lists: Sequence[Sequence[Path]] = []

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        """Sets the lists of files, each of one image size."""
        self._lists = lists

    def __call__(self, numbers: Iterable[int]) -> dict[Path, Extracted]:
        """Returns the faces of the files in the lists `numbers`."""
        faces: dict[Path, Extracted] = {}
        for number in numbers:
            files = self._lists[number]
            faces.update(zip(files, self.extract([read_image(file) for file in files]), strict=True))
        return faces

    @torch.no_grad()
    def extract(self, images: Sequence[Image.Image]) -> list[Extracted]:
        """The faces of images of one size."""
        boxes, scores, landmarks = self.mtcnn.detect(list(images), landmarks=True)
        detected = [faces_of(*arrays) for arrays in zip(boxes, landmarks, scores, strict=True)]
        if self._weight_set.preprocessing.alignment == FIVE_POINT:
            size = self._weight_set.input_size
            crops = [
                upright_crop(image, points, size)[None]
                for image, faces in zip(images, detected, strict=True)
                for points in faces.landmarks
            ]
        else:
            crops = [crop for crop in self.mtcnn.extract(list(images), boxes, None) if crop is not None]
        ends = np.cumsum([len(faces.boxes) for faces in detected])
        empty = np.zeros((0, self._weight_set.embedding_size), np.float32)
        embeddings = self.embed(torch.cat(crops).to(self.device)).cpu().numpy() if crops else empty
        parts = np.split(embeddings.astype(np.float32), ends[:-1])
        return [Extracted(f.boxes, f.landmarks, f.scores, part) for f, part in zip(detected, parts, strict=True)]


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
    """The faces of one image's `MTCNN.detect` result; None: no face."""
    count = 0 if boxes is None else len(boxes)
    arrays = (boxes, landmarks, scores) if count else ((), (), ())
    corners, points, confidence = (np.asarray(a, dtype=np.float32) for a in arrays)
    return Faces(corners.reshape(count, 4), points.reshape(count, 5, 2), confidence.reshape(count))


def reference_embedder(weights: ResolvedWeights, device: str | torch.device) -> Embed:
    """Returns the embedder: the reference's crops [n, 3, S, S] -> embeddings [n, d] of L2 norm 1, on `device`.

    facenet-pytorch's crops are scaled already, SFace's are RGB in [0, 255]. Raises WeightsMissing or WeightsCorrupt.
    """
    preprocessing = weights.weight_set.preprocessing
    if preprocessing.alignment != FIVE_POINT:
        facenet: Embed = reference_network(weights).to(device)
        return facenet
    network = load_torch_network(weights).to(device)
    return lambda crops: functional.normalize(network((crops - preprocessing.mean) * preprocessing.scale), dim=1)


def reference_network(weights: ResolvedWeights) -> Any:
    """facenet-pytorch's own InceptionResnetV1, with the weights that facepipe uses."""
    tensors: Mapping[str, torch.Tensor]
    if weights.path.suffix == ".safetensors":
        tensors = read_converted(weights.path)
    else:
        tensors = torch.load(weights.path, map_location="cpu", weights_only=True)
    network = InceptionResnetV1(pretrained=None).eval()
    network.load_state_dict({name: value for name, value in tensors.items() if not name.startswith(CLASSIFIER)})
    return network


def upright_crop(image: Image.Image, landmarks: FloatArray, size: int) -> torch.Tensor:
    """Returns [3, size, size] float32 RGB in [0, 255]: the face with its landmarks [5, 2] fitted to the template's,
    sampled linearly, as in OpenCV's `FaceRecognizerSF.alignCrop`; black beyond the image.

    OpenCV skips pixels of faces much larger than the crop. Here, as in facepipe, such a face is cut 2, 4 or 8 times as
    large and averaged; otherwise the embeddings of a box differ by a cosine of down to 0.989.
    """
    # A similarity transform is one complex factor and a shift, fitted by least squares from image to crop.
    places = (np.array(FIVE_POINT_TEMPLATE) + PIXEL_CENTRE) @ (1, 1j)
    points = landmarks.astype(np.float64) @ (1, 1j)
    centred = points - points.mean()
    factor = (centred.conj() @ (places - places.mean())) / (np.abs(centred) ** 2).sum()
    step, start = 1 / factor, points.mean() - places.mean() / factor
    corners = start + step * size * np.array([0, 1, 1j, 1 + 1j])
    extent = [(values.min() - 2, values.max() + 2) for values in (corners.real, corners.imag)]
    (left, right), (top, bottom) = (np.clip(e, -2, n + 2).astype(int) for e, n in zip(extent, image.size, strict=True))
    start -= complex(left, top)
    times = 2 ** min(max(round(math.log2(abs(step))), 0), MAX_TIMES_LOG2)
    step /= times
    to_region = (step.real, -step.imag, start.real, step.imag, step.real, start.imag)
    # On integers Pillow's transform drops the fraction, which costs a cosine of up to 0.002.
    bands = [band.convert("F") for band in image.crop((left, top, right, bottom)).split()]
    frame = ((size * times,) * 2, Image.Transform.AFFINE, to_region, Image.Resampling.BILINEAR)
    return torch.from_numpy(np.stack([np.asarray(band.transform(*frame).reduce(times)) for band in bands]))


def read_image(file: Path) -> Image.Image:
    """The upright picture in RGB. Passes Pillow's errors on."""
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
    """Groups `files` into lists of one size, largest first. A list respects both limits, but has at least one image."""
    ordered = sorted(((image_size(file), file) for file in files), reverse=True)
    lists: list[list[Path]] = []
    for (width, height), group in groupby(ordered, key=lambda sized: sized[0]):
        same = [file for _, file in group]
        length = max(1, min(most_images, most_pixels // (width * height)))
        lists += [same[start : start + length] for start in range(0, len(same), length)]
    return lists
