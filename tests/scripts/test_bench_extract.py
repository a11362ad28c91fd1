"""The comparison of the whole extraction: what it compares, that a wrong answer fails it, and one small run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import bench_extract
import numpy as np
import pytest
import torch
from bench_common import check_result, timing
from bench_extract import lists_of, ratios
from extraction_parity import assert_equal
from facepipe_chain import benchmark_settings
from PIL import Image
from stage_costs import network_flops, pyramid_flops, stage_costs

from pipeline.evaluation.bench.facepipe import FacepipeChain, embeddings_of_boxes
from pipeline.evaluation.bench.parity import Extracted, compare_faces, cosines, matched_cosines
from pipeline.evaluation.bench.reference import ReferenceChain, equal_sized, image_size
from pipeline.models.weights import resolve
from tests.evaluation.bench_photos import make_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> list[Path]:
    """Two portraits of one size and a group photo of both."""
    folder = make_photos(tmp_path_factory.mktemp("bench") / "photos", hopper_path, astronaut_path)
    return sorted(folder.rglob("*.jpg"))


@pytest.fixture(scope="module")
def ours(weights_cache: Path) -> Iterator[FacepipeChain]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FACEPIPE_CACHE", str(weights_cache))
        yield FacepipeChain(benchmark_settings("cpu", 1, "casia-webface", 32))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(weights_cache: Path) -> ReferenceChain:
    settings = benchmark_settings("cpu", 1, "casia-webface", 32)
    return ReferenceChain(resolve("casia-webface", None, weights_cache), settings.detect, 32, "cpu")


@pytest.fixture(scope="module")
def found(
    ours: FacepipeChain, reference: ReferenceChain, photos: list[Path]
) -> tuple[dict[Path, Extracted], dict[Path, Extracted]]:
    """The reference's faces and ours, each in several lists."""
    for chain, lists in ((reference, equal_sized(photos, 8, 10**6)), (ours, [photos[:1], photos[1:]])):
        chain.prepare(lists)
    return reference(range(2)), ours(range(2))


def test_both_chains_see_the_same_faces(
    found: tuple[dict[Path, Extracted], dict[Path, Extracted]], ours: FacepipeChain, photos: list[Path]
) -> None:
    theirs, own = found
    sizes = {file: image_size(file) for file in photos}
    parity = compare_faces(theirs, own, sizes)
    assert parity.reference_faces == parity.found == parity.our_faces == 4
    assert sorted(len(own[file]) for file in photos) == [1, 1, 2]
    embeddings = embeddings_of_boxes(ours, theirs)
    same = np.concatenate([cosines(theirs[file].embeddings, embeddings[file]) for file in photos])
    assert len(same) == 4
    assert same.min() >= 0.99999  # the same crops, bit for bit
    assert_equal(parity, same)
    assert matched_cosines(theirs, own).min() >= 0.999
    with pytest.raises(AssertionError, match=r"0\.998"):
        assert_equal(parity, np.append(same, np.float32(0.998)))


def test_a_lost_a_moved_and_an_invented_face_fail(
    found: tuple[dict[Path, Extracted], dict[Path, Extracted]], photos: list[Path]
) -> None:
    theirs, own = found
    sizes = {file: image_size(file) for file in photos}
    group = next(file for file in photos if len(own[file]) == 2)
    faces = own[group]
    moved = replace(faces, boxes=faces.boxes + np.float32(6))
    for wrong, counted in (
        (faces.pick(np.array([True, False])), (3, 0)),
        (moved, (2, 0)),
        (replace(faces, boxes=faces.boxes + np.array([0, 90, 0, 90], np.float32)), (2, 2)),
    ):
        parity = compare_faces(theirs, {**own, group: wrong}, sizes)
        assert (parity.found, parity.extra) == counted
        with pytest.raises(AssertionError, match="Parity"):
            assert_equal(parity, np.ones(1, np.float32))
    with pytest.raises(AssertionError, match="other files"):
        compare_faces(theirs, {}, sizes)


