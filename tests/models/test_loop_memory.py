"""The loops' memory: no value is written over while it is needed, and those that never meet share theirs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.models.layers import Convolution, Pool, Step
from pipeline.models.loop_memory import Memory, Needs, Room, View, homes_of, zeros

COPY = Pool(1, 1)
POINTWISE = Convolution(np.ones((16, 16, 1, 1), np.float32), np.zeros(16, np.float32))


@dataclass(frozen=True)
class Program:
    steps: list[Step]
    kept: list[str]
    numbers: dict[str, int]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Steps that read whole values, mostly late ones; several make the parts of one, others between them. Some values
    are never read."""
    whole, missing = ["x"], Counter[str]()
    steps: list[Step] = []
    numbers = {"x": draw(st.integers(1, 2))}
    turns = draw(st.integers(1, 15))
    while len(steps) < turns or missing:
        source = draw(st.sampled_from(whole[-2:]))
        target = draw(st.sampled_from([*sorted(missing), *(["new"] if len(steps) < turns else [])]))
        if target == "new":
            target = f"v{len(numbers)}"
            numbers[target], missing[target] = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 1, 3]))
        added = draw(st.one_of(st.none(), st.sampled_from(whole[-3:])))
        steps.append(Step(POINTWISE, source, target, first=missing[target] - 1, added=added))
        missing -= Counter([target])
        if target not in missing:
            whole.append(target)
    kept = draw(st.lists(st.sampled_from(whole[1:]), unique=True, max_size=2))
    return Program(steps, [*kept, whole[-1]], numbers)


@settings(max_examples=500)
@given(programs())
def test_no_value_is_written_over_while_it_is_needed(program: Program) -> None:
    """The steps as they are done: what lies in each piece, and how many parts of it are made."""
    homes = homes_of(program.steps, program.kept, program.numbers)
    parts = Counter(step.target for step in program.steps)
    lying, made = {homes["x"]: "x"}, Counter({"x": 0})
    for step in program.steps:
        for name in step.reads:
            assert lying[homes[name]] == name
            assert made[name] == parts[name]
        home = homes[step.target]
        assert home != homes[step.source]  # a product reads all channels of a pixel for each that it writes
        if home == homes.get(step.added or ""):
            assert program.numbers[step.added or ""] == program.numbers[step.target]
        if made[step.target]:
            assert lying[home] == step.target
        lying[home] = step.target
        made[step.target] += 1
    for name in ("x", *program.kept):
        assert [other for other, home in homes.items() if home == homes[name]] == [name]


def test_a_long_run_lies_in_few_pieces() -> None:
    names = ["x", *(f"v{k}" for k in range(20))]
    steps = [Step(COPY, source, target) for source, target in pairwise(names)]
    assert len(set(homes_of(steps, [names[-1]], dict.fromkeys(names, 7)).values())) == 4


def test_a_sum_lies_where_what_was_added_lay() -> None:
    """But for one of another size, one that is needed later, and one that is multiplied too."""
    first, last = Step(COPY, "x", "a"), Step(COPY, "sum", "y")
    steps = [first, Step(COPY, "a", "b"), Step(POINTWISE, "b", "sum", added="a"), last]
    sizes = dict.fromkeys(["x", "a", "b", "sum", "y"], 7)
    homes = homes_of(steps, ["y"], sizes)
    assert homes["sum"] == homes["a"]
    homes = homes_of(steps, ["y"], {**sizes, "sum": 8})
    assert homes["sum"] != homes["a"]
    homes = homes_of([*steps, Step(COPY, "a", "z")], ["y"], {**sizes, "z": 7})
    assert homes["sum"] != homes["a"]
    homes = homes_of([first, Step(POINTWISE, "a", "sum", added="a"), last], ["y"], sizes)
    assert homes["sum"] != homes["a"]


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 5), (2, 3, 4, 5), (1000, 33)])
def test_zeros_lie_on_lines_of_the_cache(shape: tuple[int, ...]) -> None:
    found = [zeros(*shape) for _ in range(9)]
    assert {(array.shape, array.dtype.name, array.flags.c_contiguous) for array in found} == {(shape, "float32", True)}
    assert {array.ctypes.data % 64 for array in found} == {0}
    assert not any(array.any() for array in found)


SIZES = {"x": (6, 4, 16), "a": (6, 4, 16), "b": (3, 2, 32), "c": (3, 2, 32), "y": (1, 1, 16)}


@pytest.fixture
def memory() -> Memory:
    """Of two parts: two pictures go through the first together, five through the second."""
    first = Room([Step(COPY, "x", "a"), Step(COPY, "a", "b")], [Needs(spectra=70, tile=3), Needs(each=40)], "b", 2)
    last = Room([Step(COPY, "b", "c"), Step(COPY, "c", "y")], [Needs(products=9), Needs(each=30)], "y", 5)
    return Memory(SIZES, [first, last], spare=11)


@pytest.mark.parametrize(("name", "together"), [("x", 2), ("a", 2), ("b", 5), ("c", 5), ("y", 5)])
def test_a_value_has_room_for_the_pictures_that_go_together(memory: Memory, name: str, together: int) -> None:
    """And for pixels behind the last one. A value between two parts waits there for all pictures of the later one."""
    rows, columns, channels = SIZES[name]
    assert memory.pixels(name).shape == (together * rows * columns + 11, channels)
    pictures = memory.pictures(name)
    assert len(pictures) >= together
    assert pictures.shape[1:] == SIZES[name]
    assert np.shares_memory(memory.pixels(name), pictures)


def test_values_between_parts_have_their_own_memory(memory: Memory) -> None:
    for name in ("x", "b", "y"):
        others = [other for other in SIZES if other != name]
        assert not any(np.shares_memory(memory.pixels(name), memory.pixels(other)) for other in others)
    assert np.shares_memory(memory.pixels("a"), memory.pixels("c"))


def test_scratch_is_enough_for_every_step(memory: Memory) -> None:
    assert (memory.spectra.shape, memory.products.shape, memory.tile.shape) == ((150,), (9,), (3,))


def test_a_part_sees_its_target_from_a_picture_on(memory: Memory) -> None:
    memory.pictures("b")[:] = np.arange(len(memory.pictures("b")))[:, None, None, None]
    view = View(memory, "b", 3, np.zeros((2, 3, 8, 8), np.float32))
    assert view.pictures("b")[:2, 0, 0, 0].tolist() == [3, 4]
    assert view.pixels("b")[[0, 5, 6], 0].tolist() == [3, 3, 4]
    assert view.pixels("a").ctypes.data == memory.pixels("a").ctypes.data
    view.pictures("b")[0] = 9
    assert memory.pictures("b")[2:5, 0, 0, 0].tolist() == [2, 9, 4]
