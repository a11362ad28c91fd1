"""The mode `fast` with its precisions: what it changes, and which settings it allows."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cosine_similarity

from pipeline.config import RunSettings, Settings, load_settings
from pipeline.errors import BadValue
from pipeline.extraction.embed import load_embedder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity, settings_of_store
from pipeline.matching.device_products import check_full_precision
from pipeline.models.backend import choose_backend, fast_precision
from pipeline.models.registry import CASIA_WEBFACE
from pipeline.models.weights import resolve
from pipeline.runtime.device import _leave_tf32, resolve_device
from pipeline.runtime.precision import check_fast_mode, set_tf32

CPU, CUDA = "cpu", "cuda:0"


def settings_with(weights_cache: Path, **flags: str) -> Settings:
    keys = {
        "mode": "run.mode",
        "precision": "run.precision",
        "tf32": "run.tf32",
        "jpeg": "run.jpeg",
    }
    fixed = {"model.weights": CASIA_WEBFACE, "model.cache": str(weights_cache), "run.device": "cpu"}
    return load_settings(environ={}, flags={**fixed, **{keys[name]: value for name, value in flags.items()}})


@pytest.fixture(scope="module")
def crops() -> torch.Tensor:
    """[5, 3, 160, 160]: smooth, as photos are."""
    coarse = torch.rand((5, 3, 9, 9), generator=torch.Generator().manual_seed(0)) * 255
    return torch.nn.functional.interpolate(coarse, size=160, mode="bilinear")


@pytest.fixture
def switches() -> Iterator[None]:
    """Puts torch's switches back."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
    _leave_tf32.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize(("precision", "least"), [("float16", 0.9999), ("bfloat16", 0.999)])
def test_half_precision_is_near_float32(
    weights_cache: Path, crops: torch.Tensor, device: str, centred: bool, precision: str, least: float
) -> None:
    resolved, where = resolve(CASIA_WEBFACE, None, weights_cache), resolve_device(device)
    exact = load_embedder(resolved, where, centred=centred)(crops)
    embedder = load_embedder(resolved, where, centred=centred, precision=precision)
    fast = embedder(crops)
    assert embedder.backend.endswith(f" in {precision}")
    assert fast.dtype == torch.float32
    assert (fast.norm(dim=1) - 1).abs().max() < 1e-6
    cosines = cosine_similarity(exact, fast)
    assert cosines.min() > least
    assert cosines.max() < 1 - 1e-7
    single = torch.cat([embedder(crop[None]) for crop in crops])
    assert cosine_similarity(single, fast).min() > least


REDUCED = [
    ({"precision": "float16"}, "float16"),
    ({"precision": "bfloat16"}, "bfloat16"),
    ({"tf32": True}, "true"),
    ({"jpeg": "device"}, "device"),
]


@pytest.mark.parametrize(("asked", "value"), REDUCED)
@pytest.mark.parametrize("device_known", [CPU, CUDA, None], ids=str)
def test_the_mode_exact_refuses_what_is_less_exact(
    asked: dict[str, object], value: str, device_known: str | None
) -> None:
    run = RunSettings(**asked)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=rf"run\.{next(iter(asked))}.* is {value}: the store's mode is exact"):
        check_fast_mode(run, device_known)


@pytest.mark.parametrize(("asked", "value"), [each for each in REDUCED if each[1] != "bfloat16"])
def test_a_cpu_refuses_what_is_for_cuda(asked: dict[str, object], value: str) -> None:
    run = RunSettings(mode="fast", **asked)  # type: ignore[arg-type]
    with pytest.raises(BadValue, match=rf"run\.{next(iter(asked))}.* is {value}: that is for CUDA.* device is cpu"):
        check_fast_mode(run, CPU)
    check_fast_mode(run, CUDA)
    check_fast_mode(run)  # a store may be made where there is no such device


def test_a_cpu_allows_bfloat16_in_the_mode_fast() -> None:
    check_fast_mode(RunSettings(mode="fast", precision="bfloat16"), CPU)


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_float32_is_for_every_mode_and_device(mode: str, precision: str) -> None:
    for where in (CPU, CUDA, None):
        check_fast_mode(RunSettings(mode=mode, precision=precision), where)


