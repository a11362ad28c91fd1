"""Labeled Faces in the Wild, view 1: its lists of pairs, stores of its photos, and how good embeddings of them are.

The people of pairsDevTrain are for fitting thresholds and calibrations, those of pairsDevTest for measuring. A photo
counts by the face whose box lies nearest its centre, as is usual for LFW.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import CONTRACT_FMR
from pipeline.evaluation.calibration import TABLE_FMRS
from pipeline.evaluation.labels import named_photos
from pipeline.evaluation.pair_distances import all_distances
from pipeline.evaluation.pair_lists import PairList, read_pair_list
from pipeline.evaluation.report import Skipped
from pipeline.evaluation.statistics import (
    best_threshold,
    calibration_exponent,
    decisions_right,
    is_measurable,
    squared_distances,
    threshold_at_fmr,
)
from pipeline.matching.calibration import Calibration
from pipeline.store.files.shards import read_embeddings
from pipeline.store.local import LocalStore
from pipeline.store.records import StoreIdentity
from pipeline.types import BoolArray, DoubleArray, FaceBatch, FloatArray, IntArray

FMRS: Final = (1e-3, 1e-4, 1e-5)
MISLABELLED: Final = Path(__file__).with_name("lfw-mislabelled.txt")  # as `calibrate --leave-out` reads it


@dataclass(frozen=True)
class Protocol:
    """The pairs of both lists; no person is in both."""

    train: PairList
    test: PairList

    def files(self, images: Path) -> list[Path]:
        """Every photo of the people of both lists, sorted."""
        people = sorted({*people_of(self.train), *people_of(self.test)})
        return [file for name in people for file in sorted((images / name).glob("*.jpg"))]


def people_of(listed: PairList) -> list[str]:
    return sorted(set(listed.people.values()))


def read_protocol(folder: Path) -> Protocol:
    """Both lists of `folder`."""
    train, test = (read_pair_list(folder / name, None, Skipped()) for name in ("pairsDevTrain.txt", "pairsDevTest.txt"))
    assert not set(people_of(train)) & set(people_of(test)), "people of both lists"
    return Protocol(train, test)


@dataclass(frozen=True)
class Portraits:
    """The faces of n photos."""

    names: list[str]  # [n] "Ada_Lovelace_0001"
    embeddings: FloatArray  # [n, d] float32; NaN where no face was found

    @property
    def without_face(self) -> int:
        return int(np.isnan(self.embeddings[:, 0]).sum())

    def rows_of(self, people: Sequence[str]) -> tuple[IntArray, IntArray]:
        """The rows of all photos of `people`, and the place of each photo's person in `people`."""
        place = {name: i for i, name in enumerate(people)}
        owner = np.array([place.get(name.rsplit("_", 1)[0], -1) for name in self.names])
        rows = np.flatnonzero(owner >= 0)
        return rows, owner[rows]

    def distances(self, listed: PairList) -> DoubleArray:
        """[number of pairs] squared L2; infinite where a photo shows no face."""
        row = {name: i for i, name in enumerate(self.names)}
        first, second = (
            [row[Path(path).stem] for path in side]
            for side in ([p.first for p in listed.pairs], [p.second for p in listed.pairs])
        )
        return squared_distances(self.embeddings[first], self.embeddings[second])


@dataclass(frozen=True)
class ErrorRates:
    """The threshold at which the FMR is at most `fmr`, and the FNMR there."""

    fmr: float
    threshold: float  # squared distance
    fnmr: float
    genuine_pairs: int
    impostor_pairs: int


def error_rates(genuine: DoubleArray, impostor: DoubleArray, fmr: float) -> ErrorRates:
    """FNMR at the largest threshold at which no more than the share `fmr` of the impostor pairs matches."""
    threshold = threshold_at_fmr(impostor, fmr)
    fnmr = float(np.mean(genuine >= threshold))
    return ErrorRates(fmr, threshold, fnmr, len(genuine), len(impostor))


