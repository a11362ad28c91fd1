"""How long does an exact top-k search of one face take, and of 64, beside matrix products and other libraries?

    python scripts/bench/bench_search.py --references 1000000 --repeats 9

All variants read the same vectors in the same run, in turns, each time for another query. NumPy is the
matrix-vector product and `argpartition`, torch `mv` and `topk`, faiss its exhaustive inner product search; these
answer by float32 products, unordered or with ties as they come. `products` is the bare product of 64 queries with
chunks of references into one buffer that nobody reads. A library that is not installed is left out and named in the
result. A million references take 6 GB of memory and some five minutes on two cores.

Asserts that every answer to every query equals brute force by the exact score, alone and in the batch.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from harness import argument_parser, paired_ratio, settings_of, write_result

from pipeline.evaluation.bench.harness import Timing, interleave, timed
from pipeline.matching import int8_filter
from pipeline.matching.calibration import Calibration
from pipeline.matching.columns import Column
from pipeline.matching.match import Matcher
from pipeline.matching.references import IndexView, ReferenceIndex
from pipeline.types import FloatArray, IntArray

SIZE = 512
SIGHTINGS = 4  # references of one identity
NOISE = 0.6  # of a vector's own length: two sightings have a dot of about 0.74, strangers of 0
QUERIES = 64
CHUNK = 32_768  # references in one bare product: 8 MB of products, as `match` makes them
MATCHER = Matcher(Calibration(1.306), 0.54)
BASELINES = ("numpy", "torch", "faiss")
Search = Callable[[FloatArray], object]


def make_vectors(count: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """`count` references of count / 4 identities, shuffled, and 64 queries: further sightings, and strangers."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((max(1, count // SIGHTINGS), SIZE), dtype=np.float32)
    references = np.empty((count, SIZE), dtype=np.float32)
    identities = rng.permutation(count) % len(centres)
    for start in range(0, count, CHUNK):
        part = slice(start, start + CHUNK)
        references[part] = sighted(rng, centres[identities[part]])
    strangers = rng.standard_normal((QUERIES // 2, SIZE), dtype=np.float32)
    known = centres[rng.integers(len(centres), size=QUERIES // 2)]
    return references, rng.permutation(np.concatenate([sighted(rng, known), sighted(rng, strangers)]))


def sighted(rng: np.random.Generator, centres: FloatArray) -> FloatArray:
    rows = centres + np.float32(NOISE) * rng.standard_normal(centres.shape, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def make_task(count: int) -> tuple[IndexView, FloatArray, float]:
    """The index, the queries, and the seconds that appending took. Only the index keeps the references."""
    references, queries = make_vectors(count, seed=1)
    index = ReferenceIndex(SIZE, quantized=True)
    boxes = np.zeros((count, 4), dtype=np.float32)
    seconds = timed(lambda: index.append(references, np.arange(count), [()] * count, boxes))
    return index.view(), queries, seconds


def brute_force(view: IndexView, queries: FloatArray, k: int) -> IntArray:
    """[m, k] positions by the exact score, from float64 products of everything (their error is below 1e-12)."""
    products = np.concatenate(
        [
            view.host_vectors.checked(piece.start, piece.stop).astype(np.float64) @ queries.T.astype(np.float64)
            for piece in view.host_vectors.pieces(CHUNK)
        ]
    )
    return np.stack([best_of(view, query, column, k) for query, column in zip(queries, products.T, strict=True)])


def best_of(view: IndexView, query: FloatArray, products: FloatArray, k: int) -> IntArray:
    kth = np.partition(products, len(products) - k)[len(products) - k]
    likely = np.flatnonzero(products >= kth - 1e-9)
    distances = MATCHER.distances(np.repeat(query[None], len(likely), axis=0), view.vectors_at(likely))
    return likely[np.lexsort((view.orders_at(likely), -MATCHER.ranks(distances)))][:k]


def assert_exact(view: IndexView, queries: FloatArray, k: int) -> None:
    """Every query, alone through the int8 copy and without it, and all together."""
    expected = brute_force(view, queries, k)
    plain = dataclasses.replace(view, codes=None)
    found = [MATCHER.nearest(view, queries, k).positions]
    for one in (view, plain):
        found.append(np.concatenate([MATCHER.nearest(one, query[None], k).positions for query in queries]))
    for positions in found:
        assert np.array_equal(positions, expected)


def variants(view: IndexView, k: int) -> dict[str, Search]:
    """What is timed, by name: each takes queries [m, d]."""
    plain, host = dataclasses.replace(view, codes=None), view.vectors_at(np.arange(len(view)))
    vectors = torch.from_numpy(host)
    buffer = torch.empty(QUERIES * CHUNK, dtype=torch.float32)

    def numpy(queries: FloatArray) -> IntArray:
        products = queries @ host.T if len(queries) > 1 else (host @ queries[0])[None]
        return np.argpartition(products, len(host) - k, axis=1)[:, -k:]

    def torch_topk(queries: FloatArray) -> object:
        asked = torch.from_numpy(queries)
        products = torch.mm(asked, vectors.T) if len(queries) > 1 else torch.mv(vectors, asked[0])
        return torch.topk(products, k)

    def products(queries: FloatArray) -> None:
        asked = torch.from_numpy(queries)
        for start in range(0, len(host), CHUNK):
            part = vectors[start : start + CHUNK]
            torch.mm(asked, part.T, out=buffer[: len(queries) * len(part)].view(len(queries), len(part)))

    searches: dict[str, Search] = {
        "facepipe": partial(MATCHER.nearest, view, k=k),
        "facepipe_float32": partial(MATCHER.nearest, plain, k=k),
        "numpy": numpy,
        "torch": torch_topk,
        "products": products,
    }
    if importlib.util.find_spec("faiss") is not None:
        import faiss

        searches["faiss"] = lambda queries: faiss.knn(queries, host, k, metric=faiss.METRIC_INNER_PRODUCT)
    return searches


def in_turns(search: Search, batches: list[FloatArray]) -> Callable[[], object]:
    """Each call searches the next batch."""
    following = itertools.cycle(batches)
    return lambda: search(next(following))


def measure(view: IndexView, queries: FloatArray, k: int, repeats: int) -> dict[str, Timing]:
    timings: dict[str, Timing] = {}
    for batch in (1, QUERIES):
        batches = [queries[start : start + batch] for start in range(0, QUERIES, batch)]
        runs = {f"{name}_{batch}": in_turns(search, batches) for name, search in variants(view, k).items()}
        timings |= interleave(runs, repeats)
    return timings


def _bytes(column: Column[Any]) -> int:
    return math.prod(column.shape) * column.parts[-1].array.itemsize


def figures_of(view: IndexView, timings: dict[str, Timing], prepare_s: float, append_s: float) -> dict[str, Any]:
    """Ratios, times, bytes, and what was not compared with."""
    assert view.codes is not None, "numba is not installed"
    copy = sum(_bytes(column) for column in (view.codes.codes, view.codes.scales, view.codes.errors))
    return {
        "ratio_1_to_numpy": paired_ratio(timings["facepipe_1"], timings["numpy_1"]),
        "ratio_1_to_float32_path": paired_ratio(timings["facepipe_1"], timings["facepipe_float32_1"]),
        "ratio_64_to_products": paired_ratio(timings["facepipe_64"], timings["products_64"]),
        **{f"ms_{name}": 1e3 * timing.median for name, timing in timings.items()},
        "bytes_float32": _bytes(view.host_vectors),
        "bytes_order": _bytes(view.order),
        "bytes_int8_copy": copy,
        "bytes_int8_copy_per_reference": copy / len(view),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "prepare_seconds": prepare_s,
        "append_seconds": append_s,
        "missing_baselines": [name for name in BASELINES if f"{name}_1" not in timings],
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--references", type=int, default=1_000_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    begun = time.perf_counter()
    prepare_s = timed(lambda: int8_filter.load_kernels())
    view, queries, append_s = make_task(args.references)
    assert_exact(view, queries, args.k)
    timings = measure(view, queries, args.k, args.repeats)
    figures = {
        **figures_of(view, timings, prepare_s, append_s),
        "minutes_of_all": (time.perf_counter() - begun) / 60,
    }
    write_result("search", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
