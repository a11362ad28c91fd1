"""Where a network is cut for the compiled loops, and that its answers stay torch's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.models.loops import load_kernels
from pipeline.models.onnx_graph import read_onnx, read_outputs
from pipeline.models.onnx_runtime import OnnxNetwork
from pipeline.models.onnx_split import GraphPart, Run, cut
from pipeline.models.onnx_trace import INPUT, trace
from pipeline.models.onnx_write import write_onnx

Shape = tuple[int, int, int]
Tensor = torch.Tensor

SHAPE = (64, 19, 17)
WHOLE = "not cut"

needs_numba = pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")


def conv(channels: int = 64, outputs: int = 64, side: int = 3, **options: Any) -> nn.Module:
    return nn.Conv2d(channels, outputs, side, **options)


def relu(channels: int = 64, outputs: int = 64, side: int = 3, **options: Any) -> nn.Module:
    return nn.Sequential(conv(channels, outputs, side, **options), nn.ReLU())


def same(channels: int = 64, outputs: int = 64) -> nn.Module:
    """As many pixels as before."""
    return conv(channels, outputs, padding=1)


def point(channels: int = 64, outputs: int = 64) -> nn.Module:
    return conv(channels, outputs, 1)


def slopes(channels: int = 64) -> nn.Module:
    """What the loops cannot do."""
    layer = nn.PReLU(channels)
    layer.weight.data.uniform_(-0.5, 0.5)
    return layer


class Net(nn.Module):
    """What a function makes of the input with some layers."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.layers)


@dataclass(frozen=True)
class Case:
    network: nn.Module
    kinds: str  # of the parts: a Run, or a Graph for onnxruntime
    shape: Shape = SHAPE


def joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


def behind(first: nn.Module, use: Callable[..., Any], *layers: nn.Module) -> nn.Module:
    """What a function makes of the first layer's answer."""
    return Net(lambda x, first, *others: use(first(x), *others), first, *layers)


def residual(last: nn.Module) -> nn.Module:
    return behind(relu(), lambda y, a, b, c: c(b(a(y)) * 0.17 + y), same(), point(), last)


