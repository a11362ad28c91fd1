"""Calls a server that has the store open, through its admin port on the loopback.

An answer may take as long as the work does.
"""

from __future__ import annotations

import http.client
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn, cast, get_type_hints
from urllib.parse import quote, urlsplit

import pyarrow as pa

from pipeline.errors import ServerUnreachable
from pipeline.jobs.wire import JSON, TOKEN_HEADER, pack, unpack, unpack_error
from pipeline.store import Folder, StoreIdentity, read_token

_START_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True)
class ServerInfo:
    """The server's version and store."""

    version: str  # of facepipe
    path: Path
    identity: StoreIdentity
    generation: int
    page: str | None = None  # the web UI's address


class ServerConnection:
    """Calls the server at admin port `url`, which has the store at `path` open."""

    def __init__(self, path: Path, url: str) -> None:
        """Raises ServerUnreachable if no server of this version and store answers."""
        self.path = path
        self.folder = Folder(path)
        self._url = url
        try:
            self._token = read_token(self.folder)
        except OSError as exc:
            self._fail(f"its token file cannot be read: {exc.strerror}", exc)
        # Earlier versions answer, too; the message then names theirs.
        info = cast("ServerInfo", self._ask("GET", "/admin/hello", ServerInfo, timeout_s=_START_TIMEOUT_S))
        own = version("facepipe")
        if info.version != own:
            self._fail(f"it is facepipe {info.version}, and this is {own}")
        if info.path.resolve() != path.resolve():
            self._fail(f"it is the server of {info.path}")
        self.identity = info.identity
        self.generation = info.generation
        self.page = info.page

    def call(self, method: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Calls this method of the server's store. Raises its errors, and ServerUnreachable if the server ends
        meanwhile."""
        arguments = inspect.signature(method).bind(None, *args, **kwargs).arguments
        # A server reports no progress.
        body = pack({name: value for name, value in arguments.items() if name not in ("self", "progress")})[1]
        return self._ask("POST", f"/admin/call/{quote(method.__name__)}", get_type_hints(method)["return"], body)

    def _ask(self, http_method: str, path: str, kind: Any, body: bytes = b"", timeout_s: float | None = None) -> Any:
        """Returns the answer as `kind`. A stream's batches are received as they are read."""
        # One connection per call: the server closes those that idle during extraction.
        connection = http.client.HTTPConnection(urlsplit(self._url).netloc, timeout=timeout_s or _START_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(http_method, path, body, {TOKEN_HEADER: self._token, "Content-Type": JSON})
            response = connection.getresponse()
            if response.status < http.client.BAD_REQUEST and kind is pa.RecordBatchReader:
                return self._batches(connection, response)
            received = response.read()
        except (OSError, http.client.HTTPException, pa.ArrowException) as exc:
            connection.close()
            self._fail(str(exc) or type(exc).__name__, exc)
        connection.close()
        failed = response.status >= http.client.BAD_REQUEST
        try:
            answer = unpack_error(received) if failed else unpack(response.headers["Content-Type"], received, kind)
        except (KeyError, TypeError, ValueError) as exc:
            self._fail(f"what answers there is no facepipe server (status {response.status})", exc)
        if failed:
            raise answer
        return answer

    def _batches(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> pa.RecordBatchReader:
        reader = pa.ipc.open_stream(pa.PythonFile(response, "r"))

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except (OSError, http.client.HTTPException, pa.ArrowException) as exc:
                self._fail(str(exc) or type(exc).__name__, exc)
            finally:
                connection.close()

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    def _fail(self, detail: str, cause: Exception | None = None) -> NoReturn:
        raise ServerUnreachable(path=self.path, url=self._url, detail=detail) from cause
