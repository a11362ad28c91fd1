"""A store held by a server's parts: the service and the open admin port, in this process or, as a script, in another.

`served.py STORE [POINT N]` holds STORE until its standard input ends; with POINT it kills itself (SIGKILL) the
N-th time it comes to that fault point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.identities.service import IdentityService
from pipeline.serve.admin import open_admin_port
from pipeline.store.files import faults
from tests.serve.live import live_settings, open_service

SETTINGS = live_settings(run__shard_rows=3, run__threads=1)


@dataclass
class Served:
    """What holds the store. `url` is that of the admin port."""

    service: IdentityService
    url: str
    close_port: Callable[[], None]
    changed_passwords: list[str]


@contextmanager
def serving(store: Path, extractor: BatchExtractor | None = None, settings: Settings = SETTINGS) -> Iterator[Served]:
    """Holds `store` (made where there is none) as a server does. `extractor`: one that is loaded already."""
    changed: list[str] = []
    with open_service(store, extractor, settings) as (client, service, _), ExitStack() as port:
        url = port.enter_context(open_admin_port(client, service, changed.append))
        yield Served(service, url, port.close, changed)


def main(store: str, point: str = "", nth: str = "0") -> None:
    count = 0

    def hook(name: str) -> None:
        nonlocal count
        count += name == point
        if name == point and count == int(nth):
            os.kill(os.getpid(), signal.SIGKILL)

    with serving(Path(store)):
        faults.install(hook)
        print("open", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
