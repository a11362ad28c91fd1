"""Resumable HTTP downloads."""

from __future__ import annotations

import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from pipeline.errors import DownloadFailed

TIMEOUT_S: Final = 30.0
_CHUNK_BYTES: Final = 2**18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

# Gets the bytes so far, and the full size if known.
ProgressFn: TypeAlias = Callable[[int, "int | None"], None]
# urllib's result for success, and for other statuses.
Answer: TypeAlias = http.client.HTTPResponse | urllib.error.HTTPError


def download(url: str, part: Path, progress: ProgressFn | None = None, timeout_s: float = TIMEOUT_S) -> None:
    """Fetches `url` into `part`, resuming after its bytes; returns once all are on disk. The caller checks the hash.

    `timeout_s` limits connecting and each wait for data. Raises DownloadFailed, keeping what arrived; OSError if `part`
    cannot be written.
    """
    with part.open("ab") as file:
        try:
            _fetch(url, file, progress or (lambda _done, _total: None), timeout_s)
        finally:
            file.flush()
            os.fsync(file.fileno())


def _fetch(url: str, file: BinaryIO, progress: ProgressFn, timeout_s: float) -> None:
    have = file.tell()
    request = urllib.request.Request(url, headers={"User-Agent": "facepipe", "Accept-Encoding": "identity"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with _open(url, request, timeout_s) as response:
        if have and response.status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            _check_whole(url, response, file, have)
        elif response.status in (http.client.OK, http.client.PARTIAL_CONTENT):
            _copy(url, response, file, _start(url, response, file, have), progress)
        else:
            raise DownloadFailed(url=url, detail=f"the server answered {response.status} {response.reason}")


def _open(url: str, request: urllib.request.Request, timeout_s: float) -> Answer:
    """The server's answer, whatever its status. Raises DownloadFailed."""
    try:
        answer: Answer = urllib.request.urlopen(request, timeout=timeout_s)
    except urllib.error.HTTPError as exc:
        return exc
    except (OSError, http.client.HTTPException) as exc:  # OSError: urllib does not wrap that of a late status line
        raise DownloadFailed(url=url, detail=_reason(exc)) from exc
    return answer


def _check_whole(url: str, response: Answer, file: BinaryIO, have: int) -> None:
    """For a server without bytes after `have`: raises DownloadFailed if the file has another size."""
    if response.headers.get("Content-Range") != f"bytes */{have}":
        file.truncate(0)
        raise DownloadFailed(url=url, detail=f"the {have} bytes kept are from another file, and were dropped")


def _start(url: str, response: Answer, file: BinaryIO, have: int) -> int | None:
    """Moves `file` to the answer's place; returns the full size, None if unknown."""
    if response.status == http.client.PARTIAL_CONTENT:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != have:
            raise DownloadFailed(url=url, detail="the server sent another part of the file than requested")
        return int(match[3])
    file.truncate(0)  # a server without ranges resends everything
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _copy(url: str, response: Answer, file: BinaryIO, total: int | None, progress: ProgressFn) -> None:
    done = file.seek(0, os.SEEK_END)
    progress(done, total)
    while chunk := _read(url, response, done, total):
        file.write(chunk)
        done += len(chunk)
        progress(done, total)
    if total is not None and done != total:
        raise DownloadFailed(url=url, detail=f"the connection ended after {done} of {total} bytes")


def _read(url: str, response: Answer, done: int, total: int | None) -> bytes:
    """The next bytes. read1 keeps those that arrived even if the rest never does."""
    try:
        return response.read1(_CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        of_total = "" if total is None else f" of {total}"
        raise DownloadFailed(url=url, detail=f"{_reason(exc)} after {done}{of_total} bytes") from exc


def _reason(exc: Exception) -> str:
    cause = exc.reason if isinstance(exc, urllib.error.URLError) else exc
    if isinstance(cause, TimeoutError):
        return "the server stopped answering"
    return str(cause) or type(cause).__name__
