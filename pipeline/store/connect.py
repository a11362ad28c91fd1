"""Opens a store, or the way to it through the server that holds it, so every command works with and without a server.

Through a server: what needs the catalog is asked of its admin port, over the loopback; the files of a run are written
here, in the same folder. An answer may take as long as the work does. Where the process that holds the store is no
server, or one that is starting or stopping, StoreLocked is raised.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast
from urllib.parse import quote, urlsplit

import pyarrow as pa

from pipeline.errors import FacepipeError, ServerUnreachable, StoreLocked
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.durable import Folder
from pipeline.store.files.handover import handed_over
from pipeline.store.files.lock import read_token
from pipeline.store.local import LocalStore
from pipeline.store.operations import CommitShard, Operation, Store
from pipeline.store.records import (
    Checked,
    CorrectionAnswer,
    CorrectionRequest,
    FaceAnswer,
    RunRow,
    SearchQuery,
    StoreIdentity,
)
from pipeline.store.wire import JSON, TOKEN_HEADER, pack, unpack, unpack_error

P = ParamSpec("P")
T = TypeVar("T")
_HELLO_TIMEOUT_S: Final = 20.0


def open_store(path: Path, *, command: str, repair: bool = False, reading: bool = False) -> Store:
    """Opens the store at `path`. With `repair` also one whose last changes are gone, with `reading` also one on a disk
    that can't be written. Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew, ServerUnreachable."""
    return _or_through_server(lambda: LocalStore.open(path, command=command, repair=repair, reading=reading))


def open_or_create(path: Path, make_identity: Callable[[], StoreIdentity], *, command: str) -> Store:
    """The same, or makes a store with what `make_identity` returns; that is called only then."""
    return _or_through_server(lambda: LocalStore.open_or_create(path, make_identity, command=command))


def _or_through_server(open_it: Callable[[], LocalStore]) -> Store:
    try:
        return open_it()
    except StoreLocked as locked:
        if locked.fields["url"] is None:
            raise
        return RemoteStore(Path(str(locked.fields["path"])), str(locked.fields["url"]))


@dataclass(frozen=True)
class Hello:
    """Which store a server holds."""

    version: str  # of facepipe
    path: Path
    identity: StoreIdentity
    generation: int


class RemoteStore(Store):
    """The store at `path`, held by the server whose admin port is at `url`."""

    served = True
    locked = False  # the server has unlocked it
    master_key = None

    def __init__(self, path: Path, url: str) -> None:
        """Raises ServerUnreachable where no server with this store answers."""
        super().__init__(Folder(path))
        self.path = path
        self._url = url
        try:
            self._token = read_token(self.folder)
        except OSError as exc:
            raise self._unreachable(f"its token file cannot be read: {exc.strerror}") from exc
        hello = cast("Hello", self._ask("GET", "/admin/hello", Hello, timeout_s=_HELLO_TIMEOUT_S))
        own = version("facepipe")
        if hello.version != own:
            raise self._unreachable(f"it is facepipe {hello.version}, and this is {own}")
        if hello.path.resolve() != path.resolve():
            raise self._unreachable(f"it is the server of {hello.path}")
        self.identity = hello.identity
        self.generation = hello.generation

    def perform(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return cast("T", self._call(operation.name, operation.answer, *operation.arguments(*args, **kwargs)))

    def close(self) -> None:
        """The server keeps the store."""
        self.forget_manifest()

    def unlock(self, master_key: MasterKey) -> None:
        """The server has the key already."""

    def fold(self) -> int:
        return 0

    def shard_committer(self, run: RunRow, here: object) -> CommitShard:  # noqa: ARG002
        return lambda shard, _manifest, _extracted: self._call("enrol_shard", None, run.run_id, shard)

    def search(self, query: SearchQuery, here: object) -> list[FaceAnswer]:  # noqa: ARG002
        return cast("list[FaceAnswer]", self._call("search", list[FaceAnswer], query))

    def correct(self, request: CorrectionRequest, here: object, decoded: pa.Table | None = None) -> CorrectionAnswer:  # noqa: ARG002
        with ExitStack() as stack:
            if decoded is not None:
                key = self.account_key(request.account_id)
                request = replace(request, decoded=stack.enter_context(handed_over(self.folder, decoded, key)))
            return cast("CorrectionAnswer", self._call("correct", CorrectionAnswer, request))

    def delete_directory(self, account_id: int, name: str) -> int:
        return cast("int", self._call("delete_directory", int, account_id, name))

    def check(self, *, repair: bool = False, progress: object = None) -> Checked:  # noqa: ARG002
        return cast("Checked", self._call("check", Checked, repair))

    def export(self, to: Path) -> dict[str, int]:
        return cast("dict[str, int]", self._call("export", dict[str, int], to.absolute()))

    def _call(self, name: str, answer: Any, *args: object) -> Any:
        """Calls an operation, or another of the admin port's, whose answer is of type `answer`."""
        _, body = pack(args)
        return self._ask("POST", f"/admin/call/{quote(name)}", answer, body)

    def _ask(self, verb: str, path: str, answer: Any, body: bytes = b"", timeout_s: float | None = None) -> Any:
        # A connection for each call: the server closes one that is idle while images are extracted.
        connection = http.client.HTTPConnection(urlsplit(self._url).netloc, timeout=timeout_s or _HELLO_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(verb, path, body, {TOKEN_HEADER: self._token, "Content-Type": JSON})
            response = connection.getresponse()
            received = response.read()
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(str(exc) or type(exc).__name__) from exc
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise self._error(response.status, received)
        try:
            return unpack(response.headers.get("Content-Type", JSON), received, answer)
        except (ValueError, TypeError) as exc:
            raise self._unreachable("what answers there is no facepipe server") from exc

    def _error(self, status: int, received: bytes) -> FacepipeError:
        try:
            return unpack_error(received)
        except (ValueError, KeyError, TypeError):
            return self._unreachable(f"it answers with status {status}")

    def _unreachable(self, detail: str) -> ServerUnreachable:
        return ServerUnreachable(path=self.path, url=self._url, detail=detail)
