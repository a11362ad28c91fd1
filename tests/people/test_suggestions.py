"""Who may be one person: the same pairs, in the same order, by command, library, server and report."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from coded_faces import Shown

from pipeline.config import AVERAGE_LINK, MatchSettings, RegroupSettings, Settings
from pipeline.errors import PersonNotFound
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from pipeline.people import suggestions
from pipeline.store.records import Suggestion
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import (
    SETTINGS,
    index_otherwise,
    make_store,
    reindex,
    run_over,
    serving,
    write_photo,
)

# Two photos of one person are at a squared distance of 0.023 to 0.055: most people are in parts. The wider one is 0.05.
STRICT = replace(SETTINGS, match=MatchSettings(threshold=0.04))
THRESHOLD = {"FACEPIPE_MATCH__THRESHOLD": "0.04"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five people of four photos each."""
    folder = tmp_path_factory.mktemp("parts")
    for person in range(1, 6):
        for variant in range(1, 5):
            write_photo(folder / "photos", f"{person}-{variant}.png", Shown(person, variant))
    run_over(folder / "photos", make_store(folder / "store"), settings=STRICT)
    return folder


@pytest.fixture
def store(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(archive / "store", tmp_path / "store"))


@contextmanager
def people_of(store: Path, settings: Settings = STRICT) -> Iterator[People]:
    with open_store(store, settings, command="test") as opened:
        yield People(opened)


def suggested(store: Path, who: str | None = None) -> list[Suggestion]:
    with people_of(store) as people:
        return [*people.suggest(who).pairs]


def both(pairs: list[Suggestion]) -> set[frozenset[str]]:
    return {frozenset((pair.one, pair.other)) for pair in pairs}


@pytest.mark.parametrize("by_server", [False, True])
def test_the_command_lists_them_with_reasons(store: Path, monkeypatch: pytest.MonkeyPatch, by_server: bool) -> None:
    for name, value in THRESHOLD.items():
        monkeypatch.setenv(name, value)
    pairs = suggested(store)
    assert len(pairs) > 3
    with serving(store) if by_server else nullcontext():
        listed = answer("people", "suggest", "--store", store, "--limit", 3)
        text = facepipe("people", "suggest", "--store", store, "--limit", 3).stdout.splitlines()
    assert [(row["one"], row["other"], row["reasons"]) for row in listed["pairs"]] == [
        (pair.one, pair.other, pair.reasons) for pair in pairs[:3]
    ]
    assert listed["left"] == len(pairs) - 3
    assert listed["looked_at"] == listed["people"]
    assert text[0].split()[0] == f"{pairs[0].score:.3f}"
    assert pairs[0].reasons in text[0]
    assert text[3:] == [f"{len(pairs) - 3} more"]


def test_one_name_comes_first_however_unlike_and_two_names_never(store: Path) -> None:
    pairs = suggested(store)
    one, other = pairs[0].one, pairs[0].other
    with people_of(store) as people:
        strangers = next(row.person_id for row in people.all() if row.person_id not in {one, other})
        people.name(one, "Ren\u00e9e")
        people.name(strangers, "Rene\u0301e")  # the same name
        people.name(other, "Bo")
    found = suggested(store)
    assert found[0].same_name
    assert both(found[:1]) == {frozenset((one, strangers))}
    assert found[0].reasons.startswith("same name, ")
    assert frozenset((one, other)) not in both(found)
    assert all(pair.names[0] or not pair.names[1] for pair in found)


def test_for_one_person_and_nobody_else(store: Path) -> None:
    pairs = suggested(store)
    person = pairs[0].other
    mine = suggested(store, person)
    assert both(mine) == {pair for pair in both(pairs) if person in pair}
    with pytest.raises(PersonNotFound):
        suggested(store, "nobody")


def test_what_was_rejected_never_comes_back(store: Path) -> None:
    """Not after a regroup, and not by another model."""
    rejected = both(suggested(store))
    with people_of(store) as people:
        for one, other in map(sorted, rejected):
            people.not_same(one, other)
        people.regroup()
    assert not both(suggested(store)) & rejected
    index_otherwise(store, STRICT)
    with open_store(store, STRICT, command="reindex") as opened:
        reindex(opened, "swap")
    assert not both(suggested(store)) & rejected


def test_the_directorys_cut_widens_them(store: Path) -> None:
    """Else a regroup would join people who were never suggested, and leave named ones unjoined without a word."""
    before = suggested(store)
    with people_of(store) as people:
        for number, row in enumerate(people.all()):
            people.name(row.person_id, f"N{number}")
        assert not people.regroup(method=RegroupSettings(AVERAGE_LINK, cut=0.06)).regrouping.joins  # type: ignore[union-attr]
        for row in people.all():
            people.name(row.person_id, "")
        found = people.suggest()
    assert found.wider == 0.06
    assert both(before) < both([*found.pairs])


def test_a_large_directory_says_whom_it_looked_at(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = suggested(store)
    monkeypatch.setattr(suggestions, "_LOOKED", 2)
    monkeypatch.setattr(suggestions, "_PRODUCTS", 0)
    for name, value in THRESHOLD.items():
        monkeypatch.setenv(name, value)
    shown = facepipe("people", "suggest", "--store", store).stdout.splitlines()
    assert shown[-1].endswith(" more, among the 2 people on most photos")
    assert len(shown) <= len(pairs)


@pytest.mark.parametrize("threshold", [0, 4])
def test_where_everybody_or_nobody_matches_there_is_none(store: Path, threshold: float) -> None:
    settings = replace(SETTINGS, match=MatchSettings(threshold=threshold))
    with people_of(store, settings) as people:
        assert people.suggest().pairs == []


def test_an_empty_directory(tmp_path: Path) -> None:
    assert suggested(make_store(tmp_path / "store")) == []
