"""The compiled loops: torch's answers in float64 up to rounding, for every size, number and order of calls."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from pipeline.models import loops as module
from pipeline.models.layers import Convolution, Layer, Pair, Pool, Step, Unfit
from pipeline.models.loops import Loops, load_kernels
from pipeline.models.onnx_graph import Array
from pipeline.models.winograd_forms import FORMS, cheapest

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")

NAN = np.float32(np.nan)


def convolution(
    channels: int, outputs: int, taps: Pair = (3, 3), padding: Pair = (0, 0), step: int = 1, relu: bool = True
) -> Convolution:
    """Random weights that keep the size of the numbers, as a trained layer's do."""
    random = np.random.default_rng([channels, outputs, *taps])
    weights = random.normal(size=(outputs, channels, *taps)) / np.sqrt(channels * taps[0] * taps[1] / 2)
    bias = random.normal(size=outputs)
    return Convolution(weights.astype(np.float32), bias.astype(np.float32), padding, step, relu)


def pointwise(channels: int, outputs: int, relu: bool = True) -> Convolution:
    return convolution(channels, outputs, (1, 1), relu=relu)


def pictures(number: int, *shape: int) -> Array:
    return np.random.default_rng(number).normal(size=(number, *shape)).astype(np.float32)


@dataclass(frozen=True)
class Network:
    steps: list[Step]
    shape: tuple[int, int, int]
    source: str = "x"
    target: str = "y"

    def loops(self) -> Loops:
        return Loops(self.steps, self.source, self.target, self.shape)

    def some(self, number: int) -> Array:
        return pictures(number, *self.shape)

    def by_torch(self, x: Array) -> Array:
        """In float64."""
        parts = {self.source: {0: torch.from_numpy(x).double()}}
        for step in self.steps:
            read = [torch.cat([parts[name][first] for first in sorted(parts[name])], 1) for name in step.reads]
            parts.setdefault(step.target, {})[step.first] = _layer_by_torch(step.layer, *read)
        found = parts[self.target]
        return torch.cat([found[first] for first in sorted(found)], 1).numpy()

    def check(self, x: Array) -> None:
        found, expected = self.loops()(x), self.by_torch(x)
        assert (found.shape, found.dtype.name) == (expected.shape, "float32")
        np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.abs(expected).max(initial=0)), rtol=0)


def _layer_by_torch(layer: Layer, value: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, Pool):
        return functional.max_pool2d(value, layer.side, layer.step)
    weights, bias = (torch.from_numpy(part).double() for part in (layer.weights, layer.bias))
    value = functional.conv2d(value, weights, bias, layer.step, layer.padding)
    for other in added:
        value = value + other
    return value.relu() if layer.relu else value


def in_a_row(shape: tuple[int, int, int], *layers: Layer) -> Network:
    names = ["x", *(f"v{k}" for k in range(1, len(layers))), "y"]
    steps = [Step(layer, *ends) for layer, ends in zip(layers, pairwise(names), strict=True)]
    return Network(steps, shape)


def residual(source: str, target: str, channels: int, last: bool = False) -> list[Step]:
    """A block of Inception-ResNet: three branches read a value, side by side they are added to it."""
    a, b, c, both = (f"{target}-{name}" for name in ("a", "b", "c", "all"))
    return [
        Step(pointwise(channels, 16), source, both),
        Step(pointwise(channels, 16), source, a),
        Step(convolution(16, 16, padding=(1, 1)), a, both, first=16),
        Step(pointwise(channels, 32), source, b),
        Step(convolution(32, 48, padding=(1, 1)), b, c),
        Step(convolution(48, 32, (1, 3), (0, 1)), c, both, first=32),
        Step(pointwise(64, channels, relu=not last), both, target, added=source),
    ]


def reduction(source: str, target: str, channels: int) -> list[Step]:
    """Two convolutions and a pool side by side, of half the rows and columns."""
    return [
        Step(convolution(channels, 32, step=2), source, target),
        Step(pointwise(channels, 16), source, f"{target}-a"),
        Step(convolution(16, 16, step=2), f"{target}-a", target, first=32),
        Step(Pool(3, 2), source, target, first=48),
    ]


