"""The figures of Labeled Faces in the Wild, on planted embeddings: people far apart, their photos close together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench_stores import compare, same_faces
from coded_faces import coded_identity
from lfw import (
    CONTRACT_FMR,
    MISLABELLED,
    Protocol,
    Stored,
    accuracy,
    all_pairs,
    read_protocol,
)

from pipeline.evaluation.labels import named_photos
from pipeline.evaluation.portraits import Portraits
from pipeline.types import FaceBatch

PHOTOS = 3
TRAIN = [f"Train_Person_{i}" for i in range(8)]
TEST = [f"Test_Person_{i}" for i in range(8)]


@pytest.fixture
def protocol(tmp_path: Path) -> Protocol:
    for name, people in (("pairsDevTrain.txt", TRAIN), ("pairsDevTest.txt", TEST)):
        genuine = [f"{person}\t1\t2" for person in people]
        impostor = [f"{a}\t1\t{b}\t3" for a, b in zip(people, people[1:] + people[:1], strict=True)]
        (tmp_path / name).write_text("\n".join([str(len(people)), *genuine, *impostor]) + "\n")
    return read_protocol(tmp_path)


def planted(images: Path, without_face: str = "") -> Portraits:
    rng = np.random.default_rng(1)
    names = [f"{person}/{person}_{k + 1:04d}.jpg" for person in [*TRAIN, *TEST] for k in range(PHOTOS)]
    people = np.repeat(rng.standard_normal((len(TRAIN) + len(TEST), 64)), PHOTOS, axis=0)
    vectors = (people + 0.3 * rng.standard_normal(people.shape)).astype(np.float32)
    vectors[[name == without_face for name in names]] = np.nan
    return Portraits(
        [str(images / name) for name in names], vectors / np.linalg.norm(vectors, axis=1, keepdims=True), {}
    )


def test_a_photo_without_face_costs_its_pairs(protocol: Protocol, tmp_path: Path) -> None:
    perfect = planted(tmp_path / "images")
    lossy = planted(tmp_path / "images", f"{TEST[0]}/{TEST[0]}_0001.jpg")  # in one genuine and one impostor pair
    assert accuracy(perfect, protocol)["accuracy"] == 1
    rates = all_pairs(perfect, protocol)["test"]
    assert [rate["fnmr"] for rate in rates] == [0, 0, 0]
    assert rates[0]["genuine_pairs"] == len(TEST) * 3
    assert rates[0]["impostor_pairs"] == len(TEST) * (len(TEST) - 1) // 2 * PHOTOS**2
    figures = accuracy(lossy, protocol)
    low, high = figures["accuracy_interval_95"]
    assert low < figures["accuracy"] < high == 1
    assert (figures["test_pairs_without_face"], figures["accuracy"]) == (2, 1 - 2 / (2 * len(TEST)))
    assert all_pairs(lossy, protocol)["test"][0]["fnmr"] == pytest.approx(2 / (3 * len(TEST)))


def test_the_contract_rate_is_the_calibrations(protocol: Protocol, tmp_path: Path) -> None:
    calibration = all_pairs(planted(tmp_path / "images"), protocol)["calibration"]
    assert calibration["fmr"] == CONTRACT_FMR == 1e-5
    assert calibration["by_rate"] == []  # too few pairs to measure any
    assert 2 * (calibration["squared_l2"] ** 0.5 / 2) ** calibration["exponent"] == pytest.approx(0.54**0.5)


def test_mislabelled_photos_are_left_out(protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(named_photos(MISLABELLED)) == 4
    portraits = planted(tmp_path / "images")
    before = all_pairs(portraits, protocol)["calibration"]["impostor_pairs"]
    (tmp_path / "list.txt").write_text(f"# notes\n{TRAIN[0]}/{TRAIN[0]}_0001.jpg # somebody else\n")
    monkeypatch.setattr("lfw.MISLABELLED", tmp_path / "list.txt")
    assert all_pairs(portraits, protocol)["calibration"]["impostor_pairs"] == before - (len(TRAIN) - 1) * PHOTOS


@pytest.fixture
def exact() -> Stored:
    """Two people; the last photo shows a stranger beside Bob."""
    paths = ["Ada/Ada_0001.jpg", "Ada/Ada_0002.jpg", "Bob/Bob_0001.jpg", "Bob/Bob_0001.jpg"]
    vectors = np.eye(4, 8, dtype=np.float32)[[0, 0, 2, 3]]
    boxes = np.array([[0, 0, 50, 60], [5, 5, 55, 70], [0, 0, 50, 60], [100, 0, 150, 60]], np.float32)
    faces = FaceBatch(vectors, np.ones(4, bool), [(path,) for path in paths], boxes)
    return Stored(faces, paths, ["a", "a", "b", "c"], np.array([0, 1, 2]), coded_identity(8))


def reordered(stored: Stored, order: list[int]) -> Stored:
    faces, hashes = stored.faces, [stored.faces.image_hashes[i] for i in order]
    picked = FaceBatch(faces.embeddings[order], faces.insertable[order], hashes, faces.boxes[order])
    paths, persons = ([values[i] for i in order] for values in (stored.paths, stored.persons))
    labelled = np.flatnonzero(np.isin(order, stored.labelled))
    return replace(stored, faces=picked, paths=paths, persons=persons, labelled=labelled)


def test_stores_are_compared_face_by_face(exact: Stored) -> None:
    rows, others = same_faces(exact, reordered(exact, [3, 2, 0]))
    assert (rows.tolist(), others.tolist()) == ([0, 2, 3], [2, 1, 0])
    assert [len(part) for part in same_faces(exact, reordered(exact, []))] == [0, 0]
    renamed = replace(reordered(exact, [3, 2, 1, 0]), persons=["x", "y", "z", "z"])
    figures = compare(exact, renamed)
    assert figures["pairwise"]["f"] == figures["bcubed"]["f"] == 1
    assert figures["cosine_min"] == pytest.approx(1)
    parted = compare(exact, replace(exact, persons=["a", "d", "b", "b"]))
    assert parted["pairwise"]["recall"] == parted["pairwise"]["precision"] == 0


def test_portraits_of_a_store_are_the_labelled_faces(exact: Stored) -> None:
    names = ["Ada_0001", "Ada_0002", "Bob_0001", "Bob_0002"]
    files = [Path(f"{name}.jpg") for name in names]
    portraits = exact.portraits(files)
    assert portraits.paths == [str(file.absolute()) for file in files]
    assert portraits.embeddings[:3].tolist() == exact.faces.embeddings[:3].tolist()
    assert portraits.has_face.tolist() == [True, True, True, False]
    assert reordered(exact, [3, 0]).portraits(files).has_face.tolist() == [True, False, False, False]
