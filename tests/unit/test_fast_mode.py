"""The mode `fast` and the ways of resampling: what they change, and what a store and a calibration remember of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from pipeline.assembly import load_extractor, make_identity, settings_of_store
from pipeline.calibration_file import read_calibration, write_calibration
from pipeline.config import Settings, load_settings
from pipeline.device import resolve_device
from pipeline.embed import half_precision, load_embedder
from pipeline.errors import BadValue, CalibrationInvalid, StoreMismatch
from pipeline.models.onnx_runtime import choose_runtime
from pipeline.models.registry import CASIA_WEBFACE
from pipeline.models.weights import resolve
from pipeline.score import Calibration

CPU = torch.device("cpu")


def settings_with(weights_cache: Path, **flags: str) -> Settings:
    keys = {"mode": "run.mode", "resampling": "align.resampling"}
    fixed = {"model.weights": CASIA_WEBFACE, "model.cache": str(weights_cache), "run.device": "cpu"}
    return load_settings(environ={}, flags={**fixed, **{keys[name]: value for name, value in flags.items()}})


@pytest.fixture(scope="module")
def crops() -> torch.Tensor:
    """[5, 3, 160, 160]: smooth, as photos are."""
    coarse = torch.rand((5, 3, 9, 9), generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(coarse, size=160, mode="bilinear")


def test_only_cuda_has_a_half_precision_that_pays() -> None:
    assert half_precision(CPU) is None
    assert half_precision(torch.device("cuda", 0)) == torch.float16


@pytest.mark.parametrize("centred", [False, True])
def test_half_precision_is_near_float32(
    weights_cache: Path, crops: torch.Tensor, device: str, centred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved, where = resolve(CASIA_WEBFACE, None, weights_cache), resolve_device(device)
    exact = load_embedder(resolved, where, centred=centred)(crops)
    monkeypatch.setattr("pipeline.embed.half_precision", lambda _: torch.float16)
    embedder = load_embedder(resolved, where, centred=centred, fast=True)
    fast = embedder(crops)
    assert embedder.backend.endswith(" in float16")
    assert fast.dtype == torch.float32
    assert (fast.norm(dim=1) - 1).abs().max() < 1e-6
    cosines = cosine_similarity(exact, fast)
    assert cosines.min() > 0.9999
    assert cosines.max() < 1 - 1e-7
    single = torch.cat([embedder(crop[None]) for crop in crops])
    assert cosine_similarity(single, fast).min() > 0.9999


def test_on_a_cpu_fast_is_exact(weights_cache: Path, crops: torch.Tensor, tmp_path: Path) -> None:
    resolved = resolve(CASIA_WEBFACE, None, weights_cache)
    runtime = choose_runtime("auto", resolved.weight_set, CPU, tmp_path, 1)
    exact, fast = (load_embedder(resolved, CPU, runtime=runtime, fast=each) for each in (False, True))
    assert fast.backend == f"{exact.backend} in float32"
    assert torch.equal(exact(crops), fast(crops))


def test_the_mode_reaches_the_embedder(weights_cache: Path, tmp_path: Path) -> None:
    settings = settings_with(weights_cache, mode="fast")
    backend = load_extractor(settings, make_identity(settings), tmp_path).embedder.backend
    assert backend.endswith(" in float32")


def test_a_store_keeps_its_mode(weights_cache: Path, tmp_path: Path) -> None:
    exact, fast = (settings_with(weights_cache, mode=mode) for mode in ("exact", "fast"))
    made = make_identity(fast)
    assert made.mode == made.output_settings["mode"] == "fast"
    assert made.output_hash != make_identity(exact).output_hash
    assert made.calibration == make_identity(exact).calibration
    assert settings_of_store(exact, made, tmp_path).run.mode == "fast"  # exact is the default, so it is not a wish
    assert settings_of_store(fast, made, tmp_path).run.mode == "fast"
    with pytest.raises(StoreMismatch, match=r"run\.mode"):
        settings_of_store(fast, make_identity(exact), tmp_path)
    with pytest.raises(BadValue, match="exact or fast"):
        settings_with(weights_cache, mode="faster")


def test_a_store_keeps_its_resampling(weights_cache: Path, tmp_path: Path) -> None:
    area, pillow = (settings_with(weights_cache, resampling=each) for each in ("area", "pillow"))
    made = make_identity(pillow)
    assert made.output_hash != make_identity(area).output_hash
    assert settings_of_store(area, made, tmp_path).align.resampling == "pillow"
    with pytest.raises(StoreMismatch, match=r"align\.resampling"):
        settings_of_store(pillow, make_identity(area), tmp_path)


def test_a_store_from_before_there_was_a_resampling_has_areas(weights_cache: Path, tmp_path: Path) -> None:
    area, pillow = (settings_with(weights_cache, resampling=each) for each in ("area", "pillow"))
    identity = make_identity(area)
    older = dataclasses.replace(identity, output_settings={**identity.output_settings, "align": {"margin_px": 32}})
    assert settings_of_store(area, older, tmp_path) == settings_of_store(area, identity, tmp_path)
    with pytest.raises(StoreMismatch, match=r"align\.resampling"):
        settings_of_store(pillow, older, tmp_path)


def test_a_calibration_holds_in_both_modes_and_for_one_resampling(weights_cache: Path, tmp_path: Path) -> None:
    fitted, file = Calibration(1.5, "photos", 1e-3, "a note"), tmp_path / "c.json"
    identity = make_identity(settings_with(weights_cache))
    write_calibration(file, fitted, identity, {})
    content = json.loads(file.read_text())
    for written in (
        content,
        {**content, "output_settings": {"align": {"margin_px": 32}, "mode": "exact"}},
    ):  # as before
        file.write_text(json.dumps(written))
        for mode in ("exact", "fast"):
            output = settings_with(weights_cache, mode=mode).output_settings()
            assert read_calibration(file, identity.weights_sha256, output, identity.preprocessing) == fitted
        output = settings_with(weights_cache, resampling="pillow").output_settings()
        with pytest.raises(CalibrationInvalid, match="pillow"):
            read_calibration(file, identity.weights_sha256, output, identity.preprocessing)
