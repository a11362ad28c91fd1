"""The grouping benchmark: its stream, what it holds decisions against, and that a wrong answer fails it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import bench_group as bench
import numpy as np
import plain_grouping
import pytest
from bench_common import check_result

from pipeline.matching.score import contract_distance
from pipeline.types import Decisions, IntArray


def _decided(stream: bench.Stream) -> list[tuple[IntArray, Decisions]]:
    group, decided = bench.Grouping("cpu"), []
    for who, faces in stream.shards():
        group(faces)
        assert group.last is not None
        decided.append((who, group.last))
    return decided


def test_a_stream_makes_the_same_faces_again_whatever_was_made_before() -> None:
    stream = bench.make_stream(300, 3, shard_faces=128)
    shards = list(stream.shards())
    assert [len(faces) for _, faces in shards] == [128, 128, 44]
    assert np.array_equal(np.bincount(np.concatenate([who for who, _ in shards])), np.full(100, 3))
    again = list(stream.shards())[1][1]
    assert np.array_equal(again.embeddings, shards[1][1].embeddings)
    assert len({face_hash for _, faces in shards for pair in faces.image_hashes for face_hash in pair}) == 600


def test_two_faces_match_iff_they_are_of_one_identity() -> None:
    stream = bench.make_stream(600, 2, shard_faces=600)
    ((who, faces),) = stream.shards()
    products = faces.embeddings @ faces.embeddings.T
    same = who[:, None] == who[None, :]
    assert products[same].min() > bench.smallest_match() + 0.05
    assert products[~same].max() < bench.smallest_match() - 0.05


def test_the_smallest_match_is_where_the_score_is_one() -> None:
    dot = bench.smallest_match()
    dots = np.array([dot - 1e-9, dot + 1e-9])
    distances = contract_distance(dots, bench.MATCHER.calibration)
    assert bench.MATCHER.matches(distances).tolist() == [False, True]


def test_truth_accepts_the_grouping_and_refuses_each_kind_of_fault() -> None:
    decided = _decided(bench.make_stream(400, 2, shard_faces=128))
    truth = bench.Truth(200)
    for who, decisions in decided:
        truth.check(who, decisions)
    assert truth.known == 200
    who, first = decided[0]
    matched = int(np.flatnonzero(~first.inserted)[0])
    for name, face, value in (("position", matched, 199), ("inserted", 0, False), ("score", 3, 0.5)):
        wrong = getattr(first, name).copy()
        wrong[face] = value
        with pytest.raises(AssertionError):
            bench.Truth(200).check(who, dataclasses.replace(first, **{name: wrong}))


def test_the_plain_loop_agrees_and_notices_another_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = bench.make_stream(300, 2, shard_faces=64)
    bench.assert_naive(stream, "cpu")
    everything = bench.Matcher(bench.MATCHER.calibration, 4.0)
    decide = bench.group_faces
    monkeypatch.setattr(bench, "group_faces", lambda faces, index, _: decide(faces, index, everything))
    with pytest.raises(AssertionError):
        bench.assert_naive(stream, "cpu")


@pytest.mark.parametrize("name", [name for name in plain_grouping.LIBRARIES if plain_grouping.installed(name)])
def test_each_library_decides_the_same(name: str) -> None:
    """Also where its matrix has to grow, and for faces whose identity was inserted in their own block."""
    stream = bench.make_stream(3000, 2, shard_faces=500)
    plain = plain_grouping.PlainGrouping(plain_grouping.LIBRARIES[name](bench.SIZE), bench.smallest_match())
    for (_, decisions), (_, faces) in zip(_decided(stream), stream.shards(), strict=True):
        assert np.array_equal(plain(faces.embeddings), decisions.position)


def test_the_nearest_of_a_block_wins_over_an_earlier_one_that_matches() -> None:
    def at(degrees: float) -> list[float]:
        return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]

    plain = plain_grouping.PlainGrouping(plain_grouping.Numpy(2), min_product=0.8)
    assert plain(np.array([at(0), at(90)], dtype=np.float32)).tolist() == [0, 1]
    # 45 degrees is new; 20 is nearer to 0, and 30 nearer to 45 than to 0.
    assert plain(np.array([at(45), at(20), at(30)], dtype=np.float32)).tolist() == [2, 0, 2]


def test_a_baseline_that_decides_otherwise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "smallest_match", lambda: 0.999)
    with pytest.raises(AssertionError, match="numpy"):
        bench.one_pass(bench.make_stream(200, 2), ["numpy"], "cpu")


def test_a_result_is_written_as_the_schema_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--faces", "3000", "--shard-faces", "1000", "--repeats", "2", "--baselines", "numpy", "torch"]
    monkeypatch.setattr(bench, "NAIVE", 200)
    monkeypatch.setattr("sys.argv", ["bench_group.py", *words, "--results", str(tmp_path)])
    bench.main()
    document = json.loads((tmp_path / "group-3k-cpu.json").read_text("utf-8"))
    check_result(document)
    assert document["timings"].keys() == {"facepipe", "products", "numpy", "torch"}
    figures = document["figures"]
    assert (figures["faces"], figures["identities"], figures["missing_baselines"]) == (3000, 1500, ["faiss"])
    assert min(figures["ratio_to_products"], figures["ratio_to_numpy"], figures["faces_per_second_facepipe"]) > 0
    assert document["settings"]["shard_faces"] == 1000


def test_shards_of_more_than_a_block_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench_group.py", "--shard-faces", "5000"])
    with pytest.raises(SystemExit):
        bench.main()
