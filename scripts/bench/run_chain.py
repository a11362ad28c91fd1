"""`facepipe run` as a chain of `workers`: from photo files to a committed store, with the models loaded once."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from bench_memory import models_loaded_once, write_manifest

from pipeline.config import Settings
from pipeline.evaluation.bench.parity import Extracted
from pipeline.run.run import RunRequest, run

_DETECTIONS = """
    SELECT m.path, [d.x1, d.y1, d.x2, d.y2] AS box, d.landmarks, d.confidence
    FROM core.faces f JOIN core.media m USING (media_id) JOIN core.detections d USING (face_id)
"""
_COUNTS = {"rows": "core.media", "faces": "core.faces", "identities": "core.persons"}


class RunChain:
    """Each turn is one run over all files, which have names of their own, into a new store."""

    def __init__(self, settings: Settings, scratch: Path) -> None:
        self._settings, self._scratch = settings, scratch
        self._files: dict[str, Path] = {}
        self._turns = 0
        self._identities: set[int] = set()
        self._models = ExitStack()
        self._models.enter_context(models_loaded_once())  # for as long as the chain lives

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        self._files = {file.name: file for files in lists for file in files}
        self._identities = set()
        shutil.rmtree(self._scratch, ignore_errors=True)  # the stores so far
        self._scratch.mkdir()
        self._manifest = write_manifest(list(self._files.values()), self._scratch / "photos.csv")

    def __call__(self, _: Iterable[int]) -> Mapping[Path, range]:
        """As many numbers as there are faces. Raises AssertionError where the run did not take and read every file, or
        found other identities than the turn before."""
        self._turns += 1
        report = run(RunRequest(self._manifest, self._store, self._settings))
        assert report.new == report.images == report.work.decoded == len(self._files), report
        assert report.statuses.keys() <= {"ok", "no_face"}, report.statuses
        self._identities.add(report.persons)
        assert len(self._identities) == 1, self._identities
        return {self._manifest: range(report.faces)}

    @property
    def _store(self) -> Path:
        return self._scratch / f"store-{self._turns}"

    def committed(self) -> tuple[dict[Path, Extracted], dict[str, int]]:
        """What is in the last turn's store: the faces of each photo, without embeddings; and how many rows, faces and
        identities there are."""
        catalog = self._store / (self._store / "CURRENT").read_text().strip()
        with duckdb.connect(str(catalog), read_only=True) as con:
            rows = con.execute(_DETECTIONS).fetchall()
            counts = {name: con.execute(f"SELECT count(*) FROM {table}").fetchall() for name, table in _COUNTS.items()}
        found: dict[str, list[Any]] = {name: [] for name in self._files}
        for path, *face in rows:
            found[Path(path).name].append(face)
        faces = {self._files[name]: _extracted(of_photo) for name, of_photo in found.items()}
        return faces, {name: int(rows[0][0]) for name, rows in counts.items()}


def _extracted(found: Sequence[Sequence[Any]]) -> Extracted:
    boxes, landmarks, scores = (np.array([face[column] for face in found], np.float32) for column in range(3))
    return Extracted(boxes.reshape(-1, 4), landmarks.reshape(-1, 5, 2), scores, np.zeros((len(found), 0), np.float32))
