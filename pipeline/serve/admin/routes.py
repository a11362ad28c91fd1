"""The server's side of the door: routes under /admin for the commands that find the store held by this server.

They are served on a port of their own that is bound to the loopback, so nothing of them can be reached from
elsewhere; a browser on this machine is kept out by the token and by the Host header (DNS rebinding).

What a call keeps waiting: everything that asks the catalog goes through its one thread, in turn. `check` asks it
in pieces; `export` copies each table in one piece, and posts that store something wait for it.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.errors import (
    BodyInvalid,
    BodyTooLarge,
    FacepipeError,
    Forbidden,
    MethodUnknown,
    StoreUnwritable,
    UsageError,
)
from pipeline.identities.service import IdentityService
from pipeline.jobs.check_and_export import check, export
from pipeline.jobs.search import answers
from pipeline.store.catalog.connection import Catalog
from pipeline.store.client import StoreClient
from pipeline.store.wire import JSON, TOKEN_HEADER, pack, pack_error

_log = logging.getLogger(__name__)

# Methods of StoreClient that can be called as they are: arguments and answers are plain, and nothing that the
# service keeps in memory depends on them.
_PLAIN: Final = frozenset(
    {
        "account_id",
        "accounts",
        "begin_run",
        "committed_shards",
        "create_account",
        "directories",
        "directories_with_identities",
        "finish_run",
        "known_media",
        "known_rows",
        "last_run",
        "plan_run",
        "rebegin_run",
        "run_row",
        "unfinished_run",
    }
)
_ONE_SELECT: Final = "Only a single SELECT can be read, and nothing written."
_MAX_BODY_BYTES: Final = 256 * 2**20

Answer = Callable[[Request, bytes], object]


def make_admin_app(
    client: StoreClient, service: IdentityService, token: str, password_changed: Callable[[str], None]
) -> ASGIApp:
    """The routes of the door. `password_changed` is told the user id whose cached credentials no longer hold."""
    door = _Door(client, service, password_changed)
    app = Starlette(
        routes=[
            Route("/admin/hello", _endpoint(door.hello), methods=["GET"]),
            Route("/admin/call/{method}", _endpoint(door.call), methods=["POST"]),
            Route("/admin/shards", _endpoint(door.shards), methods=["POST"]),
            Route("/admin/check", _endpoint(door.check), methods=["POST"]),
            Route("/admin/export", _endpoint(door.export), methods=["POST"]),
            Route("/admin/search", _endpoint(door.search), methods=["POST"]),
        ]
    )
    return _Guard(app, token)


class _Door:
    """What the routes do. Each method runs on a thread of its own and returns what `pack` takes."""

    def __init__(self, client: StoreClient, service: IdentityService, password_changed: Callable[[str], None]) -> None:
        self._client = client
        self._service = service
        self._password_changed = password_changed
        self._calls: Mapping[str, Callable[..., object]] = {
            **{name: getattr(client, name) for name in _PLAIN},
            "read": self._read,
            "run_key": self._run_key,
            "set_password": self._set_password,
            "delete_directory": service.delete_directory,
        }

    def hello(self, _request: Request, _body: bytes) -> object:
        """Which store this is."""
        client = self._client
        return {
            "version": version("facepipe"),
            "path": client.path,
            "identity": client.identity,
            "generation": client.generation,
        }

    def call(self, request: Request, body: bytes) -> object:
        """A method of the store: a JSON list of arguments, and what it returns."""
        name, arguments = request.path_params["method"], _json(body, list)
        if name not in self._calls:
            raise MethodUnknown(method=name)
        try:
            return self._calls[name](*arguments)
        except (TypeError, duckdb.Error) as exc:
            raise BodyInvalid(detail=str(exc).split("\n")[0]) from exc

    def _read(self, sql: str, params: list[object]) -> pa.Table:
        """The store cannot be written by this. Files can be read, by DuckDB's functions: as whoever has the token, who
        is this user or root, can read them anyway."""
        return self._client.submit(lambda catalog: _select(catalog, sql, params))

    def _run_key(self, run_id: str) -> str | None:
        key = self._client.run_key(run_id)
        return None if key is None else base64.b64encode(key).decode()

    def _set_password(self, user_id: str, password_hash: str) -> None:
        self._client.set_password(user_id, password_hash)
        self._password_changed(user_id)

    def shards(self, _request: Request, body: bytes) -> object:
        """Takes over an extracted shard: its files lie in the store's folder."""
        said = _json(body, dict)
        self._service.enrol_shard(str(said["run_id"]), int(said["shard"]))
        return None

    def check(self, _request: Request, body: bytes) -> object:
        """Reads the whole store, and repairs it where asked to."""
        return check(self._client, repair=bool(_json(body, dict)["repair"]))

    def export(self, _request: Request, body: bytes) -> object:
        """Writes the tables into a folder of this machine; answers their rows."""
        return export(self._client, Path(_json(body, dict)["to"]))

    def search(self, request: Request, body: bytes) -> object:
        """Who is in the image that is the body."""
        query = request.query_params
        faces = answers(
            self._service,
            int(query["account_id"]),
            query["directory"],
            body,
            top=int(query["top"]),
            threshold=float(query["threshold"]),
        )
        return [face.as_dict() for face in faces]


def _select(catalog: Catalog, sql: str, params: list[object]) -> pa.Table:
    statements = catalog.connection.extract_statements(sql)
    if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
        raise UsageError(message=_ONE_SELECT)
    try:
        with catalog.read_only():  # a SELECT may begin with a DELETE: WITH gone AS (DELETE ... RETURNING ...)
            return catalog.read(sql, params)
    except StoreUnwritable as exc:
        raise UsageError(message=_ONE_SELECT) from exc


def _json(body: bytes, kind: type[Any]) -> Any:
    try:
        value = json.loads(body)
    except ValueError as exc:
        raise BodyInvalid(detail=f"it is no JSON: {exc}") from exc
    if not isinstance(value, kind):
        raise BodyInvalid(detail=f"it is no JSON {kind.__name__}")
    return value


def _endpoint(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """An ASGI endpoint of an answer: on a thread, its errors in the door's form."""

    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request)
            media_type, packed = pack(await run_in_threadpool(answer, request, body))
            return Response(packed, media_type=media_type)
        except FacepipeError as error:
            return _failed(error)
        except Exception as exc:  # noqa: BLE001  whatever it is, the command must hear of it
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


class _Guard:
    """Lets only those pass who are on this machine, call it by its name, and know the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        app = self._app if self._may_pass(request) else _failed(Forbidden())
        await app(scope, receive, send)

    def _may_pass(self, request: Request) -> bool:
        given = request.headers.get(TOKEN_HEADER, "").encode()
        return (
            request.client is not None
            and _is_loopback(request.client.host)
            and _is_loopback(request.url.hostname or "")
            and hmac.compare_digest(given, self._token)
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
