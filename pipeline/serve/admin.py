"""The admin port: serves a store's verbs to commands while the server has the store open. They read its address from
the store's lock, and its token from a file.

It listens on loopback only, apart from the public port. The token and the Host header keep out browsers on this machine
(DNS rebinding).

Calls that need the catalog wait for each other, as it has one thread. `check` and `known_files` query it in pieces;
`export` copies each table in one piece, and requests that store something wait for it.
"""

from __future__ import annotations

import contextlib
import hmac
import inspect
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, Final, get_type_hints

import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import BodyInvalid, BodyTooLarge, FacepipeError, Forbidden, MethodUnknown, StoreError
from pipeline.jobs.server_connection import ServerInfo
from pipeline.jobs.store import VERBS, Store
from pipeline.jobs.wire import ARROW, JSON, TOKEN_HEADER, decode, pack, pack_error, stream
from pipeline.serve.connections import Connections
from pipeline.serve.hosts import is_loopback
from pipeline.serve.limited_server import LimitedServer
from pipeline.serve.request_parsing import Query
from pipeline.serve.serializer import MAX_CHANGES, changes_json
from pipeline.store import make_token, remove_token

_log = logging.getLogger(__name__)

_MAX_BODY_BYTES: Final = 2**29  # an image of `decode.max_bytes` in base64
_MAX_CONNECTIONS: Final = 64  # those without the token are evicted first, so no other user can occupy them all
_START_TIMEOUT_S: Final = 10.0
_STOP_TIMEOUT_S: Final = 60.0

Answer = Callable[[Request, bytes], object]


@contextlib.contextmanager
def open_admin_port(
    store: Store, password_changed: Callable[[str], None] = lambda _: None, page: str | None = None
) -> Iterator[str]:
    """Opens a store's admin port and yields its URL. Open it when the service answers, and close it before the service
    ends: short calls in progress are finished, and the closed store refuses the rest.

    `password_changed` receives the user id of an account whose password is changed through the port; commands get
    `page`, the web UI's address. Raises StoreError, StoreUnwritable.
    """

    def info(*_: object) -> ServerInfo:
        return ServerInfo(version("facepipe"), store.path, store.identity, store.generation, page)

    routes = [
        Route("/admin/hello", _endpoint(info), methods=["GET"]),
        Route("/changes", _endpoint(partial(_changes, store)), methods=["GET"]),
        Route("/admin/call/{name}", _endpoint(partial(_call, store, password_changed)), methods=["POST"]),
    ]
    app = _guarded(Starlette(routes=routes), make_token(store.folder))
    listening, connections = threading.Event(), Connections(_MAX_CONNECTIONS, _MAX_CONNECTIONS)
    server = LimitedServer(app, connections, listening.set, lifespan="off", proxy_headers=False)

    def run(listener: socket.socket) -> None:
        try:
            server.run([listener])
        finally:
            listening.set()  # also if it cannot start

    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        url = f"http://{host}:{port}"
        thread = threading.Thread(target=run, args=(listener,), name="admin", daemon=True)
        thread.start()
        try:
            if not listening.wait(_START_TIMEOUT_S) or not server.started:
                raise StoreError(message=f"The admin listener at {url} did not start.")
            store.local.announce(url)
            yield url
        finally:
            store.local.announce(None)
            remove_token(store.folder)
            server.should_exit = True
            thread.join(_STOP_TIMEOUT_S)


def _changes(store: Store, request: Request, _body: bytes) -> object:
    """The changes in all accounts since a commit."""
    query = Query(request)
    since, limit = query.whole("since", 0, 0), query.whole("limit", 1000, 1, MAX_CHANGES)
    return changes_json(store.changes(since, None, limit))


def _call(store: Store, password_changed: Callable[[str], None], request: Request, body: bytes) -> object:
    """Calls a verb of the store with arguments from a JSON object."""
    name = request.path_params["name"]
    if name not in VERBS:
        raise MethodUnknown(method=name)
    types = get_type_hints(VERBS[name])
    try:
        given = decode(json.loads(body), dict[str, Any])
        arguments = {key: decode(value, types[key]) for key, value in given.items()}
        inspect.signature(VERBS[name]).bind(store, **arguments)
    except (KeyError, TypeError, ValueError) as exc:
        raise BodyInvalid(detail=f"it holds no arguments of {name}: {exc}") from exc
    answer = getattr(store, name)(**arguments)
    if name == "set_password":
        password_changed(arguments["user_id"])
    return answer


def _endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """The ASGI endpoint of an answer, which runs on a thread and returns what `pack` accepts, or a stream of batches.
    Errors are packed."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request)
            value = await run_in_threadpool(answer, request, body)
            if isinstance(value, pa.RecordBatchReader):
                return StreamingResponse(stream(value), media_type=ARROW)
            media_type, packed = pack(value)
            return Response(packed, media_type=media_type)
        except FacepipeError as error:
            return _failed(error)
        except Exception as exc:  # noqa: BLE001  whatever it is, the command must get it
            _log.exception("%s failed", request.url.path)
            failure = FacepipeError(message=f"unexpected error in the server: {type(exc).__name__}: {exc}")
            return _failed(failure)

    return endpoint


def _failed(error: FacepipeError) -> Response:
    return Response(pack_error(error), error.http_status, media_type=JSON)


async def _body(request: Request) -> bytes:
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > _MAX_BODY_BYTES:
            raise BodyTooLarge(limit_bytes=_MAX_BODY_BYTES)
    return bytes(received)


def _guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Admits requests from this machine that name it as host and have the token."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        sent = request.headers.get(TOKEN_HEADER, "").encode()
        may_pass = (
            request.client is not None
            and is_loopback(request.client.host)
            and is_loopback(request.url.hostname or "")
            and hmac.compare_digest(sent, token.encode())
        )
        if may_pass:
            request.state.place.hold()
        await (app if may_pass else _failed(Forbidden()))(scope, receive, send)

    return guarded
