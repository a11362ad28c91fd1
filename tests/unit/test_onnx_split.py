"""Where a network is cut for the compiled loops, and that its answers stay the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.models.onnx_runtime import OnnxNetwork
from pipeline.models.onnx_split import GraphPart, Run, split
from pipeline.models.onnx_trace import INPUT, trace
from pipeline.models.onnx_write import write_onnx
from pipeline.models.winograd import Convolution, Pool, load_kernels

SHAPE = (64, 21, 19)
LANES = 16


def convolved(channels: int = 64, outputs: int = 64, side: int = 3, **options: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, outputs, side, **options), nn.ReLU())


class Branches(nn.Module):
    """A run in the middle, whose answer is read twice, beside a value that bypasses it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.run = convolved(stride=2), nn.Sequential(convolved(padding=1), convolved(64, 80, padding=1))
        self.left, self.right = convolved(80, 64, stride=2), convolved(80, 64, 1)
        self.last = convolved(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.first(x)
        y = self.run(x)
        joined = self.right(y) * 0.5 + x
        return self.left(y), self.last(joined), joined


NETWORKS = {
    "all of it": (convolved(), "R"),
    "one behind another": (nn.Sequential(convolved(), convolved(64, 80)), "R"),
    "the pools and pointwise layers between": (
        nn.Sequential(convolved(64, 32), nn.MaxPool2d(3, 2), convolved(32, 64, 1), convolved(64, 64, padding=1)),
        "R",
    ),
    "not those around": (
        nn.Sequential(nn.MaxPool2d(2, 2), convolved(64, 64, 1), convolved(), convolved(64, 64, 1), nn.MaxPool2d(2, 2)),
        "GRG",
    ),
    "the beginning": (nn.Sequential(convolved(), convolved(stride=2)), "RG"),
    "the end": (nn.Sequential(convolved(stride=2), convolved()), "GR"),
    "branches": (Branches(), "GRGRG"),
    "few channels": (convolved(64, 48), "G"),
    "odd channels": (convolved(64, 72), "G"),
    "without bias": (convolved(64, 64, bias=False), "G"),
    "without ReLU": (nn.Sequential(nn.Conv2d(64, 64, 3), nn.PReLU(64)), "G"),
    "two steps": (convolved(stride=2), "G"),
    "spread": (convolved(dilation=2), "G"),
    "groups": (convolved(64, 128, groups=2), "G"),
    "wide padding": (convolved(padding=2), "G"),
    "another side": (convolved(side=5), "G"),
}


def kinds(network: nn.Module) -> str:
    graph, outputs = trace(nn.Sequential(network).eval(), SHAPE)
    parts = split(graph, outputs, LANES)
    made = {INPUT}
    for part in parts:  # in an order of evaluation, and each value made once
        inputs, outputs_of = (
            (part.inputs, part.outputs) if isinstance(part, GraphPart) else ((part.input,), (part.output,))
        )
        assert made.issuperset(inputs)
        assert not made.intersection(outputs_of)
        made.update(outputs_of)
    assert made.issuperset(outputs)
    return "".join("R" if isinstance(part, Run) else "G" for part in parts)


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_cut_where_it_pays(name: str) -> None:
    network, expected = NETWORKS[name]
    assert kinds(network) == expected


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("number", [0, 1, 9])
def test_the_answers_are_the_same(name: str, number: int) -> None:
    pytest.importorskip("onnxruntime")
    network = nn.Sequential(NETWORKS[name][0]).eval()
    graph, outputs = trace(network, SHAPE)
    model = write_onnx(graph, {INPUT: ("n", *SHAPE)}, outputs, {})
    pixels = torch.randn(number, *SHAPE, generator=torch.Generator().manual_seed(number))
    with torch.inference_mode():
        found, expected = OnnxNetwork(model, 1, split=True)(pixels), network(pixels)
    # The sums inside Winograd's transforms are larger than their answers: ten times float32's rounding.
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=0)


def test_what_a_run_is_made_of() -> None:
    network = nn.Sequential(convolved(64, 32), nn.MaxPool2d(3, 2), convolved(32, 64, 1), convolved(64, 64, padding=1))
    graph, outputs = trace(network.eval(), SHAPE)
    (run,) = split(graph, outputs, LANES)
    assert isinstance(run, Run)
    first, pool, second, last = run.layers
    assert pool == Pool(3, 2)
    forms = [(layer.weights.shape, layer.padding) for layer in (first, second, last) if isinstance(layer, Convolution)]
    assert forms == [((32, 64, 3, 3), 0), ((64, 32, 1, 1), 0), ((64, 64, 3, 3), 1)]
    assert (run.input, run.output) == (INPUT, outputs[0])


def test_a_value_that_is_an_answer_ends_a_run() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = convolved(), convolved()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = self.first(x)
            return x, self.second(x)

    assert kinds(Two()) == "RR"


def test_without_numba_the_network_stays_whole(tmp_path: Path) -> None:
    """And answers the same: in a process of its own, where numba cannot be imported."""
    pytest.importorskip("onnxruntime")
    if load_kernels() is None:
        pytest.skip("numba is not installed")
    network = convolved().eval()
    graph, outputs = trace(network, SHAPE)
    path = tmp_path / "network.onnx"
    path.write_bytes(write_onnx(graph, {INPUT: ("n", *SHAPE)}, outputs, {}))
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from pathlib import Path; from pipeline.models.onnx_runtime import OnnxNetwork\n"
        "from pipeline.models.winograd import load_kernels; assert load_kernels() is None\n"
        f"network = OnnxNetwork(Path({str(path)!r}).read_bytes(), 1, split=True)\n"
        f"print(float(network(torch.ones(1, *{SHAPE})).double().sum()))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    with torch.inference_mode():
        expected = float(network(torch.ones(1, *SHAPE)).double().sum())
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)
