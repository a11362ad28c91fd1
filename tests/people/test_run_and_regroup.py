"""`run --method average-link`: the run, then one regroup that leaves named and corrected people alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from coded_faces import Shown

from pipeline.config import AVERAGE_LINK, RegroupSettings
from pipeline.errors import CorrectionImpossible
from pipeline.people import corrections, regroup
from pipeline.people.correction_plan import Plan
from tests.cli.report import answer
from tests.people.coded_archive import SETTINGS, fill, problems, run_over, serving, write_photo

LINKED = replace(SETTINGS, regroup=RegroupSettings(AVERAGE_LINK, cut=3.9))  # everybody alike is one person


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path) / "store"


def people(store: Path) -> dict[str, dict[str, Any]]:
    return {row["person_id"]: row for row in answer("people", "list", "--store", store)["people"]}


def one_more(store: Path, **wishes: Any) -> dict[str, Any]:
    folder = store.parent / "more"
    write_photo(folder, "a.png", Shown(5))
    return run_over(folder, store, **wishes).as_dict()


def test_a_run_then_regroups_as_a_correction_of_its_own(store: Path) -> None:
    before = people(store)
    found = one_more(store, settings=LINKED)["regrouped"]
    assert found["joins"] == 1  # of three people: one is on b-both.png as well
    assert len(people(store)) == 2
    assert run_over(store.parent / "more", store, settings=LINKED).regrouped is None  # nothing came
    answer("people", "undo", found["correction_id"], "--store", store, "--yes")
    assert people(store).keys() > before.keys()
    assert len(people(store)) == 4
    (row,) = answer("directory", "list", "--store", store)["directories"]
    assert row["method"] is None  # only `regroup` is remembered


def test_a_run_killed_before_its_regroup_regroups_when_it_goes_on(store: Path) -> None:
    with patch("pipeline.jobs.people.People.regroup", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        one_more(store, settings=LINKED)
    assert len(people(store)) == 4
    found = one_more(store, settings=LINKED)
    assert (found["regrouped"]["joins"], len(people(store)), len(found["pages"])) == (1, 2, 1)
    assert one_more(store, settings=LINKED)["regrouped"] is None
    write_photo(store.parent / "more", "b.png", Shown(6))
    with patch("pipeline.run.run._Command.finish", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        one_more(store, settings=LINKED)
    write_photo(store.parent / "more", "c.png", Shown(7))
    assert one_more(store, settings=LINKED)["regrouped"]["joins"] == 1  # of both runs, c.png's
    assert problems(store) == []


def test_named_and_corrected_people_are_left_alone(store: Path) -> None:
    one, two, three = people(store)
    answer("people", "name", one, "Ann", "--store", store)
    answer("people", "not-same", two, three, "--store", store)
    before = people(store)
    found = one_more(store, settings=LINKED)["regrouped"]
    assert (found["joins"], found["moves"], found["new"], found["gone"]) == (0, 0, 0, 0)
    now = people(store)
    assert {person: now[person] for person in before} == before


def test_whom_a_regroup_joined_with_a_named_person_stays(store: Path) -> None:
    """And whom it joined with nobody named may be joined with more, or parted."""
    answer("regroup", "--store", store, "--method", AVERAGE_LINK, "--cut", 3.9, "--yes")
    (root,) = (person for person, row in people(store).items() if row["merged"])
    answer("people", "name", root, "Ann", "--store", store)
    strict = replace(SETTINGS, regroup=RegroupSettings(AVERAGE_LINK, cut=0.5))
    assert one_more(store, settings=strict)["regrouped"]["moves"] == 0
    assert len(people(store)) == 3  # Ann, another, and who came
    answer("people", "name", root, "", "--store", store)
    write_photo(store.parent / "last", "a.png", Shown(6))
    run_over(store.parent / "last", store, settings=strict)
    assert len(people(store)) == 5  # who was Ann is two again


def test_an_unknown_cut_fails_before_the_work(store: Path) -> None:
    by_precision = replace(SETTINGS, regroup=RegroupSettings(AVERAGE_LINK))
    before = people(store)
    with pytest.raises(CorrectionImpossible, match="--cut"):
        one_more(store, settings=by_precision)
    assert people(store) == before


@pytest.fixture
def meanwhile(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """A run over two more photos, of person 1 and of a new one, commits when the first regroup is decided and the
    directory is not locked yet. The plans that were decided."""
    folder, decided = store.parent / "meanwhile", []
    write_photo(folder, "a.png", Shown(1, 7))
    write_photo(folder, "b.png", Shown(6))

    def decide(plan: Plan, *args: Any) -> None:
        regroup.regroup(plan, *args)
        decided.append(plan)
        if len(decided) == 1:
            assert run_over(folder, store).persons == 4

    monkeypatch.setattr(corrections, "regroup", decide)
    return decided


METHODS = [("--method", "sequential"), ("--method", AVERAGE_LINK, "--cut", 0.54)]


@pytest.mark.parametrize("method", METHODS)
def test_a_regroup_is_decided_again_if_a_run_gave_a_face_to_whom_it_deletes(
    store: Path, meanwhile: list[Plan], method: tuple[object, ...]
) -> None:
    one, _, three = people(store)
    answer("people", "name", three, "Cid", "--store", store)
    with serving(store):
        found = answer("regroup", "--store", store, "--yes", "--min-fsq", 0.95, *method)["regrouping"]
    assert len(meanwhile) == 2
    assert one in found["gone"]
    assert 8 in {move["face_id"] for move in found["moves"]}  # which came meanwhile
    assert people(store).keys() == {three}
    assert problems(store) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("only", [False, True])
def test_a_regroup_stays_valid_if_a_run_only_adds_faces(
    store: Path, meanwhile: list[Plan], method: tuple[object, ...], only: bool
) -> None:
    one, *_ = people(store)
    with serving(store):
        words = ("--only", one) if only else ()
        found = answer("regroup", "--store", store, "--yes", "--threshold", 0.001, *method, *words)["regrouping"]
        assert (len(meanwhile), len(people(store))) == (1, 4 + len(found["new"]))
        assert {face["face_id"] for face in answer("people", "photos", one, "--store", store)["faces"]} >= {1, 8}
        again = answer("regroup", "--store", store, "--yes")["regrouping"]
    assert (len(meanwhile), again["faces"]) == (2, 8)
    assert problems(store) == []
