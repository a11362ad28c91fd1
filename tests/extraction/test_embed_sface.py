"""SFace as a stage: shapes, equality across batches and devices, what it loads; and quality does not rest on it."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import DecodeSettings, load_settings
from pipeline.errors import StoreMismatch, WeightsCorrupt
from pipeline.extraction.embed import BATCH_CROPS, Embedder, load_embedder
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import decode_image
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.models.files.converted import read_converted, write_converted
from pipeline.models.registry import REGISTRY, weight_set
from pipeline.models.weights import ResolvedWeights, cached_file, package_files, resolve
from pipeline.runtime.device import resolve_device
from pipeline.store.records import QUALITIES
from pipeline.types import DecodedImage


@pytest.fixture(scope="module")
def resolved(sface_cache: Path) -> ResolvedWeights:
    return resolve("sface", None, sface_cache)


@pytest.fixture(scope="module")
def embedder(resolved: ResolvedWeights, device: str) -> Embedder:
    return load_embedder(resolved, resolve_device(device))


@pytest.fixture(scope="module")
def crops(hopper_path: Path) -> torch.Tensor:
    """[40, 3, 112, 112] float32 in [0, 255]: a portrait, shifted, mirrored and darkened; more than one batch."""
    with Image.open(hopper_path) as opened:
        photo = opened.convert("RGB").resize((256, 300))
    cut = [np.asarray(photo.crop((70 + k, 40 + k, 182 + k, 152 + k)), np.float32) for k in range(10)]
    pixels = torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2)
    return torch.cat([pixels, pixels.flip(3), pixels * 0.5, 255 - pixels])


def test_shape_dtype_and_norm(embedder: Embedder, crops: torch.Tensor, device: str) -> None:
    found = embedder(crops.to(device))
    assert (found.shape, found.dtype, found.device.type) == ((40, 128), torch.float32, device)
    torch.testing.assert_close(found.norm(dim=1).cpu(), torch.ones(40), atol=1e-6, rtol=0)
    facts = (embedder.name, embedder.input_size, embedder.embedding_size, embedder.alignment)
    assert facts == ("sface", 112, 128, "five-point")


def test_batch_equals_single(embedder: Embedder, crops: torch.Tensor, device: str) -> None:
    copies = BATCH_CROPS[device] // len(crops) + 1  # more than one call
    single = torch.cat([embedder(crop[None]) for crop in crops])
    torch.testing.assert_close(embedder(crops.repeat(copies, 1, 1, 1)), single.repeat(copies, 1), atol=5e-6, rtol=0)


def test_the_device_agrees_with_the_cpu(embedder: Embedder, resolved: ResolvedWeights, crops: torch.Tensor) -> None:
    on_cpu = load_embedder(resolved, torch.device("cpu"))(crops)
    torch.testing.assert_close(embedder(crops).cpu(), on_cpu, atol=2e-5, rtol=0)


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_other_tensors_are_refused_by_name(sface_cache: Path, tmp_path: Path, change: str) -> None:
    row, name = weight_set("sface"), "layers.conv_5_dw.relu.weight"
    tensors = read_converted(cached_file(row, sface_cache))
    changed = {
        "missing": {key: value for key, value in tensors.items() if key != name},
        "unknown": {**tensors, "more": torch.zeros(1)},
        "shape": {**tensors, name: torch.zeros(3)},
    }
    path = cached_file(row, tmp_path)
    write_converted(path, changed[change], row.file.sha256)
    with pytest.raises(WeightsCorrupt, match="no weights of sface"):
        load_embedder(resolve("sface", None, tmp_path), torch.device("cpu"))


@pytest.mark.parametrize("name", ["auto", "sface"])
def test_the_onnx_file_by_path_is_known_by_its_hash(sface_cache: Path, name: str) -> None:
    (file,) = package_files(weight_set("sface"))
    found = resolve(name, file, sface_cache)
    assert (found.name, found.path) == ("sface", cached_file(weight_set("sface"), sface_cache))


def extractor_for(name: str, folder: Path, cache: Path) -> BatchExtractor:
    flags = {"run.device": "cpu", "model.weights": name, "model.cache": str(cache)}
    settings = load_settings(environ={}, flags=flags)
    return load_extractor(settings, make_identity(settings), folder)


def test_boxes_and_quality_are_the_same_with_either_embedder(
    extractor: BatchExtractor, sface_cache: Path, tmp_path: Path, hopper_path: Path
) -> None:
    """So the gate means the same; the embeddings differ in size."""
    image = decode_image(hopper_path.read_bytes(), extractor.settings.decode)
    (ours,) = extractor_for("sface", tmp_path, sface_cache).extract([image])
    (others,) = extractor.extract([image])
    for column in ("x1", "y1", "x2", "y2", "landmarks", "confidence", *QUALITIES):
        assert ours[column].to_pylist() == others[column].to_pylist()
    assert [len(table["embedding"][0]) for table in (ours, others)] == [128, 512]


def test_photos_together_give_what_they_give_alone(
    sface_cache: Path, tmp_path: Path, hopper_path: Path, astronaut_path: Path
) -> None:
    """Sizes mixed, one photo with two faces, one with none, one much larger than its crop."""
    extractor = extractor_for("sface", tmp_path, sface_cache)
    hopper, astronaut = (Image.open(path).convert("RGB") for path in (hopper_path, astronaut_path))
    both = Image.new("RGB", (560, 300))
    both.paste(hopper.resize((256, 300)), (0, 0))
    both.paste(astronaut.resize((300, 300)), (260, 0))
    images = [decoded(image) for image in (both, astronaut, Image.new("RGB", (60, 40)), hopper.resize((1024, 1200)))]
    together = extractor.extract(images)
    assert [len(table) for table in together] == [2, 1, 0, 1]
    for image, faces in zip(images, together, strict=True):
        (alone,) = extractor.extract([image])
        for column in ("embedding", "x1", "y2", "sharpness_quality"):
            found, expected = (np.array(table[column].to_pylist(), np.float32) for table in (faces, alone))
            np.testing.assert_allclose(found, expected, atol=2e-4 if column != "embedding" else 1e-5)


def decoded(image: Image.Image) -> DecodedImage:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return decode_image(buffer.getvalue(), DecodeSettings())


def test_other_preprocessing_than_the_stores_is_refused(sface_cache: Path, tmp_path: Path) -> None:
    flags = {"run.device": "cpu", "model.weights": "sface", "model.cache": str(sface_cache)}
    settings = load_settings(environ={}, flags=flags)
    identity = make_identity(settings)
    other = dataclasses.replace(identity, preprocessing={**identity.preprocessing, "alignment": "box"})
    with pytest.raises(StoreMismatch, match=r"preprocessing\.alignment = box.* five-point"):
        load_extractor(settings, other, tmp_path)
    older = {key: value for key, value in identity.preprocessing.items() if key != "alignment"}
    assert load_extractor(settings, dataclasses.replace(identity, preprocessing=older), tmp_path)


def test_a_store_would_record_another_embedder(sface_cache: Path) -> None:
    flags = {"model.weights": "sface", "model.cache": str(sface_cache)}
    identity = make_identity(load_settings(environ={}, flags=flags))
    assert (identity.embedder, identity.weights, identity.embedding_size) == ("sface", "sface", 128)
    expected = {"mean": 127.5, "scale": 1 / 128, "alignment": "five-point", "centre_sha256": None}
    assert identity.preprocessing == expected
    assert identity.weights_sha256 == weight_set("sface").file.sha256
    assert REGISTRY["casia-webface"].preprocessing.alignment == "box"
