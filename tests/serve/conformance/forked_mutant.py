"""Forks servers and runs of the conformance tests from a process that has the models loaded.

The order {"store", "hosting", "mutant"} starts a server, which is ready with its URL. With null as mutant it breaks no
rule. The order {"pytest", "environ", "output"} runs pytest with these arguments, writes to the file `output` and ends
with pytest's status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.forking import Order, answer_orders
from tests.serve.conformance.mutants import MUTANTS, replaced

HERE = Path(__file__).parent
PUBLIC_URL = "https://images.example.org"
# Importing all plugins would take longer than these tests.
PYTEST = ["-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "pytest_timeout", f"--confcutdir={HERE}"]


def work(order: Order, ready: Callable[[str], None]) -> None:
    if "pytest" in order:
        import pytest

        output = os.open(order["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(order["environ"])
        ready("testing")
        status = int(pytest.main(order["pytest"]))
        sys.stdout.flush()  # the child ends without
        raise SystemExit(status)

    from pipeline.config import load_settings
    from pipeline.serve.server import serve

    flags = {"serve.port": 0, "run.threads": 1, "run.device": "cpu", "serve.hosting": order["hosting"]}
    settings = load_settings(flags={**flags, "serve.public_url": PUBLIC_URL if order["hosting"] == "cloud" else None})
    if order["mutant"] is not None:
        MUTANTS[order["mutant"]].patch()
    serve(Path(order["store"]), settings, lambda listening: ready(listening.url))


def main() -> None:
    """Loads everything once, on one thread."""
    import pytest
    import uvicorn.lifespan.on  # what uvicorn imports by name only when it starts
    import uvicorn.loops.auto  # noqa: F401

    from pipeline.config import load_settings
    from pipeline.jobs.models import load_extractor
    from pipeline.jobs.store_identity import make_identity
    from pipeline.runtime.threads import set_threads
    from pipeline.serve.server import _warm_up
    from tests.remembering import remembering

    set_threads(1)
    settings = load_settings(flags={"run.device": "cpu", "run.threads": 1})
    extractor = remembering(load_extractor(settings, make_identity(settings), Path()))
    _warm_up(extractor)
    replaced("pipeline.serve.server", "load_extractor", lambda _: lambda *_arguments: extractor)
    answers = os.dup(1)
    os.dup2(2, 1)  # pytest's listing must not reach the standard output, which is for answers
    pytest.main([*PYTEST, "--collect-only", "-qq", str(HERE)])  # imports the tests
    sys.stdout.flush()
    os.dup2(answers, 1)
    answer_orders(work)


if __name__ == "__main__":
    main()
