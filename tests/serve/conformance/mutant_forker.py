"""A process that has the models loaded and forks one server per order, mutant or not.

Reads one JSON object per line: {"store", "hosting", "mutant"} (null: none) answers {"pid", "url"}; {"stop"} with a pid
answers {"status": exit code or -signal}. One thread only: other threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.serve.conformance.mutants import MUTANTS
from tests.serve.conformance.mutations import replaced

PUBLIC_URL = "https://images.example.org"


def serve(order: dict[str, Any], answer: int) -> None:
    """In the child: a server until it is told to stop."""
    from pipeline.config import load_settings
    from pipeline.serve.server import Listening
    from pipeline.serve.server import serve as serve_store

    def announce(listening: Listening) -> None:
        os.write(answer, listening.url.encode())
        os.close(answer)

    flags = {"serve.port": 0, "run.threads": 1, "run.device": "cpu", "serve.hosting": order["hosting"]}
    settings = load_settings(flags={**flags, "serve.public_url": PUBLIC_URL if order["hosting"] == "cloud" else None})
    if order["mutant"] is not None:
        MUTANTS[order["mutant"]].patch()
    serve_store(Path(order["store"]), settings, announce)


def start(order: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        status = 1
        try:
            serve(order, writing)
            status = 0
        except BaseException:  # noqa: BLE001 - the child must never return into the parent's loop
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as answers:
        return {"pid": pid, "url": answers.read()}


def stop(pid: int) -> dict[str, Any]:
    os.kill(pid, signal.SIGTERM)
    return {"status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}


def main() -> None:
    import torch
    import uvicorn.lifespan.on  # what uvicorn imports by name only when it starts
    import uvicorn.loops.auto  # noqa: F401

    import pipeline.serve.server  # noqa: F401 - imported once, for all children
    from pipeline.config import load_settings
    from pipeline.jobs.models import load_extractor, make_identity

    torch.set_num_threads(1)
    # The models are the same for every child: load them once, before the first fork.
    settings = load_settings(flags={"run.device": "cpu", "run.threads": 1})
    extractor = load_extractor(settings, make_identity(settings), Path())
    replaced("pipeline.serve.server", "load_extractor", lambda _: lambda *_arguments: extractor)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(stop(order["stop"]) if "stop" in order else start(order)), flush=True)


if __name__ == "__main__":
    main()
