"""Runs as children of a process that has the models loaded. An order is {"source", "store"}."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import pipeline.jobs.shard_stages
from pipeline.config import load_settings
from pipeline.jobs.run import RunRequest, run
from pipeline.jobs.store_identity import make_identity
from tests.forking import Order, answer_orders

SETTINGS = load_settings(
    environ={},
    flags={"run.shard_rows": 4, "run.threads": 1, "run.device": "cpu", "model.weights": "casia-webface"},
)


def work(order: Order, ready: Callable[[str], None]) -> None:
    ready("running")
    run(RunRequest(source=Path(order["source"]), store=Path(order["store"]), settings=SETTINGS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    extractor = pipeline.jobs.shard_stages.load_extractor(SETTINGS, make_identity(SETTINGS), Path())
    pipeline.jobs.shard_stages.load_extractor = lambda *_: extractor
    answer_orders(work)