def embedder(side: int = 93) -> Network:
    """Pictures of few channels, residual blocks and reductions, from many pixels to few."""
    steps = [
        Step(convolution(3, 32, step=2), "x", "a"),
        Step(convolution(32, 48, padding=(1, 1)), "a", "b"),
        Step(Pool(3, 2), "b", "c"),
        *residual("c", "d", 48),
        *reduction("d", "e", 48),
        *residual("e", "f", 96),
        *reduction("f", "g", 96),
        *residual("g", "y", 144, last=True),
    ]
    return Network(steps, (3, side, side))


@dataclass(frozen=True)
class Kind:
    taps: Pair
    sizes: list[Pair]
    paddings: list[Pair]
    step: int = 1


SIDES = [(6, 6), (3, 3), (4, 9), (8, 8), (17, 17), (19, 35), (38, 38)]
KINDS = [
    Kind((3, 3), SIDES, [(0, 0), (1, 1)]),
    Kind((3, 3), [(5, 6)], [(1, 0), (0, 2), (3, 3)]),
    Kind((3, 3), [(1, 1), (2, 4)], [(1, 1), (3, 3)]),
    Kind((3, 3), SIDES, [(0, 0), (1, 1)], step=2),
    Kind((3, 3), [(2, 1), (7, 7)], [(3, 3)], step=2),
    Kind((1, 3), [(3, 3), (5, 9), (1, 2)], [(0, 1), (0, 3)]),
    Kind((3, 1), [(3, 3), (5, 9), (2, 1)], [(1, 0), (3, 0)]),
    Kind((1, 7), [(8, 8), (1, 8), (13, 8)], [(0, 3)]),
    Kind((7, 1), [(8, 8), (8, 1), (8, 13)], [(3, 0)]),
    Kind((1, 1), SIDES, [(0, 0)]),
]
CASES = [
    pytest.param(kind.taps, kind.step, size, padding, id=f"{kind.taps}every{kind.step}on{size}with{padding}")
    for kind in KINDS
    for size in kind.sizes
    for padding in kind.paddings
]


@pytest.mark.parametrize(("taps", "step", "size", "padding"), CASES)
def test_one_convolution(taps: Pair, step: int, size: Pair, padding: Pair) -> None:
    """With and without its ReLU."""
    for relu in (True, False):
        network = in_a_row((32, *size), convolution(32, 48, taps, padding, step, relu))
        network.check(network.some(3))


def test_these_convolutions_are_of_every_form() -> None:
    of = [cheapest(k.taps, k.step, size, padding) for k in KINDS for size in k.sizes for padding in k.paddings]
    assert {*of} == {*range(len(FORMS)), None}  # None: pointwise