CASES = {
    # One convolution, and a row of them.
    "all of it": Case(relu(), "R"),
    "without ReLU": Case(conv(), "R"),
    "without bias": Case(conv(bias=False), "R"),
    "every second pixel": Case(relu(stride=2), "R"),
    "wide padding": Case(relu(padding=3), "R"),
    "along one axis": Case(nn.Sequential(relu(side=(1, 3), padding=(0, 1)), relu(side=(3, 1))), "R"),
    "one behind another": Case(nn.Sequential(relu(), relu(64, 80)), "R"),
    "the pools and pointwise layers between": Case(
        nn.Sequential(relu(64, 32), nn.MaxPool2d(3, 2), relu(32, 64, 1), relu(padding=1)), "R"
    ),
    "the pools and pointwise layers around": Case(
        nn.Sequential(nn.MaxPool2d(2, 2), relu(side=1), relu(), point(), nn.MaxPool2d(2, 2)), "R"
    ),
    # What is around it.
    "the beginning": Case(nn.Sequential(relu(), slopes()), "RG"),
    "the end": Case(nn.Sequential(slopes(), relu()), "GR"),
    "the middle": Case(nn.Sequential(slopes(), relu(), relu(), slopes()), "GRG"),
    "a value that goes around it": Case(behind(slopes(), lambda y, a, b: a(b(y)) * y, slopes(), same()), "GRG"),
    "an answer before it": Case(behind(slopes(), lambda y, a: (a(y), y), relu()), "GR"),
    "an answer on the way to it": Case(behind(slopes(), lambda y, a, b: (b(a(y)), y), slopes(), relu()), "GR"),
    "an answer beside it": Case(Net(lambda x, a, b: (b(x), a(x)), relu(), slopes()), "RG"),
    "an answer that is read behind it": Case(behind(relu(), lambda y, a: (y, a(y)), slopes()), "RG"),
    "an answer before it that is read behind it": Case(
        behind(slopes(), lambda y, a, b: (y, b(a(y)) + y), same(), slopes()), "GRG"
    ),
    # What is behind a convolution.
    "a factor": Case(behind(conv(), lambda y, a: a(y * -0.5), nn.ReLU()), "R"),
    "a factor behind the ReLU": Case(behind(relu(), lambda y: y * 0.5), "RG"),
    "a number that is added": Case(behind(conv(), lambda y, a: a(y) + 0.5, point()), "RG"),
    "a product with another value": Case(behind(conv(), lambda y, a: y * a(y), slopes()), "RG"),
    "a ReLU's input is read elsewhere": Case(behind(conv(), lambda y, a: joined(a(y), y), nn.ReLU()), "RG"),
    "a ReLU's input is an answer": Case(behind(conv(), lambda y, a: (a(y), y), nn.ReLU()), "RG"),
    "a factor's input is read elsewhere": Case(behind(conv(), lambda y: y * 0.5 + y), "RG"),
    "a factor's input is an answer": Case(behind(conv(), lambda y: (y * 0.5, y)), "RG"),
    "a sum's part is read elsewhere": Case(behind(same(), lambda y, a: joined(y + a(y), y), point()), WHOLE),
    "a product that is added is read elsewhere": Case(
        Net(lambda x, a, b: (lambda y: joined(y + x, y))(b(a(x))), same(), point()), "RG"
    ),
    "a scaled product is read elsewhere": Case(
        Net(lambda x, a, b: (lambda y: joined(y + x, y))(b(a(x)) * 0.5), same(), point()), "RG"
    ),
    "a sum's answer is read before the ReLU": Case(
        Net(lambda x, a, b, c: (lambda y: joined(c(y), y))(b(a(x)) + x), same(), point(), nn.ReLU()), "RG"
    ),
    "added to itself": Case(nn.Sequential(same(), Net(lambda y, a: (lambda z: z + z)(a(y)), point())), "RG"),
    # Sums.
    "a residual sum": Case(residual(relu()), "R"),
    "a residual sum the other way": Case(
        behind(relu(), lambda y, a, b, c: c(y + b(a(y)) * 0.17), same(), point(), nn.ReLU()), "R"
    ),
    "a residual sum of what comes in": Case(
        nn.Sequential(slopes(), Net(lambda x, a, b: b(a(x)) + x, same(), point())), "GR"
    ),
    "a sum that is read twice": Case(
        behind(residual(nn.ReLU()), lambda y, a, b: joined(a(y), b(y)), relu(), conv()), "R"
    ),
    "added to its own product": Case(nn.Sequential(same(), Net(lambda y, a: a(y) + y, point()), relu()), "R"),
    "two products added": Case(behind(relu(), lambda y, a, b: a(y) + b(y) * 0.5, point(), point()), "R"),
    "what is added is made later": Case(Net(lambda x, a, b, c: a(x) + c(b(x)), point(), same(), same()), "R"),
    "a sum with a wide convolution": Case(behind(slopes(), lambda y, a: a(y) + y, same()), "GRG"),
    "a sum over all pixels": Case(
        behind(relu(), lambda y, a, b: a(y) + b(y), point(), nn.MaxPool2d(15, 1)), WHOLE, (64, 17, 17)
    ),
    # Concatenations.
    "side by side": Case(
        Net(
            lambda x, a, b, c, d: d(joined(a(x), b(x), c(x))),
            *(conv(stride=2), nn.MaxPool2d(3, 2), relu(64, 32, stride=2), relu(160, 16)),
        ),
        "R",
    ),
    "pools first": Case(
        behind(relu(), lambda y, a, b: joined(a(y), a(a(y)), b(y)), nn.MaxPool2d(1, 1), point(64, 48)), "R"
    ),
    "sums side by side": Case(behind(relu(), lambda y, a, b: joined(b(y), a(y) + y, b(y)), point(), same()), "R"),
    "a pool of what is side by side": Case(
        Net(
            lambda x, a, b, c, d: (lambda y: joined(c(y), d(y)))(joined(a(x), b(x))),
            *(relu(), conv(64, 32), nn.MaxPool2d(3, 2), conv(96, 48, stride=2)),
        ),
        "R",
    ),
    "one within another": Case(
        Net(lambda x, a, b, c: c(joined(a(x), joined(b(x), a(x)), b(x))), conv(64, 32), relu(), conv(192, 16)), "R"
    ),
    "one alone": Case(behind(conv(), lambda y, a: a(joined(y)), relu()), "R"),
    "the same value twice": Case(behind(relu(), lambda y: joined(y, y)), "RG"),
    "one part read elsewhere": Case(
        Net(lambda x, a, b, c: (lambda y: joined(joined(a(x), y), c(y)))(b(x)), conv(), conv(), same()), WHOLE
    ),
    "one part an answer": Case(Net(lambda x, a, b: (lambda y: (joined(a(x), y), y))(b(x)), relu(), conv()), WHOLE),
    "one part made elsewhere": Case(Net(lambda x, a, b: joined(a(x), b(x)), same(), slopes()), "RG"),
    "along the rows": Case(Net(lambda x, a, b: torch.cat((a(x), b(x)), 2), relu(), conv()), WHOLE),
    "one alone along the rows": Case(behind(conv(), lambda y: torch.cat((y,), 2)), "RG"),
    "a ReLU of what is side by side": Case(
        Net(lambda x, a, b, c: c(joined(a(x), b(x))), conv(), conv(), nn.ReLU()), "RG"
    ),
    # What is no part of a run.
    "spread": Case(nn.Sequential(relu(), relu(dilation=2)), "RG"),
    "groups": Case(nn.Sequential(relu(64, 128, groups=2), relu(128, 64)), "GR"),
    "odd channels": Case(nn.Sequential(relu(64, 68), relu(68, 64), relu()), "GR"),
    "unlike steps": Case(nn.Sequential(relu(stride=(1, 2)), relu()), "GR"),
    "unlike pools": Case(nn.Sequential(relu(), nn.MaxPool2d((2, 3), 2)), "RG"),
    "pools with padding": Case(nn.Sequential(relu(), nn.MaxPool2d(3, 2, padding=1)), "RG"),
    "pools beyond the end": Case(nn.Sequential(relu(), nn.MaxPool2d(2, 2, ceil_mode=True)), "RG"),
    "three channels not of the input": Case(nn.Sequential(slopes(3), relu(3, 64), relu()), "GR", (3, 21, 19)),
    # No run.
    "few channels": Case(relu(64, 48), WHOLE),
    "pointwise alone": Case(nn.Sequential(relu(64, 128, 1), nn.MaxPool2d(2, 2)), WHOLE),
    "five pixels wide": Case(nn.Sequential(relu(side=5), relu()), WHOLE),
    "two values come in": Case(Net(lambda x, a, b, c: a(x) * b(c(x)), same(), same(), slopes()), WHOLE),
    "two values go out": Case(Net(lambda x, a, b: a(x) * b(x), same(), same()), WHOLE),
    "an answer inside": Case(behind(relu(), lambda y, a: (y, a(y)), relu()), WHOLE),
    "something else in between": Case(nn.Sequential(relu(), slopes(), relu()), WHOLE),
    "pools of odd channels": Case(
        behind(slopes(20), lambda y, a, b: b(joined(*[a(y) for _ in range(4)])), nn.MaxPool2d(2, 2), relu(80)),
        WHOLE,
        (20, 19, 17),
    ),
    # The network's input of few channels.
    "three channels": Case(nn.Sequential(relu(3, 32, stride=2), relu(32, 64), relu()), "R", (3, 25, 27)),
    "three channels, pointwise": Case(nn.Sequential(relu(3, 64, 1), relu()), "R", (3, 9, 11)),
    "three channels, five pixels wide": Case(nn.Sequential(relu(3, 64, 5), relu()), "R", (3, 19, 17)),
    "three channels, read twice": Case(
        Net(lambda x, a, b: joined(a(x), b(x)), *[nn.Sequential(relu(3, 64), relu()) for _ in range(2)]),
        WHOLE,
        (3, 19, 17),
    ),
    "three channels, padded": Case(nn.Sequential(relu(3, 64, padding=1), relu()), WHOLE, (3, 19, 17)),
    "twenty channels": Case(nn.Sequential(relu(20, 64), relu()), WHOLE, (20, 19, 17)),
    # What nobody reads.
    "an unread convolution": Case(Net(lambda x, a, b: (b(x), a(x))[1], relu(), relu(padding=3)), "R"),
    "an unread convolution between": Case(
        nn.Sequential(relu(3, 64), nn.MaxPool2d(3, 2), Net(lambda x, a, b: (b(x), a(x))[1], relu(), relu(padding=2))),
        "R",
        (3, 60, 60),
    ),
    "something else unread": Case(Net(lambda x, a, b: (b(x), a(x))[1], relu(), slopes()), "R"),
}


