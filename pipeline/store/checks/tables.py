"""Checks of the catalog's tables: each rule is a query for offending rows, most of them in rules.sql.

There are few keys (see schema.py), so references and uniqueness are verified here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import duckdb

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import Problem
from pipeline.store.schema import MAX_DIRECTORIES, TABLES, VIEWS, embedded

RESTORE: Final = "Restore the store from a backup."
_SHOWN = 20  # rows per broken rule
# Faces. From here on each rule is a query, between which other commits run; fewer take one query for all rules, in a
# fifth of the time.
_LARGE = 100_000

# column of any table -> the column that it refers to; null refers to nothing
_REFERENCES: Final = {
    "generation": "generations.generation",
    "current_generation": "generations.generation",
    "account_id": "accounts.account_id",
    "directory_id": "directories.directory_id",
    "run_id": "runs.run_id",
    "media_id": "media.media_id",
    "duplicate_of": "media.media_id",
    "face_id": "faces.face_id",
    "embedding_shard_id": "embedding_shards.embedding_shard_id",
    "person_id": "persons.person_id",
    "other_id": "persons.person_id",
    "parent_id": "persons.person_id",
    "image_guid": "objects.image_guid",
    "undoes": "corrections.correction_id",
}
_MAY_BE_GONE: Final = frozenset(
    {
        "replaced_images.image_guid",
        "page_subjects.person_id",
        "page_subjects.media_id",
        "tombstones.person_id",
        "tombstones.face_id",
        "corrections.generation",
        "erasures.account_id",
    }
)
_UNIQUE = (
    ("media", "media_id"),
    ("faces", "face_id"),
    ("faces", "media_id, ordinal"),
    ("persons", "person_id"),
    ("persons", "seq"),
    ("objects", "image_guid"),
    ("embedding_shards", "embedding_shard_id"),
    ("embedding_shards", "file"),
    ("detections", "generation, face_id"),
    ("reference_faces", "generation, person_id"),
    ("reference_faces", "generation, face_id"),
    ("reference_faces", "generation, seq"),
    ("corrections", "correction_id"),
)
_COUNTERS = (
    ("next_media_id", "media", "media_id"),
    ("next_face_id", "faces", "face_id"),
    ("next_person_seq", "persons", "seq"),
    ("next_person_seq", "reference_faces", "seq"),
    ("next_correction_id", "corrections", "correction_id"),
    ("next_correction_id", "facts", "correction_id"),
)
# For the rules: the generation's faces with a stored embedding.
_EMBEDDED: Final = f"WITH embedded AS ({embedded('{g}')})\n"
# (table, a row with all keys but one changed): one per index
_REINSERTED = (
    ("generations", "*"),
    ("accounts", "* REPLACE ('' AS user_id)"),
    ("accounts", "* REPLACE (-1 AS account_id)"),
    ("directories", "* REPLACE ('' AS name)"),
    ("directories", "* REPLACE (-1 AS directory_id)"),
    ("runs", "*"),
    ("shards", "*"),
)
# The other generation may lack faces until its build continues.
_OF_CURRENT: Final = frozenset({"a face without detection"})
_RULE: Final = re.compile(r"^-- (.+)\n((?:[^-\n].*\n)+)", re.MULTILINE)  # of rules.sql: problem, query


def _rules(generations: Sequence[int]) -> Iterator[tuple[str, str]]:
    """(problem, query for the offending rows)."""
    for child in (f"{table}.{column}" for table, columns in TABLES.items() for column in columns):
        table, column = child.split(".")
        parent = _REFERENCES.get(column, child)
        if parent != child and child not in _MAY_BE_GONE:
            target, key = parent.split(".")
            yield (
                f"{child} refers to a missing {parent}",
                f"SELECT DISTINCT '{column} ' || {column} FROM core.{table} WHERE {column} IS NOT NULL"
                f" AND {column} NOT IN (SELECT {key} FROM core.{target} WHERE {key} IS NOT NULL)",
            )
    for table, key in _UNIQUE:
        where = f"concat_ws(', ', {key})"
        yield (
            f"two rows of {table} with one ({key})",
            f"SELECT {where} FROM core.{table} GROUP BY {key} HAVING count(*) > 1",
        )
    for counter, table, key in _COUNTERS:
        yield (
            f"{counter} is not above {table}.{key}",
            f"SELECT '{key} ' || max({key}) FROM core.{table} HAVING max({key}) >= (SELECT {counter} FROM core.store)",
        )
    for what, query in _RULE.findall(Path(__file__).with_name("rules.sql").read_text("utf-8")):
        depends = ("{g}" in query or "embedded" in query) and what not in _OF_CURRENT
        for generation in generations if depends else generations[:1]:
            yield what, (_EMBEDDED + query).format(g=generation, most=MAX_DIRECTORIES)


def check_tables(catalog: Catalog) -> Iterator[list[Problem]]:
    """Problems inside the catalog, piece by piece: the first rows of each rule.

    Ends early if a block or index is broken: the rules would find the same again.
    """
    broken = []
    for table in TABLES:
        problems = _check_blocks(catalog, table)
        broken += problems
        yield problems
    if not broken:
        broken = _check_indexes(catalog)
        yield broken
    if broken:
        return
    rules = [*_rules([number for number, each in catalog.generations.items() if each.complete])]
    together = len(rules) if catalog.one("SELECT count(*) FROM core.faces") < _LARGE else 1
    for start in range(0, len(rules), together):
        yield _check_rules(catalog, rules[start : start + together])
    yield _check_views(catalog)


def _check_rules(catalog: Catalog, rules: Sequence[tuple[str, str]]) -> list[Problem]:
    """The first rows of each rule."""
    parts = (f"SELECT {number}, * FROM ({query.strip().rstrip(';')})" for number, (_, query) in enumerate(rules))
    broken: dict[int, list[str]] = {}
    for number, where in catalog.rows(" UNION ALL ".join(parts)):
        broken.setdefault(number, []).append(where)
    problems = []
    for number, found in sorted(broken.items()):
        more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        problems += [Problem("reference", where, rules[number][0], RESTORE) for where in [*found[:_SHOWN], *more]]
    return problems


def _check_blocks(catalog: Catalog, table: str) -> list[Problem]:
    """Reads every value: DuckDB verifies the checksum of each block."""
    try:
        catalog.rows(f"SELECT bit_xor(hash(t)) FROM core.{table} t")
    except (StoreError, duckdb.Error) as exc:
        return [Problem("catalog", f"core.{table}", _detail(exc), RESTORE)]
    return []


def _detail(exc: StoreError | duckdb.Error) -> str:
    detail = exc.fields.get("detail") if isinstance(exc, StoreError) else None
    return str(detail or exc).split("\n")[0]


def _check_indexes(catalog: Catalog) -> list[Problem]:
    """Inserts an existing row again and rolls back: each index must be readable and refuse it."""
    problems: list[Problem] = []
    if catalog.read_only:
        return problems
    for table, columns in _REINSERTED:
        where = f"the index of core.{table}"
        if not catalog.one(f"SELECT count(*) FROM core.{table}"):
            continue
        catalog.execute("BEGIN TRANSACTION")
        try:
            catalog.execute(f"INSERT INTO core.{table} SELECT {columns} FROM core.{table} LIMIT 1")
            problems.append(Problem("catalog", where, "it accepts the same row twice", RESTORE))
        except duckdb.ConstraintException:
            pass
        except (StoreError, duckdb.Error) as exc:
            problems.append(Problem("catalog", where, _detail(exc), RESTORE))
        finally:
            with suppress(StoreError, duckdb.Error):  # a broken index has ended the transaction
                catalog.execute("ROLLBACK")
    return problems


def _check_views(catalog: Catalog) -> list[Problem]:
    """Each view must have as many rows as its table, without removed faces."""
    problems = []
    for view in VIEWS:
        shown = "outcome <> 'removed'" if view == "faces" else "true"
        actual = catalog.one(f"SELECT count(*) FROM main.{view}")
        expected = catalog.one(f"SELECT count(*) FROM core.{view} WHERE {shown}")
        if actual != expected:
            detail = f"has {actual} rows instead of {expected}"
            problems.append(Problem("view", f"main.{view}", detail, RESTORE))
    return problems
