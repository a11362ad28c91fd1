"""`check` and its repair in a store that others write to meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

from pipeline.store import intents
from pipeline.store.check import check_store, repair_store
from pipeline.store.client import StoreClient
from pipeline.store.objects import object_file
from pipeline.store.problems import CheckReport, Problem


def test_others_come_in_between_while_a_check_reads(store: Path) -> None:
    done = threading.Event()

    with StoreClient.open(store, command="test") as client:

        def ask() -> None:
            client.counters()
            done.set()

        asking = threading.Thread(target=ask)

        def tell(what: str) -> None:
            if what.startswith("objects") and not asking.ident:
                asking.start()
            if what == "orphans":  # in one piece the check would wait here for somebody who waits for the check
                assert done.wait(10)

        assert check_store(client, tell).problems == []
        asking.join()


def test_an_object_that_is_about_to_come_in_is_no_orphan(store: Path) -> None:
    coming, left = "ab" * 16, "cd" * 16
    with StoreClient.open(store, command="test") as client:
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


def test_an_orphan_that_came_in_after_all_is_not_removed(store: Path) -> None:
    with StoreClient.open(store, command="test") as client:
        needed = sorted(path for path in (store / "objects").rglob("*") if path.is_file())[0]
        old = Problem("orphan", needed.relative_to(store).as_posix(), "it was one when it was looked for", "")
        repair_store(client, CheckReport([old], {}))
        assert needed.exists()
        assert check_store(client).problems == []
