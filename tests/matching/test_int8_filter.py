"""The int8 copy: its intervals hold, it excludes most rows, and any number of threads may search it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest

from pipeline.matching import int8_filter, match
from pipeline.matching.calibration import Calibration
from pipeline.matching.int8_filter import CodeColumns, candidates
from pipeline.matching.match import Matcher
from pipeline.matching.references import IndexView, ReferenceIndex
from pipeline.matching.score import exact_dots
from pipeline.runtime.threads import own_threads
from pipeline.types import DoubleArray, FloatArray
from tests.matching.vectors import Codes, append, coded, make_index, unit, unit_rows, whole

MATCHER = Matcher(Calibration(1.306), 0.54)
NONE_DEAD = np.empty(0, dtype=np.int64)


def one_large(seed: int, count: int, size: int) -> FloatArray:
    """Rows with one component near 1 and the others of any smallness, down to denormal numbers."""
    rng = np.random.default_rng(seed)
    rows = 10.0 ** rng.uniform(-44, -1, (count, size)) * rng.choice([-1, 1], (count, size))
    rows[np.arange(count), rng.integers(size, size=count)] = rng.choice([-1, 1], count)
    return unit(rows)


def code_columns(vectors: FloatArray) -> CodeColumns:
    columns = make_index(vectors, quantized=True).view().codes
    assert columns is not None
    return columns


def intervals(codes: Codes, queries: FloatArray, max_norm: float) -> tuple[DoubleArray, DoubleArray]:
    """[m, n] the middle and half the width of the interval that must hold each exact dot."""
    asked = int8_filter._quantized(queries, max_norm)
    dots = asked.codes.astype(np.int64) @ codes.codes.astype(np.int64).T
    assert np.abs(dots).max() < 2**31
    widths = codes.errors[None].astype(np.float64) * asked.slopes[:, None] + asked.offsets[:, None]
    return dots * (codes.scales[None].astype(np.float64) * asked.units[:, None]), widths


# --- the bound


@pytest.mark.parametrize("size", [1, 2, 3, 64, 512, 517, 4000])
@pytest.mark.parametrize("rows", [unit_rows, one_large])
@pytest.mark.parametrize("asked", [unit_rows, one_large])
def test_every_exact_dot_lies_in_its_interval(rows, asked, size: int) -> None:  # type: ignore[no-untyped-def]
    vectors, queries = rows(1, 300, size), asked(2, 20, size)
    queries[:10] = vectors[:10]
    middles, widths = intervals(
        coded(vectors), queries, float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    )
    for query, middle, width in zip(queries, middles, widths, strict=True):
        dots = exact_dots(np.repeat(query[None], 300, axis=0), vectors)
        assert (np.abs(dots - middle) <= width).all()


def test_the_interval_holds_in_exact_arithmetic() -> None:
    vectors, queries = one_large(1, 12, 40), unit_rows(2, 4, 40)
    middles, widths = intervals(coded(vectors), queries, 1.001)
    for m, query in enumerate(queries):
        for n, vector in enumerate(vectors):
            dot = sum(Fraction(x) * Fraction(y) for x, y in zip(query.tolist(), vector.tolist(), strict=True))
            assert abs(dot - Fraction(float(middles[m, n]))) <= Fraction(float(widths[m, n]))


def test_the_remainder_is_never_longer_than_its_measure() -> None:
    """In exact arithmetic: the measured length of the remainder is the proof's E."""
    vectors = np.concatenate([one_large(3, 20, 33), unit_rows(4, 20, 33)])
    codes = coded(vectors)
    for row, vector in enumerate(vectors.tolist()):
        scale = Fraction(float(codes.scales[row]))
        rest = (Fraction(x) - scale * int(c) for x, c in zip(vector, codes.codes[row], strict=True))
        squares = sum(x * x for x in rest)
        assert squares <= (Fraction(float(codes.errors[row])) + Fraction(1, 2**149)) ** 2
        assert math.sqrt(squares) >= 0.999 * float(codes.errors[row]) - 1e-30


def test_the_interval_is_narrow_where_it_can_be() -> None:
    _, widths = intervals(coded(unit_rows(1, 1000, 512)), unit_rows(2, 5, 512), 1.001)
    assert widths.max() < 0.015


def test_the_longest_sums_of_codes_do_not_overflow() -> None:
    """All components equal: every code is the largest there is, and the sum the nearest to 2^31."""
    for size in (512, 516, 517, 4000):
        row = unit(np.ones((1, size)))
        codes, asked = coded(row), int8_filter._quantized(row, 1.001)
        assert (codes.codes == 127).all()
        kept = candidates(code_columns(row), NONE_DEAD, np.concatenate([row, -row]), 1, 1.001, 1e-12, 0.99)
        assert kept is not None
        assert [len(positions) for positions in kept] == [1, 0]
        assert 0.9 < 127.0 * size * int(asked.codes[0, 0]) / 2**31 < 1 or size < 516


