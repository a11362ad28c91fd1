"""Each benchmark runs at a tiny size, and fails where an answer is wrong."""

from __future__ import annotations

import dataclasses
import math
import multiprocessing
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import bench_cluster
import bench_detect
import bench_extract
import bench_group
import bench_memory
import bench_open
import bench_page
import bench_search
import bench_stores
import bench_writer
import numpy as np
import pytest
import stage_costs
from plain_grouping import LIBRARIES, Numpy, PlainGrouping

from pipeline.config import EXACT, FAST
from pipeline.evaluation.bench.harness import Timing
from pipeline.evaluation.bench.parity import Extracted
from pipeline.matching.columns import MemoryRows
from pipeline.matching.score import exact_dots
from tests.browser.installed import skip_without_chromium
from tests.cli.report import facepipe
from tests.scripts.conftest import Bench


def test_detect(bench: Bench, photos: Path, tmp_path: Path) -> None:
    words = ["--faces", photos, "--work", tmp_path, "--question", "speed", "parity", "--photos", "2"]
    results = bench(bench_detect, *words, "--corpus", "a", "--images", "2", "--repeats", "1")
    speed, parity = results["detect"]["a"], results["detect_parity"]["all"]
    assert (speed["images"], speed["reference_faces"], speed["missed"], speed["extra"]) == (2, 2, 0, 0)
    assert speed["ratio"] > 0
    assert (parity["images"], parity["reference_faces"], parity["missed"]) == (3, 4, 0)


@pytest.mark.slow
@pytest.mark.faces
def test_detect_annotated_boxes(faces_dir: Path) -> None:
    figures = bench_detect.annotated(faces_dir / "groups-with-boxes")
    assert figures["from_40_px"]["recall"] == 1


@pytest.mark.slow
def test_open(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--people", "30", "--repeats", "1", "--templates", tmp_path, "--commands"]
    figures = bench(bench_open, *words, "people name", "people show")["open"]
    one = figures["people name"]["30"]
    assert one["processor_s"] > 0
    words_and_check = bench_open.COMMANDS["people show"]
    monkeypatch.setitem(bench_open.COMMANDS, "people show", lambda place: (words_and_check(place)[0], lambda _: False))
    with pytest.raises(AssertionError, match="person_id"):
        bench(bench_open, *words, "people show")


@pytest.mark.slow
def test_extract(bench: Bench, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_extract, "usable_cores", lambda: 1)  # both layouts are one: half the processes
    # Of a process that has imported both sides already. `test_workers.py` starts them anew.
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["pipeline.evaluation.bench.facepipe", "pipeline.evaluation.bench.reference"])
    monkeypatch.setattr("workers.multiprocessing.get_context", lambda _: forking)
    words = ["--faces", photos, "--work", tmp_path, "--corpus", "a", "--images", "2", "--repeats", "1"]
    words += ["--weights", "casia-webface", "--turn-seconds", "0.3"]
    figures = bench(bench_extract, *words)["extract-casia-webface"]["a"]
    assert figures["parity"]["missed"] == figures["parity_fast"]["missed"] == 0
    assert figures["parity"]["cosine_same_box_min"] >= 0.99999  # the same crops, bit for bit
    assert figures["facepipe_1x1"]["faces_per_s"] == pytest.approx(figures["facepipe_1x1"]["images_per_s"])
    assert figures["facepipe_1x1"]["cpu_busy_share"] > 0
    assert figures["reference_1x1"]["peak_rss_mib"] > 100
    assert min(figures["ratio"], figures["ratio_run_1x1"]) > 0
    passes, ran = figures["run_1x1"]["passes"], figures["parity_run"]
    assert ran["store"] == {"rows": 2 * passes, "faces": 2 * passes, "identities": 1}  # both show one person
    assert (ran["missed"], ran["extra"]) == (0, 0)
    assert not list(tmp_path.glob("tmp*"))  # neither copies nor stores stay
    stages = figures["stages"]
    assert stages["embed_gflop"] == pytest.approx(2 * stage_costs.embedder_flops("casia-webface", 160) / 1e9)
    assert min(stages[f"{stage}_share_of_bound"] for stage in stage_costs.STAGES) > 0
    assert stages["rest_s"] > 0


