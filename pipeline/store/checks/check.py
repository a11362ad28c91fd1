"""Checks a store completely, reports problems, and repairs what can be repaired without loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pipeline.errors import StoreLocked
from pipeline.store import cleanup, erasure, segments
from pipeline.store.catalog.connection import Catalog, each_generation
from pipeline.store.checks import files
from pipeline.store.checks.tables import check_tables
from pipeline.store.files import commit_count, run_sums
from pipeline.store.files.durable import Folder
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.records import CheckReport, Problem
from pipeline.store.schema import TABLES, embedded

if TYPE_CHECKING:
    from pipeline.store.local import LocalStore

_CLEARED: Final = "The next command that can write to the store does it."
_OF_RUN: Final = frozenset({"run_shard", "run_file", "run_sums"})
# Repairable kinds: no photo, face or person is affected.
_REPAIRABLE: Final = _OF_RUN | {"orphan", "segment", "pending_delete", "commits", "mode", "page"}


def check_store(
    store: LocalStore, progress: Callable[[str], None] | None = None, unfinished: Sequence[str] = ()
) -> CheckReport:
    """Reads every table and file; `progress` is called with what is being read. `unfinished`: files that a previous
    attempt could not erase (`erasure.left_to_erase`).

    Reads the catalog in pieces, each consistent; other commits may run in between. A store too damaged to open raises
    StoreDamaged on opening instead.
    """
    tell = progress or (lambda _: None)
    problems: list[Problem] = []
    waiting = dict.fromkeys([*unfinished, *store.submit(cleanup.pending_files)])
    pieces = store.submit(_pieces, tell)
    while (piece := store.submit(lambda _: next(pieces, None))) is not None:
        problems += piece
    if any(problem.kind == "catalog" for problem in problems):
        return CheckReport(problems, {})
    tell("orphans")
    with store.embeddings_lock:
        listed = list(files.list_files(store.path))
        problems += store.submit(files.check_orphans, listed)
    problems += files.check_modes(store.folder)
    # Files that became pending meanwhile are in progress.
    left = set(store.submit(erasure.left_to_erase))
    problems[:0] = [_waits(path) for path in waiting if path in left]
    return CheckReport(problems, store.submit(_counts))


def _counts(catalog: Catalog) -> dict[str, int]:
    """Rows per table; with two generations also the faces with a vector in only one."""
    counts = {t: int(catalog.one(f"SELECT count(*) FROM core.{t}")) for t in TABLES if t != "store"}
    if catalog.other is not None:
        both = " UNION ALL ".join(map(embedded, catalog.generations))
        once = f"SELECT face_id FROM ({both}) GROUP BY face_id HAVING count(*) = 1"
        counts["faces_in_one_index_only"] = int(catalog.one(f"SELECT count(*) FROM ({once})"))
    return counts


def _pieces(catalog: Catalog, tell: Callable[[str], None]) -> Iterator[list[Problem]]:
    """Problems of the tables and the files that they name."""
    tell("catalog")
    problems: list[Problem] = []
    for piece in check_tables(catalog):
        problems += piece
        yield piece
    if any(problem.kind == "catalog" for problem in problems):
        return  # file checks need sound tables
    yield files.check_count(catalog)
    yield from files.check_embeddings(catalog, tell)
    if not any("pending embedding" in problem.detail for problem in problems):
        yield files.check_pending(catalog)
    yield from files.check_objects(catalog, tell)
    yield from files.check_segments(catalog, tell)
    yield files.check_manifests(catalog, tell)
    yield from files.check_runs(catalog, tell)


def _waits(path: str) -> Problem:
    if not cleanup.is_deletable(path) and not path.startswith("catalog-"):
        return Problem("pending_delete", path, "is not the path of a file of the store", _CLEARED)
    detail = "an unfinished erasure: it waits to be deleted, or has vectors of faces that were removed"
    return Problem("pending_delete", path, detail, _CLEARED)


def repair_store(store: LocalStore, report: CheckReport) -> list[Problem]:
    """Repairs the repairable problems of `report` and returns them: quarantines orphans, deletes unrecorded pages and
    damaged reports, rewrites index segments, deletes pending files.

    Raises StoreUnwritable.
    """
    repaired = _repairable(store, report.problems)
    changed = _changed_files(store.folder, repaired)  # requests need not wait for this

    def work(catalog: Catalog) -> None:
        # Checked again: a commit may have used the name since.
        unnamed = [problem.where for problem in repaired if problem.kind in ("orphan", "page")]
        for found in files.check_orphans(catalog, unnamed):
            if found.kind == "page" or found.where.startswith("references/"):
                catalog.folder.unlink(found.where)  # quarantine would keep forgotten people
            else:
                catalog.folder.quarantine(found.where)
        for problem in repaired:
            if problem.kind == "mode":
                catalog.folder.make_private()
            if problem.kind == "commits":
                commit_count.write(catalog.folder, catalog.one("SELECT max(number) FROM core.commits"))
            if problem.kind == "run_shard" and problem.where in changed:
                catalog.folder.quarantine(problem.where)
            if problem.kind == "run_file" and problem.where in changed:
                catalog.folder.unlink(problem.where)  # quarantine would keep people who are forgotten later
        for directory in catalog.column(
            "SELECT DISTINCT directory_id FROM core.segments WHERE file IN (SELECT unnest(?::VARCHAR[]))",
            [[problem.where for problem in repaired if problem.kind == "segment"]],
        ):
            segments.forget(catalog, directory)
        cleanup.unlink_pending(catalog)

    with store.embeddings_lock:
        store.submit(work)
        for part in each_generation(store):
            deque(segments.fold(part), 0)
    return [_with_what_was_done(problem) for problem in repaired]


def _repairable(store: LocalStore, problems: Iterable[Problem]) -> list[Problem]:
    """The currently repairable problems. Rewrites damaged hash lists first. If a run is writing, leaves out these runs'
    problems: their files cannot be judged."""
    found = [problem for problem in problems if problem.kind in _REPAIRABLE]
    lists = [problem for problem in found if problem.kind == "run_sums"]
    try:
        if lists:
            with StoreLock.acquire(store.path, "check", RUN_LOCK_NAME):
                for problem in lists:
                    run_sums.rebuild(store.folder, _run_of(problem))
    except StoreLocked:
        runs = set(map(_run_of, lists))
        found = [problem for problem in found if problem.kind not in _OF_RUN or _run_of(problem) not in runs]
    return found


def _run_of(problem: Problem) -> str:
    return PurePosixPath(problem.where).parts[1]


def _changed_files(folder: Folder, problems: Iterable[Problem]) -> set[str]:
    """Files of the problems' runs that still differ from their listed hash."""
    runs = {_run_of(problem) for problem in problems if problem.kind in _OF_RUN}
    return {file for run_id in runs for file, changed in run_sums.changed_files(folder, run_id) if changed}


def _with_what_was_done(problem: Problem) -> Problem:
    if problem.kind != "run_file":
        return problem
    return replace(problem, detail=f"{problem.detail}; deleted, because nothing depends on it")
