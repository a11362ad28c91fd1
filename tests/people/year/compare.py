"""What users can see of a store, beside what a model says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from coded_faces import SIDE

from pipeline.jobs.people import People
from tests.people.year.archive import Archive
from tests.people.year.model import Model, Night, Person


def compare(store: Path, archive: Archive, model: Model) -> None:
    """Raises AssertionError where the store is not what the model says. What an id stands for is learnt as it appears,
    and holds from then on."""
    with duckdb.connect(str(store / (store / "CURRENT").read_text().strip()), read_only=True) as catalog:

        def rows(sql: str) -> list[Any]:
            return catalog.execute(sql).fetchall()

        _compare_photos(rows, archive, model)
        _compare_faces(rows, archive, model)
        _compare_people(rows, model)
        _compare_facts(rows, model)


def _compare_photos(rows: Callable[[str], list[Any]], archive: Archive, model: Model) -> None:
    found = rows(
        "SELECT m.path, m.sha256, m.status, gone_at IS NOT NULL FROM main.media m JOIN core.media USING (media_id)"
        " ORDER BY media_id"
    )
    expected = [
        (None, None, p.status, p.gone)
        if p.status in ("forgotten", "replaced")
        else (str(archive.root / p.path), p.picture.sha256, p.status, p.gone)
        for p in model.photos
    ]
    assert found == expected


def _compare_faces(rows: Callable[[str], list[Any]], archive: Archive, model: Model) -> None:
    found = rows(
        "SELECT face_id, path, x1, outcome, person_id, similarity_score, f.face_id IN (SELECT face_id FROM"
        " core.reference_faces WHERE generation = (SELECT current_generation FROM core.store)) FROM main.faces f"
        " ORDER BY face_id"
    )
    known_by = {p.reference for p in model.people}
    faces = model.faces()
    assert [row[1:4] for row in found] == [
        (str(archive.root / f.photo.path), SIDE * f.ordinal, f.outcome) for f in faces
    ]
    for face, (face_id, *_, person_id, _, _) in zip(faces, found, strict=True):
        face.id = face.id or face_id
        if face.person is not None and face.person.id is None:
            face.person.id = person_id
    assert [(row[0], row[4], row[6]) for row in found] == [
        (f.id, f.person and f.person.id, f in known_by) for f in faces
    ]
    assert [row[5] for row in found] == [None if f.score is None else pytest.approx(f.score, abs=1e-3) for f in faces]


def _compare_people(rows: Callable[[str], list[Any]], model: Model) -> None:
    found = rows("SELECT person_id, root_person_id, name, occurrence FROM main.persons")
    assert sorted(found) == sorted((p.id, model.root(p).id, p.name, p.occurrence) for p in model.people)


def _compare_facts(rows: Callable[[str], list[Any]], model: Model) -> None:
    def of(person: Person | None) -> str | None:
        return person and person.id

    found = rows("SELECT kind, face_id, person_id, other_id, origin FROM main.facts")
    expected = set()
    for kind, face, one, other in model.facts:
        pair = (of(one), of(other)) if other is None else sorted((str(of(one)), str(of(other))))
        expected.add((kind, face and face.id, *pair, "user"))
    assert set(found) == expected
    assert len(found) == len(expected)


def compare_list(people: People, model: Model) -> None:
    found = [(p.person_id, p.name, p.photos, p.faces, p.occurrence, p.merged, p.hidden) for p in people.all()]
    expected = []
    for root in sorted(model.roots(), key=lambda p: p.age):
        members = model.set_of(root)
        faces = model.faces_of(*members)
        photos = {face.photo.path for face in faces}
        seen = sum(p.occurrence for p in members)
        expected.append((root.id, root.name, len(photos), len(faces), seen, len(members) - 1, root.hidden))
    assert found == expected


def compare_report(report: dict[str, Any], night: Night, archive: Archive, model: Model) -> None:
    """What a run said."""

    def full(paths: Sequence[str]) -> list[str]:
        return sorted(str(archive.root / path) for path in paths)

    listed = ("changed_files", "vanished_files", "forgotten_files", "forgotten_missing_files")
    lists: dict[str, list[Any]] = {name: full(getattr(night, name)) for name in listed}
    lists["moved_files"] = sorted(full(pair) for pair in night.moved_files)
    expected = {
        **{name: getattr(night, name) for name in ("new", "already_in", "back", "decoded")},
        **{name.removesuffix("_files"): len(files) for name, files in lists.items()},
        **lists,
        **{name: getattr(night, name) for name in ("vanished", "too_many_missing")},
        "images": night.new + len(night.changed_files),
        "persons": len(model.roots()),
        "new_persons": night.outcomes["inserted"],
        "faces": night.outcomes.total(),
        "statuses": dict(night.statuses),
        "outcomes": dict(night.outcomes),
    }
    in_order = {
        **report,
        **{name: sorted(report[name]) for name in lists},
        "moved_files": sorted(map(sorted, report["moved_files"])),
    }
    assert {name: in_order[name] for name in expected} == expected
