"""Opens a store, loads and warms up its models, and serves until a signal."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from starlette.types import ASGIApp

from pipeline.config import ServeSettings, Settings
from pipeline.errors import UsageError
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store import Store
from pipeline.people.records import overridden, unconfirmed
from pipeline.people.service import IdentityService
from pipeline.serve.admin import open_admin_port
from pipeline.serve.app import make_app, make_authenticator
from pipeline.serve.connections import PEER_SHARE, Connections, max_connections, raise_file_limit
from pipeline.serve.limited_server import LimitedServer
from pipeline.serve.serializer import CLOUD
from pipeline.store import LocalStore
from pipeline.types import DecodedImage

_KEEP_ALIVE_S: Final = 65  # longer than clients keep theirs, so that none writes into a closing connection
_BACKLOG: Final = 512
_STOP_S: Final = 60  # for requests in progress at a signal
_END_S: Final = 80  # from the signal to the end, whatever still runs: systemd kills after 90
_WARM_UP_PX: Final = 320
OBJECT_PORT: Final = 8086  # of clients of the well-known service with the same headers; docs/existing-clients.md
CLOUD_SCHEME: Final = "ehttps"  # tells those clients that their downloads are encrypted
_log: Final = logging.getLogger("facepipe.serve")


@dataclass(frozen=True)
class Listening:
    """The server's addresses, with actual ports for 0 in the settings. Objects have the same address unless they have a
    port of their own."""

    url: str
    object_url: str
    identities: int


def serve(store: Path, settings: Settings, announce: Callable[[Listening], None]) -> None:
    """Serves the store until SIGINT or SIGTERM, then finishes the running requests and returns. A second signal, or a
    stop of more than 80 seconds, ends the process immediately; the store survives that like any crash.

    `announce` is called when the server listens. Raises StoreError, ModelError, DeviceError, and UsageError for
    contradictory settings or a taken port.
    """
    raise_file_limit()
    with contextlib.ExitStack() as stack:
        end = threading.Timer(_END_S, _end_now)
        end.daemon = True
        stack.callback(end.cancel)
        sockets = _listeners(settings.serve, stack)  # first: a taken port should show before the models are loaded
        client = stack.enter_context(LocalStore.open(store, command="serve"))
        held = Store(client, settings)
        held.unlock()
        settings = held.settled
        extractor = load_extractor(settings, client.identity, client.path, None, client.other_identity())
        service = held.service = IdentityService(client, extractor, Decoder(settings.decode), settings)
        stack.callback(service.close)
        auth, ready = make_authenticator(client), threading.Event()
        app = make_app(service, client, settings, auth=auth, ready=ready.is_set)
        service.load()
        # Otherwise each collection would traverse every identity while all requests wait.
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        _warm_up(extractor)
        urls = [_url(settings.serve, listener) for listener in sockets]
        stack.enter_context(open_admin_port(held, auth.drop, f"{urls[0]}/ui" if settings.ui.enabled else None))
        people = sum(directory.people for directory in service.directories.all())
        for directory in service.directories.all():
            used = service.match_of(directory.account_id, directory.name).threshold
            if directory.threshold not in (None, used):
                _log.warning("%s", overridden(directory.name, directory.threshold, used))
            note = unconfirmed(directory.name, directory.remembered, client.identity.calibration, client.generation)
            if note is not None:
                _log.warning("%s", note)
        listening = Listening(urls[0], urls[-1], people)

        def on_listening() -> None:
            ready.set()
            announce(listening)

        stack.callback(ready.clear)
        make_server(app, settings.serve, on_listening, end.start).run(sockets)


def for_existing_clients(settings: ServeSettings) -> ServeSettings:
    """`settings` with what existing clients need instead of defaults."""
    needed: dict[str, Any] = {"person_headers": "optional", "object_port": OBJECT_PORT}
    if settings.hosting == CLOUD:
        needed["object_scheme"] = CLOUD_SCHEME
    default = ServeSettings()
    return replace(settings, **{k: v for k, v in needed.items() if getattr(settings, k) == getattr(default, k)})


def make_server(
    app: ASGIApp,
    settings: ServeSettings,
    on_listening: Callable[[], None],
    on_signal: Callable[[], None] = lambda: None,
) -> LimitedServer:
    """A uvicorn server with our limits; calls `on_listening` when it accepts connections, and `on_signal` on a stop
    signal."""
    total = max_connections()
    server = LimitedServer(
        app,
        Connections(total, total // PEER_SHARE, settings.trusted_proxies),
        on_listening,
        on_signal,
        lifespan="on",
        # Other peers could choose the address that their failures are counted for.
        proxy_headers=settings.trusted_proxies is not None,
        forwarded_allow_ips=settings.trusted_proxies or "",
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    try:
        server.config.load()
    except OSError as exc:  # ssl.SSLError is one
        raise UsageError(message=f"The TLS certificate or key cannot be used: {exc}") from exc
    return server


def _end_now() -> NoReturn:
    """Ends the process without waiting for any thread."""
    _log.error("what was running when the signal came is not done after %d s: ending without it", _END_S)
    os._exit(128 + signal.SIGTERM)


def _warm_up(extractor: BatchExtractor) -> None:
    """Extracts an empty image: libraries initialise at the first one."""
    pixels = np.zeros((_WARM_UP_PX, _WARM_UP_PX, 3), np.uint8)
    extractor.extract([DecodedImage(pixels, "png")])


def _listeners(settings: ServeSettings, stack: contextlib.ExitStack) -> list[socket.socket]:
    """One socket per port. Raises UsageError if a port is taken."""
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise UsageError(message="TLS needs both --tls-cert and --tls-key.")
    ports = [settings.port] if settings.object_port is None else [settings.port, settings.object_port]
    return [stack.enter_context(_listener(settings.host, port)) for port in ports]


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket. It accepts no connections before uvicorn listens on it."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as exc:
        listener.close()
        raise UsageError(message=f"Nothing can listen at {host} port {port}: {exc.strerror}.") from exc
    return listener


def _url(settings: ServeSettings, listener: socket.socket) -> str:
    scheme = "https" if settings.tls_cert else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"