def exported(network: nn.Module, shape: Shape) -> bytes:
    graph, outputs = trace(nn.Sequential(network).eval(), shape)
    return write_onnx(graph, {INPUT: ("n", *shape)}, outputs, {})


def kinds(model: bytes) -> str:
    outputs = read_outputs(model)
    parts = cut(read_onnx(model), outputs)
    if parts is None:
        return WHOLE
    made = {INPUT}
    for part in parts:  # in an order of evaluation, and each value made once
        graph = isinstance(part, GraphPart)
        inputs, answers = (part.inputs, part.outputs) if graph else ((part.input,), (part.output,))
        assert made.issuperset(inputs)
        assert not made.intersection(answers)
        made.update(answers)
    assert made.issuperset(outputs)
    return "".join("R" if isinstance(part, Run) else "G" for part in parts)


def check(network: nn.Module, model: bytes, shape: Shape, number: int) -> None:
    pixels = torch.randn(number, *shape, generator=torch.Generator().manual_seed(number))
    with torch.inference_mode():
        found, expected = OnnxNetwork(model, 1, split=True)(pixels), network(pixels)
    # The sums inside the transforms are larger than their answers: ten times float32's rounding.
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=1e-4)


@needs_numba
@pytest.mark.parametrize("name", CASES)
def test_it_is_cut_where_it_pays(name: str) -> None:
    case = CASES[name]
    assert kinds(exported(case.network, case.shape)) == case.kinds


