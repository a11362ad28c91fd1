"""A store held by a server's parts: the service and the open admin port, in this process or, as a script, in another.

`served.py STORE [POINT N]` holds STORE until its standard input ends; with POINT it kills itself (SIGKILL) the
N-th time it comes to that fault point.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import Settings, load_settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.identities.service import IdentityService
from pipeline.jobs.models import load_extractor
from pipeline.jobs.stores import open_or_create_store, settings_of_store
from pipeline.serve.admin.listener import AdminPort, open_admin_port
from pipeline.store.files import faults
from pipeline.store.local import LocalStore

SETTINGS = load_settings(
    environ={},
    flags={"run.shard_rows": 3, "run.device": "cpu", "run.threads": 1, "model.weights": "casia-webface"},
)


@dataclass
class Served:
    """What holds the store."""

    client: LocalStore
    service: IdentityService
    port: AdminPort
    changed_passwords: list[str] = field(default_factory=list)


@contextmanager
def serving(store: Path, extractor: BatchExtractor | None = None, settings: Settings = SETTINGS) -> Iterator[Served]:
    """Holds `store` (made where there is none) as a server does. `extractor`: one that is loaded already."""
    changed: list[str] = []
    client = open_or_create_store(store, settings, "serve")
    assert isinstance(client, LocalStore)
    with client:
        settings = settings_of_store(settings, client.identity, store)
        loaded = extractor or load_extractor(settings, client.identity, store)
        service = IdentityService(client, loaded, Decoder(settings.decode), settings)
        try:
            with open_admin_port(client, service, changed.append) as port:
                yield Served(client, service, port, changed)
        finally:
            service.close()


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
