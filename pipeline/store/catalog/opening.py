"""Recognises, creates or opens a store's folder.

CURRENT is written last: a folder without it holds no store yet. An interrupted creation leaves only _LEFTOVERS, which
the next one removes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import duckdb

from pipeline.errors import StoreDamaged, StoreMissing, StoreTooNew, StoreUnwritable
from pipeline.store import schema
from pipeline.store.catalog import changes
from pipeline.store.catalog.connection import Catalog, check_cure, log_of, require_all_commits
from pipeline.store.files.commit_count import COMMITS_NAME
from pipeline.store.files.durable import QUARANTINE, TEMPORARY, Folder, disk_errors
from pipeline.store.files.faults import point
from pipeline.store.files.lock import LOCK_NAME, REINDEX_LOCK_NAME, RUN_LOCK_NAME, TOKEN_NAME
from pipeline.store.keyed_digests import ERASED, labels_of_media
from pipeline.store.records import Generation, StoreIdentity
from pipeline.types import utc_now

CURRENT_NAME = "CURRENT"
CATALOG_NAME = "catalog-0001.duckdb"
INTENTS_NAME = "INTENTS"  # see cleanup.py
PARTS = ("embeddings", "objects", "references", "runs")


def new_catalog_name(name: str) -> str:
    """Of an unfinished catalog; not *.tmp, because DuckDB spills into that folder."""
    return name.replace(".duckdb", ".new.duckdb")


def next_catalog_name(name: str) -> str:
    number = int(name.removeprefix("catalog-").removesuffix(".duckdb"))
    return f"catalog-{number + 1:04d}.duckdb"


def spill_folders(folder: Folder) -> list[Path]:
    """Folders into which DuckDB moves what exceeds its memory: of this process, and of killed ones."""
    return [path for path in folder.root.glob("catalog-*.duckdb.tmp") if path.is_dir() and not path.is_symlink()]


_NEW_CATALOG = new_catalog_name(CATALOG_NAME)
_LEFTOVERS = (_NEW_CATALOG, _NEW_CATALOG + ".wal", CURRENT_NAME + TEMPORARY, COMMITS_NAME + TEMPORARY)
_CATALOG_PATTERN = re.compile(r"catalog-\d{4,}\.duckdb")
_JSON_COLUMNS = ("preprocessing", "calibration", "output_settings")
# The fields of StoreIdentity stored per generation; the others belong to the store.
OF_GENERATION: Final = tuple(
    field.name for field in dataclasses.fields(StoreIdentity) if field.name in schema.TABLES["generations"]
)
_SECRET: Final = "{secret}"  # placeholder in a statement: 32 random bytes in hexadecimal


def _label_files(catalog: Catalog) -> None:
    """Fills core.files.label of the known files."""
    media = catalog.read("SELECT media_id, name, external_id FROM core.media JOIN core.files USING (media_id)")
    with catalog.tables(labels=labels_of_media(catalog.one("SELECT fact_key FROM core.store"), media)):
        catalog.execute("UPDATE core.files f SET label = l.label FROM labels l WHERE f.media_id = l.media_id")


# version -> the statements and steps of the upgrade to the next version, run in one transaction.
_UPGRADES: Final[dict[int, tuple[str | Callable[[Catalog], None], ...]]] = {
    # 2: encryption, tags, hidden persons. Pending embeddings as bytes: DuckDB 2.0 logs all lists of a table again with
    # each insertion (version 1 never stored one). `finish_run` now deletes manifests.
    1: (
        "ALTER TABLE core.store ADD COLUMN master_key_id VARCHAR",
        "ALTER TABLE core.accounts ADD COLUMN image_key VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN tags VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN ignored BOOLEAN",
        "DROP TABLE core.pending_embeddings",
        "CREATE TABLE core.pending_embeddings (generation INTEGER, face_id BIGINT, embedding BLOB)",
        "INSERT INTO core.pending_deletes SELECT 'runs/' || run_id || '/manifest.parquet', finished_at FROM core.runs"
        " WHERE state = 'finished'",
    ),
    # 3: first and last names, client metadata, replaced images.
    2: (
        "ALTER TABLE core.persons ADD COLUMN first_name VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN last_name VARCHAR",
        "ALTER TABLE core.persons ADD COLUMN metadata VARCHAR",
        "CREATE TABLE core.replaced_images (image_guid VARCHAR, person_id UUID, replaced_at TIMESTAMP)",
    ),
    # 4: pixel hashes are keyed; a store without a key continues with SHA-256.
    3: (
        "ALTER TABLE core.store ADD COLUMN pixel_key VARCHAR",
        "ALTER TABLE core.media RENAME COLUMN pixel_sha256 TO pixel_hash",
    ),
    # 5: undo, constraints, recognition of unchanged files, keyed digests of forgotten items.
    4: (
        *schema.table_statements("facts", "corrections", "files", "forgotten", "page_subjects"),
        "ALTER TABLE core.store ADD COLUMN next_correction_id BIGINT",
        "ALTER TABLE core.store ADD COLUMN fact_key VARCHAR",
        "ALTER TABLE core.media ADD COLUMN gone_at TIMESTAMP",
        f"UPDATE core.store SET next_correction_id = 1, fact_key = '{_SECRET}'",
        "INSERT INTO core.files BY NAME SELECT source, account_id, path, directory, max(media_id) AS media_id"
        " FROM core.media JOIN (SELECT run_id, source FROM core.runs) USING (run_id) WHERE status <> 'duplicate_row'"
        " AND (sha256 IS NOT NULL OR status <> 'changed') GROUP BY source, account_id, path, directory, sha256",
        _label_files,
        f"UPDATE core.files SET label = '{ERASED}' WHERE media_id IN"
        " (SELECT media_id FROM core.faces WHERE ordinal = 0 AND outcome = 'removed')",
    ),
    # 6: an undo is a correction of its own.
    5: ("ALTER TABLE core.corrections ADD COLUMN IF NOT EXISTS undoes BIGINT",),
    # 7: transaction numbers, for readers of changes.
    6: (
        *(f"ALTER TABLE core.{table} ADD COLUMN IF NOT EXISTS commit_number BIGINT" for table in changes.COUNTED),
        "ALTER TABLE core.corrections ADD COLUMN IF NOT EXISTS position BIGINT",
        "ALTER TABLE core.corrections ADD COLUMN IF NOT EXISTS gone UUID[]",
        "ALTER TABLE core.store ADD COLUMN changes_from BIGINT",
        changes.begin_again,
    ),
    # 8: index segments, written when a directory is first read; the former matrices are deleted as unnamed files.
    7: (
        *schema.table_statements("segments", "tombstones"),
        "DELETE FROM core.pending_deletes WHERE regexp_full_match(path, 'references/g[0-9]+/[0-9]+')",
    ),
    # 9: generations.
    8: (
        *schema.table_statements("generations"),
        "INSERT INTO core.generations BY NAME SELECT current_generation AS generation, created_at AS begun_at,"
        f" created_at AS completed_at, {', '.join(OF_GENERATION)} FROM core.store",
        *(f"ALTER TABLE core.store DROP COLUMN {name}" for name in OF_GENERATION),
        "ALTER TABLE core.detections ADD COLUMN similarity_score DOUBLE",
        "ALTER TABLE core.detections ADD COLUMN rejection_reasons VARCHAR",
        "UPDATE core.detections d SET similarity_score = f.similarity_score, rejection_reasons = f.rejection_reasons"
        " FROM core.faces f WHERE f.face_id = d.face_id",
        "ALTER TABLE core.faces DROP COLUMN similarity_score",
        "ALTER TABLE core.faces DROP COLUMN rejection_reasons",
        "ALTER TABLE core.corrections ADD COLUMN IF NOT EXISTS generation INTEGER",
        "UPDATE core.corrections SET generation = (SELECT current_generation FROM core.store)",
    ),
    # 10: what a regroup sets for its directory.
    9: tuple(
        f'ALTER TABLE core.directories ADD COLUMN "{name}" {schema.TABLES["directories"][name]}'
        for name in ("threshold", "threshold_generation", "method", "precision", "cut")
    ),
    # 11: constraints of the kind `twice`, which earlier versions would not respect; rewriting of the catalog: what was
    # deleted before is still in its free blocks; erasures and the key of their receipts.
    10: (
        *schema.table_statements("erasures"),
        "ALTER TABLE core.store ADD COLUMN erase_since TIMESTAMP",
        "ALTER TABLE core.store ADD COLUMN receipt_key VARCHAR",
        f"UPDATE core.store SET receipt_key = '{_SECRET}'",
        lambda catalog: catalog.execute("UPDATE core.store SET erase_since = ?", [utc_now()]),
    ),
    # 12: when a photo was taken; the face that the web UI shows of a person.
    11: (
        "ALTER TABLE core.media ADD COLUMN taken_at TIMESTAMP",
        "ALTER TABLE core.persons ADD COLUMN cover BIGINT",
    ),
}


def has_store(root: Path) -> bool:
    """Also true for a damaged store that still has CURRENT."""
    return (root / CURRENT_NAME).exists()


def require_store(folder: Folder) -> None:
    """Raises StoreMissing if there is no store or only an interrupted creation; StoreDamaged if parts of a store exist
    without CURRENT."""
    if not has_store(folder.root):
        _require_unfinished(folder)
        raise StoreMissing(path=folder.root)


def require_place(root: Path) -> None:
    """Raises StoreUnwritable if `root` is a file or a folder with foreign files."""
    if root.exists() and not root.is_dir():
        raise StoreUnwritable(path=root, detail="it is a file; give a folder")
    if not root.exists() or has_store(root):
        return
    ours = {
        LOCK_NAME,
        RUN_LOCK_NAME,
        REINDEX_LOCK_NAME,
        TOKEN_NAME,
        INTENTS_NAME,
        COMMITS_NAME,
        QUARANTINE,
        *PARTS,
        *_LEFTOVERS,
        CATALOG_NAME,
        CATALOG_NAME + ".wal",
        "lost+found",
    }
    foreign = sorted(entry.name for entry in root.iterdir() if entry.name not in ours)
    if foreign:
        detail = f"the folder holds other files ({', '.join(foreign[:3])}); give a new or an empty folder"
        raise StoreUnwritable(path=root, detail=detail)


def create_store(folder: Folder, identity: StoreIdentity) -> None:
    """Creates an empty store; requires the lock. Calling it again completes an interrupted creation.

    Raises StoreDamaged if a committed catalog or other parts exist without CURRENT.
    """
    _require_unfinished(folder)
    with disk_errors(folder.root):
        for name in (*_LEFTOVERS, CATALOG_NAME, CATALOG_NAME + ".wal", COMMITS_NAME):
            folder.path(name).unlink(missing_ok=True)
    for part in PARTS:
        folder.make(part)
    _make_catalog(folder, identity)
    folder.write(CURRENT_NAME, f"{CATALOG_NAME}\n".encode(), "current")


def _require_unfinished(folder: Folder) -> None:
    """Raises StoreDamaged if a store without CURRENT was in use."""
    filled = [part for part in PARTS if folder.path(part).exists() and any(folder.path(part).iterdir())]
    if filled:
        raise _without_current(folder.root, f"it holds {', '.join(filled)}, but no file {CURRENT_NAME}")
    if folder.path(CATALOG_NAME).exists() and not _is_empty_catalog(folder):
        raise _without_current(folder.root, f"it holds a catalog in use, but no file {CURRENT_NAME}")


def _is_empty_catalog(folder: Folder) -> bool:
    """Whether nothing was ever committed to it; False if unreadable."""
    try:
        catalog = Catalog(folder, folder.path(CATALOG_NAME), read_only=True)
    except StoreDamaged:
        return False
    try:
        return all(not catalog.one(f"SELECT count(*) FROM core.{table}") for table in ("accounts", "runs", "media"))
    except (duckdb.Error, StoreDamaged):
        return False
    finally:
        catalog.close()


def _without_current(root: Path, detail: str) -> StoreDamaged:
    catalogs = sorted(p.name for p in root.glob("catalog-*.duckdb") if _CATALOG_PATTERN.fullmatch(p.name))
    cure = "Restore a backup, or give another folder."
    if catalogs:
        cure = f"CURRENT was lost: a file {root / CURRENT_NAME} with the line {catalogs[-1]} restores the store."
    return StoreDamaged(path=root, detail=detail, cure=cure)


def _make_catalog(folder: Folder, identity: StoreIdentity) -> None:
    """Builds the catalog under another name and renames it once complete."""
    point("catalog.write")
    catalog = Catalog(folder, folder.path(_NEW_CATALOG))
    try:
        with catalog.transaction("create"):
            catalog.execute("CREATE SCHEMA core")
            for statement in (*schema.table_statements(*schema.TABLES), *schema.view_statements()):
                catalog.execute(statement)
            _insert_store_row(catalog, identity)
        catalog.execute("CHECKPOINT")  # empties the log, which is not renamed
    finally:
        catalog.close()
    folder.publish(_NEW_CATALOG, CATALOG_NAME, "catalog")


def _insert_store_row(catalog: Catalog, identity: StoreIdentity) -> None:
    now = utc_now()
    catalog.insert("generations", [generation_row(1, identity, now, complete=True)])
    row = {
        "format_version": schema.FORMAT_VERSION,
        "schema_version": schema.SCHEMA_VERSION,
        "created_at": now,
        "current_generation": 1,
        **{name: value for name, value in vars(identity).items() if name not in OF_GENERATION},
        "next_media_id": 1,
        "next_face_id": 1,
        "next_person_seq": 1,
        "next_correction_id": 1,
        "fact_key": secrets.token_hex(32),
        "changes_from": 0,
        "receipt_key": secrets.token_hex(32),
    }
    catalog.insert("store", [row])


def to_json(value: object) -> str:
    """Canonical JSON: equal settings give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=dict)


