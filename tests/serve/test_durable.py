"""An insertion under strace: everything is on disk before the first byte of the answer leaves.

The trace is of the system calls themselves, so it sees what no mock could: the fsync of the picture's file and of its
folders, and the one of DuckDB's write-ahead log, against the send of `201`. Three servers each leave one of them out
(for the log by DuckDB's own setting `fsync_mode`): the same check must notice each.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
from coded_faces import Shown

from tests.forking import Forker
from tests.serve.coded import client_of, empty_store

CALLS = "fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,write,pwrite64,send,sendto,sendmsg,writev"
STRACE = ("strace", "-f", "-y", "-s", "64", "--seccomp-bpf", "-e", f"trace={CALLS}", "-e", "signal=none")
_LINE = re.compile(r"(?P<thread>\d+) +(?P<text>.*)")
_CALL = re.compile(r"(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_UNFINISHED = re.compile(r"(?P<begin>.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")
_QUOTED = re.compile(r'"([^"]*)"')
_DESCRIPTOR = re.compile(r"\d+<([^>]*)>")


@dataclass(frozen=True)
class Call:
    """One system call: the number of the line where it begins, and of the one where it returns."""

    name: str
    arguments: str
    begin: int
    end: int

    @property
    def path(self) -> str:
        """Of the file behind its first descriptor."""
        match = _DESCRIPTOR.match(self.arguments)
        return match.group(1) if match else ""

    @property
    def names(self) -> list[str]:
        """Its quoted arguments: of a rename or mkdir, the paths."""
        return _QUOTED.findall(self.arguments)


def calls(trace: list[str]) -> list[Call]:
    """The calls that succeeded, in the order in which they returned."""
    succeeded, pending = [], {}
    for number, line in enumerate(trace):
        entry = _LINE.fullmatch(line)
        if entry is None:
            continue
        thread, text, begin = entry["thread"], entry["text"], number
        unfinished, resumed = _UNFINISHED.fullmatch(text), _RESUMED.fullmatch(text)
        if unfinished:
            pending[thread] = number, unfinished["begin"]
            continue
        if resumed:
            if thread not in pending:  # it began before the part of the trace that is looked at
                continue
            begin, text = pending.pop(thread)
            text += resumed["rest"]
        call = _CALL.match(text)
        if call and int(call["result"]) >= 0:
            succeeded.append(Call(call["name"], call["arguments"], begin, number))
    return succeeded


def missing_syncs(trace: list[str], store: Path) -> list[str]:
    """The parts of an insertion that were not on disk before its answer: none, if all is well."""
    done = calls(trace)
    (answer,) = [call.begin for call in done if "HTTP/1.1 201" in call.arguments]
    before = [call for call in done if call.end < answer]
    renamed = [call for call in before if call.name.startswith("rename") and "/objects/" in call.names[-1]]
    assert len(renamed) == 1
    temporary, picture = renamed[0].names
    log = [call for call in before if call.path.endswith(".duckdb.wal") and "write" in call.name]
    assert log

    def synced(path: str, after: int, until: int) -> bool:
        syncs = (call for call in before if call.name in ("fsync", "fdatasync") and call.path == path)
        return any(after < call.begin and call.end < until for call in syncs)

    missing = []
    written = max(call.end for call in before if call.path == temporary and call.name == "write")
    if not synced(temporary, written, renamed[0].begin):
        missing.append("object")
    folder = str(PurePosixPath(picture).parent)
    if not synced(folder, renamed[0].end, log[-1].begin):
        missing.append("folder")
    created = [call for call in before if call.name.startswith("mkdir") and call.names[-1].startswith(str(store))]
    if not all(synced(str(PurePosixPath(call.names[-1]).parent), call.end, log[-1].begin) for call in created):
        missing.append("folder of a new folder")
    if not synced(log[-1].path, log[-1].end, answer):
        missing.append("log")
    return missing


def _may_trace() -> str | None:
    """Why there can be no trace; None where there can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run([*STRACE, "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"strace cannot trace here: {tried.stderr.strip()[:200]}"


class Traced:
    """A forker under strace, and the insertions that its servers answered."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "trace"
        self.forker = Forker("tests.serve.forked_server", prefix=[*STRACE, "-o", str(self._log)])
        self._done: dict[tuple[str, ...], tuple[list[str], Path]] = {}

    def insertion(self, *without: str) -> tuple[list[str], Path]:
        """The trace of one insertion, by a server that leaves something out, and its store."""
        if without not in self._done:
            self._done[without] = self._insertion(*without)
        return self._done[without]

    def _insertion(self, *without: str) -> tuple[list[str], Path]:
        store = empty_store(self._folder / ("-".join(without) or "all"))
        with self.forker.running(store=str(store), without=without) as server, client_of(server) as client:
            client.post(Shown(1))  # makes the directory, and the log
            begin = self._log.stat().st_size
            client.post(Shown(2))
        with self._log.open("rb") as log:
            log.seek(begin)
            return log.read().decode("utf-8", "replace").splitlines(), store


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    if sys.platform != "linux":
        pytest.skip("strace is for Linux")
    reason = _may_trace()
    if reason:
        pytest.skip(reason)
    created = Traced(tmp_path_factory.mktemp("traced"))
    yield created
    created.forker.close()


@pytest.mark.slow
def test_everything_is_on_disk_before_the_answer(traced: Traced) -> None:
    assert missing_syncs(*traced.insertion()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "missing"),
    [("object", ["object"]), ("folder", ["folder", "folder of a new folder"]), ("log", ["log"])],
)
def test_what_is_left_out_is_found(traced: Traced, left_out: str, missing: list[str]) -> None:
    assert missing_syncs(*traced.insertion(left_out)) == missing


@pytest.mark.slow
def test_an_answer_that_is_too_early_is_found(traced: Traced) -> None:
    """The order counts, and not only that it happened."""
    trace, store = traced.insertion()
    (answer,) = [number for number, line in enumerate(trace) if "HTTP/1.1 201" in line]
    syncs = [call for call in calls(trace[:answer]) if call.path.endswith(".wal") and "sync" in call.name]
    last_sync = syncs[-1].begin
    early = [*trace[:last_sync], trace[answer], *trace[last_sync:answer], *trace[answer + 1 :]]
    assert missing_syncs(early, store) == ["log"]