# --- the filter


def test_the_filter_leaves_few_candidates_and_the_best_among_them() -> None:
    vectors, queries = unit_rows(1, 6000, 512), unit_rows(2, 4, 512)
    kept = candidates(code_columns(vectors), NONE_DEAD, queries, 10, 1.001, 1e-12, -math.inf)
    assert kept is not None
    for query, positions in zip(queries, kept, strict=True):
        best = np.argsort(-exact_dots(np.repeat(query[None], 6000, axis=0), vectors))[:10]
        assert set(best.tolist()) <= set(positions.tolist())
        assert len(positions) <= 200


def test_few_queries_go_through_the_copy_and_many_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(codes: CodeColumns, dead: object, queries: FloatArray, *rest: object) -> object:
        asked.append(len(queries))
        return candidates(codes, dead, queries, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(match, "candidates", counted)
    index, queries = make_index(unit_rows(1, 5000, 32), quantized=True), unit_rows(2, 40, 32)
    for count in (1, 16, 17, 40):
        MATCHER.top_k(index, queries[:count], 5)
    assert asked == [1, 16]


# --- with the index


def test_the_copy_grows_with_the_index_and_leaves_older_views_alone() -> None:
    vectors = unit_rows(1, 3000, 16)
    index, views = ReferenceIndex(16, quantized=True), list[IndexView]()
    for start, end in [(0, 1), (1, 1000), (1000, 1030), (1030, 3000)]:
        append(index, vectors[start:end])
        views.append(index.view())
    index.remove(np.array([5, 2000]))
    copy, kept = index.compacted()
    for view, rows in [*((v, vectors[: len(v)]) for v in views), (copy.view(), vectors[kept])]:
        expected = coded(rows)
        assert view.codes is not None
        assert np.array_equal(whole(view.codes.codes), expected.codes)
        assert np.array_equal(whole(view.codes.scales), expected.scales)
        assert np.array_equal(whole(view.codes.errors), expected.errors)


def run_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_numba_is_imported_when_it_is_needed_and_may_be_missing() -> None:
    run_python(
        "import sys; from pipeline.matching import group, int8_filter, match\n"
        "from pipeline.matching.references import ReferenceIndex\n"
        "ReferenceIndex(4); assert 'numba' not in sys.modules\n"
        "sys.modules['numba'] = None\n"
        "assert int8_filter.load_kernels() is None\n"
        "assert ReferenceIndex(4, quantized=True).view().codes is None\n"
    )


# --- threads


def test_eight_threads_search_while_one_writes(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """Each search is of its own view, alone (in parts on the pool) and in a batch; its answer is that of a plain
    scan."""
    monkeypatch.setattr(int8_filter, "_PART_CODES", 2**14)
    vectors, queries = unit_rows(1, 9000, 64), unit_rows(2, 24, 64)
    index = ReferenceIndex(64, quantized=True)
    append(index, vectors[:3000])
    wrong: list[int] = []

    def read(thread: int) -> None:
        own_threads(2)
        for _ in range(20 if full else 4):
            view = index.view()
            alone, _ = MATCHER.top_k(view, queries[thread : thread + 1], 5)
            batch, _ = MATCHER.top_k(view, queries, 5)
            dots = exact_dots(np.repeat(queries[thread : thread + 1], len(view), axis=0), whole(view.host_vectors))
            dots[view.dead] = -np.inf
            best = np.argsort(-dots, kind="stable")[:5].tolist()
            if not alone[0].tolist() == batch[thread].tolist() == best:
                wrong.append(thread)

    readers = [threading.Thread(target=read, args=(thread,)) for thread in range(8)]
    for reader in readers:
        reader.start()
    for step in range(60):
        append(index, vectors[3000 + 100 * step : 3100 + 100 * step])
        index.remove(np.arange(40 * step, 40 * step + 40))
    for reader in readers:
        reader.join()
    assert not wrong
    assert len(index) == 9000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_can_search() -> None:
    """The pool's threads stay behind in the parent; a child that waited for them would wait for ever."""
    run_python(
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np\n"
        "from pipeline.matching import int8_filter\n"
        "from pipeline.matching.references import ReferenceIndex\n"
        "int8_filter._PART_CODES = 1\n"
        "from pipeline.runtime.threads import set_threads; set_threads(2)\n"
        "rows = np.eye(64, dtype=np.float32); index = ReferenceIndex(64, quantized=True)\n"
        "index.append(rows, np.arange(64), [()] * 64, np.zeros((64, 4)))\n"
        "codes, dead = index.view().codes, np.arange(0)\n"
        "def search(): return int8_filter.candidates(codes, dead, rows[:1], 1, 1.0, 1e-12, 0.5)[0].tolist()\n"
        "assert search() == [0]\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if search() == [0] else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
