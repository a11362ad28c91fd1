"""Labeled Faces in the Wild, view 1: its lists of pairs, stores of its photos, and how good embeddings of them are.

The people of pairsDevTrain are for fitting thresholds and calibrations, those of pairsDevTest for measuring. A photo
counts by the face whose box lies nearest its centre, as is usual for LFW.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import CONTRACT_FMR
from pipeline.evaluation.calibration import TABLE_FMRS
from pipeline.evaluation.labels import named_photos, numbered
from pipeline.evaluation.pair_distances import all_distances, score_list
from pipeline.evaluation.pair_lists import PairList, read_pair_list
from pipeline.evaluation.portraits import Portraits
from pipeline.evaluation.report import Skipped
from pipeline.evaluation.statistics import (
    best_threshold,
    calibration_exponent,
    decisions_right,
    interval,
    is_measurable,
    resample_share,
    threshold_at_fmr,
)
from pipeline.matching.calibration import Calibration
from pipeline.store.files.shards import read_embeddings
from pipeline.store.local import LocalStore
from pipeline.store.records import StoreIdentity
from pipeline.texts import path_text
from pipeline.types import FaceBatch, IntArray

FMRS: Final = (1e-3, 1e-4, 1e-5)
MISLABELLED: Final = Path(__file__).with_name("lfw-mislabelled.txt")  # as `calibrate --leave-out` reads it


@dataclass(frozen=True)
class Protocol:
    """The pairs of both lists; no person is in both."""

    train: PairList
    test: PairList

    def files(self, images: Path) -> list[Path]:
        """Every photo of the people of both lists, sorted."""
        people = sorted({*self.train.people.values(), *self.test.people.values()})
        return [file for name in people for file in sorted((images / name).glob("*.jpg"))]


def read_protocol(folder: Path) -> Protocol:
    """Both lists of `folder`, whose photos lie in its folder images."""
    names = ("pairsDevTrain.txt", "pairsDevTest.txt")
    train, test = (read_pair_list(folder / name, folder / "images", Skipped()) for name in names)
    assert not {*train.people.values()} & {*test.people.values()}, "people of both lists"
    return Protocol(train, test)


def rows_of(portraits: Portraits, listed: PairList) -> tuple[IntArray, IntArray]:
    """The rows of all photos of the people of a list, and the number of each photo's person."""
    people, owners = {*listed.people.values()}, [Path(path).parent.name for path in portraits.paths]
    rows = np.flatnonzero([owner in people for owner in owners])
    return rows, numbered([owners[row] for row in rows])[1]


def accuracy(portraits: Portraits, protocol: Protocol) -> dict[str, Any]:
    """On the listed test pairs, at the threshold that is best on the training pairs.

    A pair with a photo without a face is an error.
    """
    skipped = Skipped()
    train, test = (score_list(listed, portraits, skipped) for listed in (protocol.train, protocol.test))
    assert not skipped.counts, skipped.summary()
    threshold = best_threshold(train.distances, train.same)
    right = decisions_right(test.distances, test.same, threshold)
    return {
        "threshold": threshold,
        "accuracy": float(right.mean()),
        "accuracy_interval_95": interval(resample_share(right, test.pair_units, test.units)),
        "accuracy_train": float(decisions_right(train.distances, train.same, threshold).mean()),
        "test_pairs": len(right),
        "test_pairs_without_face": test.without_face,
    }


def all_pairs(portraits: Portraits, protocol: Protocol) -> dict[str, Any]:
    """FNMR at FMR over all pairs of the test people's photos, and the calibration fitted on the training people's, less
    those of `MISLABELLED`."""
    rows, owner = rows_of(portraits, protocol.test)
    genuine, impostor, _ = all_distances(portraits.embeddings[rows], owner)
    rows, owner = rows_of(portraits, protocol.train)
    mislabelled = {Path(*parts).stem for parts in named_photos(MISLABELLED)}
    well_labelled = [place for place, row in enumerate(rows) if Path(portraits.paths[row]).stem not in mislabelled]
    _, train_impostor, _ = all_distances(portraits.embeddings[rows[well_labelled]], owner[well_labelled])

    def rates(fmr: float) -> dict[str, float]:
        """FNMR at the largest threshold at which no more than the share `fmr` of the impostor pairs matches."""
        threshold = threshold_at_fmr(impostor, fmr)
        counts = {"genuine_pairs": len(genuine), "impostor_pairs": len(impostor)}
        return {"fmr": fmr, "threshold": threshold, "fnmr": float(np.mean(genuine >= threshold)), **counts}

    def fitted(fmr: float) -> dict[str, float]:
        """Of the training people, and what becomes of the test people at that threshold."""
        threshold = threshold_at_fmr(train_impostor, fmr)
        found = {"test_fmr": np.mean(impostor < threshold), "test_fnmr": np.mean(genuine >= threshold)}
        return {"fmr": fmr, "squared_l2": threshold, **{name: float(share) for name, share in found.items()}}

    anchor = fitted(CONTRACT_FMR)
    return {
        "test": [rates(fmr) for fmr in FMRS],
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
        place = {file.stem: number for number, file in enumerate(files)}
        embeddings = np.full((len(files), self.faces.embeddings.shape[1]), np.nan, np.float32)
        for row in self.labelled.tolist():
            name = Path(self.paths[row]).stem
            if name in place:
                embeddings[place[name]] = self.faces.embeddings[row]
        return Portraits([path_text(os.path.abspath(file)) for file in files], embeddings, {})  # noqa: PTH100  keeps links


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
