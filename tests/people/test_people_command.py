"""`facepipe people` on a store that nobody holds, and on one that a server holds while it answers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from coded_faces import CodedExtractor, Shown, photo

import pipeline
from pipeline.cli.output import write_out
from pipeline.errors import CorrectionImpossible, UsageError
from pipeline.jobs import people as jobs_people
from pipeline.jobs.people import People
from pipeline.jobs.store import Store, open_store
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store import PersonChange
from pipeline.store.local import LocalStore
from tests.cli.report import facepipe
from tests.people.coded_archive import SIZE, problems, serving

LOOK = PostRequest(insert=False, update=False)


@pytest.fixture(params=["alone", "served"])
def served(request: pytest.FixtureRequest, store: Path) -> Iterator[IdentityService | None]:
    """The service that holds the store, if one does. The store is whole afterwards."""
    with serving(store) if request.param == "served" else nullcontext() as service:
        yield service
    assert problems(store) == []


def ask(store: Path, *words: object, exit_code: int = 0) -> dict[str, Any]:
    result = facepipe("people", *words, "--store", store, "--json")
    assert result.exit_code == exit_code, result.output
    answer = json.loads(result.stdout)
    assert isinstance(answer, dict)
    return answer


def who_is(service: IdentityService | None, face: Shown) -> str | None:
    assert service is not None
    (found,) = service.post(1, "main", photo(face), LOOK).faces
    return found.person.root.name if found.person else None


@pytest.mark.slow
def test_every_verb(store: Path, served: IdentityService | None, archive: Path) -> None:
    one, two, three = (row["person_id"] for row in ask(store, "list")["people"])
    before = ask(store, "list")
    assert ask(store, "name", one[:9], "Ann")["correction_id"] == 1
    if served:
        assert who_is(served, Shown(1)) == "Ann"
    ask(store, "name", two, "Berta")
    assert ask(store, "show", "Ann")["faces"] == 3
    assert [face["face_id"] for face in ask(store, "photos", "ann")["faces"]] == [1, 2, 3]
    assert ask(store, "together", "Ann", "Berta")["photos"] == [{"path": str(archive / "b-both.png")}]
    ask(store, "hide", "Berta")
    assert ask(store, "show", "Berta")["hidden"]
    ask(store, "unhide", "Berta")
    assert not ask(store, "show", "Berta")["hidden"]
    ask(store, "not-same", "Ann", "Berta")
    assert ask(store, "merge", "Ann", "Berta", exit_code=62)["error"] == "stated-two-people"
    assert len(ask(store, "merge", "Ann", "Berta", "--anyway")["replaced"]) == 1
    assert {key: ask(store, "show", "Berta")[key] for key in ("merged", "faces", "photos")} == {
        "merged": 1,
        "faces": 5,
        "photos": 4,  # one shows both
    }
    if served:
        assert who_is(served, Shown(2)) == "Ann"
    ask(store, "unmerge", "Ann")
    new = ask(store, "split", "Ann", 1, 2)["persons"][0]
    assert ask(store, "move", 6, "Berta")["gone"] == [three]
    ask(store, "move", 4, "--nobody")
    assert len(ask(store, "photos", new)["faces"]) == 2
    kinds = []
    while (undone := facepipe("people", "undo", "--store", store, "--json")).exit_code == 0:
        kinds.append(json.loads(undone.stdout)["kind"])
    assert kinds == ["move", "move", "split", "unmerge", "merge", "not_same", "unhide", "hide", "name", "name"]
    assert undone.exit_code == 61
    assert ask(store, "list") == before
    assert ask(store, "forget", two, "--yes")["gone"] == [two]
    assert ask(store, "photos", two, exit_code=72)["error"] == "person-not-found"
    if served:
        assert who_is(served, Shown(2)) is None


@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_pages_are_the_whole_list_and_stay_when_people_are_merged(store: Path) -> None:
    one, two, three = (row["person_id"] for row in ask(store, "list")["people"])
    four = ask(store, "split", one, 1)["persons"][0]
    ask(store, "merge", two, three)
    ask(store, "merge", one, two)  # into the younger one, which has children
    rows = ask(store, "list")["people"]
    assert [(row["person_id"], row["merged"]) for row in rows] == [(two, 2), (four, 0)]
    for size in (1, 2, 3):
        pages, after = list[dict[str, Any]](), list[str]()
        while page := ask(store, "list", "--limit", size, *after)["people"]:
            pages += page
            after = ["--after", page[-1]["person_id"]]
        assert pages == rows
    # Where somebody was who is merged since, the list goes on.
    assert ask(store, "list", "--after", one)["people"] == rows
    assert ask(store, "list", "--after", three)["people"] == rows[1:]
    table = facepipe("people", "list", "--store", store, "--limit", 1, "--csv").stdout
    assert [row["person_id"] for row in csv.DictReader(io.StringIO(table))] == [two]


def test_a_page_reads_its_people_and_a_list_one_page_before_it_begins(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, people = list[int](), Store.people

    def counting(opened: Store, *words: Any, **more: Any) -> Any:
        table = people(opened, *words, **more)
        read.append(len(table))
        return table

    monkeypatch.setattr(Store, "people", counting)
    monkeypatch.setattr(jobs_people, "AT_ONCE", 2)
    with open_store(store, command="test") as opened:
        rows = People(opened).each()
        first = next(rows)
        assert read == [2]
        assert (len([first, *rows]), read) == (3, [2, 1])
        read.clear()
        assert len([*People(opened).each(limit=1, after=first.person_id)]) == 1
        assert read == [1, 1]  # whom it comes after, and who does


@pytest.mark.parametrize(("at_once", "exit_code"), [(4, 0), (3, 41)])
def test_who_reads_a_list_can_use_the_store_unless_it_is_long(
    store: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, exit_code: int
) -> None:
    def using(parts: Iterable[str]) -> None:
        LocalStore.open(store, command="test").close()
        write_out(parts)

    monkeypatch.setattr("pipeline.cli.people.write_out", using)
    monkeypatch.setattr(jobs_people, "AT_ONCE", at_once)
    assert len(ask(store, "list", exit_code=exit_code)) == (1 if exit_code == 0 else 3)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--limit", "0"), "usage-error"),
        (("--limit", "many"), "usage-error"),
        (("--after", "00000000-0000-0000-0000-000000000000"), "person-not-found"),
        (("--after", "an"), "person-ambiguous"),
        (("--csv",), "usage-error"),
    ],
)
def test_a_page_that_there_is_not(store: Path, words: tuple[str, ...], error: str) -> None:
    for row, name in zip(ask(store, "list")["people"], ("Ann", "Anna"), strict=False):
        ask(store, "name", row["person_id"], name)
    code = {"usage-error": 2, "person-not-found": 72, "person-ambiguous": 73}[error]
    assert ask(store, "list", *words, exit_code=code)["error"] == error


@pytest.mark.slow
def test_who_is_not_one_is_listed_and_nothing_is_done(store: Path, served: IdentityService | None) -> None:
    one, two, _ = (row["person_id"] for row in ask(store, "list")["people"])
    ask(store, "name", one, "Ann")
    ask(store, "name", two, "Anna")
    before = ask(store, "list")
    assert ask(store, "show", "Ann")["person_id"] == one  # the whole name wins
    answer = ask(store, "forget", "an", "--yes", exit_code=73)
    assert answer["error"] == "person-ambiguous"
    assert one in answer["message"]
    assert two in answer["message"]
    ask(store, "name", two, "Ann")
    assert ask(store, "hide", "Ann", exit_code=73)["error"] == "person-ambiguous"
    ask(store, "hide", "", exit_code=72)
    ask(store, "undo")
    assert ask(store, "list") == before
    ask(store, "merge", one, two)
    assert ask(store, "show", "ann")["person_id"] == one  # both are one


def test_only_those_who_may_be_meant_are_read(store: Path) -> None:
    """And nobody who is meant is missed, in whatever case, form and letters."""
    e_acute, decomposed = "\u00e9", "e\u0301"
    with open_store(store, command="test") as opened:
        who = People(opened)
        ids = [row.person_id for row in who.all()]
        names = "Stra\u00dfe", f"Andr{e_acute}", "Anna-Lena\u2028B"
        for person_id, name in zip(ids, names, strict=True):
            who.by_ids("update", [person_id], change=PersonChange(name=name, external_id=f"x{name[-1]}"))
        who.by_ids("merge", ids[1:])
        everybody = who._records()
        asked = [
            "STRASSE",
            "strass",
            "STRA\u1e9eE",
            f"andr{decomposed}",
            f"ANDR{e_acute.upper()}",
            "an",
            "anna",
            "xB",
            "XB",
            "",
        ]
        for one in [*asked, *ids, ids[0][:8], ids[2].upper(), "Nemo"]:
            found = [outcome(who._found, records, one) for records in (everybody, who._records([one]))]
            assert found[0] == found[1], one
        assert who.find("strasse") == ids[0]
        assert who._records([*asked, *asked, *asked]) == everybody
        assert len(who._records(["strasse"])) == 3  # names that are not ASCII are compared here
        who.by_ids("name", [ids[0]], change=PersonChange(name="Sue"))
        for person_id in ids[1:]:
            who.by_ids("name", [person_id], change=PersonChange(name="Ann"))
        assert [row["person_id"] for row in who._records(["su"])] == ids[:1]
        assert [row["person_id"] for row in who._records([ids[2]])] == ids[1:]  # the whole merged set
        assert who.show(ids[2]) == next(row for row in who.all() if row.name == "Ann")


def outcome(ask_for: Callable[..., str], *words: object) -> str:
    try:
        return ask_for(*words)
    except UsageError as error:
        return str(error)


def test_names_of_a_table(store: Path, served: IdentityService | None, tmp_path: Path) -> None:
    listed = facepipe("people", "list", "--store", store, "--csv")
    rows = list(csv.DictReader(io.StringIO(listed.stdout)))
    assert [row["photos"] for row in rows] == ["3", "2", "1"]
    file = tmp_path / "names.csv"
    unknown = "00000000-0000-0000-0000-000000000000"
    file.write_text(
        f"person_id,name\n{rows[0]['person_id']},Ann\n{unknown},Nemo\n{rows[2]['person_id']},Cid\n", "utf-8"
    )
    answer = ask(store, "name", "--from", file, exit_code=1)
    assert (answer["named"], [row["person_id"] for row in answer["left"]]) == (2, [unknown])
    assert [row["name"] for row in ask(store, "list")["people"]] == ["Ann", None, "Cid"]
    file.write_text("id,name\nx,y\n", "utf-8")
    assert ask(store, "name", "--from", file, exit_code=12)["error"] == "manifest-invalid"
    assert ask(store, "name", "Ann", "Anna", "--from", file, exit_code=2)["error"] == "usage-error"


def test_the_library_does_the_same(store: Path, served: IdentityService | None) -> None:
    with pipeline.open_store(store) as opened:
        first, *_ = opened.people.all()
        opened.people.name(first.person_id, "Ann")
        answer = opened.people.split("Ann", [1])
        assert opened.people.show(answer.persons[0]).faces == 1
        opened.people.undo()
        assert [row.name for row in opened.people.all()] == ["Ann", None, None]
        assert opened.people.of(directory="other").all() == []


@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_undo_says_which_correction_it_takes_back_and_asks(store: Path) -> None:
    one, two, _ = (row["person_id"] for row in ask(store, "list")["people"])
    named = ask(store, "name", one, "Ann")
    ask(store, "hide", two)
    ask(store, "forget", two, "--yes")  # what was said of the person goes along: the name is the last correction now
    asked = facepipe("people", "undo", "--store", store, stdin="n\n")
    assert asked.exit_code == 130
    assert f"to undo: name (correction 1, {named['made_at'][:19]} UTC)\nperson {one}  Ann\n" in asked.output
    assert ask(store, "show", one)["name"] == "Ann"
    with pipeline.open_store(store) as opened:
        shown = opened.people.undo(dry_run=True)
        assert (shown.correction_id, shown.names) == (1, {one: "Ann"})
        opened.people.hide(one)
        with pytest.raises(CorrectionImpossible, match="There is no correction 2"):
            opened.people.undo(2)
    undone = ask(store, "undo", "1")  # not the last one
    assert {key: undone[key] for key in ("kind", "made_at", "persons", "names")} == {
        "kind": "name",
        "made_at": named["made_at"],
        "persons": [one],
        "names": {one: "Ann"},
    }
    assert ask(store, "show", one)["name"] is None
    assert ask(store, "undo", "1", exit_code=61)["message"].startswith(
        "This correction can't be made: The correction 1 was"
    )
    done = facepipe("people", "undo", "--store", store, stdin="y\n")
    assert done.exit_code == 0
    assert "undone: hide (correction 4, " in done.stdout
    assert "`people undo 6` makes it again\n" in done.stdout
    assert ask(store, "undo", "--yes", exit_code=61)["error"] == "correction-impossible"
    assert ask(store, "undo", "6")["kind"] == "undo"
    assert ask(store, "show", one)["hidden"]
    assert ask(store, "undo", "--yes")["correction_id"] == 4


@pytest.mark.usefixtures("served")
def test_the_log_says_what_was_changed_and_by_whom(store: Path) -> None:
    one, two, _ = (row["person_id"] for row in ask(store, "list")["people"])
    assert ask(store, "log")["corrections"] == []
    named = ask(store, "name", one, "Ann")
    ask(store, "split", one, "1")
    ask(store, "not-same", one, two)
    ask(store, "undo", "2")
    rows = ask(store, "log")["corrections"]
    assert [(row["correction_id"], row["kind"], row["undoes"], row["undone"]) for row in rows] == [
        (4, "undo", 2, False),
        (3, "not_same", None, False),
        (2, "split", None, True),
        (1, "name", None, False),
    ]
    assert rows[3]["made_at"] == named["made_at"]
    assert (rows[3]["person_ids"], rows[3]["names"], rows[3]["faces"]) == ([one], {one: "Ann"}, 0)
    assert (rows[2]["faces"], rows[2]["can_be_undone"], rows[1]["can_be_undone"]) == (1, False, True)
    assert ask(store, "log", "--count", "2", "--before", "4") == ask(store, "log", "--limit", "2", "--after", "4")
    shown = facepipe("people", "log", "--store", store, "--limit", "2", "--after", "4").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["3", "2"]
    assert "user  not-same  Ann, " + two in shown[0] or f"user  not-same  {two}, Ann" in shown[0]
    assert shown[1].endswith("1 face  undone")


@pytest.mark.slow
@pytest.mark.usefixtures("served")
def test_what_names_nobody_or_another_directory_is_said_and_nothing_is_done(store: Path) -> None:
    one, two, _ = (row["person_id"] for row in ask(store, "list")["people"])
    assert facepipe("account", "create", "bob", "--store", store).exit_code == 0
    mine, his = ("--account", "ann"), ("--account", "bob")
    ask(store, "merge", one, two, *mine)
    before = ask(store, "list", *mine)
    for words, error in [
        (("move", 99, "--nobody", *mine), "face-unknown"),
        (("move", 2**64, "--nobody", *mine), "face-unknown"),
        (("move", 1, "--nobody", *mine, "--directory", "other"), "face-unknown"),
        (("move", 1, "--nobody", *his), "face-unknown"),
        (("name", one, "Ann", *mine, "--directory", "other"), "person-not-found"),
        (("name", one, "Ann", *his), "person-not-found"),
        (("name", one, "Ann"), "usage-error"),  # which account?
        (("split", one, 4, 5, 1, 2, 3, *mine), "correction-impossible"),  # all, of both who are merged
        (("split", one, 6, *mine), "correction-impossible"),
        (("merge", one, one, *mine), "correction-impossible"),
        (("merge", two, one, *mine), "correction-impossible"),  # the circle
        (("merge", one, *mine), "correction-impossible"),
        (("not-same", one, two, *mine), "correction-impossible"),
        (("undo", *his), "correction-impossible"),
    ]:
        result = facepipe("people", *words, "--store", store, "--json")
        assert result.exit_code != 0
        assert (json.loads(result.stdout)["error"], words) == (error, words)
        assert json.loads(result.stdout)["message"]
    for words, error in [
        (("--threshold", 5, *mine), "bad-value"),
        (("--min-cpq", "x", *mine), "bad-value"),
        (("--account", "cid"), "account-unknown"),
    ]:
        refused = facepipe("regroup", *words, "--yes", "--store", store, "--json")
        assert (json.loads(refused.stdout)["error"], words) == (error, words)
    nothing = facepipe("regroup", *mine, "--directory", "other", "--yes", "--store", store)
    assert "0 faces" in nothing.stdout
    assert ask(store, "list", *mine) == before
    assert ask(store, "undo", *mine)["kind"] == "merge"


@pytest.mark.usefixtures("served")
def test_a_row_that_cannot_be_done_stops_no_other(store: Path, tmp_path: Path) -> None:
    one, two, three = (row["person_id"] for row in ask(store, "list")["people"])
    ask(store, "name", two, "Berta")
    file = tmp_path / "names.csv"
    file.write_text(f"person_id,name\n{one},{'x' * 1001}\n{two},\n{three},Cid\n", "utf-8")
    answer = ask(store, "name", "--from", file, exit_code=1)
    assert (answer["named"], [row["person_id"] for row in answer["left"]]) == (1, [one])
    assert [row["name"] for row in ask(store, "list")["people"]] == [None, "Berta", "Cid"]
    ask(store, "move", 6, "--nobody")
    with pipeline.open_store(store) as opened:  # who has neither a face nor another name keeps this one
        done, left = opened.people.name_all([(three, ""), (one, "Ann")])
    assert (done, [row[0] for row in left]) == (1, [three])


@pytest.mark.parametrize("name", ["x" * 1001, "a\0b", "a\udcff"])
def test_a_name_that_cannot_be_kept_is_refused(store: Path, name: str) -> None:
    (one, *_) = ask(store, "list")["people"]
    assert ask(store, "name", one["person_id"], name, exit_code=2)["error"] == "usage-error"
    assert ask(store, "list")["people"][0] == one


@pytest.mark.usefixtures("served")
def test_an_open_store_recognises_by_its_corrections(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.jobs.models.load_extractor", lambda *_: CodedExtractor(SIZE))
    with pipeline.open_store(store) as opened:

        def who(face: Shown) -> str | None:
            (found,) = opened.recognise(photo(face), top=1)
            return found.identity and (found.identity.name or found.identity.person_id)

        people = opened.people
        one, two, three = (row.person_id for row in people.all())
        assert [who(Shown(code)) for code in (1, 2, 3)] == [one, two, three]  # and the models are loaded
        people.name(one, "Ann")
        assert people.name_all([(two, "Berta")]) == (1, [])
        people.forget(three)
        assert [who(Shown(code)) for code in (1, 2, 3)] == ["Ann", "Berta", None]
        people.undo()
        opened.people.of().merge("Ann", two)
        assert [who(Shown(code)) for code in (1, 2)] == ["Ann", "Ann"]


def test_forgetting_asks(store: Path) -> None:
    (one, *_) = ask(store, "list")["people"]
    assert facepipe("people", "forget", one["person_id"], "--store", store, stdin="n\n").exit_code == 130
    assert len(ask(store, "list")["people"]) == 3
    done = facepipe("people", "forget", one["person_id"], "--store", store, stdin="y\n")
    assert done.exit_code == 0
    assert "with 3 faces" in done.output
    assert len(ask(store, "list")["people"]) == 2
