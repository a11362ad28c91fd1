"""A process that has the models loaded and forks one child per run, so that a hundred killed runs stay quick.

Reads one JSON object per line: {"source", "store", "points", and "fault" with "nth", or "after_s"}. Each child is
a real run; with "fault" it kills itself (SIGKILL) at the n-th call of that fault point, with "after_s" it is
killed then. Answers {"status": exit code or -signal}; "points" is where the child writes how often it met each
fault point. One thread only: OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch

import pipeline.jobs.shard_stages
from pipeline.config import load_settings
from pipeline.jobs.run import RunRequest, run
from pipeline.store.files import faults

SETTINGS = load_settings(
    environ={},
    flags={"run.shard_rows": 4, "run.threads": 1, "run.device": "cpu", "model.weights": "casia-webface"},
)


def child(order: dict[str, Any]) -> int:
    counts: Counter[str] = Counter()

    def hook(name: str) -> None:
        counts[name] += 1
        if name == order.get("fault") and counts[name] == order["nth"]:
            os.kill(os.getpid(), signal.SIGKILL)

    faults.install(hook)
    request = RunRequest(source=Path(order["source"]), store=Path(order["store"]), settings=SETTINGS)
    run(request)
    Path(order["points"]).write_text(json.dumps(counts))
    return 0


def run_child(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = child(order)
        except BaseException:  # noqa: BLE001 - the child must never return into the parent's loop
            traceback.print_exc()
        finally:
            os._exit(status)
    if order.get("after_s") is not None:
        time.sleep(order["after_s"])
        os.kill(pid, signal.SIGKILL)  # a child that is done already is a zombie until the wait below: harmless
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    torch.set_num_threads(1)
    # The models are the same for every child: load them once, before the first fork.
    load = pipeline.jobs.shard_stages.load_extractor
    from pipeline.jobs.models import make_identity

    extractor = load(SETTINGS, make_identity(SETTINGS), Path())
    pipeline.jobs.shard_stages.load_extractor = lambda *_: extractor
    for line in sys.stdin:
        print(json.dumps({"status": run_child(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
