"""The index: appending, removing, snapshots that nothing disturbs, compaction, and the identical-image rule."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pipeline.errors import EmbeddingInvalid, UsageError
from pipeline.matching import references
from pipeline.matching.calibration import Calibration
from pipeline.matching.columns import Column
from pipeline.matching.device_products import DeviceVectors
from pipeline.matching.identical_images import ImageLookup, box_iou
from pipeline.matching.match import Matcher
from pipeline.matching.references import IndexView, ReferenceIndex, changes_since
from tests.matching.vectors import BOX, TORCH_ON_CPU, append, make_index, unit_rows, whole


def positions(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def content(view: IndexView) -> tuple[object, ...]:
    """All that a view shows, as values."""
    identical = [view.find_identical((str(number),), BOX) for number in range(60)]
    alive = [view.is_alive(position) for position in range(-1, len(view) + 1)]
    vectors = whole(view.vectors).tobytes(), whole(view.host_vectors).tobytes()
    return len(view), vectors, whole(view.order).tolist(), view.dead.tolist(), view.max_norm, identical, alive


# --- growing


def test_the_index_grows_and_keeps_everything(device: str) -> None:
    vectors = unit_rows(1, 2500, 8)
    index = ReferenceIndex(8, device)
    for start, end in [(0, 0), (0, 1), (1, 1000), (1000, 1030), (1030, 2500)]:
        before = index.view()
        append(index, vectors[start:end])
        assert len(index) == len(index.view()) == end
        assert np.array_equal(whole(before.vectors), vectors[:start])
    view = index.view()
    assert np.array_equal(whole(view.vectors), vectors)
    assert np.array_equal(whole(view.host_vectors), vectors)
    assert whole(view.order).tolist() == list(range(2500))
    assert view.view() is view


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> str:
    """torch on the CPU, as a device with memory for 500 references, and none for any product."""
    copied = DeviceVectors.copied

    def small(host: Column[np.float32], length: int, device: str) -> DeviceVectors:
        if length > 500:
            raise torch.OutOfMemoryError(f"{device} is full")
        return copied(host, length, device)

    def chunks(*_: object) -> object:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    monkeypatch.setattr(references, "_told", set())
    monkeypatch.setattr(DeviceVectors, "copied", small)
    monkeypatch.setattr(DeviceVectors, "chunks", chunks)
    return TORCH_ON_CPU


def test_where_the_device_has_too_little_memory_the_host_goes_on(
    small_device: str, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = unit_rows(1, 2500, 8)
    on_host, index = make_index(vectors[:300]), make_index(vectors[:300], device=small_device)
    assert index.device == small_device
    old, matcher = index.view(), Matcher(Calibration(), 0.54)
    expected = matcher.top_k(on_host, vectors[:9], 3)
    for found, correct in zip(matcher.top_k(old, vectors[:9], 3), expected, strict=True):
        assert np.array_equal(found, correct)
    matcher.top_k(old, vectors[:9], 3)
    assert caplog.text.count("too little memory for a search (CUDA error: CUBLAS") == 1  # not at each one
    for part in (vectors[300:600], vectors[600:1100]):
        append(on_host, part)
        append(index, part)
    assert index.device == "cpu"  # the copy of the first 600 was too much
    assert f"too little memory for all references ({small_device} is full)" in caplog.text
    assert content(index.view()) == content(on_host.view())
    assert np.array_equal(whole(old.vectors), vectors[:300])


def test_an_append_that_does_not_fit_adds_nothing() -> None:
    index, rows = make_index(unit_rows(1, 3, 4)), unit_rows(1, 2, 4)
    before = content(index.view())
    with pytest.raises(UsageError, match="2 references"):
        index.append(rows, np.arange(1), [()] * 2, np.zeros((2, 4), dtype=np.float32))
    with pytest.raises(EmbeddingInvalid):
        append(index, rows * 2)
    with pytest.raises(UsageError, match="removed"):
        append(index, rows, remove=[3])
    assert content(index.view()) == before
    with pytest.raises(UsageError, match="dimension"):
        ReferenceIndex(0)


# --- removing


def test_a_removed_reference_keeps_its_position_and_is_not_alive() -> None:
    index = make_index(unit_rows(1, 5, 8))
    index.remove(positions(3, 1))
    view = index.view()
    assert len(index) == len(view) == 5
    assert view.dead.tolist() == [1, 3]
    assert [view.is_alive(position) for position in (-1, 0, 1, 2, 3, 4, 5)] == [
        False, True, False, True, False, True, False,
    ]  # fmt: skip
    assert view.find_identical(("1",), BOX) is None
    assert view.find_identical(("2",), BOX) == 2


@pytest.mark.parametrize("wrong", [(1,), (5,), (-1,), (2, 2), (0, 1)])
def test_only_what_is_there_is_removed_and_once(wrong: tuple[int, ...]) -> None:
    index = make_index(unit_rows(1, 5, 8))
    index.remove(positions(1))
    with pytest.raises(UsageError, match="removed"):
        index.remove(positions(*wrong))
    assert index.view().dead.tolist() == [1]


def test_a_replaced_reference_is_found_at_its_new_position() -> None:
    index = make_index(unit_rows(1, 4, 8))
    append(index, unit_rows(9, 1, 8), [2], remove=[2])
    view = index.view()
    assert whole(view.order).tolist() == [0, 1, 2, 3, 2]
    assert view.find_identical(("2",), BOX) == 4
    assert view.dead.tolist() == [2]


def test_of_several_identical_references_the_lowest_order_wins_whatever_its_position() -> None:
    index = ReferenceIndex(8)
    boxes = np.tile(np.array(BOX, dtype=np.float32), (3, 1))
    index.append(unit_rows(1, 3, 8), positions(5, 9, 2), [("x",)] * 3, boxes)
    assert index.view().find_identical(("x",), BOX) == 2
    index.remove(positions(2))
    assert index.view().find_identical(("x",), BOX) == 0


# --- snapshots


def test_a_view_stays_as_it_was(device: str) -> None:
    """Through appends within the capacity, growth, removals and replacements."""
    index = ReferenceIndex(8, device)
    seen = [(index.view(), content(index.view()))]
    for step in range(12):
        start = len(index)
        append(index, unit_rows(step, 5 if step != 7 else 2000, 8))
        seen.append((index.view(), content(index.view())))
        index.remove(positions(start, start + 3))
        seen.append((index.view(), content(index.view())))
        append(index, unit_rows(step + 50, 1, 8), [start + 1], remove=[start + 1])
        seen.append((index.view(), content(index.view())))
    for view, at_the_time in seen:
        assert content(view) == at_the_time


def test_readers_without_a_lock_see_each_write_as_a_whole(full: bool) -> None:
    """Every write replaces both references of one pair: a reader that sees one old and one new has caught a tear."""
    index, matcher = ReferenceIndex(8), Matcher(Calibration(), 4.0)
    pair = unit_rows(1, 2, 8)
    append(index, pair)
    done, seen, torn = threading.Event(), [0, 0, 0], []

    def read(reader: int) -> None:
        while not done.is_set():
            view = index.view()
            best, _ = matcher.top_k(view, pair[:1], 3)
            alive = [p for p in best[0].tolist() if p >= 0]
            expected = [len(view) - 2, len(view) - 1]
            identical = [view.find_identical((h,), BOX) for h in "01"]
            if sorted(alive) != expected or identical != expected:
                torn.append((alive, identical, len(view)))
            seen[reader] += 1

    readers = [threading.Thread(target=read, args=(reader,)) for reader in range(3)]
    for reader in readers:
        reader.start()
    writes = 0
    while writes < (1500 if full else 200) or min(seen) < 20:
        append(index, pair, [0, 1], remove=[len(index) - 2, len(index) - 1])
        writes += 1
    done.set()
    for reader in readers:
        reader.join()
    assert not torn
    assert len(index) == 2 * writes + 2


# --- what changed


def test_changes_are_what_was_appended_and_what_died() -> None:
    index = make_index(unit_rows(1, 4, 8))
    index.remove(positions(0))
    old = index.view()
    append(index, unit_rows(5, 3, 8), remove=[2])
    index.remove(positions(5))
    changes = changes_since(old, index.view())
    assert changes is not None
    assert changes.appended == range(4, 7)
    assert changes.removed.tolist() == [2, 5]
    nothing = changes_since(old, old)
    assert nothing is not None
    assert (len(nothing.appended), nothing.removed.tolist()) == (0, [])


def test_positions_of_another_index_do_not_carry_over() -> None:
    index = make_index(unit_rows(1, 4, 8))
    compacted, _ = index.compacted()
    assert changes_since(index.view(), compacted.view()) is None
    assert changes_since(index.view(), make_index(unit_rows(1, 4, 8)).view()) is None


# --- compaction


def test_a_compacted_copy_holds_the_live_rows_in_their_order(device: str) -> None:
    index = make_index(unit_rows(1, 50, 8), device=device)
    append(index, unit_rows(7, 2, 8), [3, 4], remove=[3, 4])
    index.remove(positions(*range(10, 40)))
    before = content(index.view())
    copy, kept = index.compacted()
    assert kept.tolist() == [0, 1, 2, *range(5, 10), *range(40, 52)]
    old, new = index.view(), copy.view()
    assert np.array_equal(whole(new.host_vectors), old.vectors_at(kept))
    assert np.array_equal(whole(new.vectors), whole(old.vectors)[kept])
    assert whole(new.order).tolist() == old.orders_at(kept).tolist()
    assert len(new.dead) == 0
    assert new.find_identical(("41",), BOX) == kept.tolist().index(41)
    assert new.find_identical(("3",), BOX) == kept.tolist().index(50)
    assert new.find_identical(("12",), BOX) is None
    append(copy, unit_rows(8, 1, 8), [90])
    assert copy.view().find_identical(("90",), BOX) == len(kept)
    assert content(old) == before


def test_everything_can_be_removed_and_compacted() -> None:
    index = make_index(unit_rows(1, 3, 8))
    index.remove(np.arange(3))
    copy, kept = index.compacted()
    assert (len(copy), len(kept)) == (0, 0)
    append(copy, unit_rows(1, 2, 8))
    assert copy.view().find_identical(("1",), BOX) == 1


def test_compaction_is_worth_it_for_a_quarter_and_a_thousand() -> None:
    small, large = make_index(unit_rows(1, 1500, 8)), make_index(unit_rows(1, 6000, 8))
    small.remove(np.arange(1023))
    large.remove(np.arange(1500))
    assert not small.worth_compacting
    assert not large.worth_compacting
    small.remove(positions(1023))
    large.remove(positions(1500))
    assert small.worth_compacting
    assert large.worth_compacting


# --- the identical-image rule


def test_the_image_lookup_finds_the_earliest_with_enough_overlap() -> None:
    images = ImageLookup()
    images.add(7, 0, ("bytes", "pixels"), [0, 0, 10, 10])
    images.add(3, 1, ("pixels",), [0, 0, 10, 10])
    images.add(1, 2, ("pixels",), [20, 0, 30, 10])
    assert images.find(("bytes",), [0, 0, 10, 20]) == 0
    assert images.find(("bytes", "pixels"), [0, 0, 10, 10]) == 1
    assert images.find(("pixels",), [20, 0, 30, 10]) == 2
    assert images.find(("bytes",), [0, 0, 10, 20.1]) is None
    assert images.find((), [0, 0, 10, 10]) is None


@pytest.mark.parametrize(
    ("a", "b", "iou"),
    [
        ([0, 0, 2, 2], [0, 0, 2, 2], 1.0),
        ([0, 0, 2, 2], [1, 1, 3, 3], 1 / 7),
        ([0, 0, 2, 2], [2, 0, 4, 2], 0.0),
        ([0, 0, 0, 0], [0, 0, 0, 0], 0.0),
    ],
)
def test_box_iou(a: list[float], b: list[float], iou: float) -> None:
    assert box_iou(a, b) == box_iou(b, a) == iou


def test_a_part_of_a_view_is_searched_alone() -> None:
    index = make_index(unit_rows(1, 6, 8))
    index.remove(positions(1, 4))
    part = index.view().part(range(3, 6))
    assert len(part) == 3
    assert part.dead.tolist() == [1]
    best, _ = Matcher(Calibration(), 0.54).top_k(part, unit_rows(1, 6, 8)[5:], 3)
    assert best[0, 0] == 2
    assert sorted(best[0].tolist()) == [-1, 0, 2]
