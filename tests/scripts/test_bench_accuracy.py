"""The accuracy benchmark's bookkeeping, on planted embeddings: people far apart, their photos close together."""

from __future__ import annotations

from pathlib import Path

import bench_accuracy
import lfw_embeddings
import numpy as np
import pytest
from bench_accuracy import Protocol, figures_of, read_protocol
from lfw_embeddings import MARGINS, Portraits

PHOTOS = 3
TRAIN = [f"Train_Person_{i}" for i in range(8)]
TEST = [f"Test_Person_{i}" for i in range(8)]


def write_lists(folder: Path) -> None:
    for name, people in (("pairsDevTrain.txt", TRAIN), ("pairsDevTest.txt", TEST)):
        genuine = [f"{person}\t1\t2" for person in people]
        impostor = [f"{a}\t1\t{b}\t3" for a, b in zip(people, people[1:] + people[:1], strict=True)]
        (folder / name).write_text("\n".join([str(len(people)), *genuine, *impostor]) + "\n")


@pytest.fixture
def protocol(tmp_path: Path) -> Protocol:
    write_lists(tmp_path)
    return read_protocol(tmp_path, None)


@pytest.fixture
def planted() -> Portraits:
    rng = np.random.default_rng(1)
    names = [f"{person}_{k + 1:04d}" for person in [*TRAIN, *TEST] for k in range(PHOTOS)]
    people = np.repeat(rng.standard_normal((len(TRAIN) + len(TEST), 64)), PHOTOS, axis=0)
    vectors = (people + 0.3 * rng.standard_normal(people.shape)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    keys = [f"{who}-{margin}" for who in ("ours", "reference") for margin in MARGINS]
    return Portraits(names, {key: vectors.copy() for key in [*keys, "centred"]})


def test_perfect_embeddings(planted: Portraits, protocol: Protocol) -> None:
    figures = figures_of(planted, protocol)
    for margin in MARGINS:
        for who in ("ours", "reference"):
            one = figures[f"{who}-{margin}"]
            assert one["accuracy"] == 1
            assert one["test_pairs"] == 2 * len(TEST)
            assert [r["fnmr"] for r in one["test"]] == [0, 0]
            assert one["test"][0]["genuine_pairs"] == len(TEST) * 3
            assert one["test"][0]["impostor_pairs"] == len(TEST) * (len(TEST) - 1) // 2 * PHOTOS**2
        assert figures[f"mcnemar-{margin}"] == {"only_ours_right": 0, "only_reference_right": 0, "p": 1.0}
    assert figures["centred"]["accuracy"] == 1


def test_photo_without_face_costs_its_method(planted: Portraits, protocol: Protocol) -> None:
    lost = planted.row[f"{TEST[0]}_0001"]  # in one genuine and one impostor pair
    planted.embeddings["ours-14"][lost] = np.nan
    figures = figures_of(planted, protocol)
    assert figures["photos_without_face"]["ours-14"] == 1
    assert figures["ours-14"]["test_pairs_without_face"] == 2
    assert figures["ours-14"]["accuracy"] == 1 - 2 / (2 * len(TEST))
    assert figures["ours-14"]["test"][0]["fnmr"] == pytest.approx(2 / (3 * len(TEST)))
    assert figures["reference-14"]["accuracy"] == 1
    assert figures["mcnemar-14"] == {"only_ours_right": 0, "only_reference_right": 2, "p": 0.5}
    assert figures["mcnemar-32"]["p"] == 1


def test_lists_are_read_in_part(tmp_path: Path) -> None:
    write_lists(tmp_path)
    protocol = read_protocol(tmp_path, 2)
    assert [p.genuine for p in protocol.test] == [True, True, False, False]
    assert protocol.people(protocol.train) == TRAIN[:3]


def test_cache_of_other_photos_is_refused(planted: Portraits, tmp_path: Path) -> None:
    file = tmp_path / "cache.npz"
    with file.open("wb") as stream:
        np.savez(stream, key="mine", names=planted.names, **planted.embeddings)
    again = lfw_embeddings._load(file, "mine")
    assert again.names == planted.names
    assert again.embeddings.keys() == planted.embeddings.keys()
    with pytest.raises(SystemExit, match="other photos"):
        lfw_embeddings._load(file, "other")


def test_contract_rate_is_the_calibrations(planted: Portraits, protocol: Protocol) -> None:
    calibration = figures_of(planted, protocol)["ours-14"]["calibration"]
    assert calibration["fmr"] == bench_accuracy.CONTRACT_FMR == 2e-4
    assert 2 * (calibration["squared_l2"] ** 0.5 / 2) ** calibration["exponent"] == pytest.approx(0.54**0.5)
