"""Opens and closes the door: a listener on the loopback, a token file, and the announcement in the store's lock."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

import uvicorn

from pipeline.errors import StoreError
from pipeline.identities.service import IdentityService
from pipeline.serve.admin.routes import make_admin_app
from pipeline.store.client import StoreClient
from pipeline.store.files.admin_token import make_token, remove_token

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 60.0


class AdminDoor:
    """An open door. Use `start_admin`."""

    def __init__(self, client: StoreClient, server: uvicorn.Server, listener: socket.socket) -> None:
        self._client = client
        self._server = server
        self._thread = threading.Thread(target=server.run, args=([listener],), name="admin", daemon=True)
        host, port = listener.getsockname()
        self.url = f"http://{host}:{port}"

    def open(self) -> None:
        """From now on other commands find their way. Raises StoreError where the listener does not come up."""
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise StoreError(message=f"The admin listener at {self.url} did not start.")
            time.sleep(0.005)
        self._client.announce(self.url)

    def close(self) -> None:
        """Nobody comes in any more. Who is in is finished with first, if it does not take long: what comes later is
        refused by the closed store."""
        self._client.announce(None)
        remove_token(self._client.folder)
        self._server.should_exit = True
        self._thread.join(_STOP_TIMEOUT_S)

    def __enter__(self) -> AdminDoor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_admin(
    client: StoreClient, service: IdentityService, password_changed: Callable[[str], None] = lambda _: None
) -> AdminDoor:
    """Opens the door of a store that is served: to be called when the service answers, closed before it ends.

    `password_changed` is told the user id of each account whose password was changed through the door.
    Raises StoreError, StoreUnwritable.
    """
    app = make_admin_app(client, service, make_token(client.folder), password_changed)
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False)
    listener = socket.create_server(("127.0.0.1", 0))
    door = AdminDoor(client, uvicorn.Server(config), listener)
    door.open()
    return door
