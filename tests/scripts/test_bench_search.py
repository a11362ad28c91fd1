"""The search benchmark's own arithmetic: its brute force, and that a wrong answer fails it."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path

import bench_search as bench
import numpy as np
import pytest
from bench_common import check_result

from pipeline.matching.score import exact_dots


def test_its_brute_force_is_the_order_of_the_exact_dots() -> None:
    view, queries, _ = bench.make_task(600)
    found = bench.brute_force(view, queries, 7)
    for query, positions in zip(queries, found, strict=True):
        dots = exact_dots(np.repeat(query[None], 600, axis=0), view.host_vectors)
        assert positions.tolist() == np.argsort(-dots, kind="stable")[:7].tolist()


def test_half_of_the_queries_have_their_identity_among_the_references() -> None:
    view, queries, _ = bench.make_task(800)
    best = (queries @ view.host_vectors.T).max(axis=1)
    assert (best > 0.55).sum() == len(queries) / 2


def test_an_answer_that_is_not_exact_fails() -> None:
    view, queries, _ = bench.make_task(5000)
    bench.assert_exact(view, queries, 10)
    assert view.codes is not None
    certain = dataclasses.replace(view.codes, errors=np.zeros_like(view.codes.errors))
    with pytest.raises(AssertionError):
        bench.assert_exact(dataclasses.replace(view, codes=certain), queries, 10)


def test_all_variants_answer_the_same_identities() -> None:
    view, queries, _ = bench.make_task(3000)
    expected = bench.brute_force(view, queries, 5)
    searches = bench.variants(view, 5)
    for batch in (queries[:1], queries):
        rows = expected[: len(batch)]
        assert np.array_equal(searches["facepipe"](batch).positions, rows)
        assert np.array_equal(searches["facepipe_float32"](batch).positions, rows)
        assert np.array_equal(np.sort(searches["numpy"](batch), axis=1), np.sort(rows, axis=1))
        assert np.array_equal(searches["torch"](batch).indices.reshape(rows.shape).numpy(), rows)
        if "faiss" in searches:
            assert np.array_equal(searches["faiss"](batch)[1], rows)


def test_a_result_is_written_as_the_schema_wants_it_and_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "faiss" else find(name))
    words = ["--references", "2000", "--repeats", "2", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench_search.py", *words])
    bench.main()
    document = json.loads((tmp_path / "search-cpu.json").read_text("utf-8"))
    check_result(document)
    assert document["figures"]["missing_baselines"] == ["faiss"]
    assert document["figures"]["bytes_float32"] == 2000 * 4 * bench.SIZE
    assert document["settings"]["references"] == 2000
    names = ("facepipe", "facepipe_float32", "numpy", "torch", "products")
    assert document["timings"].keys() == {f"{name}_{batch}" for name in names for batch in (1, bench.QUERIES)}
