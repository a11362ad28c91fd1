"""Opens and closes the admin port: a listener on the loopback, a token file, and its address in the store's lock."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from pipeline.errors import StoreError
from pipeline.identities.service import IdentityService
from pipeline.serve.admin.routes import make_admin_app
from pipeline.store.files.lock import make_token, remove_token
from pipeline.store.local import LocalStore

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 60.0


class AdminPort:
    """An open admin port. Use `open_admin_port`."""

    def __init__(self, store: LocalStore, server: uvicorn.Server, listener: socket.socket) -> None:
        self._store = store
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([listener],), name="admin", daemon=True)
        host, port = listener.getsockname()
        self.url = f"http://{host}:{port}"

    def open(self) -> None:
        """Starts the listener and announces it to other commands. Raises StoreError where it does not start."""
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise StoreError(message=f"The admin listener at {self.url} did not start.")
            time.sleep(0.005)
        self._store.announce(self.url)

    def close(self) -> None:
        """Stops the listener. Calls in hand are finished if they don't take long; the closed store refuses the rest."""
        self._store.announce(None)
        remove_token(self._store.folder)
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT_S)

    def __enter__(self) -> AdminPort:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def open_admin_port(
    store: LocalStore, service: IdentityService, password_changed: Callable[[str], None] = lambda _: None
) -> AdminPort:
    """Opens the admin port of a store: call it when the service answers, and close the port before the service ends.

    `password_changed` is called with the user id of each account whose password is changed through the port.
    Raises StoreError, StoreUnwritable.
    """
    app = make_admin_app(store, service, make_token(store.folder), password_changed)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False)
    listener = socket.create_server(("127.0.0.1", 0))
    port = AdminPort(store, uvicorn.Server(config), listener)
    port.open()
    return port