def test_extract_lists_and_ratios(photos: Path) -> None:
    files = [Path(f"{number}.jpg") for number in range(2 * 256 + 3)]
    lists = bench_extract.lists_of("facepipe_2x1", files, 2, 256)
    assert [len(part) for part in lists] == [256, 256, 2, 1]
    for place in (0, 1):  # as the workers divide them
        assert [file for part in lists[place::2] for file in part] == files[place::2]
    portrait = next(photos.rglob("A_0001.jpg"))
    assert [len(part) for part in bench_extract.lists_of("reference_2x1", [portrait] * 70, 2, 1)] == [32, 32, 6]
    seconds = {"facepipe_1x2": 1, "reference_1x2": 5, "facepipe_2x1": 0.5, "reference_2x1": 4, "fast_1x2": 0.25}
    timings = {name: Timing([one, one]) for name, one in seconds.items()}
    expected = {"reference": "reference_2x1", "ratio": 4, "ratio_facepipe_2x1": 8, "ratio_fast_1x2": 16}
    assert bench_extract.ratios(timings, "facepipe_1x2", 0.25) == {**expected, "share_of_bound": 0.25}


class Prepared:
    """Stands for a variant's processes: what it was given."""

    variant = SimpleNamespace(processes=1)

    def prepare(self, lists: list[list[Path]]) -> None:
        self.files = [file for part in lists for file in part]

    def __call__(self) -> None:
        pass

    def results(self) -> list[Path]:
        return self.files


