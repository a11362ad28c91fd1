"""The extractor as the jobs load it: with either embedder, alone and together."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config import DecodeSettings, Settings, load_settings
from pipeline.errors import StoreMismatch
from pipeline.extraction.detection.torch_networks import TorchNetworks
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.rows import PLACE_COLUMNS
from pipeline.jobs import models
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.models.registry import REGISTRY, weight_set
from pipeline.types import QUALITIES, DecodedImage
from tests.extraction.helpers import encode

QUALITY = dict.fromkeys(QUALITIES, 1e-4)


@pytest.fixture(scope="module")
def settings(sface_cache: Path) -> Settings:
    flags = {"run.device": "cpu", "model.weights": "sface", "model.cache": str(sface_cache)}
    return load_settings(environ={}, flags=flags)


@pytest.fixture(scope="module")
def sface(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> BatchExtractor:
    return load_extractor(settings, make_identity(settings), tmp_path_factory.mktemp("no-store"))


def test_boxes_and_quality_are_the_same_with_either_embedder(
    extractor: BatchExtractor, sface: BatchExtractor, hopper_path: Path
) -> None:
    """So the gate means the same; the embeddings differ in size."""
    image = decode_image(hopper_path.read_bytes(), extractor.settings.decode)
    (ours,) = sface.extract([image])
    (others,) = extractor.extract([image])
    for column in ("x1", "y1", "x2", "y2", "landmarks", "confidence", *QUALITIES):
        assert ours[column].to_pylist() == others[column].to_pylist()
    assert [len(table["embedding"][0]) for table in (ours, others)] == [128, 512]


@pytest.mark.slow
def test_photos_together_give_what_they_give_alone(
    sface: BatchExtractor, extractor: BatchExtractor, hopper_path: Path, astronaut_path: Path
) -> None:
    """Sizes mixed, one photo with two faces, one with none, one much larger than its crop. To the last bit in compiled
    loops, whatever BLAS does beside them."""
    hopper, astronaut = (Image.open(path).convert("RGB") for path in (hopper_path, astronaut_path))
    both = Image.new("RGB", (560, 300))
    both.paste(hopper.resize((256, 300)), (0, 0))
    both.paste(astronaut.resize((300, 300)), (260, 0))
    images = [
        decode_image(encode(image, format="PNG"), DecodeSettings())
        for image in (both, astronaut, Image.new("RGB", (60, 40)), hopper.resize((1024, 1200)))
    ]
    for each in (sface, extractor):
        together = each.extract(images)
        assert [len(table) for table in together] == [2, 1, 0, 1]
        alone = [each.extract([image])[0] for image in images]
        if not isinstance(each.detector.networks, TorchNetworks):
            assert together == alone
        for ours, others in zip(together, alone, strict=True):
            for column in ("embedding", "x1", "y2", "sharpness_quality"):
                found, expected = (np.array(table[column].to_pylist(), np.float32) for table in (ours, others))
                np.testing.assert_allclose(found, expected, atol=2e-4 if column != "embedding" else 1e-5)


def test_known_faces_are_embedded_where_they_are(
    sface: BatchExtractor, extractor: BatchExtractor, hopper_path: Path, astronaut_path: Path
) -> None:
    """By another model as well, which would find them there."""
    images = [decode_image(path.read_bytes(), DecodeSettings()) for path in (hopper_path, astronaut_path, hopper_path)]
    for each in (extractor, sface):
        found = each.extract(images)
        known = [table.select(PLACE_COLUMNS) for table in extractor.extract(images)]
        known[0] = known[0].slice(0, 0)
        again = each.extract(images, known=known)
        assert [len(table) for table in again] == [0, *map(len, found[1:])]
        assert again[1:] == found[1:]


def test_torch_finds_the_same_without_numba(
    sface: BatchExtractor, settings: Settings, hopper_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in pictures of a pixel and of a row, whose rows are apart in memory, and of none."""
    monkeypatch.setattr(models, "load_host_networks", lambda: None)
    torchs = load_extractor(settings, make_identity(settings), tmp_path)
    assert isinstance(torchs.detector.networks, TorchNetworks)
    hopper = np.array(Image.open(hopper_path).convert("RGB").resize((150, 175)))
    pictures = [hopper, hopper[:, ::-1], hopper[:1, :1], hopper[:1], hopper[::-1], np.asfortranarray(hopper)]
    images = [DecodedImage(picture, "png") for picture in pictures]
    found, expected = torchs.extract(images), sface.extract(images)
    assert [len(table) for table in found] == [len(table) for table in expected]
    assert [len(table) for table in expected[:4]] == [1, 1, 0, 0]
    for ours, others in zip(found, expected, strict=True):
        for column, apart in {"x1": 1e-3, "landmarks": 1e-3, "confidence": 1e-5, "embedding": 1e-5, **QUALITY}.items():
            both = (np.array(table[column].to_pylist(), np.float32) for table in (ours, others))
            np.testing.assert_allclose(*both, rtol=0, atol=apart)
    assert torchs.extract([]) == sface.extract([]) == []
    again = torchs.extract(images, known=[table.select(PLACE_COLUMNS) for table in found])
    for ours, others in zip(again, found, strict=True):
        assert ours.select(PLACE_COLUMNS) == others.select(PLACE_COLUMNS)
        both = (np.array(table["embedding"].to_pylist(), np.float32) for table in (ours, others))
        np.testing.assert_allclose(*both, rtol=0, atol=1e-5)


def test_other_preprocessing_than_the_stores_is_refused(settings: Settings, tmp_path: Path) -> None:
    identity = make_identity(settings)
    other = dataclasses.replace(identity, preprocessing={**identity.preprocessing, "alignment": "box"})
    with pytest.raises(StoreMismatch, match=r"preprocessing\.alignment = box.* five-point"):
        load_extractor(settings, other, tmp_path)
    older = {key: value for key, value in identity.preprocessing.items() if key != "alignment"}
    assert load_extractor(settings, dataclasses.replace(identity, preprocessing=older), tmp_path)


def test_a_store_would_record_another_embedder(settings: Settings) -> None:
    identity = make_identity(settings)
    assert (identity.embedder, identity.weights, identity.embedding_size) == ("sface", "sface", 128)
    expected = {"mean": 127.5, "scale": 1 / 128, "alignment": "five-point", "centre_sha256": None}
    assert identity.preprocessing == expected
    assert identity.weights_sha256 == weight_set("sface").file.sha256
    assert REGISTRY["casia-webface"].preprocessing.alignment == "box"


def test_a_batch_may_be_empty(extractor: BatchExtractor) -> None:
    """The device may reject every image of a batch."""
    assert extractor.extract([]) == []
