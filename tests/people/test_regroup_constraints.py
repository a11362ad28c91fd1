"""A regroup moves no face between people whom a user keeps apart, and new people inherit what was said of the old."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown

from pipeline.config import AVERAGE_LINK
from pipeline.jobs.store import open_store
from pipeline.store.records import CorrectionRequest, PersonChange
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, write_photo

RUN_T = SETTINGS.match.threshold
METHODS = {
    "sequential": ("--method", "sequential", "--threshold", RUN_T),
    AVERAGE_LINK: ("--method", AVERAGE_LINK, "--cut", RUN_T),
}
LAX = ("--method", "sequential", "--threshold", 3.9)
SHOWN = [1, 2, 1, 2, 3, 1, 2, 3]  # by face - 1
WRONG, THIRD = 7, 8  # the face of person 2 that is the first's; one of person 3


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("constraints")
    for number, person in enumerate(SHOWN):
        write_photo(folder / "photos", f"{number}.png", Shown(person, number))
    run_over(folder / "photos", make_store(folder / "store"))
    move(folder / "store", WRONG, of=1)
    return folder


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled / "store", tmp_path / "store"))


def move(store: Path, face: int, *, of: int) -> None:
    """To the person of another face, as if a run had decided so."""
    person = whose(store, of)
    with open_store(store, SETTINGS, command="test") as opened:
        opened.correct(CorrectionRequest(1, "main", "move", [person], [face]))
        opened.local.submit(lambda catalog: catalog.execute("DELETE FROM core.facts WHERE kind <> 'not_same'"))


def whose(store: Path, face: int) -> str:
    with open_store(store, SETTINGS, command="test", reading=True) as opened:
        (found,) = opened.local.stored_faces(1, "main", [face], [])
        return str(found.person_id)


def facts(store: Path) -> set[tuple[str, str]]:
    with open_store(store, SETTINGS, command="test", reading=True) as opened:
        rows = opened.local.read_table("facts").read_all().to_pylist()
    return {(row["person_id"], row["other_id"]) for row in rows if row["kind"] == "not_same"}


def regroup(store: Path, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = answer("regroup", "--store", store, "--yes", *words)["regrouping"]
    return found


def not_same(store: Path, one: str, other: str) -> None:
    answer("people", "not-same", one, other, "--store", store)


def named(store: Path, one: str, other: str) -> None:
    answer("people", "name", one, "Ann", "--store", store)
    answer("people", "name", other, "Berta", "--store", store)


def with_external_ids(store: Path, one: str, other: str) -> None:
    with open_store(store, SETTINGS, command="test") as opened:
        for person in (one, other):
            change = PersonChange(external_id=person[:4])
            opened.correct(CorrectionRequest(1, "main", "update", [person], change=change))


def hidden(store: Path, one: str, other: str) -> None:
    answer("people", "hide", one, "--store", store)


WORDS = {"stated": not_same, "name": named, "external id": with_external_ids, "hidden": hidden}


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("reason", WORDS)
@pytest.mark.parametrize("back", [False, True])
def test_a_face_stays_if_its_person_is_kept_apart_from_whom_it_is_like(
    store: Path, method: str, reason: str, only: bool, back: bool
) -> None:
    one, two = whose(store, 1), whose(store, 2)
    WORDS[reason](store, *((two, one) if back else (one, two)))
    flags = (*METHODS[method], *(("--only", one) if only else ()))
    found = regroup(store, *flags)
    assert (found["moves"], found["joins"], found["new"]) == ([], [], [])
    (kept,) = found["kept_apart"]
    assert kept == {"person_id": one, "other_id": two, "reason": reason, "faces": [WRONG]}
    text = facepipe("regroup", "--store", store, *flags, "--yes").stdout
    assert f"apart  face {WRONG} of " in text
    assert "'s, and stay: " in text


@pytest.mark.parametrize("method", METHODS)
def test_without_a_word_it_moves(store: Path, method: str) -> None:
    one, two = whose(store, 1), whose(store, 2)
    (moved,) = regroup(store, *METHODS[method])["moves"]
    assert (moved["face_id"], moved["before"], moved["after"]) == (WRONG, one, two)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("say", [not_same, named])
def test_nor_do_faces_of_both_come_together_in_a_third_person(
    store: Path, method: str, say: Callable[[Path, str, str], None]
) -> None:
    """Each of the two has a face of the third, or of somebody new."""
    move(store, 5, of=1)
    move(store, THIRD, of=2)  # the third person has none left
    one, two = whose(store, 1), whose(store, 2)
    say(store, one, two)
    found = regroup(store, *METHODS[method])
    assert (found["moves"], found["joins"], found["new"]) == ([], [], [])
    assert {face for pair in found["kept_apart"] for face in pair["faces"]} == {5, WRONG, THIRD}


@pytest.mark.parametrize("method", METHODS)
def test_new_people_inherit_that_they_are_not_somebody(store: Path, method: str) -> None:
    """The wrong answer to a suggestion would be asked for again."""
    move(store, THIRD, of=1)
    move(store, 5, of=1)
    one, two = whose(store, 1), whose(store, 2)
    not_same(store, one, two)
    before = facts(store)
    found = regroup(store, *METHODS[method])
    (new,) = found["new"]
    assert {whose(store, 5), whose(store, THIRD)} == {new}
    assert facts(store) - before == {(min(new, two), max(new, two))}
    assert regroup(store, *METHODS[method])["moves"] == []
    answer("people", "undo", "--store", store, "--yes")
    assert facts(store) == before
    assert problems(store) == []


def test_parts_of_both_inherit_it_too(store: Path) -> None:
    one, two = whose(store, 1), whose(store, 2)
    not_same(store, one, two)
    (said,) = facts(store)
    found = regroup(store, "--method", "sequential", "--threshold", 0)
    parts = {side: {whose(store, face) for face in faces} for side, faces in ((one, (3, 6, 7)), (two, (4,)))}
    assert len(parts[one] | parts[two]) == 4
    assert parts[one] | parts[two] <= {*found["new"]}
    pairs = {(min(a, b), max(a, b)) for a in {one, *parts[one]} for b in {two, *parts[two]}}
    assert facts(store) == pairs >= {said}


@pytest.mark.parametrize("method", METHODS)
def test_what_was_said_of_joined_people_holds_for_each(store: Path, method: str) -> None:
    """Not what was said before they were joined: a regroup is no user."""
    move(store, WRONG, of=2)
    one, two, three = (whose(store, face) for face in (1, 2, 5))
    not_same(store, one, two)
    (said,) = facts(store)
    assert regroup(store, *LAX)["joins"] == [[one, three]]
    assert regroup(store, *METHODS[method])["parted"] == [three]
    assert facts(store) == {said}
    assert regroup(store, *LAX)["joins"] == [[one, three]]
    not_same(store, one, two)
    assert regroup(store, *METHODS[method])["parted"] == [three]
    assert facts(store) == {said, (min(two, three), max(two, three))}


@pytest.mark.parametrize("method", METHODS)
def test_parts_of_hidden_people_are_hidden(store: Path, method: str) -> None:
    move(store, THIRD, of=1)
    move(store, 5, of=1)
    one, two = whose(store, 1), whose(store, 2)
    hidden(store, one, two)
    found = regroup(store, *METHODS[method])
    (new,) = found["new"]
    assert hidden_people(store) == {one, new}
    lax = regroup(store, *LAX)
    assert lax["joins"] == [[one, new]]
    assert {pair["reason"] for pair in lax["kept_apart"]} == {"hidden"}
    answer("people", "unhide", one, "--store", store)
    assert regroup(store, *METHODS[method])["parted"] == [new]
    assert hidden_people(store) == set()


def hidden_people(store: Path) -> set[str]:
    return {row["person_id"] for row in answer("people", "list", "--store", store)["people"] if row["hidden"]}