def test_what_counts_is_the_mode_of_the_store(weights_cache: Path, tmp_path: Path) -> None:
    exact, fast = (make_identity(settings_with(weights_cache, mode=mode)) for mode in ("exact", "fast"))
    half = settings_with(weights_cache, precision="float16")
    with pytest.raises(BadValue, match=r"run\.precision.*mode is exact"):
        load_extractor(settings_of_store(half, exact, tmp_path), exact, tmp_path)
    with pytest.raises(BadValue, match=r"run\.precision.*the device is cpu"):
        load_extractor(settings_of_store(half, fast, tmp_path), fast, tmp_path)
    with pytest.raises(BadValue, match=r"run\.precision.*mode is exact"):
        make_identity(half)


def test_without_the_library_no_run_begins(
    weights_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = make_identity(settings_with(weights_cache, mode="fast"))
    settings = settings_of_store(settings_with(weights_cache, jpeg="device"), identity, tmp_path)
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, device="cuda"))
    monkeypatch.setitem(sys.modules, "nvidia", None)
    with pytest.raises(BadValue, match=r"run\.jpeg.*\.\[cuda\]"):
        load_extractor(settings, identity, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16"])
def test_the_precision_reaches_the_embedder(
    weights_cache: Path, crops: torch.Tensor, tmp_path: Path, precision: str
) -> None:
    """A run may go on with a fast store in float32; then it computes what the mode exact does."""
    identity = make_identity(settings_with(weights_cache, mode="fast"))
    settings = settings_of_store(settings_with(weights_cache, precision=precision), identity, tmp_path)
    assert settings.output_hash() == identity.output_hash
    runtime = choose_backend("auto", "cpu", weights_cache, 1)
    if precision == "bfloat16" and runtime is None:
        with pytest.raises(BadValue, match="needs OpenVINO"):
            load_extractor(settings, identity, tmp_path)
        return
    embedder = load_extractor(settings, identity, tmp_path).embedder
    exact = load_embedder(resolve(CASIA_WEBFACE, None, weights_cache), CPU, centred=True, runtime=runtime)
    expected = fast_precision(precision, "cpu", runtime)
    assert embedder.backend in {f"{exact.backend} in {used}" for used in (expected, "float32")}
    assert cosine_similarity(exact(crops), embedder(crops)).min() > 0.998
    if precision == "float32":
        assert embedder.backend == f"{exact.backend} in float32"
        torch.testing.assert_close(embedder(crops), exact(crops), atol=1e-6, rtol=0)


def test_tf32_is_switched_on_and_off_for_convolutions_on_cuda(switches: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    for allowed in (True, False, True):
        set_tf32(CUDA, allowed)
        assert torch.backends.cudnn.allow_tf32 == allowed
        check_full_precision(
            torch.device(CUDA)
        )  # the exact search has matrix products in float32, whatever the networks have
        assert not torch.backends.cuda.matmul.allow_tf32
    set_tf32(CPU, False)
    assert torch.backends.cudnn.allow_tf32


def test_a_later_look_at_the_device_leaves_the_switch(switches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directories of a server, and the sources after a run's first, ask for the device again."""
    monkeypatch.setattr("pipeline.runtime.device.cuda_problem", lambda _: None)
    _leave_tf32.cache_clear()
    torch.backends.cudnn.allow_tf32 = True  # cuDNN's default
    where = resolve_device("cuda")
    assert not torch.backends.cudnn.allow_tf32
    set_tf32(where, True)
    assert resolve_device("cuda") == where
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize(("precision", "tf32"), [("auto", "false"), ("float32", "true"), ("bfloat16", "true")])
def test_the_settings_reach_the_embedder_on_cuda(
    weights_cache: Path, tmp_path: Path, crops: torch.Tensor, switches: None, precision: str, tf32: str
) -> None:
    settings = settings_with(weights_cache, mode="fast", precision=precision, tf32=tf32)
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, device="cuda"))
    embedder = load_extractor(settings, make_identity(settings), tmp_path).embedder
    dtype = "float16" if precision == "auto" else precision
    assert embedder.backend == f"torch {torch.__version__} in {dtype}{' with TF32' if tf32 == 'true' else ''}"
    assert torch.backends.cudnn.allow_tf32 == (tf32 == "true")
    exact = load_embedder(resolve(CASIA_WEBFACE, None, weights_cache), CPU, centred=True)(crops)
    assert cosine_similarity(exact, embedder(crops).cpu()).min() > 0.998
