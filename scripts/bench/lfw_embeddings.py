"""Embeddings of a folder of portraits, by our stages and by facenet-pytorch's detector with the same weights.

Of each photo the face whose box's centre lies nearest the photo's centre, as is usual for LFW. The results are kept
in an .npz file, so that an analysis can be repeated without the models.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from detection_parity import reference_faces
from facenet_pytorch import MTCNN, extract_face
from PIL import Image

from pipeline.config import AlignSettings, Settings
from pipeline.evaluation.bench.reference import make_reference
from pipeline.extraction.align import cut_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.embed import Embedder, load_embedder
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.models.centre import load_centre
from pipeline.models.registry import BOX
from pipeline.models.weights import cache_folder, detector_files, resolve
from pipeline.runtime.device import resolve_device
from pipeline.types import ByteArray, DecodedImage, Detections, FloatArray

BATCH = 32
MARGINS = (14, 32)
OURS, REFERENCE = "ours", "reference"
CENTRED = "centred"  # ours with the default margin, less the weights' centre: what `run` stores


@dataclass(frozen=True)
class Portraits:
    """What n photos gave; NaN where no face was found."""

    names: list[str]  # [n] "Ada_Lovelace_0001"
    embeddings: dict[str, FloatArray]  # "ours-14" -> [n, d]; and CENTRED

    @property
    def row(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    @property
    def without_face(self) -> dict[str, int]:
        """How many photos each method found no face in."""
        return {key: int(np.isnan(e[:, 0]).sum()) for key, e in self.embeddings.items()}


class Methods:
    """Both ways from a photo to an embedding."""

    def __init__(self, settings: Settings, device: str) -> None:
        file = Path(settings.model.weights_file) if settings.model.weights_file else None
        self.resolved = resolve(settings.model.weights, file, cache_folder(settings.model.cache))
        if self.resolved.weight_set.preprocessing.alignment != BOX:
            raise SystemExit(f"{self.resolved.name} takes no box crops; bench_weights.py measures it.")
        self.settings = settings
        self.embedder = load_embedder(self.resolved, resolve_device(device))
        self._centre = load_centre(self.resolved.weight_set)
        self.detector = MtcnnDetector(load_networks(detector_files(), device), settings.detect)
        self.reference = make_reference(settings.detect, device)

    def centred(self, embeddings: FloatArray) -> FloatArray:
        """What the centre of the weights, if they have one, leaves of [n, d], of norm 1."""
        if self._centre is None:
            return embeddings
        left = embeddings - self._centre
        found: FloatArray = left / np.linalg.norm(left, axis=1, keepdims=True)
        return found

    def key(self, names: Sequence[str]) -> str:
        """What the embeddings depend on."""
        made_of = {
            "weights": self.resolved.sha256,
            "detect": asdict(self.settings.detect),
            "margins": MARGINS,
            "names": list(names),
        }
        return json.dumps(made_of)


def portraits(methods: Methods, files: Sequence[Path], cache: Path | None) -> Portraits:
    """The embeddings of `files`, from `cache` if it holds just these; else made, and written there."""
    made = _cached_or_made(methods, files, cache)
    usual = made.embeddings[f"{OURS}-{methods.settings.align.margin_px}"]
    return replace(made, embeddings={**made.embeddings, CENTRED: methods.centred(usual)})


def _cached_or_made(methods: Methods, files: Sequence[Path], cache: Path | None) -> Portraits:
    key = methods.key([f.stem for f in files])
    if cache is not None and cache.exists():
        return _load(cache, key)
    made = _make(methods, files)
    if cache is not None:
        with cache.open("wb") as file:
            np.savez(file, key=key, names=made.names, **made.embeddings)
    return made


def _load(cache: Path, key: str) -> Portraits:
    with np.load(cache, allow_pickle=False) as data:
        if str(data["key"]) != key:
            raise SystemExit(f"{cache} was made of other photos, weights or settings: remove it, or name another file.")
        embeddings = {name: data[name] for name in data.files if name not in ("key", "names")}
        return Portraits(data["names"].tolist(), embeddings)


def _make(methods: Methods, files: Sequence[Path]) -> Portraits:
    size = methods.embedder.embedding_size
    embeddings = {
        f"{who}-{margin}": np.full((len(files), size), np.nan, np.float32)
        for who in (OURS, REFERENCE)
        for margin in MARGINS
    }
    begin = time.perf_counter()
    for start in range(0, len(files), BATCH):
        images = [decode_image(f.read_bytes(), methods.settings.decode) for f in files[start : start + BATCH]]
        part = slice(start, start + len(images))
        _fill_ours(methods, images, {m: embeddings[f"{OURS}-{m}"][part] for m in MARGINS})
        for k, image in enumerate(images):
            for margin, crop in _reference_crops(methods.reference, image.pixels).items():
                embeddings[f"{REFERENCE}-{margin}"][start + k] = embed_crops(methods.embedder, crop)[0]
        if start // BATCH % 10 == 0:
            print(f"{part.stop} of {len(files)} photos, {time.perf_counter() - begin:.0f} s", flush=True)
    return Portraits([f.stem for f in files], embeddings)


def embed_crops(embedder: Embedder, crops: torch.Tensor) -> FloatArray:
    embeddings: FloatArray = embedder(crops).cpu().numpy()
    return embeddings


def _fill_ours(methods: Methods, images: Sequence[DecodedImage], embeddings: dict[int, FloatArray]) -> None:
    """Writes the batch's rows of embeddings, by margin."""
    batch = ImageBatch([image.pixels for image in images], methods.embedder.device)
    found = nearest_centre(methods.detector(batch), batch)
    rows = found.image_index.cpu().numpy()
    for margin, target in embeddings.items():
        crops = cut_crops(batch, found, AlignSettings(margin_px=margin), methods.embedder.input_size)
        target[rows] = embed_crops(methods.embedder, crops.pixels)


def nearest_centre(found: Detections, batch: ImageBatch) -> Detections:
    """At most one face per image."""
    boxes, index = found.boxes.cpu().numpy(), found.image_index.cpu().numpy()
    chosen = []
    for i, (height, width) in enumerate(batch.host_sizes):
        candidates = np.flatnonzero(index == i)
        if len(candidates):
            chosen.append(candidates[_nearest(boxes[candidates], width, height)])
    return pick(found, torch.tensor(chosen, dtype=torch.int64, device=found.boxes.device))


def pick(found: Detections, rows: torch.Tensor) -> Detections:
    return Detections(found.image_index[rows], found.boxes[rows], found.landmarks[rows], found.scores[rows])


def _nearest(boxes: FloatArray, width: int, height: int) -> int:
    offsets = (boxes[:, :2] + boxes[:, 2:]) / 2 - np.array([width / 2, height / 2])
    return int((offsets**2).sum(axis=1).argmin())


def _reference_crops(reference: MTCNN, pixels: ByteArray) -> dict[int, torch.Tensor]:
    """The crop of each margin, [1, 3, 160, 160] in [0, 255], cut as facenet-pytorch does; none without a face."""
    faces = reference_faces(reference, pixels)
    if not len(faces.boxes):
        return {}
    image = Image.fromarray(pixels)
    box = faces.boxes[_nearest(faces.boxes, image.width, image.height)]
    return {margin: extract_face(image, box, image_size=160, margin=margin)[None] for margin in MARGINS}
