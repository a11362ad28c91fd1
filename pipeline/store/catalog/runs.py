"""Runs in the catalog: begin, plan, finish, find, and count results."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.errors import StoreError, StoreLocked
from pipeline.store import cleanup
from pipeline.store.catalog import files, rewriting
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.opening import to_json
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.files.shards import manifest_file, report_file
from pipeline.store.records import FaceChange, RunCounts, RunRow, ScanNotes
from pipeline.store.schema import TABLES
from pipeline.types import utc_now

SCANNING = "scanning"
OPEN = "open"
FINISHED = "finished"

_LISTED = 1000  # at most this many label conflicts, shared ids and people of changed photos are listed
_COLUMNS = ", ".join(TABLES["runs"])
_OF_SOURCE = "coalesce(source = $1, true) AND coalesce(account_id = $2, true)"  # null matches any


def find_runs(catalog: Catalog, condition: str, params: list[object]) -> list[RunRow]:
    """The runs that meet an SQL condition, latest first."""
    sql = f"SELECT {_COLUMNS} FROM core.runs WHERE {condition} ORDER BY started_at DESC, rowid DESC"
    return [_run_row(row) for row in catalog.read(sql, params).to_pylist()]


def _run_row(row: dict[str, Any]) -> RunRow:
    summary = row.pop("summary")
    settings = json.loads(row.pop("settings"))
    return RunRow(**row, settings=settings, summary=None if summary is None else json.loads(summary))


def run_row(catalog: Catalog, run_id: str) -> RunRow:
    """Raises StoreError for an unknown id."""
    rows = find_runs(catalog, "run_id = ?", [run_id])
    if not rows:
        raise StoreError(message=f'The store {catalog.folder.root} has no run "{run_id}".')
    return rows[0]


def unfinished_run(catalog: Catalog, source: str | None, account_id: int | None) -> RunRow | None:
    """The latest unfinished run of this source and account (None: any)."""
    return next(iter(find_runs(catalog, f"{_OF_SOURCE} AND state <> '{FINISHED}'", [source, account_id])), None)


def last_run(catalog: Catalog, source: str | None, account_id: int | None) -> RunRow | None:
    """The latest run, in any state, of this source and account (None: any)."""
    return next(iter(find_runs(catalog, _OF_SOURCE, [source, account_id])), None)


def runs_of(catalog: Catalog, account_id: int) -> list[RunRow]:
    """All runs of an account, latest first."""
    return find_runs(catalog, "account_id = ?", [account_id])


def begin_run(
    catalog: Catalog, source: str, source_kind: str, account_id: int, directory: str, settings: Mapping[str, Any]
) -> RunRow:
    """Makes a run in state `scanning`, and its folder."""
    run_id = str(uuid.uuid4())
    row = {"run_id": run_id, "source": source, "source_kind": source_kind, "account_id": account_id}
    row |= {"directory": directory, "settings": to_json(settings), "state": SCANNING, "started_at": utc_now()}
    with catalog.transaction("begin_run"):
        catalog.insert("runs", [row])
    # After the commit: a folder without a row would be an orphan; a missing one is made when needed.
    catalog.folder.make(f"runs/{run_id}/shards")
    return run_row(catalog, run_id)


def rebegin_run(catalog: Catalog, run_id: str, source_kind: str, directory: str, settings: Mapping[str, Any]) -> RunRow:
    """Restarts an interrupted scan with these values. Raises StoreError in any other state."""
    with catalog.transaction("begin_run"):
        _require_state(catalog, run_id, SCANNING)
        catalog.execute(
            "UPDATE core.runs SET source_kind = ?, directory = ?, settings = ?, started_at = ? WHERE run_id = ?",
            [source_kind, directory, to_json(settings), utc_now(), run_id],
        )
    return run_row(catalog, run_id)


def plan_run(
    catalog: Catalog,
    run_id: str,
    rows: int,
    shards: int,
    found: Mapping[str, Any] | None = None,
    notes: ScanNotes | None = None,
) -> None:
    """After the manifest is written: moves the run from `scanning` to `open`, with the scan results `found` as summary.
    Also stores `notes`, so that moved files are reported once.

    Raises StoreError in any other state.
    """
    with catalog.transaction("plan_run"):
        run = _require_state(catalog, run_id, SCANNING)
        if notes:
            files.note(catalog, run.source, run.account_id, notes)
        catalog.execute(
            "UPDATE core.runs SET state = ?, rows = ?, shards = ?, summary = ? WHERE run_id = ?",
            [OPEN, rows, shards, None if found is None else to_json(found), run_id],
        )


def note_face_changes(catalog: Catalog, run_id: str, people: Sequence[FaceChange]) -> None:
    """Inside a transaction: adds counts and the first 1000 entries to an open run's summary. Does nothing for a run
    without one (planned by an earlier version)."""
    summary = run_row(catalog, run_id).summary if people else None
    if summary is None:
        return
    deleted, gained = (sum(p["change"] == change for p in people) for change in ("deleted", "gained"))
    counts = {"faces_lost": len(people) - gained, "faces_gained": gained, "people_deleted": deleted}
    noted = {
        **summary,
        **{name: summary.get(name, 0) + count for name, count in counts.items()},
        "face_changes": [*summary.get("face_changes", ()), *people][:_LISTED],
    }
    catalog.execute("UPDATE core.runs SET summary = ? WHERE run_id = ?", [to_json(noted), run_id])


def finish_run(
    catalog: Catalog, run_id: str, summary: Mapping[str, Any], persons: Sequence[str] = (), paths: Sequence[str] = ()
) -> None:
    """Moves the run from `open` to `finished`. Deletes its run.json if one of the persons and photos in it was deleted
    since the scan. Raises StoreError in any other state, or if a shard is missing."""
    with catalog.transaction("finish_run"):
        run = _require_state(catalog, run_id, OPEN)
        committed = len(committed_shards(catalog, run_id))
        if committed != run.shards:
            raise StoreError(
                message=f"Run {run_id} cannot be finished: {committed} of {run.shards} shards are committed."
            )
        catalog.execute(
            "UPDATE core.runs SET state = ?, finished_at = ?, summary = ? WHERE run_id = ?",
            [FINISHED, utc_now(), to_json(summary), run_id],
        )
        # It names persons who could not be deleted from it.
        files = [manifest_file(run_id)]
        unknown = (
            "SELECT unnest($1::UUID[])::VARCHAR EXCEPT SELECT person_id::VARCHAR FROM core.persons UNION ALL"
            " SELECT unnest($2::VARCHAR[]) EXCEPT SELECT path FROM core.media WHERE account_id = $3"
        )
        if catalog.rows(unknown, [list(persons), list(paths), run.account_id]):
            files.append(report_file(run_id))
        cleanup.delete_later(catalog, files)
        _note_removal_during(catalog, run)
    cleanup.unlink_after_commit(catalog)


def abandon_run(catalog: Catalog, run_id: str) -> RunRow:
    """Ends an unfinished run with its committed shards; the next run processes the other rows.

    Files of an interrupted commit become orphans, for `check --repair`. Raises StoreError for a finished run.
    """
    with catalog.transaction("finish_run"):
        run = run_row(catalog, run_id)
        if run.state == FINISHED:
            raise StoreError(message=f"Run {run_id} is finished.")
        _note_removal_during(catalog, run)
        rows = catalog.one("SELECT count(*) FROM core.media WHERE run_id = ?", [run_id])
        catalog.execute(
            "UPDATE core.runs SET state = ?, rows = ?, shards = ?, finished_at = ?, summary = ? WHERE run_id = ?",
            [FINISHED, rows, len(committed_shards(catalog, run_id)), utc_now(), to_json({"abandoned": True}), run_id],
        )
        root = catalog.folder.root
        left = [root / manifest_file(run_id), root / report_file(run_id), *root.glob(f"runs/{run_id}/shards/*")]
        cleanup.delete_later(catalog, [path.relative_to(root).as_posix() for path in left if path.is_file()])
    cleanup.unlink_after_commit(catalog)
    return run_row(catalog, run_id)


def delete_runs(catalog: Catalog, run_ids: Sequence[str]) -> None:
    """Inside a transaction: deletes these runs with their photos, faces and files."""
    theirs, runs = "run_id IN (SELECT unnest($1::VARCHAR[]))", [list(run_ids)]
    catalog.execute(f"DELETE FROM core.faces WHERE media_id IN (SELECT media_id FROM core.media WHERE {theirs})", runs)
    catalog.execute(f"UPDATE core.embedding_shards SET run_id = NULL, shard = NULL WHERE {theirs}", runs)
    for table in ("media", "shards", "runs"):
        catalog.execute(f"DELETE FROM core.{table} WHERE {theirs}", runs)
    catalog.execute(
        "DELETE FROM core.page_subjects WHERE split_part(file, '/', 2) IN (SELECT unnest($1::VARCHAR[]))", runs
    )
    root = catalog.folder.root
    left = [path for run_id in run_ids for path in root.glob(f"runs/{run_id}/**/*") if path.is_file()]
    cleanup.delete_later(catalog, [path.relative_to(root).as_posix() for path in left])


def _note_removal_during(catalog: Catalog, run: RunRow) -> None:
    """Inside a transaction that empties the run's summary: it may list people and photos removed since its plan."""
    if catalog.rows("SELECT 1 FROM core.erasures WHERE account_id = ? AND erased_at IS NULL LIMIT 1", [run.account_id]):
        rewriting.note_removal(catalog)


