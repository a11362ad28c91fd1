"""The mean that centred embeddings have subtracted: its file, the arithmetic, and which stores have it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.assembly import make_identity, settings_of_store
from pipeline.config import EmbedSettings, ModelSettings, Settings
from pipeline.device import resolve_device
from pipeline.embed import load_embedder
from pipeline.errors import StoreMismatch, WeightsCorrupt
from pipeline.models import centre
from pipeline.models.centre import centre_file, load_centre
from pipeline.models.registry import CASIA_WEBFACE, EMBEDDERS, weight_set
from pipeline.models.weights import resolve

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
    monkeypatch.setattr(centre, "CENTRES", tmp_path)
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


def test_a_store_keeps_what_it_was_made_with(weights_cache: Path, tmp_path: Path) -> None:
    centred, plain = (casia(weights_cache, centred=each) for each in (True, False))
    assert settings_of_store(centred, make_identity(centred), tmp_path).embed.centre
    with pytest.raises(StoreMismatch, match=r"embed\.centre"):
        settings_of_store(plain, make_identity(centred), tmp_path)
    # True is the default, so it is not a wish.
    assert not settings_of_store(centred, make_identity(plain), tmp_path).embed.centre


def test_a_store_from_before_there_was_a_centre_goes_on_without(weights_cache: Path, tmp_path: Path) -> None:
    settings = casia(weights_cache, centred=True)
    identity = make_identity(settings)
    before = {key: value for key, value in identity.output_settings.items() if key != "embed"}
    older = dataclasses.replace(identity, output_settings=before)
    assert not settings_of_store(settings, older, tmp_path).embed.centre


def test_without_the_centre_the_weights_calibration_does_not_hold(weights_cache: Path) -> None:
    assert make_identity(casia(weights_cache, centred=True)).calibration["exponent"] == CASIA.calibration.exponent
    without = make_identity(casia(weights_cache, centred=False)).calibration
    assert without["exponent"] == 1
    assert "centred" in without["note"]
