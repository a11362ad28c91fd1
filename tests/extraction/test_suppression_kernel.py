"""The kernel's comparison with torchvision finds a wrong kernel, and every architecture that we name compiles it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pipeline.extraction.detection.torch_nms import on_host
from tests.extraction.helpers import interpreted

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = triton.language


@pytest.fixture
def kernel() -> ModuleType:
    from pipeline.extraction.detection import suppression_kernel

    return suppression_kernel


@pytest.mark.slow
def test_the_kernel_passes(kernel: ModuleType, device: str) -> None:
    with interpreted(kernel) if device == "cpu" else nullcontext():
        assert kernel.self_check(torch.device(device), on_host) is None


@triton.jit
def _by_reciprocal(a1, b1, a2, b2, x1, y1, x2, y2, limit, OF_SMALLER: tl.constexpr):  # noqa: N803
    width = tl.minimum(a2[:, None], x2[None, :]) - tl.maximum(a1[:, None], x1[None, :])
    height = tl.minimum(b2[:, None], y2[None, :]) - tl.maximum(b1[:, None], y1[None, :])
    overlap = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    area, other = (a2 - a1) * (b2 - b1), (x2 - x1) * (y2 - y1)
    return overlap * tl.div_rn(1.0, area[:, None] + other[None, :] - overlap) > limit


@triton.jit
def _sides_without_the_end_pixel(a1, b1, a2, b2, x1, y1, x2, y2, limit, OF_SMALLER: tl.constexpr):  # noqa: N803
    width = tl.minimum(a2[:, None], x2[None, :]) - tl.maximum(a1[:, None], x1[None, :])
    height = tl.minimum(b2[:, None], y2[None, :]) - tl.maximum(b1[:, None], y1[None, :])
    overlap = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    area, other = ((a2 - a1) * (b2 - b1))[:, None], ((x2 - x1) * (y2 - y1))[None, :]
    if OF_SMALLER:
        return overlap > limit * tl.minimum(area, other)
    return tl.div_rn(overlap, area + other - overlap) > limit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "rule"),
    [(_by_reciprocal, "above 0.5 of the union"), (_sides_without_the_end_pixel, "above 0.7 of the smaller area")],
)
def test_a_wrong_kernel_is_found(
    kernel: ModuleType, mutant: object, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_above", mutant)
    with interpreted(kernel):
        problem = kernel.self_check(torch.device("cpu"), on_host)
    assert problem is not None
    assert rule in problem


@pytest.mark.slow
@pytest.mark.parametrize("of_smaller", [False, True])
def test_compiles(
    kernel: ModuleType, capability: int, of_smaller: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"boxes": "*fp32", "starts": "*i64", "kept": "*i1", "winners": "*fp32", "limit": "fp32"}
    values: dict[str, Any] = {"OF_SMALLER": of_smaller, "BLOCK": kernel._BLOCK}
    source = ASTSource(kernel._greedy, types | dict.fromkeys(values, "constexpr"), values)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=kernel._LAUNCH)
    assert len(compiled.asm["cubin"]) > 0
    assert "fma" not in compiled.asm["ptx"]  # fused, a product would not be rounded
