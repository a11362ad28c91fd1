"""SHA256SUMS of a run: the hash of each of its files, as `sha256sum --check` reads it.

Written beside the files, by the process that writes them. The last line of a shard counts, and any line of a report. A
line is durable before its file gets its name, and a shard is only written where there is none, a report also in place
of a former one: a crash in between leaves no file that seems to be damaged. The manifest's line comes after it, while
the run is being scanned: a scan that was cut off starts again.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreDamaged
from pipeline.store.files import shards
from pipeline.store.files.durable import Folder
from pipeline.store.records import RunRow

SUMS_NAME = "SHA256SUMS"
MANIFEST = "manifest.parquet"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


def begin(folder: Folder, run_id: str, name: str, sha256: str) -> None:
    """The list of a run that has no other file yet."""
    folder.write(_file(run_id), _line(name, sha256), "sums")


def add(folder: Folder, run_id: str, name: str, sha256: str) -> None:
    """Adds a file that is about to be written."""
    # Begins a new line: the last one may have been cut off.
    folder.append(_file(run_id), b"\n" + _line(name, sha256), "sums")


def _line(name: str, sha256: str) -> bytes:
    return f"{sha256}  {name}\n".encode()


def _file(run_id: str) -> str:
    return f"runs/{run_id}/{SUMS_NAME}"


def listed(folder: Folder, run_id: str) -> dict[str, str]:
    """The hashes of the run's files by their names in its folder; none where the run is of an earlier version."""
    return dict(_lines(folder, run_id))


def _lines(folder: Folder, run_id: str) -> list[tuple[str, str]]:
    """Each name and hash, in the order in which they were written."""
    try:
        text = folder.path(_file(run_id)).read_text("ascii", errors="replace")
    except OSError:
        return []
    return [(match[2], match[1]) for match in map(_LINE.fullmatch, text.split("\n")) if match]


def changed_files(folder: Folder, run_id: str) -> Iterator[tuple[str, bool]]:
    """Each listed file of a run that is there, and whether it is another one than was listed."""
    hashes = defaultdict[str, set[str]](set)
    for name, sha256 in _lines(folder, run_id):
        hashes[name] = {sha256} | (set() if "/" in name else hashes[name])
    for name, known in hashes.items():
        if name == MANIFEST:  # `manifest_damage` looks at it
            continue
        file = f"runs/{run_id}/{name}"
        if folder.path(file).exists():
            try:
                yield file, shards.sha256_of(folder, file) not in known
            except StoreDamaged:  # it may have been committed, and deleted, meanwhile
                yield file, folder.path(file).exists()


def require_unchanged(folder: Folder, run_id: str, name: str) -> bool:
    """Raises StoreDamaged unless a file of the run is the listed one. False: nothing can be told, because the run is of
    an earlier version, whose list does not have the manifest."""
    sums, file = listed(folder, run_id), f"runs/{run_id}/{name}"
    if name not in sums and MANIFEST not in sums:
        return False
    shards.require_hash(folder, file, sums.get(name))
    return True


def extracted(folder: Folder, run_id: str) -> set[int]:
    """The numbers of the shards whose files are there and listed; in a run of an earlier version, there."""
    sums = listed(folder, run_id)
    files = folder.path(f"runs/{run_id}/shards").glob("*.parquet")
    return {int(file.stem) for file in files if f"shards/{file.name}" in sums or MANIFEST not in sums}


def open_manifest(folder: Folder, run_id: str) -> pq.ParquetFile:
    """The manifest of a run. Raises StoreDamaged where it is not the one that was written."""
    file = shards.manifest_file(run_id)
    listed = require_unchanged(folder, run_id, MANIFEST)
    try:
        opened = pq.ParquetFile(folder.path(file))
        of_run = shards.read_metadata(opened.schema_arrow).get("run_id")
    except (OSError, ValueError, pa.ArrowException) as exc:
        raise shards.damaged_file(folder, file, str(exc)) from exc
    if of_run != (run_id if listed else None):  # of an earlier version: None
        opened.close()
        raise shards.damaged_file(folder, file, f"it is of another run, or {SUMS_NAME} beside it was lost")
    return opened


def manifest_damage(folder: Folder, run: RunRow) -> str | None:
    """What is wrong with the manifest of a planned run; None where it is the one that was written."""
    damage = shards.manifest_damage(folder, run)
    if damage is None:
        try:
            open_manifest(folder, run.run_id).close()
        except StoreDamaged as exc:
            damage = str(exc.fields["detail"]).partition(": ")[2]
    return damage