def catalog_file(folder: Folder) -> Path:
    """The catalog that CURRENT names. Raises StoreDamaged."""
    root = folder.root
    try:
        name = folder.path(CURRENT_NAME).read_text("utf-8", errors="replace").strip()
    except OSError as exc:
        raise _damaged(root, f"{CURRENT_NAME} cannot be read: {exc.strerror}") from exc
    if not _CATALOG_PATTERN.fullmatch(name):
        raise _damaged(root, f"{CURRENT_NAME} names no catalog ({name[:40]!r})")
    if not folder.path(name).is_file():
        raise _damaged(root, f"{CURRENT_NAME} names {name}, which does not exist")
    return folder.path(name)


def open_catalog(folder: Folder, *, lossy: bool = False, read_only: bool = False) -> Catalog:
    """Opens the catalog that CURRENT names. Before any change, raises StoreDamaged or StoreTooNew, and StoreUnwritable
    if `read_only` and an upgrade is needed.

    `lossy` accepts lost transactions; transactions are then not counted until `start_count`.
    """
    file = catalog_file(folder)
    had_log = log_of(file).exists()  # the next writing connection replays it
    last = require_all_commits(folder, file) if had_log and not lossy else None
    catalog = Catalog(folder, file, read_only=read_only)
    try:
        if not read_only:
            with disk_errors(folder.root):
                for path in spill_folders(folder):
                    shutil.rmtree(path)
        if not had_log and not lossy:
            last = require_all_commits(folder, file, catalog.connection)
        version = _known_version(catalog)
        if last is not None:
            catalog.count_commits(last)
        elif not lossy and not read_only:  # a new store, or one of an earlier version
            catalog.start_count(0)
            folder.make_private()
        _upgrade(catalog, version)
        differences = _differences(catalog)
        if differences:
            raise _damaged(folder.root, "; ".join(differences[:5]))
        read_generations(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog


def _known_version(catalog: Catalog) -> int:
    """The schema version. Raises StoreTooNew, StoreDamaged."""
    root = catalog.folder.root
    try:
        rows = catalog.rows("SELECT format_version, schema_version FROM core.store")
    except duckdb.Error as exc:
        raise _damaged(root, str(exc).split("\n")[0]) from exc
    if len(rows) != 1:
        raise _damaged(root, f"core.store has {len(rows)} rows instead of 1")
    for version, newest in zip(rows[0], (schema.FORMAT_VERSION, schema.SCHEMA_VERSION), strict=True):
        if not isinstance(version, int) or version < 1:
            raise _damaged(root, f"core.store has version {version}")
        if version > newest:
            raise StoreTooNew(path=root, found=version, known=newest)
    return int(rows[0][1])


def _upgrade(catalog: Catalog, version: int) -> None:
    """Upgrades tables of `version`. Raises StoreFull, StoreUnwritable, StoreDamaged; an upgrade step that fails changes
    nothing."""
    while version < schema.SCHEMA_VERSION:
        last = version + 1 == schema.SCHEMA_VERSION
        try:
            with catalog.transaction("migrate"):
                for step in (*_UPGRADES[version], *(schema.view_statements() if last else ())):
                    if isinstance(step, str):
                        catalog.execute(step.replace(_SECRET, secrets.token_hex(32)))
                    else:
                        step(catalog)
                catalog.execute("UPDATE core.store SET schema_version = ?", [version + 1])
        except duckdb.Error as exc:
            detail = f"its tables are not those of version {version}: {str(exc).splitlines()[0]}"
            raise _damaged(catalog.folder.root, detail) from exc
        version += 1


def _differences(catalog: Catalog) -> list[str]:
    """Differences from the current schema."""
    own = "database_name = current_database()"
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in catalog.rows(
        f"SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE schema_name = 'core' AND {own}"
    ):
        found.setdefault(table, {})[column] = kind
    problems = [f"the table core.{table} is missing" for table in schema.TABLES if table not in found]
    for table, columns in found.items():
        for name, kind in schema.TABLES.get(table, {}).items():
            if columns.get(name) != kind:
                problems.append(f"core.{table}.{name} is {columns.get(name, 'missing')}, not {kind}")
    views = catalog.column(f"SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND {own}")
    return problems + [f"the view main.{view} is missing" for view in schema.VIEWS if view not in views]


def _damaged(root: Path, detail: str) -> StoreDamaged:
    return StoreDamaged(path=root, detail=detail, cure=check_cure(root))


def read_generations(catalog: Catalog) -> None:
    """Loads the generations, the current one first, into `catalog.generations`. Raises StoreDamaged."""
    found: dict[int, Generation] = {}
    for row in catalog.read("SELECT * FROM core.store, core.generations ORDER BY generation").to_pylist():
        try:
            texts = {key: json.loads(row[key]) for key in _JSON_COLUMNS}
        except ValueError as exc:
            raise _damaged(catalog.folder.root, f"core.generations holds a text that is not JSON: {exc}") from exc
        plain = [field.name for field in dataclasses.fields(StoreIdentity) if field.name not in texts]
        identity, number = StoreIdentity(**{key: row[key] for key in plain}, **texts), int(row["generation"])
        found[number] = Generation(number, identity, row["completed_at"] is not None)
        current = int(row["current_generation"])
    if not found or current not in found:
        raise _damaged(catalog.folder.root, "core.generations does not have the current generation")
    catalog.generations = {current: found[current], **found}


def generation_row(number: int, identity: StoreIdentity, begun_at: datetime, *, complete: bool) -> dict[str, object]:
    """A row of core.generations."""
    values = {name: getattr(identity, name) for name in OF_GENERATION}
    texts = {name: to_json(values[name]) for name in _JSON_COLUMNS}
    times = {"begun_at": begun_at, "completed_at": begun_at if complete else None}
    return {"generation": number, **times, **values, **texts}
