"""Checks of the catalog's tables: each rule is a query for the rows that break it.

There are no foreign keys and few primary keys (see schema.py), so references and uniqueness are verified here. Each
query answers one text column that tells where; `{g}` is the current generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import duckdb

from pipeline.errors import StoreError
from pipeline.store.catalog.connection import Catalog
from pipeline.store.records import Problem
from pipeline.store.schema import MAX_DIRECTORIES, TABLES, VIEWS

RESTORE: Final = "Restore the store from a backup."
_SHOWN = 20  # of the rows that break one rule

# child column -> parent column; a null child refers to nothing.
_REFERENCES = (
    ("directories.account_id", "accounts.account_id"),
    ("runs.account_id", "accounts.account_id"),
    ("shards.run_id", "runs.run_id"),
    ("media.run_id", "runs.run_id"),
    ("media.account_id", "accounts.account_id"),
    ("media.duplicate_of", "media.media_id"),
    ("faces.media_id", "media.media_id"),
    ("faces.person_id", "persons.person_id"),
    ("detections.face_id", "faces.face_id"),
    ("embeddings.face_id", "faces.face_id"),
    ("embeddings.embedding_shard_id", "embedding_shards.embedding_shard_id"),
    ("pending_embeddings.face_id", "faces.face_id"),
    ("embedding_shards.run_id", "runs.run_id"),
    ("persons.directory_id", "directories.directory_id"),
    ("persons.parent_id", "persons.person_id"),
    ("reference_faces.person_id", "persons.person_id"),
    ("reference_faces.face_id", "faces.face_id"),
    ("reference_faces.image_guid", "objects.image_guid"),
    ("replaced_images.person_id", "persons.person_id"),
    ("facts.face_id", "faces.face_id"),
    ("facts.person_id", "persons.person_id"),
    ("facts.other_id", "persons.person_id"),
    ("corrections.account_id", "accounts.account_id"),
    ("corrections.directory_id", "directories.directory_id"),
    ("corrections.undoes", "corrections.correction_id"),
    ("files.account_id", "accounts.account_id"),
    ("files.media_id", "media.media_id"),
    ("forgotten.account_id", "accounts.account_id"),
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
_HAS_EMBEDDING = (
    "(SELECT face_id FROM core.embeddings WHERE generation = {g}"
    " UNION ALL SELECT face_id FROM core.pending_embeddings WHERE generation = {g})"
)
# (table, its row with all keys but one changed): one per index.
_REINSERTED = (
    ("accounts", "* REPLACE ('' AS user_id)"),
    ("accounts", "* REPLACE (-1 AS account_id)"),
    ("directories", "* REPLACE ('' AS name)"),
    ("directories", "* REPLACE (-1 AS directory_id)"),
    ("runs", "*"),
    ("shards", "*"),
)
_RULES = {
    "two embeddings of one face": f"SELECT 'face ' || face_id FROM {_HAS_EMBEDDING} GROUP BY face_id HAVING count(*) >"
    " 1",
    "a face without detection": "SELECT 'face ' || face_id FROM core.faces WHERE outcome <> 'removed' AND face_id NOT"
    " IN (SELECT face_id FROM core.detections WHERE generation = {g})",
    "a removed face with a person, a score, a detection or an embedding": "SELECT 'face ' || face_id FROM core.faces"
    " WHERE outcome = 'removed' AND (person_id IS NOT NULL OR similarity_score IS NOT NULL OR face_id IN (SELECT"
    f" face_id FROM core.detections) OR face_id IN {_HAS_EMBEDDING})",
    "a removed face of a posted image": "SELECT 'face ' || face_id FROM core.faces WHERE outcome = 'removed' AND"
    " media_id IN (SELECT media_id FROM core.media WHERE run_id IS NULL)",
    "a person with embeddings and without reference": "SELECT 'person ' || person_id FROM core.persons WHERE person_id"
    " NOT IN (SELECT person_id FROM core.reference_faces WHERE generation = {g}) AND person_id IN (SELECT person_id"
    f" FROM core.faces WHERE face_id IN {_HAS_EMBEDDING})",
    "a reference that is another person's face": "SELECT 'face ' || r.face_id FROM core.reference_faces r JOIN"
    " core.faces f USING (face_id) WHERE generation = {g} AND f.person_id IS DISTINCT FROM r.person_id",
    "a reference without embedding": "SELECT 'face ' || face_id FROM core.reference_faces WHERE generation = {g} AND"
    f" face_id NOT IN {_HAS_EMBEDDING}",
    "a rejected face with a person or an embedding": "SELECT 'face ' || face_id FROM core.faces WHERE outcome ="
    f" 'rejected' AND (person_id IS NOT NULL OR face_id IN {_HAS_EMBEDDING})",
    "an inserted or matched face without person": "SELECT 'face ' || face_id FROM core.faces WHERE outcome IN"
    " ('inserted', 'matched') AND person_id IS NULL",
    "a parent in another directory": "SELECT 'person ' || p.person_id FROM core.persons p JOIN core.persons q ON"
    " q.person_id = p.parent_id WHERE q.directory_id <> p.directory_id",
    "a cycle of parents": "SELECT 'person ' || p.person_id FROM core.persons p JOIN main.persons v ON v.person_id ="
    " p.person_id::VARCHAR WHERE p.parent_id IS NOT NULL AND v.root_person_id = v.person_id",
    "a fact that says nothing": "SELECT 'fact of correction ' || correction_id FROM core.facts WHERE NOT CASE WHEN kind"
    " IN ('is', 'is_not') THEN face_id IS NOT NULL AND person_id IS NOT NULL WHEN kind = 'nobody' THEN face_id IS NOT"
    " NULL ELSE kind = 'not_same' AND coalesce(person_id < other_id, false) END",
    "two facts that contradict each other": "SELECT 'face ' || face_id FROM core.facts WHERE kind IN ('is', 'nobody')"
    " GROUP BY face_id HAVING count(*) > 1 UNION ALL SELECT 'face ' || face_id FROM core.facts WHERE kind IN ('is',"
    " 'is_not') GROUP BY face_id, person_id HAVING count(*) > 1",
    "a correction whose rows are not JSON": "SELECT 'correction ' || correction_id FROM core.corrections WHERE NOT"
    " (json_valid(before) AND json_valid(after))",
    "a shard with another number of media than recorded": "SELECT 'shard ' || s.shard || ' of run ' || s.run_id FROM"
    " core.shards s WHERE s.media <> (SELECT count(*) FROM core.media m WHERE m.run_id = s.run_id AND m.shard ="
    " s.shard)",
    "a shard with another number of faces than recorded": "SELECT 'shard ' || s.shard || ' of run ' || s.run_id FROM"
    " core.shards s WHERE s.faces <> (SELECT count(*) FROM core.faces f JOIN core.media m ON m.media_id = f.media_id"
    " WHERE m.run_id = s.run_id AND m.shard = s.shard)",
    "media of a shard that is not committed": "SELECT 'media ' || media_id FROM core.media m WHERE run_id IS NOT NULL"
    " AND NOT EXISTS (SELECT 1 FROM core.shards s WHERE s.run_id = m.run_id AND s.shard = m.shard)",
    "a posted image with a run's shard, row or path": "SELECT 'media ' || media_id FROM core.media WHERE run_id IS"
    ' NULL AND (shard IS NOT NULL OR "row" IS NOT NULL OR path IS NOT NULL)',
    "a posted image without a face": "SELECT 'media ' || media_id FROM core.media WHERE run_id IS NULL AND media_id"
    " NOT IN (SELECT media_id FROM core.faces)",
    "a face of a posted image that is not a reference": "SELECT 'face ' || face_id FROM core.faces WHERE media_id IN"
    " (SELECT media_id FROM core.media WHERE run_id IS NULL) AND face_id NOT IN (SELECT face_id FROM"
    " core.reference_faces)",
    "an embedding shard with fewer rows than faces": "SELECT file FROM core.embedding_shards s WHERE s.rows < (SELECT"
    " count(*) FROM core.embeddings e WHERE e.embedding_shard_id = s.embedding_shard_id)",
    "a run or a shard number without the other": "SELECT file FROM core.embedding_shards WHERE (run_id IS NULL) <>"
    " (shard IS NULL)",
    "a pending embedding of another size": "SELECT 'face ' || face_id FROM core.pending_embeddings WHERE"
    " octet_length(embedding) <> 4 * (SELECT embedding_size FROM core.store)",
    "an image that no reference shows": "SELECT 'image ' || image_guid FROM core.objects WHERE image_guid NOT IN"
    " (SELECT image_guid FROM core.reference_faces WHERE image_guid IS NOT NULL)",
    "a photo that left of which something is stored": "SELECT 'media ' || media_id FROM core.media m WHERE status IN"
    " ('forgotten', 'replaced') AND (coalesce(path, sha256, pixel_hash, name, external_id, extra) IS NOT NULL OR"
    " media_id IN (SELECT media_id FROM core.files) OR media_id IN (SELECT media_id FROM core.faces WHERE outcome <>"
    " 'removed'))",
    "a directory without identity": "SELECT 'directory ' || directory_id FROM core.directories WHERE directory_id NOT"
    " IN (SELECT directory_id FROM core.persons)",
    "tags that are not a list": "SELECT 'person ' || person_id FROM core.persons WHERE tags IS NOT NULL AND"
    " try_cast(tags AS VARCHAR[]) IS NULL",
    "metadata that is not an object": "SELECT 'person ' || person_id FROM core.persons WHERE metadata IS NOT NULL AND"
    " (NOT json_valid(metadata) OR json_type(metadata) <> 'OBJECT')",
    "an account with too many directories": "SELECT 'account ' || account_id FROM core.directories WHERE directory_id"
    f" IN (SELECT directory_id FROM core.persons) GROUP BY account_id HAVING count(*) > {MAX_DIRECTORIES}",
    "an account without an image key in an encrypted store, or with one in another": "SELECT 'account ' || account_id"
    " FROM core.accounts WHERE (image_key IS NULL) = (SELECT encrypted FROM core.store)",
    "an image encrypted differently from its store": "SELECT 'object ' || image_guid FROM core.objects WHERE encrypted"
    " <> (SELECT encrypted FROM core.store)",
    "an encrypted store without the id of its master key, or another store with one": "SELECT 'master_key_id' FROM"
    " core.store WHERE (master_key_id IS NULL) = encrypted",
    "a finished run with missing shards": "SELECT 'run ' || run_id FROM core.runs r WHERE state = 'finished' AND"
    " shards <> (SELECT count(*) FROM core.shards s WHERE s.run_id = r.run_id)",
}


def _rules(generation: int) -> Iterator[tuple[str, str]]:
    """(what is wrong, query for where)."""
    for child, parent in _REFERENCES:
        (table, column), (target, key) = child.split("."), parent.split(".")
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
    for what, query in _RULES.items():
        yield what, query.replace("{g}", str(generation))


def check_tables(catalog: Catalog) -> Iterator[list[Problem]]:
    """Everything that is wrong inside the catalog, piece by piece: the first rows of each rule.

    Ends early where a block or an index is broken: the rules would only find the same again.
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
    for what, query in _rules(catalog.generation):
        rows = catalog.rows(query)
        more = [(f"{len(rows) - _SHOWN} more",)] if len(rows) > _SHOWN else []
        yield [Problem("reference", where, what, RESTORE) for (where,) in [*rows[:_SHOWN], *more]]
    yield _check_views(catalog)


def _check_blocks(catalog: Catalog, table: str) -> list[Problem]:
    """Reads every value of a table: DuckDB verifies the checksum of each block it reads."""
    try:
        catalog.rows(f"SELECT bit_xor(hash(t)) FROM core.{table} t")
    except (StoreError, duckdb.Error) as exc:
        return [Problem("catalog", f"core.{table}", _detail(exc), RESTORE)]
    return []


def _detail(exc: StoreError | duckdb.Error) -> str:
    detail = exc.fields.get("detail") if isinstance(exc, StoreError) else None
    return str(detail or exc).split("\n")[0]


def _check_indexes(catalog: Catalog) -> list[Problem]:
    """Inserts an existing row again and rolls back: each index must be readable, and refuse it."""
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
            with suppress(StoreError, duckdb.Error):  # a broken index has ended the transaction already
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
