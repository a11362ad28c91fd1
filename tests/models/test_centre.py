"""The mean that centred embeddings have subtracted: its file, the arithmetic, and which stores have it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config import EmbedSettings, ModelSettings, Settings
from pipeline.errors import StoreMismatch, WeightsCorrupt
from pipeline.extraction.embed import load_embedder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity, settings_of_store
from pipeline.models import weights
from pipeline.models.registry import CASIA_WEBFACE, EMBEDDERS, weight_set
from pipeline.models.weights import centre_file, load_centre, resolve, verify
from pipeline.runtime.device import resolve_device

CASIA = weight_set(CASIA_WEBFACE)


def casia(weights_cache: Path, *, centred: bool) -> Settings:
    model = ModelSettings(weights=CASIA_WEBFACE, cache=str(weights_cache))
    return Settings(model=model, embed=EmbedSettings(centre=centred))


@pytest.mark.parametrize("name", EMBEDDERS)
def test_a_centre_is_a_mean_of_vectors_of_norm_1(name: str) -> None:
    found = load_centre(weight_set(name))
    assert (found is None) == (weight_set(name).preprocessing.centre_sha256 is None)
    if found is not None:
        assert found.dtype == np.float32
        assert found.shape == (weight_set(name).embedding_size,)
        assert 0 < np.linalg.norm(found) < 1


def test_a_centre_that_was_changed_or_is_missing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(centre_file(CASIA).read_bytes())
    monkeypatch.setattr(weights, "CENTRES", tmp_path)
    with pytest.raises(WeightsCorrupt, match="Install facepipe again"):
        load_centre(CASIA)
    data[-1] ^= 1
    (tmp_path / "casia-webface.npy").write_bytes(data)
    with pytest.raises(WeightsCorrupt, match=r"casia-webface\.npy"):
        load_centre(CASIA)


def test_centred_embeddings_are_what_is_left_without_the_centre(weights_cache: Path, device: str) -> None:
    resolved, where = resolve(CASIA_WEBFACE, None, weights_cache), resolve_device(device)
    crops = torch.rand((5, 3, 160, 160), generator=torch.Generator().manual_seed(0)) * 255
    plain = load_embedder(resolved, where)(crops).cpu().double()
    centred = load_embedder(resolved, where, centred=True)(crops).cpu().double()
    mean = load_centre(CASIA)
    assert mean is not None
    left = plain - torch.from_numpy(mean).double()
    assert torch.allclose(centred, left / left.norm(dim=1, keepdim=True), atol=1e-6)
    assert (centred - plain).abs().max() > 1e-3


def test_without_the_centre_the_weights_calibration_does_not_hold(weights_cache: Path) -> None:
    centred = make_identity(casia(weights_cache, centred=True))
    assert centred.preprocessing["centre_sha256"] == CASIA.preprocessing.centre_sha256
    assert centred.calibration["exponent"] == CASIA.calibration.exponent
    without = make_identity(casia(weights_cache, centred=False))
    assert without.preprocessing["centre_sha256"] is None
    assert without.calibration["exponent"] == 1
    assert "centred" in without.calibration["note"]


@pytest.mark.slow
def test_the_extractor_of_a_store_centres_as_the_store_does(weights_cache: Path, tmp_path: Path) -> None:
    crops = torch.rand((2, 3, 160, 160), generator=torch.Generator().manual_seed(1)) * 255
    found = {}
    for centred in (True, False):
        settings = casia(weights_cache, centred=centred)
        found[centred] = load_extractor(settings, make_identity(settings), tmp_path).embedder(crops)
        expected = load_embedder(resolve(CASIA_WEBFACE, None, weights_cache), centred=centred)
        assert torch.allclose(found[centred], expected(crops), atol=1e-6)
    assert (found[True] - found[False]).abs().max() > 1e-3


def test_a_store_of_another_centre_is_refused(weights_cache: Path, tmp_path: Path) -> None:
    settings = casia(weights_cache, centred=True)
    identity = make_identity(settings)
    other = dataclasses.replace(identity, preprocessing={**identity.preprocessing, "centre_sha256": "0" * 64})
    with pytest.raises(StoreMismatch, match="centre_sha256"):
        load_extractor(settings, other, tmp_path)


def test_weights_without_a_centre_record_none(sface_cache: Path, tmp_path: Path) -> None:
    asked = Settings(model=ModelSettings(weights="sface", cache=str(sface_cache)), embed=EmbedSettings(centre=True))
    identity = make_identity(asked)
    assert not identity.output_settings["embed"]["centre"]
    assert identity.preprocessing["centre_sha256"] is None
    without = dataclasses.replace(asked, embed=EmbedSettings(centre=False))
    for settings in (asked, without):  # nothing differs
        assert not settings_of_store(settings, identity, tmp_path).embed.centre


def test_verifying_weights_reads_their_centre(
    weights_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(CASIA_WEBFACE, weights_cache)
    monkeypatch.setattr(weights, "CENTRES", tmp_path)
    with pytest.raises(WeightsCorrupt):
        verify(CASIA_WEBFACE, weights_cache)
