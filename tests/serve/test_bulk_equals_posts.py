"""A run over real photos gives what posting them one by one over HTTP gives: the same partition, matches, rejections.

TEST_BULK_PHOTOS is the number of photos, 36 by default and 60 with --full; lfw-view1 must have as many. Planted faces
are compared in `tests/identities/test_shards_equal_posts.py`.
"""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import pipeline.run.stages
from pipeline.extraction.extractor import BatchExtractor
from pipeline.run.run import RunRequest, run
from pipeline.store.local import LocalStore
from tests.serve.live import live_server, live_settings

GROUPS = 4  # photos of several people among them


@dataclass(frozen=True)
class Decided:
    """What was decided of one face. The first face of a person is its name in `person`."""

    outcome: str
    person: tuple[str, int] | None
    rejected: tuple[str, ...]
    score: float | None


Decisions = dict[tuple[str, int], Decided]  # by photo and face, the largest of a photo first


@pytest.fixture(scope="module")
def photos(faces_dir: Path, tmp_path_factory: pytest.TempPathFactory, full: bool) -> Path:
    """A folder of photos in a folder for each person: people with several photos, and some groups."""
    count = int(os.environ.get("TEST_BULK_PHOTOS", "60" if full else "36")) - GROUPS
    folder = tmp_path_factory.mktemp("bulk")
    people = sorted(path for path in (faces_dir / "lfw-view1" / "images").iterdir() if len(list(path.iterdir())) > 1)
    chosen = [photo for person in people for photo in sorted(person.iterdir())][:count]
    assert len(chosen) == count
    groups = sorted((faces_dir / "groups-with-boxes").rglob("*.jpg"), key=lambda path: path.stat().st_size)[:GROUPS]
    for photo in chosen:
        (folder / photo.parent.name).mkdir(exist_ok=True)
        shutil.copy(photo, folder / photo.parent.name)
    (folder / "groups").mkdir()
    for photo in groups:
        shutil.copy(photo, folder / "groups")
    return folder


@pytest.fixture(autouse=True)
def _loaded_once(extractor: BatchExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.run.stages, "load_extractor", lambda *_: extractor)


def manifest_of(photos: Path, target: Path, *, named: bool) -> list[dict[str, str]]:
    """Writes a manifest of all photos, in their order; its rows."""
    rows = [{"path": path.relative_to(photos).as_posix()} for path in sorted(photos.rglob("*.jpg"))]
    if named:
        rows = [{**row, "name": (who := row["path"].split("/")[0]), "external_id": f"id {who}"} for row in rows]
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def by_run(manifest: Path, store: Path) -> Decisions:
    run(RunRequest(source=manifest, store=store, settings=live_settings()))
    with LocalStore.open(store, command="test") as client:
        rows = client.read(
            "SELECT m.path, f.ordinal, f.outcome, f.person_id::VARCHAR AS person, d.rejection_reasons AS reasons,"
            " d.similarity_score AS score FROM core.media m JOIN core.faces f USING (media_id)"
            " JOIN core.detections d USING (face_id)"
            " ORDER BY m.media_id, f.ordinal"
        ).to_pylist()
    faces = []
    for row in rows:
        where = _below(row["path"], manifest.parent), row["ordinal"]
        faces.append((where, row["outcome"], row["person"], (row["reasons"] or "").split(","), row["score"]))
    return _named(faces)


def _below(path: str, root: Path) -> str:
    return Path(path).relative_to(root).as_posix()


def by_posts(
    photos: Path, rows: Sequence[dict[str, str]], store: Path, extractor: BatchExtractor, **query: str
) -> Decisions:
    faces = []
    with live_server(store, extractor, serve__person_headers="optional") as server, server.http() as client:
        for row in rows:
            names = {"X-RPC-PERSON-NAME": "name", "X-RPC-EXTERNAL-ID": "external_id"}
            headers = {header: row[key] for header, key in names.items() if key in row}
            data = (photos / row["path"]).read_bytes()
            answer = client.post("/people", params={"update": "false", **query}, headers=headers, content=data)
            assert answer.status_code == 201, answer.text
            faces += [((row["path"], k), face) for k, face in enumerate(answer.json()["identifiedFaces"])]
    return _named(
        (where, _outcome(face), face.get("personId"), face.get("rejectionReasons", []), face.get("similarityScore"))
        for where, face in faces
    )


def _outcome(face: dict[str, Any]) -> str:
    if face.get("newId"):
        return "inserted"
    return "matched" if "personId" in face else "rejected" if "rejectionReasons" in face else "recognised"


def _named(faces: Iterable[tuple[tuple[str, int], str, str | None, Sequence[str], float | None]]) -> Decisions:
    first: dict[str, tuple[str, int]] = {}
    decisions = {}
    for where, outcome, person, reasons, score in faces:
        who = None if person is None else first.setdefault(person, where)
        decisions[where] = Decided(outcome, who, tuple(sorted(filter(None, reasons))), score)
    return decisions


def assert_equal(bulk: Decisions, posted: Decisions) -> None:
    assert list(bulk) == list(posted)
    for where, mine in bulk.items():
        theirs = posted[where]
        assert (mine.outcome, mine.person, mine.rejected) == (theirs.outcome, theirs.person, theirs.rejected), where
        # Embeddings of one image agree within a tolerance, whatever batch it was in.
        assert mine.score == pytest.approx(theirs.score, abs=1e-4), where


@pytest.mark.faces
@pytest.mark.slow
def test_unnamed_photos(photos: Path, tmp_path: Path, extractor: BatchExtractor) -> None:
    rows = manifest_of(photos, photos / "manifest.csv", named=False)
    bulk = by_run(photos / "manifest.csv", tmp_path / "run")
    assert_equal(bulk, by_posts(photos, rows, tmp_path / "posts", extractor, insert_all="true"))
    assert {decided.outcome for decided in bulk.values()} == {"inserted", "matched", "rejected"}


@pytest.mark.faces
@pytest.mark.slow
def test_named_photos(photos: Path, tmp_path: Path, extractor: BatchExtractor) -> None:
    rows = manifest_of(photos, photos / "manifest.csv", named=True)
    bulk = by_run(photos / "manifest.csv", tmp_path / "run")
    assert_equal(bulk, by_posts(photos, rows, tmp_path / "posts", extractor))
    assert {decided.outcome for decided in bulk.values()} >= {"inserted", "matched", "recognised"}
