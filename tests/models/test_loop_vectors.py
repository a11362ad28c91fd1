"""The compiled loops on a processor with shorter vectors than this one may have."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.models.loops import load_kernels

PROGRAM = """
import llvmlite.binding as llvm
import numpy as np
import torch
from torch.nn import functional

features = llvm.get_host_cpu_features()
features["avx512f"] = False
llvm.get_host_cpu_features = lambda: features

from pipeline.models.layers import Convolution, Pool, Step
from pipeline.models.loops import Loops, load_kernels

assert load_kernels().LANES == 8
random = np.random.default_rng(0)

def convolution(outputs, channels, *taps, **options):
    weights = random.normal(size=(outputs, channels, *taps)) / np.sqrt(channels * taps[0] * taps[1] / 2)
    return Convolution(weights.astype(np.float32), random.normal(size=outputs).astype(np.float32), **options)

layers = [
    convolution(8, 3, 3, 3, step=2, relu=True),
    convolution(24, 8, 3, 3, relu=True),
    Pool(3, 2),
    convolution(16, 24, 3, 3, padding=(1, 1), relu=True),
    convolution(40, 16, 3, 3, step=2, relu=True),
    convolution(24, 40, 1, 1),
    convolution(32, 24, 1, 7, padding=(0, 3), relu=True),
    convolution(8, 32, 7, 1, padding=(3, 0), relu=True),
]
steps = [Step(layer, f"v{i}", f"v{i + 1}") for i, layer in enumerate(layers)]
x = random.normal(size=(5, 3, 75, 75)).astype(np.float32)
found = Loops(steps, "v0", f"v{len(layers)}", x.shape[1:])(x)
value = torch.from_numpy(x).double()
for layer in layers:
    if isinstance(layer, Pool):
        value = functional.max_pool2d(value, layer.side, layer.step)
    else:
        weights, bias = torch.from_numpy(layer.weights).double(), torch.from_numpy(layer.bias).double()
        value = functional.conv2d(value, weights, bias, stride=layer.step, padding=layer.padding)
        value = value.relu() if layer.relu else value
assert found.shape == (5, 8, 8, 8), found.shape
np.testing.assert_allclose(found, value.numpy(), atol=5e-5 * float(value.abs().max()), rtol=0)
"""


@pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names a processor of this family")
def test_vectors_of_eight_give_the_same(tmp_path: Path) -> None:
    """Compiled for a processor with AVX2 and nothing newer."""
    haswell = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **haswell}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
