"""A run's SHA256SUMS. See "Run files" in FORMAT.md.

A line is durable before its file gets its name. Shards are only written if absent, and any line of a report counts, so
a crash leaves no file that seems damaged. The manifest's line follows the file, during the scan: an interrupted scan
starts again.
"""

from __future__ import annotations

import operator
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreDamaged
from pipeline.store.files import shards
from pipeline.store.files.durable import Folder
from pipeline.store.records import RunRow

SUMS_NAME = "SHA256SUMS"
MANIFEST = "manifest.parquet"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_CHECKSUM = re.compile(rb"^# ([0-9a-f]{8})\n", re.MULTILINE)
_TAIL = 200  # bytes, usually enough for the last checksum
_MOST_WRONG = 8  # of a hash's 64 digits: no other file's hash shares so many


def begin(folder: Folder, run_id: str, name: str, sha256: str) -> None:
    """Starts the list of a run without other files."""
    folder.write(_file(run_id), _with_checksum(b"", _line(name, sha256)), "sums")


def add(folder: Folder, run_id: str, name: str, sha256: str) -> None:
    """Lists a file that is about to be written."""
    # Begins a new line: the last one may be cut off.
    folder.append(_file(run_id), _with_checksum(_read(folder, run_id), b"\n" + _line(name, sha256)), "sums")


def _line(name: str, sha256: str) -> bytes:
    return f"{sha256}  {name}\n".encode()


def _with_checksum(before: bytes, added: bytes) -> bytes:
    """Continues from the last checksum, so earlier damage stays visible."""
    last = _last_checksum(before)
    crc = zlib.crc32(before) if last is None else zlib.crc32(before[last.start() :], int(last[1], 16))
    return added + b"# %08x\n" % zlib.crc32(added, crc)


def _last_checksum(data: bytes) -> re.Match[bytes] | None:
    for start in (max(0, len(data) - _TAIL), 0):
        if found := list(_CHECKSUM.finditer(data, start)):
            return found[-1]
    return None


def _read(folder: Folder, run_id: str) -> bytes:
    try:
        return folder.path(_file(run_id)).read_bytes()
    except OSError:
        return b""


def _file(run_id: str) -> str:
    return f"runs/{run_id}/{SUMS_NAME}"


def listed(folder: Folder, run_id: str) -> dict[str, str]:
    """Name in the run's folder -> hash; empty for runs of an earlier version."""
    return dict(_lines(folder, run_id))


def _lines(folder: Folder, run_id: str) -> list[tuple[str, str]]:
    """(name, hash) in order of writing."""
    text = _read(folder, run_id).decode("ascii", errors="replace")
    return [(match[2], match[1]) for match in map(_LINE.fullmatch, text.split("\n")) if match]


def is_damaged(folder: Folder, run_id: str) -> bool:
    """Whether the checksums or line formats show damage; also true after an interrupted write, until the next one."""
    data = _read(folder, run_id)
    if (last := _last_checksum(data)) is not None:
        return last.end() < len(data) or zlib.crc32(data[: last.start()]) != int(last[1], 16)
    lines = data.decode("ascii", errors="replace").split("\n")
    return not all(_LINE.fullmatch(line) for line in lines if line)


def rebuild(folder: Folder, run_id: str) -> None:
    """Rewrites a damaged list. Lists a file if its hash differs from a line's in only a few digits: then the line is
    damaged, not the file. Keeps other lines."""
    lines = dict(_lines(folder, run_id))
    texts = _read(folder, run_id).decode("ascii", errors="replace").split("\n")
    known = {text[start : start + 64] for text in texts for start in (0, 1)}  # 1: the newline before it is damaged
    place = folder.path(f"runs/{run_id}")
    for path in filter(Path.is_file, place.rglob("*")):
        name = path.relative_to(place).as_posix()
        with suppress(StoreDamaged):  # unreadable
            sha256 = shards.sha256_of(folder, f"runs/{run_id}/{name}")
            if sha256 in known or any(_is_nearly(sha256, text) for text in known):
                lines[name] = sha256
    names = sorted(lines, key=lambda name: (name != MANIFEST, name))
    text = b"".join(_line(name, lines[name]) for name in names)
    folder.write(_file(run_id), _with_checksum(b"", text), "sums")


def _is_nearly(sha256: str, text: str) -> bool:
    return len(text) == len(sha256) and sum(map(operator.ne, sha256, text)) <= _MOST_WRONG


def changed_files(folder: Folder, run_id: str) -> Iterator[tuple[str, bool]]:
    """Each existing listed file of a run, and whether it differs from the listed one."""
    hashes = defaultdict[str, set[str]](set)
    for name, sha256 in _lines(folder, run_id):
        hashes[name] = {sha256} | (set() if "/" in name else hashes[name])
    for name, known in hashes.items():
        if name == MANIFEST:  # see `manifest_damage`
            continue
        file = f"runs/{run_id}/{name}"
        if folder.path(file).exists():
            try:
                yield file, shards.sha256_of(folder, file) not in known
            except StoreDamaged:  # it may have been committed and deleted meanwhile
                yield file, folder.path(file).exists()


def require_unchanged(folder: Folder, run_id: str, name: str) -> bool:
    """Raises StoreDamaged unless the file is the listed one. False: unknown, because an earlier version wrote the run;
    its list lacks the manifest."""
    sums, file = listed(folder, run_id), f"runs/{run_id}/{name}"
    if name not in sums and MANIFEST not in sums:
        return False
    shards.require_hash(folder, file, sums.get(name))
    return True


def extracted(folder: Folder, run_id: str) -> set[int]:
    """The shards with existing, listed files; in runs of earlier versions, with existing files."""
    sums = listed(folder, run_id)
    files = folder.path(f"runs/{run_id}/shards").glob("*.parquet")
    return {int(file.stem) for file in files if f"shards/{file.name}" in sums or MANIFEST not in sums}


def open_manifest(folder: Folder, run_id: str) -> pq.ParquetFile:
    """A run's manifest. Raises StoreDamaged if it is not the one written."""
    file = shards.manifest_file(run_id)
    listed = require_unchanged(folder, run_id, MANIFEST)
    try:
        opened = pq.ParquetFile(folder.path(file))
        of_run = shards.read_metadata(opened.schema_arrow).get("run_id")
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise shards.damaged_file(folder, file, str(exc)) from exc
    if of_run != (run_id if listed else None):  # None in earlier versions
        opened.close()
        raise shards.damaged_file(folder, file, f"it is of another run, or {SUMS_NAME} beside it was lost")
    return opened


def manifest_damage(folder: Folder, run: RunRow) -> str | None:
    """The damage of a planned run's manifest; None if it is the one written, and readable."""
    try:
        path = folder.path(shards.manifest_file(run.run_id))
        with pq.ParquetFile(path, page_checksum_verification=True) as manifest:
            rows = sum(manifest.read_row_group(group).num_rows for group in range(manifest.metadata.num_row_groups))
        if rows != run.rows:
            return f"it has {rows} rows instead of {run.rows}"
        open_manifest(folder, run.run_id).close()
    except FileNotFoundError:
        return "it is missing"
    except StoreDamaged as exc:
        return str(exc.fields["detail"]).partition(": ")[2]
    except (OSError, ValueError, pa.ArrowException) as exc:
        return str(exc).split("\n")[0]
    return None
