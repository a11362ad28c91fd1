"""Orphans: files that no row of the catalog names. A crash left them, or a command that was never repeated.

Files of an unfinished run are not orphans: the same command goes on with them. Names of objects don't tell their run,
so no object is an orphan while such a run exists; nor is one that a request is about to store. In the store's own
folder only names that facepipe gives are considered: `check` must not remove anything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from pipeline.store.catalog import intents
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.opening import CURRENT_NAME, PARTS
from pipeline.store.checks.problems import REPAIR, Problem
from pipeline.store.files import matrix
from pipeline.store.files.durable import TEMPORARY
from pipeline.store.files.objects import object_file

_OURS = re.compile(rf"({CURRENT_NAME}{re.escape(TEMPORARY)}|catalog-\d{{4,}}(\.new)?\.duckdb(\.wal)?)")


def check_orphans(catalog: Catalog, files: Iterable[str]) -> list[Problem]:
    """One problem for each of `files` that exists and that no row names.

    `files` were listed before, so that the catalog does not wait for the listing. A file that was being stored then is
    committed or declared now; one that was being deleted is gone.
    """
    runs = dict(catalog.rows("SELECT run_id, state FROM core.runs"))
    unfinished = {run for run, state in runs.items() if state != "finished"}
    needed = _needed(catalog)
    unneeded = [file for file in files if file not in needed and not _of_run(file, runs, unfinished)]
    orphans = [file for file in unneeded if catalog.folder.path(file).exists()]
    return [Problem("orphan", file, "no row of the catalog names it", REPAIR) for file in sorted(orphans)]


def list_files(root: Path) -> Iterator[str]:
    """The relative paths of all files of a store, needed or orphans."""
    current = (root / CURRENT_NAME).read_text("utf-8").strip()
    for entry in root.iterdir():
        if entry.is_file() and _OURS.fullmatch(entry.name) and entry.name not in (current, current + ".wal"):
            yield entry.name
    for part in PARTS:
        for entry in (root / part).rglob("*"):
            if not entry.is_dir():
                yield entry.relative_to(root).as_posix()


def _needed(catalog: Catalog) -> set[str]:
    files = {file for (file,) in catalog.rows("SELECT file FROM core.embedding_shards")}
    files |= {path for (path,) in catalog.rows("SELECT path FROM core.pending_deletes")}
    files |= {object_file(guid) for (guid,) in catalog.rows("SELECT image_guid FROM core.objects")}
    for guid in intents.declared(catalog.folder):
        files |= {object_file(guid), object_file(guid) + TEMPORARY}
    generations = catalog.rows(
        "SELECT g.generation, d.directory_id FROM core.directories d,"
        " (SELECT DISTINCT generation FROM core.reference_faces) g"
    )
    for generation, directory in generations:
        files |= {matrix.stem(generation, directory) + end for end in (".f32", ".seq")}
    return files


def _of_run(file: str, runs: dict[str, str], unfinished: set[str]) -> bool:
    """Whether the file is one that a run keeps, or may belong to an unfinished run."""
    parts = PurePosixPath(file).parts
    if parts[0] == "objects":
        return bool(unfinished)
    if parts[0] == "embeddings":
        return any(parts[-1].startswith(f"{run}-") for run in unfinished)
    if parts[0] == "runs":
        if parts[1] in unfinished:
            return True
        return parts[1] in runs and len(parts) == 3 and not file.endswith(TEMPORARY)
    return False
