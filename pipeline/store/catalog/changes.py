"""Changes of people since a commit, for readers that keep a copy ("Changes" in FORMAT.md)."""

from __future__ import annotations

from typing import Any, Final

from pipeline.errors import ChangesUnknown
from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import ChangeEntry, ChangesPage

_ENTRIES: Final = """
    SELECT p.commit_number, p.seq AS position, 'insert' AS kind, NULL AS origin, p.added_at AS at, d.account_id,
        d.name AS directory, [p.person_id] AS persons, NULL AS gone, NULL AS undoes
    FROM core.persons p JOIN core.directories d ON d.directory_id = p.directory_id WHERE p.commit_number > $1
    UNION ALL
    SELECT r.commit_number, r.seq, 'reference', NULL, NULL, d.account_id, d.name, [r.person_id], NULL, NULL
    FROM core.reference_faces r JOIN core.persons p ON p.person_id = r.person_id
    JOIN core.directories d ON d.directory_id = p.directory_id
    WHERE r.commit_number > $1 AND r.commit_number > p.commit_number
        AND r.generation = (SELECT current_generation FROM core.store)
    UNION ALL
    SELECT c.commit_number, c.position, c.kind, c.origin, c.made_at, c.account_id, d.name, c.person_ids, c.gone,
        c.undoes
    FROM core.corrections c LEFT JOIN core.directories d ON d.directory_id = c.directory_id
    WHERE c.commit_number > $1 AND (len(c.person_ids) > 0 OR c.gone IS NOT NULL)
"""


COUNTED: Final = ("persons", "reference_faces", "corrections")  # tables with a commit_number


def begin_again(catalog: Catalog) -> None:
    """Inside a transaction: restarts the history; only later changes are listed."""
    for table in COUNTED:
        catalog.execute(f"UPDATE core.{table} SET commit_number = ?", [catalog.commit_number])
    catalog.execute(
        "UPDATE core.corrections SET position = correction_id + (SELECT next_person_seq - 1 FROM core.store)"
        " WHERE position IS NULL"
    )
    catalog.execute(
        "UPDATE core.store SET next_person_seq = next_person_seq + next_correction_id - 1, changes_from = ?",
        [catalog.commit_number],
    )


def changes(catalog: Catalog, since: int, account_id: int | None = None, limit: int = 1000) -> ChangesPage:
    """The entries after commit `since`, of one account or all, in order. Commits are never split, so there may be more
    than `limit`. Raises ChangesUnknown if `since` is outside the store's history."""
    limit = max(limit, 1)
    start, last = catalog.rows("SELECT changes_from, (SELECT max(number) FROM core.commits) FROM core.store")[0]
    if not start <= since <= last:
        raise ChangesUnknown(since=since, start=start)
    rows = catalog.rows(
        f"""
        WITH entries AS NOT MATERIALIZED (FROM ({_ENTRIES}) WHERE $2 IS NULL OR account_id = $2)
        SELECT e.commit_number, e.position, e.kind, e.origin, e.at, a.user_id, e.directory, e.persons::VARCHAR[],
            e.gone::VARCHAR[], o.commit_number, o.position, e.commit_number < (SELECT max(commit_number) FROM entries)
        FROM entries e JOIN core.accounts a ON a.account_id = e.account_id
        LEFT JOIN core.corrections o ON o.correction_id = e.undoes
        WHERE e.commit_number <= (SELECT max(commit_number) FROM
            (SELECT commit_number FROM entries ORDER BY commit_number LIMIT $3))
        ORDER BY e.commit_number, e.position
        """,
        [since, account_id, limit],
    )
    entries = [_entry(*row) for *row, _ in rows]
    more = bool(rows) and rows[-1][-1]
    return ChangesPage(entries, entries[-1].commit if more else last, more)


def _entry(commit: int, position: int, kind: str, origin: str | None, at: Any, *row: Any) -> ChangeEntry:
    account, directory, persons, gone, *undoes = row
    undone = (undoes[0], undoes[1]) if undoes[0] is not None else None
    gone = gone or []
    others = [person_id for person_id in persons if person_id not in set(gone)]
    return ChangeEntry(commit, position, kind, origin, at, account, directory, others, gone, undone)
