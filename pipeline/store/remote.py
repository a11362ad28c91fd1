"""RemoteStore: a store that a server holds, worked on through the server's door.

It has the methods that commands use of StoreClient. What needs the catalog is asked of the server, over the
loopback; the files of a run are written here, in the same folder. Every method raises ServerUnreachable when the
server goes away, and otherwise what it raises on the server's side. An answer may take as long as the work does.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from pipeline.errors import FacepipeError, ServerUnreachable
from pipeline.store.checks.problems import CheckReport, Problem
from pipeline.store.files.admin_token import read_token
from pipeline.store.files.crypto import MasterKey
from pipeline.store.files.durable import Folder
from pipeline.store.files.run_files import RunFiles
from pipeline.store.records import DirectoryRow, RunRow, StoreIdentity
from pipeline.store.wire import JSON, TOKEN_HEADER, pack, unpack, unpack_error

_HELLO_TIMEOUT_S: Final = 20.0
_OCTETS: Final = "application/octet-stream"


class RemoteStore(RunFiles):
    """The store at `path`, held by the server whose door is at `url`."""

    def __init__(self, path: Path, url: str) -> None:
        """Raises ServerUnreachable where no server with this store answers."""
        super().__init__(Folder(path))
        self.path = path
        self.master_key: MasterKey | None = None  # the server has it
        self._url = url
        self._run_keys: dict[str, bytes] = {}
        try:
            self._token = read_token(self.folder)
        except OSError as exc:
            raise self._unreachable(f"its token file cannot be read: {exc.strerror}") from exc
        hello = self._ask("GET", "/admin/hello", timeout_s=_HELLO_TIMEOUT_S)
        own = version("facepipe")
        if hello["version"] != own:
            raise self._unreachable(f"it is facepipe {hello['version']}, and this is {own}")
        if Path(hello["path"]).resolve() != path.resolve():
            raise self._unreachable(f"it is the server of {hello['path']}")
        self.identity = StoreIdentity(**hello["identity"])
        self.generation = int(hello["generation"])

    def _unreachable(self, detail: str) -> ServerUnreachable:
        return ServerUnreachable(path=self.path, url=self._url, detail=detail)

    def _ask(
        self, verb: str, path: str, body: bytes = b"", media_type: str = JSON, timeout_s: float | None = None
    ) -> Any:
        # A connection for each: one that was kept while images were worked on would have been closed meanwhile.
        connection = http.client.HTTPConnection(urlsplit(self._url).netloc, timeout=timeout_s or _HELLO_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            connection.request(verb, path, body, {TOKEN_HEADER: self._token, "Content-Type": media_type})
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(str(exc) or type(exc).__name__) from exc
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise self._error(answer.status, said)
        try:
            return unpack(answer.headers.get("Content-Type", JSON), said)
        except ValueError as exc:
            raise self._unreachable("what answers there is no facepipe server") from exc

    def _error(self, status: int, said: bytes) -> FacepipeError:
        try:
            return unpack_error(said)
        except (ValueError, KeyError, TypeError):
            return self._unreachable(f"it answers with status {status}")

    def _call(self, method: str, *args: object) -> Any:
        _, body = pack(args)
        return self._ask("POST", f"/admin/call/{quote(method)}", body)

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The server keeps the store."""
        self._forget_manifest()

    def read(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """What one SELECT answers. Raises UsageError for anything else."""
        return self._call("read", sql, params)

    # Accounts and directories

    def account_id(self, user_id: str) -> int:
        return int(self._call("account_id", user_id))

    def accounts(self) -> list[str]:
        return list(self._call("accounts"))

    def create_account(self, user_id: str, password_hash: str | None) -> int:
        return int(self._call("create_account", user_id, password_hash))

    def set_password(self, user_id: str, password_hash: str) -> None:
        self._call("set_password", user_id, password_hash)

    def directories(self) -> list[DirectoryRow]:
        return [DirectoryRow(*row) for row in self._call("directories")]

    def delete_directory(self, account_id: int, name: str) -> None:
        self._call("delete_directory", account_id, name)

    # Runs

    def begin_run(
        self, source: str, source_kind: str, account_id: int, directory: str, settings: Mapping[str, Any]
    ) -> RunRow:
        return _run_row(self._call("begin_run", source, source_kind, account_id, directory, settings))

    def rebegin_run(self, run_id: str, source_kind: str, directory: str, settings: Mapping[str, Any]) -> RunRow:
        return _run_row(self._call("rebegin_run", run_id, source_kind, directory, settings))

    def plan_run(self, run_id: str, rows: int, shards: int) -> None:
        self._call("plan_run", run_id, rows, shards)

    def finish_run(self, run_id: str, summary: Mapping[str, Any]) -> None:
        self._call("finish_run", run_id, summary)

    def run_row(self, run_id: str) -> RunRow:
        return _run_row(self._call("run_row", run_id))

    def unfinished_run(self, source: str | None, account_id: int | None) -> RunRow | None:
        found = self._call("unfinished_run", source, account_id)
        return None if found is None else _run_row(found)

    def last_run(self, source: str | None, account_id: int | None) -> RunRow | None:
        found = self._call("last_run", source, account_id)
        return None if found is None else _run_row(found)

    def run_key(self, run_id: str) -> bytes | None:
        if not self.identity.encrypted:
            return None
        if run_id not in self._run_keys:
            self._run_keys[run_id] = base64.b64decode(self._call("run_key", run_id))
        return self._run_keys[run_id]

    def committed_shards(self, run_id: str) -> set[int]:
        return set(self._call("committed_shards", run_id))

    def enrol_shard(self, run_id: str, shard: int) -> None:
        """Hands over a shard whose extraction is written: the server decides its faces and commits it."""
        _, body = pack({"run_id": run_id, "shard": shard})
        self._ask("POST", "/admin/shards", body)

    # What is known

    def known_rows(self, source: str, account_id: int) -> pa.Table:
        return self._call("known_rows", source, account_id)

    def known_media(self, account_id: int, hashes: Sequence[str]) -> dict[str, int]:
        return dict(self._call("known_media", account_id, hashes))

    def directories_with_identities(self, account_id: int) -> set[str]:
        return set(self._call("directories_with_identities", account_id))

    # Long work, done by the server

    def check(self, *, repair: bool) -> tuple[CheckReport, list[Problem]]:
        """What is wrong, after what was repaired; and what was."""
        said = self._ask("POST", "/admin/check", json.dumps({"repair": repair}).encode())
        problems = [Problem(**problem) for problem in said["report"]["problems"]]
        return CheckReport(problems, said["report"]["counts"]), [Problem(**problem) for problem in said["repaired"]]

    def export(self, to: Path) -> dict[str, int]:
        said = self._ask("POST", "/admin/export", json.dumps({"to": str(to.absolute())}).encode())
        return dict(said)

    def search(self, image: bytes, account_id: int, directory: str, top: int, threshold: float) -> list[dict[str, Any]]:
        """The faces of an encoded image, as FaceAnswer.as_dict gives them."""
        query = {"account_id": account_id, "directory": directory, "top": top, "threshold": threshold}
        return list(self._ask("POST", f"/admin/search?{urlencode(query)}", image, _OCTETS))


def _run_row(said: Mapping[str, Any]) -> RunRow:
    times = {key: said[key] and datetime.fromisoformat(said[key]) for key in ("started_at", "finished_at")}
    return RunRow(**{**said, **times})
