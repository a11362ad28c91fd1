"""The changes of people since a commit: what a reader that keeps a copy has to know, and no more."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_faces import Shown, photo

from pipeline.errors import ChangesUnknown, CorrectionImpossible, PersonUnknown, UndoBlocked
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from pipeline.store.records import ChangeEntry, PersonChange
from tests.asking import ask_for
from tests.identities.planted import listed
from tests.people.correcting import People
from tests.store.store_samples import Asked, commit, of_version, persons_of

GUS = "eb1167b3-67a9-4378-bc65-c1e582e2e662"  # a person of the store of version 6


def since(people: People, number: int) -> list[ChangeEntry]:
    page = people.client.changes(number)
    assert not page.more
    return list(page.entries)


def now(people: People) -> int:
    return people.client.changes(people.client.changes(0).next).next


def told(entries: list[ChangeEntry]) -> list[tuple[str, str | None, set[str], set[str]]]:
    return [(entry.kind, entry.origin, set(entry.persons), set(entry.gone)) for entry in entries]


@pytest.mark.slow
def test_each_kind_of_change_is_told_once(people: People) -> None:
    one, two, three = people.one, people.two, people.three
    start = now(people)
    named = people.correct("name", one, change=PersonChange(name="Ann"))
    ask_for(people.service, "merge", people.account, "main", [one, two])
    people.correct("undo", correction_id=named.correction_id)
    ask_for(people.service, "unmerge", people.account, "main", [two])
    (face,) = people.service.post(people.account, "main", photo(Shown(100)), PostRequest(name="X")).faces
    people.correct("forget", three)
    entries = since(people, start)
    assert told(entries) == [
        ("name", "user", {one}, set()),
        ("merge", "api", {one, two}, set()),
        ("undo", "user", {one}, set()),
        ("unmerge", "api", {one, two}, set()),
        ("insert", None, {face.new_id}, set()),
        ("forget", "user", set(), {three}),
    ]
    assert entries[2].undoes == (entries[0].commit, entries[0].position)
    assert [(entry.commit, entry.position) for entry in entries] == sorted({(e.commit, e.position) for e in entries})
    assert {(entry.account, entry.directory) for entry in entries} == {("ann", "main")}


def test_a_recognition_is_no_change(people: People) -> None:
    start = now(people)
    (face,) = people.service.post(people.account, "main", photo(Shown(1)), PostRequest(update=False)).faces
    assert face.person is not None
    assert since(people, start) == []


def test_of_a_reference_the_latest_replacement_is_told(people: People) -> None:
    start = now(people)
    (first,) = people.service.post(people.account, "main", photo(Shown(100)), PostRequest()).faces
    again = [photo(Shown(100, variant)) for variant in (1, 2)]
    seen = []
    for data in again:
        people.service.post(people.account, "main", data, PostRequest())
        seen.append([(entry.kind, entry.commit) for entry in since(people, start)])
    assert [kind for kind, _ in seen[1]] == ["insert", "reference"]
    assert seen[0][0] == seen[1][0]
    assert seen[1][1][1] > seen[0][1][1]
    assert set(since(people, start)[1].persons) == {first.new_id}


def test_a_name_in_an_update_is_a_change_that_can_be_undone(people: People) -> None:
    people.service.post(people.account, "main", photo(Shown(100)), PostRequest())
    start = now(people)
    request = PostRequest(name="Zoe", external_id="z")
    (face,) = people.service.post(people.account, "main", photo(Shown(100, 1)), request).faces
    assert face.person is not None
    person = face.person.record.person_id
    assert [kind for kind, *_ in told(since(people, start))] == ["reference", "update"]
    people.correct("undo", undo_origin="api")
    record = people.record(person)
    assert (record.name, record.external_id) == (None, None)
    assert record.image_guid == face.person.record.image_guid, "the reference stays replaced"


def test_a_deleted_directory_tells_whom_to_drop(people: People) -> None:
    everybody = {view.record.person_id for view in listed(people.service, people.account, "main")}
    start = now(people)
    people.service.delete_directory(people.account, "main")
    (entry,) = since(people, start)
    assert (entry.kind, set(entry.gone), entry.directory) == ("delete_directory", everybody, None)
    assert people.client.check().problems == []


def test_entries_stay_when_others_are_forgotten(people: People) -> None:
    start = now(people)
    people.correct("forget", people.three)
    people.correct("merge", people.one, people.two)
    people.correct("forget", people.one)
    assert told(since(people, start)) == [
        ("forget", "user", set(), {people.three}),
        ("forget", "user", set(), {people.one, people.two}),
    ]


def test_a_change_of_several_is_told_of_those_who_stay(people: People) -> None:
    start = now(people)
    people.correct("hide", people.one, people.two)
    ask_for(people.service, "merge", people.account, "main", [people.one, people.three], PersonChange(name="Ann"))
    people.correct("forget", people.two)
    ask_for(people.service, "delete", people.account, "main", [people.three])
    assert told(since(people, start)) == [
        ("hide", "user", {people.one}, set()),
        ("merge", "api", {people.one}, set()),
        ("forget", "user", set(), {people.two}),
        ("delete", "api", set(), {people.three}),
    ]
    assert "Ann" not in str(people.client.read("SELECT before, after FROM core.corrections").to_pylist())


def test_a_page_ends_with_a_commit(people: People) -> None:
    everything = people.client.changes(0)
    (first, *_), numbers = everything.entries, {entry.commit for entry in everything.entries}
    read: list[ChangeEntry] = []
    number, pages = 0, 0
    while True:
        page = people.client.changes(number, None, 1)
        pages += 1
        assert len({entry.commit for entry in page.entries}) == 1
        read += page.entries
        number = page.next
        if not page.more:
            break
    assert number == everything.next
    assert read == list(everything.entries)
    assert pages == len(numbers)
    assert first.commit == min(numbers)


@pytest.mark.parametrize("number", [-1, 10**9])
def test_what_is_not_known_is_refused(people: People, number: int) -> None:
    with pytest.raises(ChangesUnknown) as refused:
        people.client.changes(number)
    assert refused.value.fields["start"] == 0


def test_an_account_reads_its_own_changes(people: People) -> None:
    other = people.client.create_account("bob", None)
    assert people.client.changes(0, other).entries == []
    assert people.client.changes(0, people.account).entries == people.client.changes(0).entries


@pytest.mark.slow
def test_a_copy_that_reads_changes_equals_the_store(people: People) -> None:
    """A reader that asks for each named id what it is now, and drops those that are gone, has what the store has."""
    rng = np.random.default_rng(3)
    copy: dict[str, Any] = {}
    number = 0
    for step in range(25):
        known = [view.record.person_id for view in listed(people.service, people.account, "main")]
        one, two = (str(p) for p in rng.choice(known, 2, replace=False))
        match step % 5:
            case 0:
                people.service.post(people.account, "main", photo(Shown(200 + step)), PostRequest(name=f"P{step}"))
            case 1:
                ask_for(people.service, "merge", people.account, "main", [one, two])
            case 2:
                people.correct("name", one, change=PersonChange(name=f"N{step}"))
            case 3:
                with suppress(CorrectionImpossible, UndoBlocked):
                    people.correct("undo", undo_origin="api" if step % 2 else "user")
            case 4:
                ask_for(people.service, "delete", people.account, "main", [one])
        if step % 3 == 0:
            number = _read(people, number, copy)
    _read(people, number, copy)
    assert copy == {
        view.record.person_id: _shown(view.record) for view in listed(people.service, people.account, "main")
    }


def _read(people: People, number: int, copy: dict[str, Any]) -> int:
    page = people.client.changes(number)
    for entry in page.entries:
        for person_id in entry.gone:
            copy.pop(person_id, None)
        for person_id in entry.persons:
            try:
                copy[person_id] = _shown(people.record(person_id))
            except PersonUnknown:
                copy.pop(person_id, None)
    return page.next


def _shown(record: Any) -> tuple[object, ...]:
    return record.name, record.external_id, record.parent_id, record.image_guid


def test_a_store_of_version_6_begins_at_its_upgrade(tmp_path: Path) -> None:
    with LocalStore.open(of_version(6, tmp_path), command="test") as store:
        assert store.check().problems == []
        with pytest.raises(ChangesUnknown) as refused:
            store.changes(0)
        start = int(str(refused.value.fields["start"]))
        assert store.changes(start).entries == []
        commit(store, Asked(1, "main", deleted=[GUS]))
        assert [(entry.kind, entry.gone) for entry in store.changes(start).entries] == [("delete", [GUS])]
        positions = store.read("SELECT position FROM core.corrections")["position"].to_pylist()
        assert len(set(positions)) == len(positions) == 10


def test_a_repair_that_lost_commits_lets_readers_begin_again(tmp_path: Path) -> None:
    path = of_version(6, tmp_path)
    with LocalStore.open(path, command="test") as store:
        commit(store, Asked(1, "main", deleted=[GUS]))
        known = store.changes(store.read("SELECT changes_from FROM core.store")["changes_from"][0].as_py()).next
        copy = tmp_path / "killed"
        shutil.copytree(path, copy)
    (copy / "catalog-0001.duckdb.wal").unlink()
    with LocalStore.open(copy, command="test", repair=True) as store:
        assert GUS in persons_of(store, 1, "main")
        with pytest.raises(ChangesUnknown) as refused:
            store.changes(known)
        assert store.changes(int(str(refused.value.fields["start"]))).entries == []