def test_a_photo_without_a_face_is_one(
    ours: FacepipeChain, reference: ReferenceChain, photos: list[Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.jpg"
    Image.new("RGB", (250, 250), "grey").save(empty)
    files = [empty, *(file for file in photos if image_size(file) == (250, 250))]
    for chain in (ours, reference):
        chain.prepare([files])
        faces = chain([0])[empty]
        assert len(faces) == 0
        assert (faces.landmarks.shape, faces.embeddings.shape) == ((0, 5, 2), (0, 512))
    alone = embeddings_of_boxes(ours, {empty: faces})
    assert alone[empty].shape == (0, 512)
    assert len(matched_cosines({empty: faces}, {empty: faces})) == 0


def test_boxes_are_compared_as_far_as_the_image_goes() -> None:
    boxes = np.array([[-20, -20, 40, 40], [-30, 5, 0.5, 30]], np.float32)
    faces = Extracted(boxes, np.zeros((2, 5, 2), np.float32), np.ones(2, np.float32), np.eye(2, dtype=np.float32))
    inside = faces.within(30, 100)
    assert inside.boxes.tolist() == [[0, 0, 30, 40]]
    assert inside.embeddings.tolist() == [[1, 0]]


def test_lists_hold_images_of_one_size_within_the_limits(photos: list[Path]) -> None:
    lists = equal_sized([*photos, *photos], most_images=3, most_pixels=10**6)
    assert sorted(len(files) for files in lists) == [1, 2, 3]
    assert all(len({image_size(file) for file in files}) == 1 for files in lists)
    assert all(len(files) == 1 for files in equal_sized(photos, most_images=3, most_pixels=1))
    assert lists_of("facepipe_1x2", photos, 1) == [photos]
    assert [len(files) for files in lists_of("reference_2x1", [photos[0]] * 70, 2)] == [32, 32, 6]
    assert [len(files) for files in lists_of("reference_2x1", [photos[0]] * 9, 2)] == [5, 4]


def test_processes_that_read_ahead_get_lists_of_their_own() -> None:
    files = [Path(f"{number}.jpg") for number in range(2 * 256 + 3)]
    lists = lists_of("facepipe_2x1", files, 2)
    assert [len(part) for part in lists] == [256, 256, 2, 1]
    for place in (0, 1):  # as the workers divide them
        assert [file for part in lists[place::2] for file in part] == files[place::2]


def test_the_faster_reference_counts() -> None:
    seconds = {"facepipe_1x2": 1, "reference_1x2": 5, "facepipe_2x1": 0.5, "reference_2x1": 4, "fast_1x2": 0.25}
    timings = {name: timing([one, one]) for name, one in seconds.items()}
    expected = {"reference": "reference_2x1", "ratio": 4, "ratio_facepipe_2x1": 8, "ratio_fast_1x2": 16}
    expected["share_of_bound"] = 0.25
    assert ratios(timings, "facepipe_1x2", 0.25) == expected


def test_flops_are_those_of_the_layers() -> None:
    # P-Net on 12 x 12: 10 x 10 cells of 3 -> 10 channels, 5 x 5 after the pooling, 3 x 3 of 10 -> 16, 1 of 16 -> 32,
    # then 2 + 4 answers of 32; kernels of 3 x 3 but for the last.
    macs = 100 * 27 * 10 + 9 * 90 * 16 + 144 * 32 + 32 * 6
    assert network_flops("pnet", 12, 12) == 2 * macs
    # The field's figures: 1.42 G multiply-adds for a face.
    assert network_flops("embedder", 160, 160) / 2e9 == pytest.approx(1.42, abs=0.01)
    settings = benchmark_settings("cpu", 1, "casia-webface", 32)
    assert 1.2e9 < pyramid_flops(1000, 1000, settings) / 2 < 1.5e9


def test_stage_costs_are_of_the_work_that_was_done(ours: FacepipeChain, photos: list[Path]) -> None:
    costs = stage_costs(ours, photos, threads=1)
    assert costs["embed_gflop"] == pytest.approx(4 * network_flops("embedder", 160, 160) / 1e9)
    pyramids = sum(pyramid_flops(*image_size(file)[::-1], ours.settings) for file in photos)
    assert costs["detect_gflop"] > pyramids / 1e9
    assert costs["bound_s"] > 0
    for stage in ("decode", "detect", "embed"):
        assert costs[f"{stage}_s"] > 0
        assert costs[f"{stage}_share_of_bound"] > 0
    assert costs["rest_s"] > 0
    assert type(ours.extractor.detector).__name__ == "MtcnnDetector"


@pytest.mark.slow
def test_a_small_comparison(
    tmp_path: Path, hopper_path: Path, astronaut_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_photos(tmp_path / "photos", hopper_path, astronaut_path)
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    monkeypatch.setattr(bench_extract, "usable_cores", lambda: 1)  # both layouts are one: half the processes
    arguments = f"--faces {photos} --work {tmp_path} --results {tmp_path / 'results'} --only a --images 2 --repeats 1"
    monkeypatch.setattr("sys.argv", ["bench_extract.py", *arguments.split()])
    bench_extract.main()
    document = json.loads((tmp_path / "results" / "extract-cpu.json").read_text("utf-8"))
    check_result(document)
    assert document["timings"].keys() == {"a_facepipe_1x1", "a_reference_1x1", "a_fast_1x1"}
    figures = document["figures"]["a"]
    assert figures["parity"]["missed"] == figures["parity_fast"]["missed"] == 0
    assert figures["parity_fast"]["cosine_same_box_min"] >= 0.999
    assert figures["facepipe_1x1"]["faces_per_s"] == pytest.approx(figures["facepipe_1x1"]["images_per_s"])
    assert figures["facepipe_1x1"]["cpu_busy_share"] > 0
    assert figures["reference_1x1"]["peak_rss_mib"] > 100
    assert figures["ratio"] > 0
    assert "/" not in json.dumps(document["settings"])
    with Image.open(tmp_path / "a-2" / "00000.jpg") as image:
        assert image.size == (250, 250)
