"""`regroup --only WHO`: the faces of one person and of those near it are decided again, and nobody else changes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_faces import Shown, vector

from pipeline.config import AVERAGE_LINK, MatchSettings, RegroupSettings
from pipeline.errors import PersonNotFound, PersonUnknown, UsageError
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest, Regrouping
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, serving, write_photo

# Photos of persons 1 and 2 with three faces each, of 3 with two and of 4 with one.
SHOWN = [Shown(1), Shown(2), Shown(3), Shown(1, 1), Shown(2, 1), Shown(3, 1), Shown(1, 2), Shown(2, 2), Shown(4)]
RUN_T = SETTINGS.match.threshold
METHODS = {"sequential": ("--threshold", RUN_T), AVERAGE_LINK: ("--method", AVERAGE_LINK, "--cut", RUN_T)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ and store/, in which each face is a person."""
    folder = tmp_path_factory.mktemp("only")
    for number, face in enumerate(SHOWN):
        write_photo(folder / "photos", f"{number}.png", face)
    run_over(folder / "photos", make_store(folder / "store"))
    regroup(folder / "store", "--threshold", 0)
    return folder


def regroup(store: Path, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = answer("regroup", "--store", store, "--yes", *words)["regrouping"]
    return found


def partition(store: Path) -> set[frozenset[int]]:
    """The faces of each person. Face n shows SHOWN[n - 1]."""
    with open_store(store, SETTINGS, command="test", reading=True) as opened:
        people = People(opened)
        return {frozenset(face["face_id"] for face in people.photos(row.person_id)) for row in people.all()}


def whose(store: Path, face: int) -> str:
    with open_store(store, SETTINGS, command="test", reading=True) as opened:
        people = People(opened)
        return next(r.person_id for r in people.all() if face in {f["face_id"] for f in people.photos(r.person_id)})


def as_held(store: Path, held: str) -> AbstractContextManager[object]:
    return serving(store) if held == "served" else nullcontext()


@pytest.mark.parametrize("held", ["alone", "served"])
@pytest.mark.parametrize("method", METHODS)
def test_only_the_person_and_who_is_near_change(store: Path, method: str, held: str) -> None:
    one = whose(store, 1)
    before = answer("people", "list", "--store", store)["people"]
    with as_held(store, held):
        flags = ("--only", one, *METHODS[method])
        shown = answer("regroup", "--store", store, *flags, "--dry-run")["regrouping"]
        found = regroup(store, *flags)
        assert found["joins"] == shown["joins"]
    assert (found["faces"], len(found["scope"]), found["scope"][0], found["moves"]) == (3, 3, one, [])
    assert partition(store) == {frozenset([1, 4, 7]), *(frozenset([n]) for n in (2, 3, 5, 6, 8, 9))}
    (row,) = answer("directory", "list", "--store", store)["directories"]
    assert (row["threshold"], row["method"]) == ("0.0", None)  # as before: `--only` is not remembered
    with as_held(store, held):
        answer("people", "undo", "--store", store, "--yes")
    assert answer("people", "list", "--store", store)["people"] == before
    assert problems(store) == []


@pytest.mark.parametrize("method", METHODS)
def test_one_after_another_they_become_what_all_at_once_would(store: Path, tmp_path: Path, method: str) -> None:
    for face in range(1, 10):
        regroup(store, "--only", whose(store, face), *METHODS[method])
    assert partition(store) == {frozenset(group) for group in ([1, 4, 7], [2, 5, 8], [3, 6], [9])}


def test_several_are_named_and_none_is_unknown(store: Path) -> None:
    names = [whose(store, face) for face in (1, 2)]
    found = regroup(store, "--only", names[0], "--only", names[1], "--threshold", RUN_T)
    assert len(found["scope"]) == 6
    assert (
        "6 faces of 2 people at T"
        in facepipe(
            "regroup", "--store", store, "--only", names[0], "--only", names[1], "--threshold", RUN_T, "--yes"
        ).output
    )
    assert answer("regroup", "--store", store, "--only", "Zoe", "--yes", exit_code=PersonNotFound.exit_code)
    text = answer("regroup", "--store", store, "--only", names[0], "--decode", exit_code=UsageError.exit_code)
    assert "--only" in text["message"]
    unknown = CorrectionRequest(1, "main", "regroup", ["00000000-0000-4000-8000-000000000000"], gate=SETTINGS.match)
    with serving(store) as service, pytest.raises(PersonUnknown):
        service.correct(unknown)


@pytest.mark.parametrize("method", METHODS)
def test_what_an_earlier_regroup_joined_elsewhere_stays(store: Path, method: str) -> None:
    """A regroup of all would part it, and so does one of a person in it."""
    regroup(store, "--threshold", RUN_T)
    regroup(store, "--threshold", 1.5)  # at which 1 and 2 are one
    joined = partition(store)
    assert joined == {frozenset([1, 2, 4, 5, 7, 8]), frozenset([3, 6]), frozenset([9])}
    one, two, three = whose(store, 1), whose(store, 2), whose(store, 3)
    assert one == two
    found = regroup(store, "--only", three, *METHODS[method])
    assert (found["scope"], found["parted"]) == ([three], [])
    assert partition(store) == joined
    found = regroup(store, "--only", one, *METHODS[method])
    assert (found["scope"], len(found["parted"])) == ([one], 1)
    assert partition(store) == {frozenset(group) for group in ([1, 4, 7], [2, 5, 8], [3, 6], [9])}


def test_a_wrong_face_finds_its_person(store: Path) -> None:
    """Whose reference is far from the other person's."""
    regroup(store, "--threshold", RUN_T)
    one, two = whose(store, 1), whose(store, 2)
    with open_store(store, SETTINGS, command="test") as opened:
        opened.correct(CorrectionRequest(1, "main", "move", [one], [8]))
        opened.local.submit(lambda catalog: catalog.execute("DELETE FROM core.facts"))  # as if a run had decided so
    assert frozenset([1, 4, 7, 8]) in partition(store)
    found = regroup(store, "--only", one, "--method", AVERAGE_LINK, "--cut", RUN_T)
    assert set(found["scope"]) == {one, two}
    assert [(move["face_id"], move["before"], move["after"]) for move in found["moves"]] == [(8, one, two)]


def test_nobodys_face_takes_part_if_the_nearest_is_of_the_person(store: Path) -> None:
    regroup(store, "--threshold", RUN_T)
    one, four = whose(store, 1), whose(store, 9)
    with open_store(store, SETTINGS, command="test") as opened:
        opened.correct(CorrectionRequest(1, "main", "move", (), [7]))
        opened.local.submit(lambda catalog: catalog.execute("DELETE FROM core.facts"))
    assert regroup(store, "--only", four)["faces"] == 1
    found = regroup(store, "--only", one)
    assert found["faces"] == 3
    assert [(move["face_id"], move["after"]) for move in found["moves"]] == [(7, one)]
    answer("people", "move", 7, "--nobody", "--store", store)
    assert regroup(store, "--only", one)["faces"] == 2


def test_it_is_decided_again_if_faces_are_deleted_meanwhile(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regroup(store, "--threshold", RUN_T)
    one = whose(store, 1)
    with open_store(store, SETTINGS, command="test") as opened:
        people, read = People(opened), LocalStore.faces_to_regroup

        def then_forget(*args: Any, **how: Any) -> Any:
            found = read(*args, **how)
            monkeypatch.setattr(LocalStore, "faces_to_regroup", read)
            people.forget_photos([opened.local.stored_faces(1, "main", [7], [])[0].media_id])
            return found

        monkeypatch.setattr(LocalStore, "faces_to_regroup", then_forget)
        found = people.regroup(MatchSettings(), only=[one]).regrouping
        assert found is not None
        assert found.faces == 2


def test_only_their_vectors_are_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = whose(store, 1), list[int]()
    read = LocalStore.face_vectors

    def counting(opened: LocalStore, face_ids: list[int]) -> Any:
        asked.extend(face_ids)
        return read(opened, face_ids)

    monkeypatch.setattr(LocalStore, "face_vectors", counting)
    regroup(store, "--only", one, "--threshold", RUN_T, "--dry-run")
    assert sorted(asked) == [1, 4, 7]


def test_a_person_without_faces_is_near_nobody(store: Path) -> None:
    one, four = whose(store, 1), whose(store, 9)
    answer("people", "name", four, "Dora", "--store", store)
    answer("people", "move", 9, one, "--store", store)
    found = regroup(store, "--only", "Dora", "--threshold", RUN_T)
    assert (found["scope"], found["faces"]) == ([four], 0)


def test_the_people_of_a_precision_are_all_of_the_directory(store: Path) -> None:
    """They are counted for the cut, which this store has no table for."""
    one = whose(store, 1)
    refused = answer("regroup", "--only", one, "--method", AVERAGE_LINK, "--store", store, "--yes", exit_code=61)
    assert "--cut" in refused["message"]


@pytest.mark.parametrize("method", [None, RegroupSettings(AVERAGE_LINK, cut=RUN_T)])
@pytest.mark.parametrize("only", [False, True])
def test_a_directory_of_one_face(tmp_path: Path, method: RegroupSettings | None, only: bool) -> None:
    write_photo(tmp_path / "photos", "a.png", Shown(1))
    run_over(tmp_path / "photos", make_store(tmp_path / "store"))
    with open_store(tmp_path / "store", SETTINGS, command="test") as opened:
        people = People(opened)
        (one,) = (row.person_id for row in people.all())
        for gate in (MatchSettings(threshold=0.0), MatchSettings(), MatchSettings(threshold=4.0)):
            found = people.regroup(gate, method=method, only=[one] if only else []).regrouping
            assert isinstance(found, Regrouping)
            assert (found.faces, found.joins, found.moves, found.new, found.gone) == (1, [], [], [], [])
        assert [row.person_id for row in people.all()] == [one]


def test_all_matching_is_exact_however_many_match() -> None:
    vectors = np.stack([vector(Shown(n % 3, n), 32) for n in range(900)])
    index = ReferenceIndex(32)
    index.append(vectors, np.arange(900), [()] * 900, np.zeros((900, 4), np.float32))
    index.remove(np.array([4, 7]))
    matcher = Matcher(Calibration(), RUN_T)
    for rows in ([0], [0, 1], [], list(range(0, 900, 7))):
        expected = {n for n in range(900) if {n % 3} & {row % 3 for row in rows}} - {4, 7}
        assert matcher.all_matching(index, vectors[rows]).tolist() == sorted(expected)
