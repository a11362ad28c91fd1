"""Faces without a person: the list of them, "this is ..." and "not a face", and what later runs and a reindex make of
that."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown

import pipeline
from pipeline.config import MatchSettings
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import (
    SETTINGS,
    ArchiveExtractor,
    index_otherwise,
    make_store,
    problems,
    reindex,
    run_over,
    serving,
    write_photo,
)

POOR = 0.5  # of a quality that a laxer gate admits
LAX = MatchSettings(min_cpq=0.4)
LOW = "low center-pose"
UNMATCHED = "matches nobody, and its photo's name is the largest face's"
LOST = "has lost its person to a stricter gate or an undo"
NOBODYS = "you said that it is nobody's"


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ in folders of their names, and store/. The faces 1, 3 and 5 are Ann's, Ben's and Cid's. Face 4 is the
    poor only one of its photo; 2, 6 and 7 are further ones of named photos, 6 and 7 poor."""
    folder = tmp_path_factory.mktemp("labelled")
    write_photo(folder / "photos" / "Ann", "a.png", Shown(1), Shown(4))
    write_photo(folder / "photos" / "Ben", "b.png", Shown(2))
    write_photo(folder / "photos" / "Cid", "c.png", Shown(5, 0, POOR))
    write_photo(folder / "photos" / "Cid", "d.png", Shown(3), Shown(6, 0, POOR), Shown(7, 0, POOR))
    make_store(folder / "store")
    labels = replace(SETTINGS, source=replace(SETTINGS.source, labels="parent"))
    run_over(folder / "photos", folder / "store", settings=labels)
    return folder


@pytest.fixture
def named(labelled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(labelled / "store", tmp_path / "named"))


@pytest.fixture(params=["alone", "served"])
def opened(request: pytest.FixtureRequest, named: Path) -> Iterator[Path]:
    """A store that nobody holds, or that a server holds. It is whole afterwards."""
    with serving(named) if request.param == "served" else nullcontext():
        yield named
    assert problems(named) == []


def unassigned(store: Path, *words: object) -> list[dict[str, Any]]:
    return list(answer("people", "unassigned", "--store", store, *words)["faces"])


def reasons(store: Path, *words: object) -> dict[int, str]:
    return {face["face_id"]: face["reason"] for face in unassigned(store, *words)}


def test_the_largest_come_first_with_the_reason(opened: Path, labelled: Path) -> None:
    rows = unassigned(opened)
    assert [(row["face_id"], Path(row["path"]).name, row["size_px"], row["reason"]) for row in rows] == [
        (4, "c.png", 40.0, LOW),
        (2, "a.png", 39.0, UNMATCHED),
        (6, "d.png", 39.0, UNMATCHED),
        (7, "d.png", 38.0, UNMATCHED),
    ]
    assert rows[0]["path"] == str(labelled / "photos" / "Cid" / "c.png")
    table = facepipe("people", "unassigned", "--store", opened, "--csv").stdout
    assert [*csv.DictReader(io.StringIO(table))] == [{name: str(value) for name, value in r.items()} for r in rows]
    first = facepipe("people", "unassigned", "--store", opened, "--limit", 1).stdout
    assert first == f"4  {rows[0]['path']}  40 px  {LOW}\n"
    assert unassigned(opened, "--directory", "other") == []


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_pages_go_on_behind_faces_that_were_answered_meanwhile(named: Path, size: int) -> None:
    rows = unassigned(named)
    pages, after = list[dict[str, Any]](), None
    with pipeline.open_store(named) as store:
        while page := store.people.unassigned(limit=size, after=after):
            pages += map(vars, page)
            after = page[-1].face_id
            store.people.move(after, "Ann" if len(pages) % 2 else None)
    assert pages == rows
    unknown = facepipe("people", "unassigned", "--store", named, "--after", 99, "--json")
    assert (unknown.exit_code, "face-unknown" in unknown.stdout) == (60, True)


def test_a_face_is_somebodys_or_no_face_until_that_is_undone(opened: Path) -> None:
    """A rejected one has no vector, and so is never the one that its person is known by."""
    before = reasons(opened)
    answer("people", "move", 4, "Ben", "--store", opened)
    answer("people", "move", 2, "Ann", "--store", opened)
    answer("people", "move", 7, "--nobody", "--store", opened)
    faces = {face["face_id"]: face for who in ("Ann", "Ben") for face in photos(opened, who)}
    assert {face: faces[face]["reference"] for face in (1, 2, 3, 4)} == {1: True, 2: False, 3: True, 4: False}
    assert faces[4]["stated"]
    assert reasons(opened) == {6: UNMATCHED}
    assert reasons(opened, "--all") == {6: UNMATCHED, 7: NOBODYS}
    alone = facepipe("people", "split", "Ben", 3, "--store", opened, "--json")
    assert "too low a quality" in alone.stdout  # nobody is known by face 4 alone
    for _ in range(3):
        answer("people", "undo", "--store", opened)
    assert reasons(opened, "--all") == before


def photos(store: Path, who: str) -> list[dict[str, Any]]:
    return list(answer("people", "photos", who, "--store", store)["faces"])


def test_a_stricter_gate_takes_the_person(store: Path) -> None:
    poor = {7: f"{LOW}, sharpness, contrast"}
    assert reasons(store) == poor
    first, *_ = answer("people", "list", "--store", store)["people"]
    answer("people", "name", first["person_id"], "Ann", "--store", store)  # named people stay
    answer("regroup", "--min-cpq", 0.95, "--yes", "--store", store)
    assert reasons(store) == dict.fromkeys((4, 5, 6), LOST) | poor


@pytest.mark.parametrize("face", [2, 4], ids=["recognised", "rejected"])
def test_later_runs_and_regroups_leave_what_is_no_face(
    named: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, face: int
) -> None:
    """By the photo's bytes and the face's place in it, also in copies, whatever the gate."""
    answer("people", "move", face, "--nobody", "--store", named)
    copies = shutil.copytree(labelled / "photos", tmp_path / "copies")
    run_over(copies, named)
    said = {face, face + 7}  # the copy's face
    assert not said & reasons(named).keys()
    assert {one for one, reason in reasons(named, "--all").items() if reason == NOBODYS} == said
    monkeypatch.setattr("pipeline.jobs.decode_rejected.load_extractor", ArchiveExtractor.load)
    with open_store(named, SETTINGS, command="test") as opened:
        people = People(opened)
        for gate, decode in ((LAX, True), (replace(LAX, threshold=3.9), False)):  # by the second all are alike
            people.regroup(gate, decode=decode)
            assert said <= {one.face_id for one in people.unassigned(nobodys=True)}
            assert not said & {one.face_id for one in people.unassigned()}
    assert problems(named) == []


@pytest.mark.parametrize("face", [2, 4], ids=["recognised", "rejected"])
def test_a_reindex_keeps_what_is_no_face(named: Path, face: int) -> None:
    before = reasons(named)
    answer("people", "move", face, "--nobody", "--store", named)
    index_otherwise(named)
    with open_store(named, SETTINGS, command="test") as opened:
        People(opened).swap_and_regroup()
    assert reasons(named) == {one: reason for one, reason in before.items() if one != face}
    assert reasons(named, "--all")[face] == NOBODYS
    with open_store(named, SETTINGS, command="test") as opened:
        reindex(opened, "drop")
    assert reasons(named, "--all")[face] == NOBODYS
    answer("people", "undo", "--store", named)
    assert problems(named) == []
