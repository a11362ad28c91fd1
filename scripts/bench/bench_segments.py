"""How soon can an index of ten million references be opened and searched?

    python scripts/bench/bench_segments.py --work FOLDER [--references 10000000] [--size 128]

Writes index segments of random people into FOLDER (once; 7 GB), opens them and searches, as a store does that has
them: first with the files out of the page cache, then warm. Each search asks for the ten best of one face, half of the
faces of somebody who is there. Insertions are those of an index, one reference at a time, without a store's commit.
Asserts that everybody is found, and of some searches that the ten best are those of float64 products of everybody.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np
from bench_open import evict, own_memory
from bench_search import brute_force
from harness import argument_parser, settings_of, write_result

from pipeline.evaluation.bench.harness import Timing, timed
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.store.files.durable import Folder
from pipeline.store.files.segment_header import MAX_ROWS, SegmentKey
from pipeline.store.files.segments import ImageTable, Segment, SegmentRows, codes_of, write
from pipeline.types import FloatArray

MATCHER: Final = Matcher(Calibration(), 0.54)
KEY: Final = b"bench"
TOP: Final = 10
SEARCHED: Final = 400
EXACT: Final = 3  # searches that are compared with everybody
INSERTED: Final = 20_000


def rows_of(number: int, count: int, size: int) -> SegmentRows:
    """The references number .. number + count - 1: random directions."""
    rng = np.random.default_rng(number)
    vectors = unit(rng.standard_normal((count, size), dtype=np.float32))
    numbers = np.arange(number, number + count)
    halves = rng.integers(0, 2**63, (2, count)).astype(np.uint64)
    return SegmentRows(
        vectors=vectors,
        codes=codes_of(vectors),
        seq=numbers + 1,
        order=numbers + 1,
        person_ids=rng.integers(0, 256, (count, 16), dtype=np.uint8),
        boxes=np.tile(np.array([0, 0, 40, 40], np.float32), (count, 1)),
        images=ImageTable(halves[0], halves[1], np.arange(count)),
    )


def unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def file_of(number: int, size: int) -> str:
    return f"{size}/{number}.segment"


def opened(folder: Folder, count: int, size: int) -> ReferenceIndex:
    starts = range(0, count, MAX_ROWS)
    segments = [Segment.open(folder, file_of(start, size), SegmentKey("bench", 1, 1, size), KEY) for start in starts]
    return ReferenceIndex(size, quantized=True, frozen=segments)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--references", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    folder, count, size = Folder(args.work), args.references, args.size
    for start in range(0, count, MAX_ROWS):
        if not folder.path(file_of(start, size)).exists():
            rows = rows_of(start, min(MAX_ROWS, count - start), size)
            write(folder, file_of(start, size), SegmentKey("bench", 1, 1, size), rows, KEY)
    rng = np.random.default_rng(1)
    index = opened(folder, count, size)
    asked = rng.integers(0, count, SEARCHED)
    known = index.view().vectors_at(asked[::2])
    queries = unit(rng.standard_normal((SEARCHED, size), dtype=np.float32))
    queries[::2] = unit(known + 0.05 * queries[::2])
    del index
    evict(folder.root)

    timings: dict[str, Timing] = {}
    begun = time.perf_counter()
    index = opened(folder, count, size)
    timings["open"] = Timing([time.perf_counter() - begun])
    view = index.view()
    timings["search_cold"] = Timing([timed(lambda: MATCHER.nearest(view, queries[:1], TOP))])
    MATCHER.nearest(view, queries[1:2], TOP)
    seconds = []
    for number, query in enumerate(queries):
        begun = time.perf_counter()
        found = MATCHER.nearest(view, query[None], TOP).positions[0]
        seconds.append(time.perf_counter() - begun)
        assert number % 2 or found[0] == asked[number]
    timings["search_warm"] = Timing(seconds)
    few = queries[:: SEARCHED // EXACT][:EXACT]
    assert np.array_equal(MATCHER.nearest(view, few, TOP).positions, brute_force(view, few, TOP))
    new, box = unit(rng.standard_normal((INSERTED, size), dtype=np.float32)), np.array([[0, 0, 40, 40]], np.float32)

    def insert() -> None:
        for number, vector in enumerate(new):
            index.append(vector[None], np.array([count + 1 + number]), [("a", "b")], box)

    timings["insert"] = Timing([timed(insert)])
    assert MATCHER.nearest(index.view(), new[:1], 1).positions[0, 0] == count
    figures = {
        "open_ms": 1e3 * timings["open"].median,
        "search_cold_s": timings["search_cold"].median,
        "search_warm_p50_ms": 1e3 * float(np.percentile(seconds, 50)),
        "search_warm_p99_ms": 1e3 * float(np.percentile(seconds, 99)),
        "insertions_per_s": INSERTED / timings["insert"].median,
        "bytes": sum(folder.path(file_of(start, size)).stat().st_size for start in range(0, count, MAX_ROWS)),
        "rss_anon_bytes": own_memory("self"),
    }
    write_result("segments", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
