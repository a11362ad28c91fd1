"""`check` reads everything and reports what is wrong; `repair` cures what can be cured without losing anything."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.store import check_files, deletes, matrix
from pipeline.store.catalog import Catalog
from pipeline.store.check_tables import check_tables
from pipeline.store.client import StoreClient
from pipeline.store.orphans import check_orphans
from pipeline.store.problems import REPAIRABLE, CheckReport, Problem
from pipeline.store.schema import TABLES

__all__ = ["CheckReport", "Problem", "check_store", "repair_store"]


def check_store(client: StoreClient, progress: Callable[[str], None] | None = None) -> CheckReport:
    """Reads every table and every file of the store; `progress` is told what is being read.

    A store so damaged that it can't be opened is reported by `StoreClient.open` (StoreDamaged).
    """
    tell = progress or (lambda _: None)

    def work(catalog: Catalog) -> CheckReport:
        tell("catalog")
        problems = check_tables(catalog, client.generation)
        if any(problem.kind == "catalog" for problem in problems):
            return CheckReport(problems, {})  # without the tables nothing says what the files should be
        problems += check_files.check_embeddings(catalog, client.identity, tell)
        problems += check_files.check_objects(catalog, tell)
        problems += check_files.check_matrices(catalog, client.generation, client.identity.embedding_size, tell)
        tell("orphans")
        problems += check_orphans(catalog) + _check_deletes(catalog)
        return CheckReport(problems, _counts(catalog))

    return client.submit(work)


def _check_deletes(catalog: Catalog) -> list[Problem]:
    problems = []
    for (path,) in catalog.rows("SELECT path FROM core.pending_deletes ORDER BY 1"):
        detail = "waits to be deleted" if deletes.is_deletable(path) else "is no path of a file of the store"
        problems.append(Problem("pending_delete", path, detail, "`facepipe check --repair` clears it."))
    return problems


def _counts(catalog: Catalog) -> dict[str, int]:
    names = [name for name in TABLES if name != "store"]
    return {name: int(catalog.one(f"SELECT count(*) FROM core.{name}")) for name in names}


def repair_store(client: StoreClient, report: CheckReport) -> list[Problem]:
    """Cures the repairable problems of `report` and returns them: orphans go, matrices are made anew, deletes replayed.

    Raises StoreUnwritable.
    """
    cured = [problem for problem in report.problems if problem.kind in REPAIRABLE]

    def work(catalog: Catalog) -> None:
        for problem in cured:
            if problem.kind == "orphan":
                catalog.folder.unlink(problem.where)
            elif problem.kind == "matrix":
                stem = problem.where.rpartition(".")[0]
                for end in (".seq", ".f32"):  # without .seq no reader takes the rest for whole
                    catalog.folder.unlink(stem + end)
        deletes.replay(catalog)

    client.submit(work)
    if any(problem.kind == "matrix" for problem in cured):
        _rebuild_matrices(client)
    return cured


def _rebuild_matrices(client: StoreClient) -> None:
    for row in client.read("SELECT account_id, name, directory_id FROM core.directories").to_pylist():
        if not client.folder.path(matrix.stem(client.generation, row["directory_id"]) + ".seq").exists():
            client.references(row["account_id"], row["name"])
