"""What runs brought, counted from the rows they committed, so a resumed run counts what an undisturbed one would."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import RunCounts

_LISTED = 1000  # label conflicts and shared ids are listed up to here
_FACES = (
    "FROM core.faces f JOIN core.media m USING (media_id)"
    " LEFT JOIN core.persons p USING (person_id) WHERE list_contains(?::VARCHAR[], m.run_id)"
)
# Named photos whose face is the person of another name or external id; the match stands.
_LABEL_CONFLICTS = (
    "SELECT m.path, m.name, m.external_id, p.person_id::VARCHAR AS person_id, p.name AS person_name,"
    f" p.external_id AS person_external_id {_FACES} AND f.outcome = 'matched' AND f.ordinal = 0"
    f" AND (m.name <> p.name OR m.external_id <> p.external_id) ORDER BY m.media_id LIMIT {_LISTED}"
)
# External ids that several persons of a directory have: allowed, but seldom meant.
_SHARED_EXTERNAL_IDS = (
    "SELECT d.name AS directory, p.external_id, count(*) AS persons FROM core.persons p"
    " JOIN core.directories d USING (directory_id) WHERE d.account_id = ? AND p.external_id IS NOT NULL"
    f" GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT {_LISTED}"
)


def run_counts(catalog: Catalog, account_id: int, run_ids: Sequence[str]) -> RunCounts:
    """Counts the rows of these runs, and the persons of their account."""
    runs = [list(run_ids)]

    def count(column: str, source: str) -> dict[str, int]:
        sql = f"SELECT k, count(*) FROM (SELECT {column} {source}) t(k) GROUP BY k ORDER BY k"
        return dict(catalog.rows(sql, runs))

    return RunCounts(
        statuses=count("status", "FROM core.media WHERE list_contains(?::VARCHAR[], run_id)"),
        outcomes=count("f.outcome", _FACES),
        rejections=count("unnest(string_split(f.rejection_reasons, ','))", f"{_FACES} AND f.outcome = 'rejected'"),
        persons=catalog.one(
            "SELECT count(*) FROM core.persons JOIN core.directories USING (directory_id) WHERE account_id = ?",
            [account_id],
        ),
        label_conflicts=catalog.read(_LABEL_CONFLICTS, runs).to_pylist(),
        shared_external_ids=catalog.read(_SHARED_EXTERNAL_IDS, [account_id]).to_pylist(),
    )
