"""`check` and its repair in a store that others write to meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipeline.errors import StoreFull
from pipeline.store.catalog import deletes, intents
from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.checks.problems import CheckReport, Problem
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import object_file
from pipeline.store.local import LocalStore


def test_other_threads_are_answered_while_a_check_reads(store: Path) -> None:
    done = threading.Event()

    with LocalStore.open(store, command="test") as client:

        def ask() -> None:
            client.counters()
            done.set()

        asking = threading.Thread(target=ask)

        def tell(what: str) -> None:
            if what.startswith("objects") and not asking.ident:
                asking.start()
            if what == "orphans":  # a check in one piece would deadlock here
                assert done.wait(10)

        assert check_store(client, tell).problems == []
        asking.join()


def test_an_object_that_is_about_to_be_committed_is_not_an_orphan(store: Path) -> None:
    coming, left = "ab" * 16, "cd" * 16
    with LocalStore.open(store, command="test") as client:
        intents.declare(client.folder, [coming])
        for guid in (coming, left):
            path = store / object_file(guid)
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
        (store / (object_file(coming) + ".tmp")).write_bytes(b"x")
        report = check_store(client)
        assert [problem.where for problem in report.problems] == [object_file(left)]
        repair_store(client, report)
        assert [(store / object_file(guid)).exists() for guid in (coming, left)] == [True, False]


def test_a_file_that_is_being_deleted_is_not_a_problem(store: Path) -> None:
    """A check may run between a shard's commit and the deletion of its files."""
    with LocalStore.open(store, command="test") as client:

        def tell(what: str) -> None:
            if what == "orphans":
                client.submit(lambda catalog: deletes.add(catalog, ["runs/x/shards/00000.parquet"]))

        assert check_store(client, tell).problems == []
        assert [problem.kind for problem in check_store(client).problems] == ["pending_delete"]


def test_an_intent_that_was_cut_off_leaves_the_others_readable(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        intents.declare(client.folder, ["ab" * 16])
        with (store / intents.INTENTS_NAME).open("a") as file:  # as a full disk leaves it
            file.write("ef" * 3)
        intents.declare(client.folder, ["cd" * 16, "aa" * 16])
        assert intents.declared(client.folder) == {"ab" * 16, "cd" * 16, "aa" * 16}


def test_an_intent_that_does_not_fit_on_the_disk_is_an_error(store: Path) -> None:
    (store / intents.INTENTS_NAME).symlink_to("/dev/full")
    with pytest.raises(StoreFull):
        intents.declare(Folder(store), ["ab" * 16])


def test_an_orphan_that_was_committed_meanwhile_is_not_removed(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        needed = sorted(path for path in (store / "objects").rglob("*") if path.is_file())[0]
        old = Problem("orphan", needed.relative_to(store).as_posix(), "it was one when it was looked for", "")
        repair_store(client, CheckReport([old], {}))
        assert needed.exists()
        assert check_store(client).problems == []
