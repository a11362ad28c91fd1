"""Commands as children of a process that has loaded what all of them need.

The order {"words", "environ", "stdin", "output"} is a command; its output, and last the heavy libraries that it has
loaded, go to the file `output`. It is never ready, so that its fault points don't count: `report` has some of its own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.cli import main
from tests.forking import Order, answer_orders

HEAVY = {"torch", "torchvision", "numba", "onnxruntime", "openvino"}


def work(order: Order, _ready: Callable[[str], None]) -> None:
    os.environ.update(order["environ"])
    sys.stdin = io.TextIOWrapper(io.BytesIO(order["stdin"].encode()))
    with Path(order["output"]).open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        try:
            main(order["words"], prog_name="facepipe")
        finally:
            print("loaded:", *sorted(HEAVY & sys.modules.keys()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    answer_orders(work)
