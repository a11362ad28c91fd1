"""Frozen parts: an index over them answers as one with the same references in memory, and reads only what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipeline.errors import StoreDamaged
from pipeline.matching.calibration import Calibration
from pipeline.matching.columns import Column
from pipeline.matching.int8_filter import CodeColumns, candidates
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex, changes_since
from tests.matching.frozen_parts import CheckedRows, Part, split_index
from tests.matching.vectors import BOX, append, coded, unit_rows, whole

MATCHER = Matcher(Calibration(1.306), 0.54)


def make_part(seed: int, count: int, size: int, dead: tuple[int, ...] = ()) -> Part:
    """References numbered by their rows, each with its number as the hash of its image."""
    vectors, order = CheckedRows(unit_rows(seed, count, size)), CheckedRows(np.arange(count, dtype=np.int64))
    boxes = CheckedRows(np.tile(np.float32(BOX), (count, 1)))
    return Part(vectors, order, boxes, [(str(row),) for row in range(count)], np.array(dead, dtype=np.int64))


def test_making_an_index_reads_no_rows_and_neither_does_a_change() -> None:
    parts = [make_part(seed, 300, 8, dead=(3,)) for seed in range(4)]
    index = ReferenceIndex(8, quantized=True, frozen=parts)
    assert (len(index), index.tail_start, index.memory_bytes) == (1200, 1200, 0)
    append(index, unit_rows(9, 5, 8), remove=[4])
    index.remove(np.array([0, 1202]))
    compacted, _ = index.compacted()
    assert index.view().dead.tolist() == [0, 3, 4, 303, 603, 903, 1202]
    assert compacted.view().dead.tolist() == [0, 3, 4, 303, 603, 903]
    assert sum(part.rows_read for part in parts) == 0
    assert index.memory_bytes == 5 * 4 * 8


@pytest.mark.parametrize("cuts", [(), (0,), (7,), (40,), (5, 5, 23), (1, 2, 3, 39), (13, 40)])
def test_identical_images_are_found_in_all_parts(cuts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(cuts))
    order, dead = rng.permutation(90)[:40].tolist(), np.flatnonzero(rng.random(40) < 0.3).tolist()
    hashes = [("abc"[a], "pqr"[p]) for a, p in rng.integers(3, size=(40, 2))]
    boxes = np.float32([BOX, [0, 0, 10, 20], [0, 0, 10, 21]])[rng.integers(3, size=40)]
    plain, split = (split_index(unit_rows(1, 40, 8), order, hashes, boxes, dead, some).view() for some in ((), cuts))
    answers = set()
    for asked in [("a",), ("b", "p"), ("c", "r"), ("q", "none"), ()]:
        for box in (BOX, [0, 0, 10, 21], [1, 0, 11, 10], [50, 50, 60, 60]):
            expected = plain.find_identical(asked, box)
            assert split.find_identical(asked, box) == expected
            for position in range(-1, 41):
                assert split.is_of(position, asked, box) == plain.is_of(position, asked, box)
            answers.add(expected)
    assert len(answers) > 3
    assert [split.is_alive(p) for p in range(-1, 41)] == [plain.is_alive(p) for p in range(-1, 41)]


@pytest.mark.parametrize("rows", [range(0), range(3, 3), range(2), range(4, 17), range(10, 30), range(29, 30)])
def test_a_part_of_a_view_may_cover_any_rows(rows: range, device: str) -> None:
    vectors, boxes = unit_rows(1, 30, 8), np.tile(np.float32(BOX), (30, 1))
    for cuts in ((), (5, 12, 20), (30,)):
        index = split_index(vectors, range(30), [()] * 30, boxes, [1, 6, 7, 25], cuts, device, quantized=True)
        part = index.view().part(rows)
        alive = [p for p in rows if p not in (1, 6, 7, 25)]
        assert len(part) == len(rows)
        assert np.array_equal(whole(part.vectors), vectors[rows.start : rows.stop])
        assert whole(part.order).tolist() == list(rows)
        found = MATCHER.nearest(part, vectors[:3], 30).positions
        assert sorted(found[0][found[0] >= 0].tolist()) == [p - rows.start for p in alive]


def test_compaction_leaves_frozen_parts_alone() -> None:
    vectors, boxes = unit_rows(1, 30, 8), np.tile(np.float32(BOX), (30, 1))
    hashes = [(str(p),) for p in range(30)]
    index = split_index(vectors, range(30), hashes, boxes, [0, 6, 7, 22, 25], (5, 20), quantized=True)
    copy, kept = index.compacted()
    assert kept.tolist() == [20, 21, 23, 24, 26, 27, 28, 29]
    old, new = index.view(), copy.view()
    assert (len(new), copy.tail_start, new.dead.tolist()) == (28, 20, [0, 6, 7])
    assert np.array_equal(whole(new.host_vectors), vectors[[*range(20), *kept]])
    assert new.orders_at(np.arange(20, 28)).tolist() == kept.tolist()
    assert new.max_norm == old.max_norm
    assert new.find_identical(("26",), BOX) == 24
    assert new.find_identical(("4",), BOX) == 4
    assert new.find_identical(("6",), BOX) is new.find_identical(("22",), BOX) is None
    assert changes_since(old, new) is None
    append(copy, unit_rows(8, 1, 8), [90])
    assert copy.view().find_identical(("90",), BOX) == 28


def test_only_dead_rows_of_the_tail_are_worth_compacting() -> None:
    index = ReferenceIndex(8, frozen=[make_part(1, 3000, 8, dead=tuple(range(900)))])
    append(index, unit_rows(2, 2000, 8))
    index.remove(np.arange(900, 3000))
    index.remove(np.arange(3000, 4023))
    assert not index.worth_compacting
    index.remove(np.array([4023]))
    assert index.worth_compacting


def test_what_is_damaged_is_met_when_it_is_read() -> None:
    part = make_part(1, 100, 8)
    part.vectors.damaged, part.boxes.damaged = [60], [70]
    index = ReferenceIndex(8, frozen=[part])
    view, queries = index.view(), unit_rows(2, 100, 8)
    assert MATCHER.nearest(view.part(range(60)), queries, 1).positions.shape == (100, 1)
    assert view.find_identical(("60",), BOX) == 60
    with pytest.raises(StoreDamaged):
        MATCHER.nearest(view, queries, 1)
    with pytest.raises(StoreDamaged):
        view.find_identical(("70",), BOX)


class Mapped(CheckedRows[Any]):
    """The rows of a file."""

    def __init__(self, array: npt.NDArray[Any], path: Path) -> None:
        path.write_bytes(array.tobytes())
        super().__init__(array)
        self.array = np.memmap(path, array.dtype, "r", shape=array.shape)


@pytest.mark.parametrize("queries", [1, 40])
def test_files_are_searched_where_they_are(queries: int, tmp_path: Path, device: str) -> None:
    part = make_part(1, 3000, 16, dead=(17,))
    for name in ("vectors", "order", "boxes", "codes", "scales", "errors"):
        setattr(part, name, Mapped(getattr(part, name).array, tmp_path / name))
    frozen = ReferenceIndex(16, device, quantized=True, frozen=[part, make_part(5, 50, 16)])
    plain = ReferenceIndex(16, device, quantized=True)
    for rows in (unit_rows(1, 3000, 16), unit_rows(5, 50, 16)):
        append(plain, rows, list(range(len(rows))))
    plain.remove(np.array([17]))
    for index in (frozen, plain):
        append(index, unit_rows(3, 9, 16))
    asked = np.concatenate([unit_rows(1, 30, 16), unit_rows(4, 10, 16)])[-queries:]
    for found, expected in zip(MATCHER.top_k(frozen, asked, 5), MATCHER.top_k(plain, asked, 5), strict=True):
        assert found.tobytes() == expected.tobytes()


def test_the_filter_answers_by_positions_in_all_parts() -> None:
    vectors = unit_rows(1, 4000, 64)
    queries = vectors[[0, 81, 3999]]
    starts = np.arange(0, 4000, 40)

    def parted(array: npt.NDArray[Any]) -> Column[Any]:
        return Column([CheckedRows(array[start : start + 40]) for start in starts], starts, 0, len(array))

    columns = CodeColumns(*map(parted, coded(vectors)))
    kept = candidates(columns, np.array([7, 81]), queries, 1, 1.001, 1e-12, 0.9)
    assert kept is not None
    assert [positions.tolist() for positions in kept] == [[0], [], [3999]]
