"""A store held by a server's parts: the service and the open admin port, in this process or a child of another.

As a module it forks such children from a process that has the models loaded. The order {"store"} holds the store until
the child is stopped; {"store", "source"} is a run of `source` into it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pipeline.run.stages
from pipeline.config import Settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store import Store
from pipeline.jobs.store_identity import make_identity
from pipeline.people.service import IdentityService
from pipeline.run.run import RunRequest, run
from pipeline.runtime.threads import set_threads
from pipeline.serve.admin import open_admin_port
from tests.forking import Order, answer_orders
from tests.remembering import remembering
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
        url = port.enter_context(open_admin_port(Store(client, settings, service), changed.append))
        yield Served(service, url, port.close, changed)


def main() -> None:
    set_threads(1)
    extractor = remembering(load_extractor(SETTINGS, make_identity(SETTINGS), Path()))
    pipeline.run.stages.load_extractor = lambda *_: extractor

    def work(order: Order, ready: Callable[[str], None]) -> None:
        if "source" in order:
            ready("running")
            run(RunRequest(source=Path(order["source"]), store=Path(order["store"]), settings=SETTINGS))
        else:
            with serving(Path(order["store"]), extractor):
                ready("open")
                signal.pause()

    answer_orders(work)


if __name__ == "__main__":
    main()
