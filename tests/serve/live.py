"""A real server in this process: uvicorn in a thread, a real port, a real store, real models."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipeline.config import Settings, load_settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store import open_or_create_store
from pipeline.jobs.store_identity import settings_of_store
from pipeline.people.service import IdentityService
from pipeline.serve.app import make_app, make_authenticator
from pipeline.serve.auth import Authenticator
from pipeline.serve.limited_server import LimitedServer
from pipeline.serve.server import make_server
from pipeline.store.local import LocalStore
from tests.serve.quick_hash import quick_hash

PASSWORD = "s3cret:päss"
USERS = ("alice", "bob")
_START_S = 30


@dataclass(frozen=True)
class LiveServer:
    """Answers on `port`. `ready` is what /readyz tells."""

    port: int
    service: IdentityService
    client: LocalStore
    ready: threading.Event
    server: LimitedServer
    auth: Authenticator

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def http(self, directory: str = "main", user: str = "alice") -> httpx.Client:
        """A client with both headers."""
        return httpx.Client(base_url=self.url, headers=credentials(directory, user), timeout=60)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


def credentials(directory: str = "main", user: str = "alice") -> list[tuple[bytes, bytes]]:
    return [
        (b"X-RPC-DIRECTORY", directory.encode()),
        (b"X-RPC-AUTHORIZATION", f"{user}:{PASSWORD}".encode()),
    ]


@contextlib.contextmanager
def open_service(
    store: Path, extractor: BatchExtractor | None, settings: Settings
) -> Iterator[tuple[LocalStore, IdentityService, Settings]]:
    """The store at `store`, made where there is none, a service over it, and the store's settings. Without an
    `extractor` its models are loaded."""
    with open_or_create_store(store, settings, "serve").local as client:
        models = client.identity, client.other_identity()
        settings = settings_of_store(settings, models[0], store, models[1])
        extractor = extractor or load_extractor(settings, models[0], store, other=models[1])
        with contextlib.closing(IdentityService(client, extractor, Decoder(settings.decode), settings)) as service:
            yield client, service, settings


@contextlib.contextmanager
def live_server(store: Path, extractor: BatchExtractor, **flags: object) -> Iterator[LiveServer]:
    """Serves the store at `store`, which is made with the accounts USERS; `flags` set settings (`serve__port=0`)."""
    with open_service(store, extractor, live_settings(**{"serve__changes": True, **flags})) as (
        client,
        service,
        settings,
    ):
        for user in set(USERS) - set(client.accounts()):
            client.create_account(user, quick_hash(PASSWORD))
        with listening(client, service, settings) as server:
            yield server


@contextlib.contextmanager
def listening(client: LocalStore, service: IdentityService, settings: Settings, port: int = 0) -> Iterator[LiveServer]:
    """A server over an open store and its service; `port` 0: any."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        ready = threading.Event()
        auth = make_authenticator(client)
        app = make_app(service, client, settings, auth=auth, ready=ready.is_set)
        server = make_server(app, settings.serve, ready.set)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            assert ready.wait(_START_S), "the server did not start"
            yield LiveServer(listener.getsockname()[1], service, client, ready, server, auth)
        finally:
            server.should_exit = True
            thread.join()


def live_settings(**flags: object) -> Settings:
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(environ={}, flags={"run.device": "cpu", "model.weights": "casia-webface", **named})