def give_up_runs(store: OpenStore) -> None:
    """Gives up interrupted runs, whose manifests and shards may show deleted people, and deletes half-written files of
    runs; the next run processes the other rows. Leaves a run in progress alone: its end deletes them."""
    try:
        lock = StoreLock.acquire(store.folder.root, "erase", RUN_LOCK_NAME)
    except StoreLocked:
        return
    with lock:
        for run_id in store.submit(Catalog.column, "SELECT run_id FROM core.runs WHERE state <> ?", [FINISHED]):
            store.submit(abandon_run, run_id)
        cleanup.remove_half_written(store.folder, cleanup.OF_RUNS)


def _require_state(catalog: Catalog, run_id: str, state: str) -> RunRow:
    run = run_row(catalog, run_id)
    if run.state != state:
        raise StoreError(message=f"Run {run_id} is {run.state}, not {state}.")
    return run


def committed_shards(catalog: Catalog, run_id: str) -> set[int]:
    """The numbers of the run's committed shards."""
    return set(catalog.column("SELECT shard FROM core.shards WHERE run_id = ?", [run_id]))


_FACES = (
    "FROM core.faces f JOIN core.media m USING (media_id)"
    " LEFT JOIN core.persons p USING (person_id) WHERE list_contains(?::VARCHAR[], m.run_id)"
)
# Labelled photos whose largest face matched a person with another name or external id; the match is still valid.
_LABEL_CONFLICTS = (
    "SELECT m.path, m.name, m.external_id, p.person_id::VARCHAR AS person_id, p.name AS person_name,"
    f" p.external_id AS person_external_id {_FACES} AND f.outcome = 'matched' AND f.ordinal = 0"
    " AND (nfc_normalize(m.name) <> nfc_normalize(p.name) OR m.external_id <> p.external_id)"
    f" ORDER BY m.media_id LIMIT {_LISTED}"
)
# External ids shared by persons of a directory: allowed, but seldom meant.
_SHARED_EXTERNAL_IDS = (
    "SELECT d.name AS directory, p.external_id, count(*) AS persons FROM core.persons p"
    " JOIN core.directories d USING (directory_id) WHERE d.account_id = ? AND p.external_id IS NOT NULL"
    f" GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT {_LISTED}"
)


