"""The comparison of the modes: faces are found again by their boxes, and too large a change fails."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_fast
import numpy as np
import pytest
from bench_accuracy import Protocol
from bench_clustering import Stored
from bench_common import check_result
from bench_fast import check, compare, portraits, same_faces

from pipeline.config import EXACT, FAST
from pipeline.evaluation.pairs.lists import Pair
from pipeline.matching.score import Calibration
from pipeline.types import FaceBatch
from tests.evaluation.bench_photos import make_photos

PHOTOS = ["Ada/Ada_0001.jpg", "Ada/Ada_0002.jpg", "Bob/Bob_0001.jpg", "Bob/Bob_0001.jpg"]


@pytest.fixture
def exact() -> Stored:
    """Two people; the last photo shows a stranger beside Bob."""
    vectors = np.eye(4, 8, dtype=np.float32)
    vectors[1] = vectors[0]
    boxes = np.array([[0, 0, 50, 60], [5, 5, 55, 70], [0, 0, 50, 60], [100, 0, 150, 60]], np.float32)
    return Stored(
        faces=FaceBatch(vectors, np.ones(4, bool), [(path,) for path in PHOTOS], boxes),
        people=[path.split("/")[0] for path in PHOTOS],
        paths=PHOTOS,
        persons=["a", "a", "b", "c"],
        labelled=np.array([0, 1, 2]),
        calibration=Calibration(),
    )


def reordered(stored: Stored, order: list[int]) -> Stored:
    faces = stored.faces
    hashes = [faces.image_hashes[i] for i in order]
    picked = FaceBatch(faces.embeddings[order], faces.insertable[order], hashes, faces.boxes[order])
    people, paths, persons = ([values[i] for i in order] for values in (stored.people, stored.paths, stored.persons))
    labelled = np.flatnonzero(np.isin(order, stored.labelled))
    return replace(stored, faces=picked, people=people, paths=paths, persons=persons, labelled=labelled)


def test_faces_are_found_again_by_photo_and_box(exact: Stored) -> None:
    rows, others = same_faces(exact, reordered(exact, [3, 2, 0]))
    assert rows.tolist() == [0, 2, 3]
    assert others.tolist() == [2, 1, 0]
    nothing = same_faces(exact, reordered(exact, []))
    assert [len(found) for found in nothing] == [0, 0]


def test_the_same_identities_under_other_names_are_the_same(exact: Stored) -> None:
    other = replace(reordered(exact, [3, 2, 1, 0]), persons=["x", "y", "z", "z"])
    figures = compare(exact, other)
    assert figures["faces"] == {EXACT: 4, FAST: 4, "both": 4}
    assert figures["identities"] == {EXACT: 3, FAST: 3}
    assert figures["pairwise"]["f"] == figures["bcubed"]["f"] == 1
    assert figures["cosine_min"] == pytest.approx(1)
    parted = compare(exact, replace(exact, persons=["a", "d", "b", "b"]))
    assert parted["pairwise"]["recall"] == parted["pairwise"]["precision"] == 0


def test_photos_of_the_pairs_have_their_labelled_face(exact: Stored, tmp_path: Path) -> None:
    for name in (*PHOTOS, "Bob/Bob_0002.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    pairs = [Pair(("Ada", 1), ("Ada", 2)), Pair(("Ada", 1), ("Bob", 2))]
    found = portraits({EXACT: exact, FAST: reordered(exact, [3, 0])}, Protocol(pairs[:1], pairs[1:]), tmp_path)
    assert found.names == ["Ada_0001", "Ada_0002", "Bob_0001", "Bob_0002"]
    assert found.embeddings[EXACT][:3].tolist() == exact.faces.embeddings[:3].tolist()
    assert found.without_face == {EXACT: 1, FAST: 3}


@pytest.mark.parametrize(
    "change",
    [
        {"faces": {EXACT: 4000, FAST: 4006, "both": 4000}},
        {"cosine_min": 0.998},
        {"pairwise": {"f": 0.99}},
        {"accuracy": {EXACT: {"accuracy": 0.986}, FAST: {"accuracy": 0.983}}},
        {"accuracy": {EXACT: {"accuracy": 0.983}, FAST: {"accuracy": 0.986}}},
    ],
)
def test_too_large_a_change_fails(change: dict[str, Any]) -> None:
    small: dict[str, Any] = {
        "faces": {EXACT: 4000, FAST: 4003, "both": 4000},
        "cosine_min": 0.9995,
        "pairwise": {"f": 0.996},
        "accuracy": {EXACT: {"accuracy": 0.986}, FAST: {"accuracy": 0.985}},
    }
    check(small)
    with pytest.raises(AssertionError):
        check({**small, **change})


@pytest.mark.slow
def test_a_small_comparison(
    tmp_path: Path, hopper_path: Path, astronaut_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faces = make_photos(tmp_path / "photos", hopper_path, astronaut_path) / "lfw-view1"
    for stem, names in ((hopper_path.stem, "AC"), (astronaut_path.stem, "BD")):
        photo = faces / "images" / stem / f"{stem}_0001.jpg"
        for name, number in ((name, number) for name in names for number in (1, 2)):
            copy = faces / "images" / name / f"{name}_000{number}.jpg"
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(photo.read_bytes() + f"{name}{number}".encode())
    for file, first, second in (("pairsDevTrain.txt", "A", "B"), ("pairsDevTest.txt", "C", "D")):
        (faces / file).write_text(f"1\n{first}\t1\t2\n{first}\t1\t{second}\t1\n")
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    folders = ["--faces", str(faces), "--work", str(tmp_path), "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench_fast.py", *folders])
    bench_fast.main()
    document = json.loads((tmp_path / "fast-cpu.json").read_text("utf-8"))
    check_result(document)
    assert document["figures"]["faces"] == {EXACT: 10, FAST: 10, "both": 10}
    assert document["figures"]["pairwise"]["f"] == 1
    assert document["figures"]["accuracy"][FAST]["accuracy"] == 1
