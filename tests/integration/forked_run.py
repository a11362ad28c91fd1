"""Runs as children of a process that has the models loaded. An order is {"source", "store", "moved_from"}; or {"store",
"change"} for one of CHANGES."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pipeline.run.stages
from pipeline.config import load_settings
from pipeline.jobs.store_identity import make_identity
from pipeline.run.run import RunRequest, run
from pipeline.runtime.threads import set_threads
from pipeline.store.local import LocalStore
from tests.forking import Order, answer_orders
from tests.people.changes import make, same_each_time
from tests.remembering import remembering

SETTINGS = load_settings(
    environ={},
    flags={"run.shard_rows": 4, "run.threads": 1, "run.device": "cpu", "model.weights": "casia-webface"},
)


def work(order: Order, ready: Callable[[str], None]) -> None:
    if "change" in order:
        with same_each_time(), LocalStore.open(order["store"], command="change") as store:
            ready("open")
            make(store, order["change"])
        return
    ready("running")
    moved_from = Path(order["moved_from"]) if order["moved_from"] else None
    run(RunRequest(Path(order["source"]), Path(order["store"]), SETTINGS, moved_from=moved_from))


if __name__ == "__main__":
    set_threads(1)
    extractor = remembering(pipeline.run.stages.load_extractor(SETTINGS, make_identity(SETTINGS), Path()))
    pipeline.run.stages.load_extractor = lambda *_: extractor
    answer_orders(work)