def run_counts(catalog: Catalog, account_id: int, run_ids: Sequence[str]) -> RunCounts:
    """Counted from committed rows, so that a resumed run counts like an undisturbed one."""
    runs = [list(run_ids)]

    def count(column: str, source: str) -> dict[str, int]:
        sql = f"SELECT k, count(*) FROM (SELECT {column} {source}) t(k) GROUP BY k ORDER BY k"
        return dict(catalog.rows(sql, runs))

    return RunCounts(
        statuses=count("status", "FROM core.media WHERE list_contains(?::VARCHAR[], run_id)"),
        outcomes=count("f.outcome", _FACES),
        rejections=count(
            "unnest(string_split(rejection_reasons, ','))",
            f"FROM core.detections WHERE generation = {catalog.generation}"
            f" AND face_id IN (SELECT f.face_id {_FACES} AND f.outcome = 'rejected')",
        ),
        persons=catalog.one(
            "SELECT count(*) FROM core.persons JOIN core.directories USING (directory_id)"
            " WHERE account_id = ? AND parent_id IS NULL",
            [account_id],
        ),
        label_conflicts=catalog.read(_LABEL_CONFLICTS, runs).to_pylist(),
        shared_external_ids=catalog.read(_SHARED_EXTERNAL_IDS, [account_id]).to_pylist(),
    )


# n - 1 identities existed when a directory's n-th was inserted. A face counts as compared with those that existed
# before the run's next insertion; after the last insertion, with all current ones. So identities inserted by requests
# in between count for these faces, and deleted identities never count. Identities before the first insertion are only
# counted.
_COMPARED = """
    WITH shown AS MATERIALIZED (
        SELECT m.run_id, m.directory, f.face_id, if(f.outcome = 'inserted', f.person_id, NULL) AS person_id
        FROM core.faces f JOIN core.media m USING (media_id) WHERE list_contains($2::VARCHAR[], m.run_id)
    ), first AS (
        SELECT min(seq) AS seq FROM core.persons WHERE person_id IN (SELECT person_id FROM shown)
    ), now AS (
        SELECT directory_id, d.name AS directory, count(*) AS identities,
            count(*) FILTER (WHERE seq < (FROM first)) AS before
        FROM core.persons JOIN core.directories d USING (directory_id) WHERE d.account_id = $1 GROUP BY ALL
    ), identities AS (
        SELECT person_id, before - 1 + row_number() OVER (PARTITION BY directory_id ORDER BY seq) AS earlier
        FROM core.persons JOIN now USING (directory_id) WHERE seq >= (FROM first)
    ), compared AS (
        SELECT run_id, directory, min(earlier) OVER (
            PARTITION BY directory ORDER BY face_id ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS earlier
        FROM shown LEFT JOIN identities USING (person_id)
    )
    SELECT run_id, directory, coalesce(earlier, now.identities, 0) AS identities, count(*) AS faces
    FROM compared LEFT JOIN now USING (directory) GROUP BY ALL
"""


def compared_identities(catalog: Catalog, account_id: int, run_ids: Sequence[str]) -> pa.Table:
    """run_id, directory, identities, faces: how many committed faces of these runs were compared with how many
    identities."""
    return catalog.read(_COMPARED, [account_id, list(run_ids)])