@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_torchs(name: str) -> None:
    pytest.importorskip("onnxruntime")
    case = CASES[name]
    model = exported(case.network, case.shape)
    # onnxruntime alone fails for no pictures, in some networks.
    for number in (1, 9) if case.kinds == WHOLE else (0, 1, 9):
        check(case.network.eval(), model, case.shape, number)


ONE: dict[str, Callable[[], nn.Module]] = {
    "wide": same,
    "point": point,
    "ReLU": nn.ReLU,
    "pool": lambda: nn.MaxPool2d(1, 1),
    "half": lambda: Net(lambda a: a * 0.5),
    "slopes": slopes,
}
TWO: dict[str, Callable[[], nn.Module]] = {
    "sum": lambda: Net(lambda both: both[0] + both[1]),
    "side by side": lambda: Net(lambda both, a: a(joined(*both)), point(128)),
}
Program = list[tuple[str, int, int]]


class Random(nn.Module):
    """Operations that keep the shape, each of one or two of the last values; the answer is all that none of them
    reads."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.layers = nn.ModuleList([(ONE | TWO)[kind]() for kind, _, _ in program])

    def forward(self, x: Tensor) -> Tensor:
        values, read = [x], {0}
        for (kind, *places), layer in zip(self.program, self.layers, strict=True):
            chosen = [place % len(values) for place in places[: 1 + (kind in TWO)]]
            read.update(len(values) - 1 - place for place in chosen)
            several = [values[-1 - place] for place in chosen]
            values.append(layer(several if kind in TWO else several[0]))
        unread = [value for place, value in enumerate(values) if place not in read]
        return unread[0] if len(unread) == 1 else joined(*unread)


@needs_numba
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(sorted((ONE | TWO).keys() - {"slopes"})), st.integers(0, 2), st.integers(0, 5))),
    st.sampled_from(["", "before", "behind"]),
)
def test_the_answers_of_any_network_are_torchs(program: Program, place: str) -> None:
    pytest.importorskip("onnxruntime")
    slope = [("slopes", 0, 0)]
    program = slope * (place == "before") + [("wide", 0, 0), *program] + slope * (place == "behind")
    torch.manual_seed(0)
    network, shape = Random(program).eval(), (64, 6, 5)
    check(network, exported(network, shape), shape, 3)


@needs_numba
def test_what_a_run_is_made_of() -> None:
    model = exported(nn.Sequential(slopes(), residual(nn.ReLU()), nn.AdaptiveAvgPool2d(1)), SHAPE)
    graph = read_onnx(model)
    before, run, after = cut(graph, read_outputs(model)) or []
    assert isinstance(before, GraphPart)
    assert isinstance(run, Run)
    assert isinstance(after, GraphPart)
    assert [node.op for node in run.nodes] == ["Conv", "Relu", "Conv", "Conv", "Mul", "Add", "Relu"]
    assert before.outputs == (run.input,) == run.nodes[0].inputs[:1]
    assert after.inputs == (run.output,) == run.nodes[-1].outputs
    assert (*before.graph.nodes, *run.nodes, *after.graph.nodes) == graph.nodes


@needs_numba
def test_without_the_shapes_it_is_not_cut() -> None:
    graph, outputs = trace(nn.Sequential(relu()).eval(), SHAPE)
    assert cut(graph, outputs) is not None
    assert cut(type(graph)(graph.nodes, graph.constants), outputs) is None


def test_without_numba_the_network_stays_whole(tmp_path: Path) -> None:
    """And answers the same: in a process of its own, where numba cannot be imported."""
    pytest.importorskip("onnxruntime")
    network = relu().eval()
    path = tmp_path / "network.onnx"
    path.write_bytes(exported(network, SHAPE))
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from pathlib import Path; from pipeline.models.onnx_runtime import OnnxNetwork\n"
        "from pipeline.models.loops import load_kernels; assert load_kernels() is None\n"
        f"network = OnnxNetwork(Path({str(path)!r}).read_bytes(), 1, split=True)\n"
        f"print(float(network(torch.ones(1, *{SHAPE})).double().sum()))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    with torch.inference_mode():
        expected = float(network(torch.ones(1, *SHAPE)).double().sum())
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)
