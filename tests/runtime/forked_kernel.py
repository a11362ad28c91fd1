"""Runs scripts in children of a process that has numba imported.

An order is {"script", "variables", "output"}: the child has the environment variables, and what it prints goes into the
file `output`.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import numba

import pipeline.runtime.compiled  # noqa: F401
from tests.forking import Order, answer_orders


def work(order: Order, ready: Callable[[str], None]) -> None:
    ready("running")
    os.environ.update(order["variables"])
    numba.config.reload_config()
    sys.dont_write_bytecode = True  # a script that changes twice a second would be taken for its old self
    sys.path.insert(0, str(Path(order["script"]).parent))
    with Path(order["output"]).open("w") as output, redirect_stdout(output):
        runpy.run_path(order["script"], run_name="__main__")


if __name__ == "__main__":
    answer_orders(work)