@pytest.mark.parametrize("taps", [(1, 1), (3, 3)])
@pytest.mark.parametrize(("channels", "outputs"), [(16, 16), (80, 192), (48, 80), (256, 64), (512, 16), (16, 528)])
def test_channels(channels: int, outputs: int, taps: Pair) -> None:
    """Also such that the last outputs are fewer than are turned back at a time."""
    network = in_a_row((channels, 10, 9), convolution(channels, outputs, taps, (taps[0] // 2, taps[1] // 2)))
    network.check(network.some(2))


@pytest.mark.parametrize(("taps", "step"), [((3, 3), 2), ((3, 3), 1), ((5, 2), 3), ((1, 1), 1), ((1, 1), 2)])
@pytest.mark.parametrize("channels", [1, 3, 7])
def test_few_channels(channels: int, taps: Pair, step: int) -> None:
    network = in_a_row((channels, 21, 16), convolution(channels, 32, taps, step=step), pointwise(32, 16))
    network.check(network.some(5))


@pytest.mark.parametrize(("side", "step"), [(2, 2), (3, 2), (3, 1), (2, 3), (1, 2), (9, 1)])
def test_one_pool(side: int, step: int) -> None:
    network = in_a_row((32, 10, 9), Pool(side, step))
    x = network.some(3)
    np.testing.assert_array_equal(network.loops()(x), network.by_torch(x).astype(np.float32))


@pytest.mark.parametrize("number", [0, 1, 2, 7, 33, 60])
def test_any_number_of_pictures(number: int) -> None:
    network = in_a_row((16, 10, 11), convolution(16, 32))
    network.check(network.some(number))


def test_a_run_of_layers() -> None:
    """Paddings differ from layer to layer; the pool leaves a row out; the pointwise layer's pixels fill no block."""
    network = in_a_row(
        (16, 40, 25),
        convolution(16, 32),
        convolution(32, 64, padding=(1, 1)),
        Pool(3, 2),
        pointwise(64, 80),
        convolution(80, 48, padding=(1, 1), step=2),
        pointwise(48, 32, relu=False),
        Pool(2, 1),
        convolution(32, 32, (7, 1), (3, 0)),
        convolution(32, 16),
    )
    network.check(network.some(5))


def test_a_sum() -> None:
    """Behind the product, before the ReLU; of a value that is needed later, too."""
    steps = [
        Step(pointwise(32, 48, relu=False), "x", "a"),
        Step(pointwise(48, 48), "a", "b"),
        Step(pointwise(48, 48), "b", "c", added="a"),
        Step(pointwise(48, 48, relu=False), "c", "y", added="a"),
    ]
    network = Network(steps, (32, 7, 5))
    network.check(network.some(4))


def test_a_value_may_be_added_to_its_own_product() -> None:
    """Nothing else reads it; it has more channels than are written at a time."""
    steps = [
        Step(pointwise(32, 80), "x", "a"),
        Step(pointwise(80, 80, relu=False), "a", "b", added="a"),
        Step(pointwise(80, 16), "b", "y"),
    ]
    network = Network(steps, (32, 6, 6))
    network.check(network.some(3))


def test_the_source_may_be_added() -> None:
    network = Network([Step(pointwise(32, 32), "x", "a"), Step(pointwise(32, 32), "a", "y", added="x")], (32, 6, 6))
    network.check(network.some(3))


def test_values_side_by_side() -> None:
    """Of every kind of layer, made in another order than they lie in."""
    steps = [
        Step(convolution(16, 48, step=2), "x", "all", first=32),
        Step(Pool(3, 2), "x", "all", first=16),
        Step(convolution(16, 32, padding=(1, 1)), "x", "a"),
        Step(Pool(3, 2), "a", "all", first=80),
        Step(Pool(3, 2), "x", "b"),
        Step(pointwise(16, 16), "b", "all"),
        Step(convolution(112, 32), "all", "y"),
    ]
    network = Network(steps, (16, 13, 11))
    network.check(network.some(4))


def test_the_answer_may_lie_side_by_side() -> None:
    steps = [
        Step(convolution(3, 16, step=2), "x", "a"),
        Step(pointwise(16, 32), "a", "y", first=16),
        Step(convolution(16, 16, padding=(1, 1)), "a", "y"),
    ]
    network = Network(steps, (3, 20, 20))
    network.check(network.some(30))


def test_blocks_of_a_residual_network() -> None:
    """A value is read by three steps, and added."""
    steps = [*residual("x", "a", 32), *residual("a", "b", 32), *residual("b", "y", 32, last=True)]
    network = Network(steps, (32, 8, 9))
    network.check(network.some(3))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many pictures go together, whatever is best."""
    monkeypatch.setattr(module, "_PIXELS_TOGETHER", 5000)
    monkeypatch.setattr(module, "_MOST_TOGETHER", 24)


def test_parts_with_different_numbers_of_pictures(sizes: None) -> None:
    """Few large pictures go together, then more and more small ones: also where the last ones are fewer."""
    network = embedder()
    together = [part.together for part in network.loops()._parts]
    assert together == sorted({*together})
    assert len(together) > 2
    for number in (1, together[-1] + 2):
        network.check(network.some(number))


def test_what_nobody_reads_does_no_harm(sizes: None) -> None:
    """Neither before the source is read again, where fewer pictures go together, nor behind the answer."""
    dead = Step(convolution(16, 16, padding=(3, 3)), "x", "dead")
    steps = [dead, Step(Pool(3, 2), "x", "a"), Step(Pool(2, 2), "a", "y"), Step(pointwise(16, 16), "y", "late")]
    network = Network(steps, (16, 40, 40))
    network.check(network.some(9))


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Layers that read any value made before; sums and values side by side where sizes allow."""
    steps: list[Step] = []
    sizes = {"x": (draw(st.integers(5, 12)), draw(st.integers(5, 12)), 16)}
    for turn in range(draw(st.integers(1, 10))):
        source = draw(st.sampled_from(list(sizes)))
        size = sizes[source]
        channels = draw(st.sampled_from([16, 32, 48]))
        layers: list[Layer] = [
            pointwise(size[2], channels, draw(st.booleans())),
            convolution(size[2], channels, padding=(1, 1)),
            convolution(size[2], channels, (1, 3), (0, 1)),
            convolution(size[2], channels),
            convolution(size[2], channels, step=2),
            Pool(2, 2),
        ]
        able = [layer for layer in layers if min(layer.size(size)) > 0]
        layer = draw(st.sampled_from(able))
        others = [name for name, known in sizes.items() if known == layer.size(size)]
        added = draw(st.sampled_from([None, *others])) if layer is able[0] else None
        first = 0
        if draw(st.booleans()):
            alike = [each for each in able if each.size(size)[:2] == layer.size(size)[:2]]
            steps.append(Step(draw(st.sampled_from(alike)), source, f"v{turn}"))
            first = steps[-1].layer.size(size)[2]
        steps.append(Step(layer, source, f"v{turn}", first, added))
        rows, columns, channels = layer.size(size)
        sizes[f"v{turn}"] = rows, columns, first + channels
    return Network(steps, (16, *sizes["x"][:2]), target=steps[-1].target)


@settings(max_examples=100)
@given(networks(), st.sampled_from([50, 300, 5000]), st.integers(1, 9))
def test_any_network(network: Network, pixels: int, number: int) -> None:
    """However many pictures go together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIXELS_TOGETHER", pixels)
        network.check(network.some(number))


@pytest.mark.parametrize(("pixels", "most"), [(1, 24), (300, 24), (5000, 1), (5000, 5), (10**6, 10**6)])
def test_how_many_go_together_changes_no_bit(pixels: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = embedder(61)
    x = network.some(11)
    expected = network.loops()(x)
    monkeypatch.setattr(module, "_PIXELS_TOGETHER", pixels)
    monkeypatch.setattr(module, "_MOST_TOGETHER", most)
    np.testing.assert_array_equal(network.loops()(x), expected)


@pytest.fixture(scope="module")
def small() -> Network:
    return embedder(45)


def test_a_picture_does_not_depend_on_its_neighbours(small: Network) -> None:
    loops, x = small.loops(), small.some(30)
    together = loops(x)
    for k in range(len(x)):
        np.testing.assert_array_equal(loops(x[k : k + 1])[0], together[k])
    np.testing.assert_array_equal(loops(x[::-1].copy()), together[::-1])


def test_calls_leave_nothing_behind(small: Network) -> None:
    """Memory is used again: after larger numbers, or what are none, the answers are the same bits."""
    loops, x = small.loops(), small.some(3)
    expected = loops(x)
    for before in (small.some(9) * np.float32(1e6), np.full((30, *small.shape), NAN), small.some(1)):
        loops(before)
        np.testing.assert_array_equal(loops(x), expected)


def test_what_is_not_a_number_stays_in_its_picture(small: Network) -> None:
    loops, x = small.loops(), small.some(30)
    expected = loops(x)
    x[[1, 13, 29]] = NAN
    found = loops(x)
    gone = np.isin(np.arange(30), [1, 13, 29])
    np.testing.assert_array_equal(found[~gone], expected[~gone])
    assert np.isnan(found[gone]).all()


def test_what_is_not_a_number_stays_so() -> None:
    layer = convolution(16, 16)
    layer.weights[3, 2, 1, 1] = NAN
    network = in_a_row((16, 16, 16), layer, Pool(2, 2), pointwise(16, 16), convolution(16, 16))
    assert np.isnan(network.loops()(network.some(1))).all()


@pytest.mark.parametrize("at", [(i, j) for i in range(3) for j in range(3)])
def test_a_pool_keeps_what_is_not_a_number(at: Pair) -> None:
    """Wherever it lies among the pixels."""
    x = pictures(1, 16, 3, 3)
    x[0, 5, at[0], at[1]] = NAN
    found = in_a_row((16, 3, 3), Pool(3, 1)).loops()(x)
    assert np.isnan(found).ravel().tolist() == [c == 5 for c in range(16)]


def test_threads_may_share_it(small: Network) -> None:
    loops = small.loops()
    batches = [small.some(2 + k % 3) * np.float32(k + 1) for k in range(16)]
    expected = [loops(x) for x in batches]
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(loops, batches), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_input_is_left_as_it_is(small: Network) -> None:
    for network in (small, in_a_row((16, 8, 8), convolution(16, 16, padding=(1, 1)))):
        x = network.some(2)
        before = x.copy()
        network.loops()(x)
        np.testing.assert_array_equal(x, before)


def test_answers_are_not_written_again(small: Network) -> None:
    loops, x = small.loops(), small.some(2)
    found = loops(x)
    before = found.copy()
    loops(x * 2)
    np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("shape", [(2, 16, 9, 8), (2, 16, 8, 9), (2, 32, 8, 8), (16, 8, 8), (0, 16, 8, 7)])
def test_pictures_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    loops = in_a_row((16, 8, 8), convolution(16, 16)).loops()
    with pytest.raises(ValueError, match=r"^pictures must be \[16, 8, 8\], not "):
        loops(np.zeros(shape, np.float32))


PLAIN = convolution(16, 16, padding=(1, 1))
ONE = pointwise(16, 16)
UNFIT: dict[str, tuple[tuple[int, int, int], Sequence[Step], str]] = {
    "read before it is made": ((16, 9, 9), [Step(PLAIN, "a", "y")], "a is read before it is made"),
    "parts of several sizes": (
        (16, 9, 9),
        [Step(PLAIN, "x", "y"), Step(Pool(2, 2), "x", "y", first=16)],
        r"parts of 4 x 4 and \(9, 9\)",
    ),
    "no pixel is left": ((16, 2, 9), [Step(convolution(16, 16), "x", "y")], "parts of 0 x 7"),
    "a sum of other sizes": (
        (16, 9, 9),
        [Step(Pool(2, 2), "x", "a"), Step(ONE, "a", "y", added="x")],
        "x is added to",
    ),
    "a sum of other channels": ((16, 9, 9), [Step(pointwise(16, 32), "x", "y", added="x")], "x is added to"),
    "a sum with what is not made": ((16, 9, 9), [Step(ONE, "x", "y", added="a")], "a is added to"),
    "a sum behind pixels' neighbours": ((16, 9, 9), [Step(PLAIN, "x", "y", added="x")], r"a convolution of \(3, 3\)"),
    "weights of other channels": ((32, 9, 9), [Step(PLAIN, "x", "y")], "32 channels, and weights"),
    "channels that fill no vectors": ((20, 9, 9), [Step(convolution(20, 16), "x", "y")], "20 channels, and weights"),
    "outputs that fill no vectors": ((16, 9, 9), [Step(convolution(16, 20), "x", "y")], "16 channels, and weights"),
    "a pool that fills no vectors": ((3, 9, 9), [Step(Pool(2, 2), "x", "y")], "a pool of 3 channels"),
    "zeros around few channels": (
        (3, 9, 9),
        [Step(convolution(3, 16, padding=(1, 1)), "x", "y")],
        "padding around few channels",
    ),
    "few channels read twice": (
        (3, 9, 9),
        [Step(convolution(3, 16), "x", "a"), Step(convolution(3, 16), "x", "y")],
        "x, which has few channels, is read twice",
    ),
    "no form": ((16, 9, 9), [Step(convolution(16, 16, (5, 5)), "x", "y")], r"a convolution of \(5, 5\) every 1"),
    "no form of this step": ((16, 9, 9), [Step(replace(ONE, step=2), "x", "y")], r"of \(1, 1\) every 2 pixels"),
    "more zeros than weights": (
        (16, 9, 9),
        [Step(replace(PLAIN, padding=(0, 4)), "x", "y")],
        r"a convolution of \(3, 3\)",
    ),
}


@pytest.mark.parametrize(("shape", "steps", "reason"), UNFIT.values(), ids=UNFIT)
def test_steps_that_the_loops_cannot_do(shape: tuple[int, int, int], steps: Sequence[Step], reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        Loops(steps, "x", "y", shape)


def test_without_numba_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_kernels", lambda: None)
    with pytest.raises(Unfit, match="the compiled loops need numba"):
        in_a_row((16, 9, 9), PLAIN).loops()


@pytest.mark.parametrize(("features", "lanes"), [({"avx512f": True}, 16), ({"avx512f": False}, 8), ({}, 8), (None, 8)])
def test_vectors_are_as_long_as_the_processors(
    features: dict[str, bool] | None, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLVM cannot tell of every processor what it has."""
    from pipeline.models import loop_instructions

    def known() -> dict[str, bool]:
        if features is None:
            raise RuntimeError("failed to get host cpu features")
        return features

    monkeypatch.setattr(loop_instructions.llvm, "get_host_cpu_features", known)
    assert loop_instructions._lanes() == lanes
