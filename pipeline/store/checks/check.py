"""Checks a store: reads everything and reports what is wrong, and repairs what can be repaired without loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from pipeline.store.catalog import deletes
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.references import references
from pipeline.store.catalog_thread import CatalogThread
from pipeline.store.checks import files
from pipeline.store.checks.tables import check_tables
from pipeline.store.commits import fold
from pipeline.store.files import matrix
from pipeline.store.records import CheckReport, Problem
from pipeline.store.schema import TABLES

# Kinds that `repair_store` repairs: no photo, face or person is touched.
_CLEARED: Final = "The next command that can write to the store does it."
_REPAIRABLE: Final = frozenset({"orphan", "matrix", "pending_delete", "run_shard", "mode", "page"})


def check_store(
    store: CatalogThread, progress: Callable[[str], None] | None = None, unfinished: Sequence[str] = ()
) -> CheckReport:
    """Reads every table and every file of the store; `progress` is called with what is being read. `unfinished`: files
    from which something could not be erased before (`fold.left_to_erase`).

    It reads the catalog in pieces, each of one moment: other commits may come in between.
    A store so damaged that it can't be opened is reported by opening it (StoreDamaged).
    """
    tell = progress or (lambda _: None)
    problems: list[Problem] = []
    waiting = dict.fromkeys([*unfinished, *store.submit(deletes.pending_files)])
    pieces = store.submit(lambda catalog: _pieces(catalog, tell))
    while (piece := store.submit(lambda _: next(pieces, None))) is not None:
        problems += piece
    if any(problem.kind == "catalog" for problem in problems):
        return CheckReport(problems, {})
    tell("orphans")
    with store.embeddings_lock:
        listed = list(files.list_files(store.path))
        problems += store.submit(lambda catalog: files.check_orphans(catalog, listed))
    problems += files.check_modes(store.folder)
    # What became pending since is in progress.
    left = set(store.submit(fold.left_to_erase))
    problems[:0] = [_waits(path) for path in waiting if path in left]
    counted = [table for table in TABLES if table != "store"]
    counts = store.submit(lambda catalog: [catalog.one(f"SELECT count(*) FROM core.{table}") for table in counted])
    return CheckReport(problems, dict(zip(counted, counts, strict=True)))


def _pieces(catalog: Catalog, tell: Callable[[str], None]) -> Iterator[list[Problem]]:
    """What is wrong with the tables and the files that they name."""
    tell("catalog")
    problems: list[Problem] = []
    for piece in check_tables(catalog):
        problems += piece
        yield piece
    if any(problem.kind == "catalog" for problem in problems):
        return  # only sound tables tell what the files should be
    yield from files.check_embeddings(catalog, tell)
    if not any("pending embedding" in problem.detail for problem in problems):
        yield files.check_pending(catalog)
    yield from files.check_objects(catalog, tell)
    yield from files.check_matrices(catalog, tell)
    yield files.check_manifests(catalog, tell)
    yield from files.check_runs(catalog, tell)


def _waits(path: str) -> Problem:
    if not deletes.is_deletable(path):
        return Problem("pending_delete", path, "is not the path of a file of the store", _CLEARED)
    detail = "an unfinished erasure: it waits to be deleted, or has vectors of faces that were removed"
    return Problem("pending_delete", path, detail, _CLEARED)


def repair_store(store: CatalogThread, report: CheckReport) -> list[Problem]:
    """Repairs what can be repaired of `report`, and returns it: orphans go into quarantine, pages that nothing
    notes are deleted, matrices rebuilt, deletes replayed.

    Raises StoreUnwritable.
    """
    repaired = [problem for problem in report.problems if problem.kind in _REPAIRABLE]

    def work(catalog: Catalog) -> None:
        # Checked again: a commit may have made a file of that name since.
        unnamed = [problem.where for problem in repaired if problem.kind in ("orphan", "page")]
        for found in files.check_orphans(catalog, unnamed):
            if found.kind == "page":
                catalog.folder.unlink(found.where)  # quarantine would keep who was forgotten
            else:
                catalog.folder.set_aside(found.where)
        for problem in repaired:
            if problem.kind == "mode":
                catalog.folder.make_private()
            if problem.kind == "run_shard":
                catalog.folder.set_aside(problem.where)
            if problem.kind == "matrix":
                matrix.remove(catalog.folder, problem.where.rpartition(".")[0])
        deletes.replay(catalog)

    with store.embeddings_lock:
        store.submit(work)
    if any(problem.kind == "matrix" for problem in repaired):
        _rebuild_matrices(store)
    return repaired


def _rebuild_matrices(store: CatalogThread) -> None:
    for row in store.read("SELECT account_id, name, directory_id FROM core.directories").to_pylist():
        if not store.folder.path(matrix.stem(store.generation, row["directory_id"]) + ".seq").exists():
            store.submit(partial(references, account_id=row["account_id"], directory=row["name"]))
