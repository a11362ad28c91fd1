"""Search against brute force by the exact score, bit for bit: int8 copy, frozen parts, dead rows, ties."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from pipeline.matching import device_products, int8_filter, match, products
from pipeline.matching.calibration import Calibration
from pipeline.matching.int8_filter import candidates
from pipeline.matching.match import Matcher, Nearest
from pipeline.matching.references import IndexView
from pipeline.runtime.threads import using_threads
from pipeline.types import FloatArray, IntArray
from tests.matching.frozen_parts import split_index
from tests.matching.vectors import BOX, unit

KINDS = ("random", "clustered", "copies", "near ties", "one large", "orthogonal")


@dataclass
class Case:
    vectors: FloatArray
    order: IntArray
    dead: IntArray
    queries: FloatArray
    k: int
    exponent: float
    threshold: float
    matching: bool
    parts: int  # codes in a part
    room: int  # for candidates of a part
    chunk: int  # references in a product
    cuts: list[int]  # the ends of frozen parts


def make_rows(rng: np.random.Generator, kind: str, count: int, size: int) -> FloatArray:
    """Float32 rows of norm 1 of one kind; `size` is at least 2."""
    noise = rng.standard_normal((count, size))
    centres = rng.standard_normal((max(1, count // 10), size))[rng.integers(max(1, count // 10), size=count)]
    if kind == "random":
        return unit(noise)
    if kind == "clustered":
        return unit(centres + rng.choice([1e-3, 0.03, 0.3]) * noise)
    if kind == "copies":
        return unit(centres)
    if kind == "near ties":  # float32 neighbours: dots that differ in the last bits, or not at all
        rows = unit(centres)
        return np.nextafter(rows, rng.choice([-2, 0, 2], rows.shape).astype(np.float32)).astype(np.float32)
    if kind == "one large":  # what an even quantiser is worst at
        rows = 10.0 ** rng.uniform(-8, -1, (count, 1)) * noise
        rows[np.arange(count), rng.integers(size, size=count)] = rng.choice([-1.0, 1.0], count)
        return unit(rows)
    rows = np.zeros((count, size))
    rows[np.arange(count), rng.integers(size, size=count)] = rng.choice([-1.0, 1.0], count)
    return rows.astype(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size, count = draw(st.sampled_from([2, 3, 16, 65, 512])), draw(st.sampled_from([1, 2, 30, 64, 65, 200]))
    kind, asked = draw(st.sampled_from(KINDS)), draw(st.sampled_from(["stored", "near", *KINDS]))
    dead_share = draw(st.sampled_from([0.0, 0.0, 0.1, 0.9, 1.0]))
    k = draw(st.sampled_from([1, 1, 3, 10, 250]))
    exponent = draw(st.sampled_from([1.0, 0.25, 1.306, 4.0]))
    threshold = draw(st.sampled_from([0.54, 0.0, 1.0, 3.9, 4.0]))
    matching, parts = draw(st.booleans()), draw(st.sampled_from([2**24, 2**10, 1]))
    room, chunk = draw(st.sampled_from([1024, 5])), draw(st.sampled_from([2048, 7, 1]))
    frozen = draw(st.sampled_from([1, 2, 3, 9]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    vectors = make_rows(rng, kind, count, size)
    if asked in ("stored", "near"):
        queries = vectors[rng.integers(count, size=3)].astype(np.float64)
        queries = unit(queries + (1e-3 if asked == "near" else 0.0) * rng.standard_normal(queries.shape))
    else:
        queries = make_rows(rng, asked, 3, size)
    return Case(
        vectors=vectors,
        order=rng.permutation(3 * count)[:count].astype(np.int64),
        dead=np.flatnonzero(rng.random(count) < dead_share),
        queries=queries,
        k=k,
        exponent=exponent,
        threshold=threshold,
        matching=matching,
        parts=parts,
        room=room,
        chunk=chunk,
        cuts=np.sort(rng.integers(count + 1, size=frozen)).tolist(),
    )


def make_view(case: Case, *, quantize: bool, device: str = "cpu", frozen: bool = False) -> IndexView:
    """`frozen`: with frozen parts, else all in memory."""
    boxes, cuts = np.tile(np.float32(BOX), (len(case.vectors), 1)), case.cuts if frozen else []
    orders, hashes = case.order.tolist(), [()] * len(case.vectors)
    dead = case.dead.tolist()
    return split_index(case.vectors, orders, hashes, boxes, dead, cuts, device, quantized=quantize).view()


def brute_force(case: Case) -> Nearest:
    matcher, count = Matcher(Calibration(case.exponent), case.threshold), len(case.vectors)
    shape = len(case.queries), case.k
    nearest = Nearest(np.full(shape, -1, dtype=np.int64), np.full(shape, np.nan), np.full(shape, -np.inf))
    alive = np.setdiff1d(np.arange(count), case.dead)
    for row, query in enumerate(case.queries):
        distances = matcher.distances(np.repeat(query[None], count, axis=0), case.vectors)
        ranks = matcher.ranks(distances)
        best = sorted(alive.tolist(), key=lambda p: (-ranks[p], case.order[p]))[: case.k]
        if case.matching:
            best = [p for p in best if matcher.threshold > 0 and matcher.scores(distances)[p] >= 1.0]
        nearest.positions[row, : len(best)] = best
        nearest.distances[row, : len(best)] = distances[best]
        nearest.ranks[row, : len(best)] = ranks[best]
    return nearest


def search(case: Case, view: IndexView) -> Nearest:
    with (
        patch.object(match, "_FEW_ROWS", 1),
        patch.multiple(products, _CHUNK=case.chunk, _ELEMENTS=1, _LEAST_ROWS=1, MOST_ROWS=case.chunk + 1),
        patch.multiple(device_products, _CHUNK=case.chunk, _ELEMENTS=1, MOST_ROWS=case.chunk + 1),
        patch.object(match, "_PENDING", 2 * case.chunk),
        patch.object(int8_filter, "_PART_CODES", case.parts),
        using_threads(3),
        patch.object(int8_filter, "_LEAST_ROOM", case.room),
    ):
        matcher = Matcher(Calibration(case.exponent), case.threshold)
        return matcher.nearest(view, case.queries, case.k, matching=case.matching)


def assert_same(got: Nearest, expected: Nearest) -> None:
    assert got.positions.tolist() == expected.positions.tolist()
    assert got.distances.tobytes() == expected.distances.tobytes()  # bits, not tolerance
    assert got.ranks.tobytes() == expected.ranks.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [True, False], ids=["int8", "float32"])
def test_search_is_brute_force_bit_for_bit(quantize: bool, device: str, full: bool) -> None:
    @settings(max_examples=300 if full else 80, suppress_health_check=[HealthCheck.too_slow])
    @given(cases())
    def check(case: Case) -> None:
        expected = brute_force(case)
        for frozen in (False, True):
            view = make_view(case, quantize=quantize, device=device, frozen=frozen)
            assert (view.codes is not None) == (quantize and device == "cpu")
            assert_same(search(case, view), expected)

    check()


def test_the_cases_hold_what_they_are_for() -> None:
    """The filter must have excluded rows, been given up, met ties and dead rows, or the test above says little."""
    seen: Counter[str] = Counter()

    @seed(20250101)
    @settings(max_examples=200, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    @given(case=cases())
    def count(case: Case) -> None:
        view, expected = make_view(case, quantize=True, frozen=True), brute_force(case)
        seen["cases"] += 1
        with patch.object(int8_filter, "_LEAST_ROOM", case.room):
            assert view.codes is not None
            kept = candidates(view.codes, view.dead, case.queries, case.k, view.max_norm, 1e-12, -math.inf)
        seen["given up"] += kept is None
        alive = len(case.vectors) - len(case.dead)
        seen["excluded"] += kept is not None and min(map(len, kept)) < alive
        seen["dead"] += 0 < len(case.dead) < len(case.vectors)
        ranks = expected.ranks[np.isfinite(expected.ranks)]
        seen["several parts"] += len({0, *case.cuts, len(case.vectors)}) > 2
        seen["tail"] += case.cuts[-1] < len(case.vectors)
        seen["tie"] += len(np.unique(ranks)) < len(ranks)

    count()
    share = {what: times / seen["cases"] for what, times in seen.items()}
    assert seen["cases"] >= 150
    assert share["excluded"] >= 0.25, share
    assert share["given up"] >= 0.1, share
    assert share["dead"] >= 0.2, share
    assert share["tie"] >= 0.2, share
    assert share["several parts"] >= 0.5, share
    assert share["tail"] >= 0.5, share