def bootstrap_interval(right: BoolArray, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the share of True in `right`, over resamples of the pairs (Efron 1979)."""
    drawn = np.random.default_rng(seed).binomial(len(right), right.mean(), size=resamples) / len(right)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def accuracy(portraits: Portraits, protocol: Protocol) -> dict[str, Any]:
    """On the listed test pairs, at the threshold that is best on the training pairs.

    A pair with a photo without a face is an error.
    """
    train, test = (portraits.distances(listed) for listed in (protocol.train, protocol.test))
    train_kinds, test_kinds = (np.array([p.same for p in each.pairs]) for each in (protocol.train, protocol.test))
    threshold = best_threshold(train, train_kinds)
    right = decisions_right(test, test_kinds, threshold)
    return {
        "threshold": threshold,
        "accuracy": float(right.mean()),
        "accuracy_interval_95": bootstrap_interval(right),
        "accuracy_train": float(decisions_right(train, train_kinds, threshold).mean()),
        "test_pairs": len(right),
        "test_pairs_without_face": int(np.isinf(test).sum()),
    }


def all_pairs(portraits: Portraits, protocol: Protocol) -> dict[str, Any]:
    """FNMR at FMR over all pairs of the test people's photos, and the calibration fitted on the training people's, less
    those of `MISLABELLED`."""
    rows, owner = portraits.rows_of(people_of(protocol.test))
    genuine, impostor, _ = all_distances(portraits.embeddings[rows], owner)
    rows, owner = portraits.rows_of(people_of(protocol.train))
    mislabelled = {Path(*parts).stem for parts in named_photos(MISLABELLED)}
    well_labelled = [place for place, row in enumerate(rows) if portraits.names[row] not in mislabelled]
    _, train_impostor, _ = all_distances(portraits.embeddings[rows[well_labelled]], owner[well_labelled])

    def fitted(fmr: float) -> dict[str, float]:
        """Of the training people, and what becomes of the test people at that threshold."""
        threshold = threshold_at_fmr(train_impostor, fmr)
        found = {"test_fmr": np.mean(impostor < threshold), "test_fnmr": np.mean(genuine >= threshold)}
        return {"fmr": fmr, "squared_l2": threshold, **{name: float(share) for name, share in found.items()}}

    anchor = fitted(CONTRACT_FMR)
    return {
        "test": [asdict(error_rates(genuine, impostor, fmr)) for fmr in FMRS],
        "calibration": {
            **anchor,
            "impostor_pairs": len(train_impostor),
            "exponent": calibration_exponent(anchor["squared_l2"]),
            "by_rate": [fitted(rate) for rate in TABLE_FMRS if is_measurable(rate, len(train_impostor))],
        },
    }


_FACES: Final = """
    SELECT f.face_id, m.path, m.sha256, f.person_id, f.x1, f.y1, f.x2, f.y2,
        row_number() OVER (
            PARTITION BY f.media_id ORDER BY (f.x1 + f.x2 - m.width) ** 2 + (f.y1 + f.y2 - m.height) ** 2, f.face_id
        ) = 1 AS labelled
    FROM main.faces f JOIN core.media m USING (media_id) ORDER BY f.face_id
"""


@dataclass(frozen=True)
class Stored:
    """The n faces of a store of LFW's photos, in the order in which they were decided."""

    faces: FaceBatch
    paths: list[str]  # [n]
    persons: list[str]  # [n] the store's identities
    labelled: IntArray  # the rows that are nearest their photo's centre
    identity: StoreIdentity

    @property
    def people(self) -> list[str]:
        """[n] whose photo it is, by its folder."""
        return [Path(path).parent.name for path in self.paths]

    @property
    def calibration(self) -> Calibration:
        return Calibration.from_dict(self.identity.calibration)

    def portraits(self, files: Sequence[Path]) -> Portraits:
        """The labelled faces of `files`."""
        names = [file.stem for file in files]
        place = {name: i for i, name in enumerate(names)}
        embeddings = np.full((len(names), self.faces.embeddings.shape[1]), np.nan, np.float32)
        for row in self.labelled.tolist():
            name = Path(self.paths[row]).stem
            if name in place:
                embeddings[place[name]] = self.faces.embeddings[row]
        return Portraits(names, embeddings)


def make_store(photos: Path, weights: str, store: Path, *options: str) -> None:
    """Runs all faces of `photos` into `store`, none rejected for its quality; goes on where it was stopped."""
    gate = [option for name in ("cpq", "fsq", "fcq") for option in (f"--min-{name}", "0")]
    command = ["run", str(photos), "--store", str(store), "--weights", weights, *options, *gate]
    subprocess.run([sys.executable, "-m", "pipeline", *command], check=True)


def read_store(store: Path) -> Stored:
    """Raises AssertionError for a store that keeps no embedding of some face: its gate was not open."""
    with LocalStore.open(store, command="bench") as client:
        table, identity = client.read(_FACES, []), client.identity
        files = client.read("SELECT file FROM core.embedding_shards ORDER BY file", [])["file"].to_pylist()
        parts = [read_embeddings(client.folder, file, identity.embedding_size) for file in files]
    ids, vectors = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(ids)
    assert np.array_equal(ids[order], table["face_id"].to_numpy()), "faces without an embedding: was the gate open?"
    boxes = np.stack([table[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float32)
    hashes = [(sha256,) for sha256 in table["sha256"].to_pylist()]
    return Stored(
        faces=FaceBatch(vectors[order], np.ones(len(order), bool), hashes, boxes),
        paths=table["path"].to_pylist(),
        persons=table["person_id"].to_pylist(),
        labelled=np.flatnonzero(table["labelled"].to_numpy()),
        identity=identity,
    )