def test_a_turn_is_filled_with_copies(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, portraits = Prepared(), sorted(photos.rglob("A_000*.jpg"))
    files = bench_extract.Passes(portraits, tmp_path)
    monkeypatch.setattr(bench_extract, "timed", lambda one: 0.4 + 0.1 * len(one.files))
    passes, found = bench_extract.fill_turn("facepipe_1x1", one, files, 3, least_s=2)
    assert 8 <= passes <= 10  # 16 photos take two seconds
    assert found == files(1) == one.files[:2]
    assert one.files == files(passes)
    assert len({file.read_bytes() for file in one.files}) == len(set(one.files)) == 2 * passes
    assert {bench_extract.image_size(file) for file in one.files} == {(250, 250)}
    assert bench_extract.fill_turn("facepipe_1x1", one, files, 3, least_s=0) == (1, files(1))


class Store:
    """Stands for the processes of `run`: what lies in the store."""

    def __init__(self, found: dict[Path, Extracted], **counts: int) -> None:
        self._committed = found, counts

    def call(self, _: object) -> object:
        return self._committed


def test_a_store_without_a_face_or_row_fails(photos: Path) -> None:
    first, second = sorted(photos.rglob("A_000*.jpg"))
    box = np.array([[50, 50, 150, 150]], np.float32)
    points = np.array([[[80, 80], [120, 80], [100, 100], [85, 120], [115, 120]]], np.float32)
    found = Extracted(box, points, np.ones(1, np.float32), np.zeros((1, 0), np.float32))
    both, reference = {first: found, second: found}, {first: found}
    ran = bench_extract.check_run(Store(both, rows=2, faces=2, identities=1), [first, second], reference)
    assert ran["store"] == {"rows": 2, "faces": 2, "identities": 1}
    elsewhere = dataclasses.replace(found, boxes=box + 60)
    for wrong in (
        Store(both, rows=1, faces=2, identities=1),
        Store(both, rows=2, faces=1, identities=1),
        Store(both, rows=2, faces=2, identities=2),
        Store(both, rows=2, faces=2, identities=0),
        Store({first: found}, rows=2, faces=2, identities=1),
        Store({first: elsewhere, second: found}, rows=2, faces=2, identities=1),
    ):
        with pytest.raises(AssertionError):
            bench_extract.check_run(wrong, [first, second], reference)


def test_flops_are_those_of_the_layers(weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # P-Net on 12 x 12: 10 x 10 cells of 3 -> 10 channels, 5 x 5 after the pooling, 3 x 3 of 10 -> 16, 1 of 16 -> 32,
    # then 2 + 4 answers of 32; kernels of 3 x 3 but for the last.
    macs = 100 * 27 * 10 + 9 * 90 * 16 + 144 * 32 + 32 * 6
    assert stage_costs.detector_flops("pnet", 12, 12) == 2 * macs
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    # The field's figures: 1.42 G multiply-adds for a face.
    assert stage_costs.embedder_flops("casia-webface", 160) / 2e9 == pytest.approx(1.42, abs=0.01)


def in_this_process(command: Sequence[str], check: bool) -> None:
    assert command[:3] == [sys.executable, "-m", "pipeline"]
    assert check
    done = facepipe(*command[3:])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_stores(bench: Bench, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_stores, "TOLERANCE", math.inf)  # two people say nothing of the calibration
    monkeypatch.setattr("lfw.subprocess", SimpleNamespace(run=in_this_process))
    words = ["--faces", photos / "lfw-view1", "--work", tmp_path, "--weights", "casia-webface"]
    results = bench(bench_stores, *words)
    figures = results["fast-casia-webface"]
    assert figures["faces"] == {EXACT: 10, FAST: 10, "both": 10}
    assert figures["pairwise"]["f"] == 1
    assert figures["accuracy"][FAST]["accuracy"] == 1
    assert results["accuracy-casia-webface"]["accuracy"] == 1
    calibrated = results["clustering"]["casia-webface"]["calibrated"]["all"]
    assert (calibrated["faces"], calibrated["identities"]) == (10, 2)
    worse = {EXACT: {"accuracy": 0.98}, FAST: {"accuracy": 0.983}}
    for change in (
        {"faces": {EXACT: 4000, FAST: 4006, "both": 4000}},
        {"cosine_min": 0.998},
        {"pairwise": {"f": 0.99}},
        {"accuracy": worse},
    ):
        with pytest.raises(AssertionError):
            bench_stores.check({**figures, **change})


@pytest.mark.slow
def test_group(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_group, "NAIVE", 200)
    words = ["--faces", "3000", "--shard-faces", "1000", "--repeats", "2", "--baselines", "numpy", "torch"]
    figures = bench(bench_group, *words)["group-3k"]
    assert (figures["faces"], figures["identities"], figures["missing_baselines"]) == (3000, 1500, ["faiss"])
    assert min(figures["ratio_to_products"], figures["ratio_to_numpy"], figures["faces_per_second_facepipe"]) > 0


def test_a_wrong_grouping_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = bench_group.make_stream(400, 2, shard_faces=400)
    ((who, faces),) = stream.shards()
    group, truth = bench_group.Grouping("cpu"), bench_group.Truth(200)
    group(faces)
    assert group.last is not None
    truth.check(who, group.last)
    matched = int(np.flatnonzero(~group.last.inserted)[0])
    for name, face, value in (("position", matched, 199), ("inserted", 0, False), ("score", 3, 0.5)):
        wrong = getattr(group.last, name).copy()
        wrong[face] = value
        with pytest.raises(AssertionError):
            bench_group.Truth(200).check(who, dataclasses.replace(group.last, **{name: wrong}))
    with monkeypatch.context() as patch:
        patch.setattr(bench_group, "dot_at", lambda *_: 0.999)
        with pytest.raises(AssertionError, match="numpy"):
            bench_group.one_pass(stream, ["numpy"], "cpu")
    everything = bench_group.Matcher(bench_group.MATCHER.calibration, 4.0)
    decide = bench_group.group_faces
    monkeypatch.setattr(bench_group, "group_faces", lambda faces, index, _: decide(faces, index, everything))
    with pytest.raises(AssertionError):
        bench_group.assert_naive(stream, "cpu")


def test_plain_grouping_takes_the_nearest_of_a_block() -> None:
    def at(degrees: float) -> list[float]:
        return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]

    plain = PlainGrouping(Numpy(2), min_product=0.8)
    assert plain(np.array([at(0), at(90)], dtype=np.float32)).tolist() == [0, 1]
    # 45 degrees is new; 20 is nearer to 0, and 30 nearer to 45 than to 0.
    assert plain(np.array([at(45), at(20), at(30)], dtype=np.float32)).tolist() == [2, 0, 2]
    assert LIBRARIES.keys() == {"numpy", "torch", "faiss"}


def test_search(bench: Bench) -> None:
    figures = bench(bench_search, "--references", "2000", "--repeats", "2")["search"]
    assert figures["bytes_float32"] == 2000 * 4 * bench_search.SIZE
    assert figures["ratio_1_to_numpy"] > 0


@pytest.mark.slow
def test_a_search_that_is_not_exact_fails() -> None:
    view, queries, _ = bench_search.make_task(5000)
    for query, positions in zip(queries, bench_search.brute_force(view, queries, 7), strict=True):
        dots = exact_dots(np.repeat(query[None], 5000, axis=0), view.vectors_at(np.arange(5000)))
        assert positions.tolist() == np.argsort(-dots, kind="stable")[:7].tolist()
    assert view.codes is not None
    replaced = dataclasses.replace(view.codes.errors, parts=[MemoryRows(np.zeros(5000, dtype=np.float32))])
    certain = dataclasses.replace(view.codes, errors=replaced)
    with pytest.raises(AssertionError):
        bench_search.assert_exact(dataclasses.replace(view, codes=certain), queries, 10)


@pytest.mark.slow
def test_memory(bench: Bench, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_memory, "photos", lambda *_: sorted(photos.rglob("*_0001.jpg")))
    words = ["--faces", photos, "--work", tmp_path, "--repeats", 3, "--max-growth", 9]
    figures = bench(bench_memory, *words)["memory"]
    assert (figures["images"], figures["persons"]) == (6, 2)
    assert len(figures["rss_mib"]) == len(figures["vram_reserved_mib"]) == 3
    assert all(peak >= left for peak, left in zip(figures["peak_rss_mib"], figures["rss_mib"], strict=True))


def test_memory_that_grows_or_a_run_that_differs_fails() -> None:
    def repeat(left_mib: int, faces: int = 7, **read: int) -> bench_memory.Repeat:
        return bench_memory.Repeat(1.0, 2**30, left_mib * 2**20, 0, read or {"ok": 4, "no_face": 1}, faces, persons=2)

    figures = bench_memory.figures_of([repeat(50), repeat(100), repeat(102)])
    assert figures["rss_growth"] == pytest.approx(0.02)
    bench_memory.assert_flat(figures, 0.03)
    with pytest.raises(AssertionError):
        bench_memory.assert_flat(figures, 0.01)
    bench_memory.assert_equal(repeat(100), repeat(120), 5)
    for other in (repeat(100, faces=8), repeat(100, ok=5), repeat(100, ok=4, unreadable=1), repeat(100, ok=4)):
        with pytest.raises(AssertionError):
            bench_memory.assert_equal(repeat(100), other, 5)


def test_memory_photos_have_large_ones_among_them(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = bench_memory.Settings().decode.max_pixels
    assert 0.99 * limit < bench_memory.HUGE[0] * bench_memory.HUGE[1] <= limit
    monkeypatch.setattr(bench_memory, "HUGE", (1100, 900))  # the real one takes half a minute to make
    files = bench_memory.photos(bench_memory.read_sources(photos), tmp_path, 8)
    sizes = [bench_extract.image_size(file) for file in files]
    assert 0 < sizes.index((4000, 3000)) < sizes.index((1100, 900)) < len(sizes) - 1 == 9


@pytest.mark.slow
def test_page(bench: Bench) -> None:
    skip_without_chromium()
    few = ("--people", "60", "--pairs", "5", "--faces", "150", "--crowd", "30", "--repeats", "1")
    figures = bench(bench_page, *few)["page"]
    assert [figures[f"answered_{key}"] for key in "snk"] == [2, 2, 1]
    assert figures["review_requests_per_answer_api"] == 4 / 5  # one for each answer that is kept
    assert figures["faces_requests_pictures"] == 150
    assert figures["people_bytes_pictures"] > figures["people_first_bytes_pictures"] > 30 * 5_000
    assert 0 < figures["faces_cards_in_dom"] < 100
    assert figures["server_rss_peak_bytes"] >= figures["server_rss_start_bytes"]
    assert (figures["crowd_faces"], figures["crowd_requests_pictures"]) == (30, 1)


def test_a_page_that_loses_answers_fails() -> None:
    answers = {("a", "b"): "s", ("c", "d"): "n", ("e", "f"): "k"}
    bench_page.check_joined(answers, {"b": "a"}, "s")
    bench_page.check_joined(answers, {"b": "a", "f": "e"}, "sk")
    for roots in ({}, {"b": "a", "d": "c"}, {"b": "a", "f": "e"}):
        with pytest.raises(AssertionError):
            bench_page.check_joined(answers, roots, "s")
    bench_page.check_asked(answers, [("e", "f")])
    with pytest.raises(AssertionError, match="asked again"):
        bench_page.check_asked(answers, [("d", "c")])


@pytest.mark.slow
def test_writer(bench: Bench, tmp_path: Path) -> None:
    figures = bench(bench_writer, "--work", tmp_path / "work", "--crop-bytes", "400", "--tasks", "520", "300:400")
    more, known = figures["writer"]["520"], figures["writer"]["300:400"]
    assert (more["faces"], more["new_persons"]) == (520, 260)
    assert (known["faces"], known["new_persons"]) == (300, 0)
    assert min(known["seconds_by_part"].values()) > 0
    with pytest.raises(ValueError, match="more faces"):
        bench_writer.Task.of("500:400")


def test_a_writer_that_mistakes_a_person_fails() -> None:
    faces = [bench_writer.Shown(0, 1), bench_writer.Shown(1, 1), bench_writer.Shown(5)]
    known = [bench_writer.person_id(0), bench_writer.person_id(1)]
    for person_ids, new, right in (
        ([*known, "new"], 1, True),
        ([*known, known[1]], 0, False),
        ([*known[::-1], "new"], 1, False),
        ([known[0], "other", "new"], 1, False),
        ([*known, "new"], 2, False),
    ):
        owners = bench_writer.Owners(2)
        owners.person_ids, owners.new = person_ids, new
        with nullcontext() if right else pytest.raises(AssertionError):
            owners.check(faces)


def test_cluster_s_cost_of_a_photo_is_apart_from_the_start() -> None:
    few, many = Timing([9.0, 7.0, 8.0]), Timing([22.0, 23.0, 99.0])
    assert bench_cluster.costs(few, many, (250, 1000)) == {"ms_per_photo": 20.0, "start_s": 3.0}
