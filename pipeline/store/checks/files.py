"""Checks of the store's files: each is read completely and compared with its row in the catalog.

Orphans are files that no row names, left by a crash or an abandoned command. An unfinished run may still use its files;
as object names do not identify their run, no object is an orphan during one, or if a request is about to store it. In
the store's own folder only facepipe's file names are considered: `check` must not remove anything else.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import StoreDamaged, StoreError
from pipeline.store import cleanup
from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.directories import directory_ids
from pipeline.store.catalog.opening import CURRENT_NAME, PARTS
from pipeline.store.catalog.pages import PAGE
from pipeline.store.catalog.references import (
    SegmentRow,
    SegmentSecrets,
    load_embeddings,
    open_segments,
    reference_rows,
    removed_numbers,
    segment_rows,
)
from pipeline.store.catalog.runs import OPEN, find_runs
from pipeline.store.checks.tables import RESTORE
from pipeline.store.files import commit_count, run_sums
from pipeline.store.files.durable import TEMPORARY, Folder
from pipeline.store.files.encryption import looks_encrypted
from pipeline.store.files.objects import object_file
from pipeline.store.files.segment_header import SegmentUnusable
from pipeline.store.files.shard_folder import BUILD
from pipeline.store.files.shards import (
    PLAN_ANEW,
    embedding_metadata,
    manifest_file,
    read_metadata,
    vectors_of,
    vectors_of_bytes,
)
from pipeline.store.records import Problem, embeddings_schema
from pipeline.store.segments import rows_of
from pipeline.types import BoolArray, FloatArray

_REMOVE = "`facepipe check --repair` moves it to quarantine/."
_EXTRACT = "`facepipe check --repair` removes it: the same run extracts these photos again."
_UNKNOWN = "`facepipe check --repair` deletes it; `facepipe report --run ID` makes another."
_DELETE = "`facepipe check --repair` deletes it: nothing depends on it, and `facepipe report --run ID` makes a page."
_LIST = "`facepipe check --repair` writes it again."
_COUNT = "`facepipe check --repair` writes it again from the catalog."
_REBUILD = "`facepipe check --repair` writes the directory's segments again, from the embeddings."
Progress = Callable[[str], None]
# References in neither a segment nor the tail.
_BETWEEN_SEGMENTS = """
    WITH own AS (SELECT first_seq, last_seq FROM core.segments WHERE generation = $1 AND directory_id = $2)
    SELECT count(*) FROM core.reference_faces r JOIN core.persons p USING (person_id)
    WHERE r.generation = $1 AND p.directory_id = $2 AND r.seq <= (SELECT max(last_seq) FROM own)
        AND NOT EXISTS (SELECT 1 FROM own WHERE r.seq BETWEEN first_seq AND last_seq)
"""
_NORM_TOLERANCE = 1e-3
_CHUNK_ROWS = 65_536
_OBJECTS = 64  # at a time: a few MB
_OURS = re.compile(rf"({CURRENT_NAME}{re.escape(TEMPORARY)}|catalog-\d{{4,}}(\.new)?\.duckdb(\.wal)?)")
_MAGIC = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG\r\n\x1a\n", "image/webp": b"RIFF"}


def check_embeddings(catalog: Catalog, progress: Progress) -> Iterator[list[Problem]]:
    """All embedding shards, one by one: bytes, hash, columns, metadata, face ids, norms."""
    sql = (
        "SELECT embedding_shard_id, generation, file, bytes, sha256 FROM core.embedding_shards WHERE file > ?"
        " ORDER BY file LIMIT 1"
    )
    last = ""
    while rows := catalog.rows(sql, [last]):
        ((shard_id, generation, file, size, sha256),) = rows
        last = file
        progress(file)
        details = list(_file_faults(catalog, file, size, sha256)) or list(
            _embedding_faults(catalog, shard_id, generation, file)
        )
        yield [Problem("embedding", file, detail, RESTORE) for detail in details]


def _file_faults(catalog: Catalog, file: str, size: int, sha256: str) -> Iterator[str]:
    try:
        data = catalog.folder.path(file).read_bytes()
    except OSError as exc:
        yield f"cannot be read: {exc.strerror}"
        return
    if len(data) != size:
        yield f"has {len(data)} bytes instead of {size}"
    elif hashlib.sha256(data).hexdigest() != sha256:
        yield "its SHA-256 is not the recorded one"


def _embedding_faults(catalog: Catalog, shard_id: int, generation: int, file: str) -> Iterator[str]:
    identity = catalog.generations[generation].identity
    try:
        table = pq.read_table(io.BytesIO(catalog.folder.path(file).read_bytes()))
        metadata = read_metadata(table.schema)
    except (OSError, pa.ArrowException, ValueError) as exc:
        yield f"is not a readable Parquet file: {exc}"
        return
    if not table.schema.remove_metadata().equals(embeddings_schema(identity.embedding_size)):
        yield "its columns are not those of an embedding shard"
        return
    yield from _metadata_faults(metadata, embedding_metadata(catalog.generations[generation]))
    if not _holds_faces(catalog, shard_id, generation, table):
        yield "its face ids are not those of the catalog"
    if not _is_unit(vectors_of(table["embedding"], identity.embedding_size)).all():
        yield "it holds embeddings whose norm is not 1"


def check_pending(catalog: Catalog) -> list[Problem]:
    """Norms of the pending embeddings; `check_tables` checks their size."""
    wrong = list[int]()
    for number, generation in catalog.generations.items():
        sql = "SELECT face_id, embedding FROM core.pending_embeddings WHERE generation = ? ORDER BY 1"
        table = catalog.read(sql, [number])
        vectors = vectors_of_bytes(table["embedding"], generation.identity.embedding_size)
        wrong += table["face_id"].to_numpy()[~_is_unit(vectors)].tolist()
    return [Problem("embedding", f"face {face}", "its pending embedding's norm is not 1", RESTORE) for face in wrong]


def _is_unit(vectors: FloatArray) -> BoolArray:
    """[n] bool; False for NaN."""
    unit: BoolArray = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= _NORM_TOLERANCE
    return unit


def _metadata_faults(metadata: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for key, value in expected.items():
        # Upgrades do not rewrite shards.
        older = key == "schema_version" and isinstance(metadata.get(key), int) and 1 <= metadata[key] <= value
        if metadata.get(key) != value and not older:
            yield f"its metadata have {key} = {metadata.get(key)}, the store has {value}"


def _holds_faces(catalog: Catalog, shard_id: int, generation: int, table: pa.Table) -> bool:
    """Whether a shard has each of the catalog's faces once, and otherwise only vectors that the next `erasure.erase`
    removes: of faces since removed, rejected, or embedded again."""
    with catalog.tables(shard=table.select(["face_id"])):
        wrong = catalog.one(
            """
            SELECT (SELECT count(*) - count(DISTINCT face_id) FROM shard)
                + (SELECT count(*) FROM core.embeddings e
                   WHERE e.embedding_shard_id = $1 AND e.face_id NOT IN (SELECT face_id FROM shard))
                + (SELECT count(*) FROM core.faces f WHERE f.outcome NOT IN ('removed', 'rejected') AND f.face_id IN
                   (SELECT face_id FROM shard WHERE face_id NOT IN (SELECT face_id FROM core.embeddings
                    WHERE generation = $2 AND face_id IN (SELECT face_id FROM shard)
                    UNION ALL SELECT face_id FROM core.pending_embeddings WHERE generation = $2)))
            """,
            [shard_id, generation],
        )
    return int(wrong) == 0


def check_objects(catalog: Catalog, progress: Progress) -> Iterator[list[Problem]]:
    """All stored images, a few at a time: size, hash, and the magic bytes of the media type."""
    sql = (
        "SELECT image_guid, bytes, sha256, media_type, encrypted FROM core.objects WHERE image_guid > ?"
        f" ORDER BY image_guid LIMIT {_OBJECTS}"
    )
    last = ""
    while rows := catalog.rows(sql, [last]):
        last = rows[-1][0]
        yield [problem for row in rows for problem in _object_problems(catalog, progress, *row)]


def _object_problems(
    catalog: Catalog, progress: Progress, guid: str, size: int, sha256: str, media_type: str, encrypted: bool
) -> list[Problem]:
    try:
        file = object_file(guid)
    except StoreError as exc:
        return [Problem("object", guid, str(exc), RESTORE)]
    progress(file)
    details = list(_file_faults(catalog, file, size, sha256))
    if not details:
        # Without the key only an encrypted image's length can be checked.
        if encrypted and not looks_encrypted(size):
            details = ["does not have the length of an encrypted image"]
        elif not encrypted and not _begins(catalog.folder.path(file), _MAGIC.get(media_type, b"")):
            details = [f"is not {media_type}"]
    return [Problem("object", file, detail, RESTORE) for detail in details]


def _begins(path: Path, magic: bytes) -> bool:
    with path.open("rb") as opened:
        return opened.read(len(magic)) == magic


def check_segments(catalog: Catalog, progress: Progress) -> Iterator[list[Problem]]:
    """All index segments, one by one, bit by bit against references and embeddings."""
    for generation, directory in product(catalog.generations, directory_ids(catalog)):
        last = 0
        with catalog.at(generation):
            rows = segment_rows(catalog, directory)
        for row in rows:
            progress(row.file)
            with catalog.at(generation):
                detail = _wrong_in_segment(catalog, directory, row)
            if row.first_seq <= last:
                detail = "it has references of another one"
            last = row.last_seq
            yield [] if detail is None else [Problem("segment", row.file, detail, _REBUILD)]
        if rows and catalog.one(_BETWEEN_SEGMENTS, [generation, directory]):
            yield [Problem("segment", rows[-1].file, "a reference before its last one is in no segment", _REBUILD)]


def _wrong_in_segment(catalog: Catalog, directory: int, row: SegmentRow) -> str | None:
    try:
        return _differing_in_segment(catalog, directory, row)
    except SegmentUnusable as exc:
        return str(exc)
    except StoreDamaged:
        return None  # reported with the embedding shard


def _differing_in_segment(catalog: Catalog, directory: int, row: SegmentRow) -> str | None:
    """Raises SegmentUnusable; StoreDamaged if an embedding cannot be read."""
    (segment,) = open_segments(catalog, directory, [row], removed_numbers(catalog, directory))
    if (damage := segment.verify()) is not None:
        return damage
    numbers = segment.seq.checked(0, len(segment))
    if (int(numbers[0]), int(numbers[-1])) != (row.first_seq, row.last_seq):
        return "its references are not those that the catalog says"
    found = segment.live()
    expected = reference_rows(catalog, directory, row.first_seq, row.last_seq)
    if not np.array_equal(found.seq, expected["reference_seq"].to_numpy()):
        return "its references are not those of the directory"
    vectors = load_embeddings(catalog, expected["face_id"].to_numpy())
    same, columns = rows_of(expected, vectors, SegmentSecrets.of(catalog).images).columns, found.columns
    differing = [name for name in same.keys() - {"errors"} if not np.array_equal(same[name], columns[name])]
    if not np.allclose(same["errors"], columns["errors"], rtol=1e-5, atol=0):  # summation order depends on the machine
        differing.append("errors")
    return f"its {', '.join(sorted(differing))} differ from the embeddings and the catalog" if differing else None


def check_manifests(catalog: Catalog, progress: Progress) -> list[Problem]:
    """The manifests of planned, unfinished runs."""
    problems = []
    for run in find_runs(catalog, "state = ?", [OPEN]):
        file = manifest_file(run.run_id)
        progress(file)
        damage = run_sums.manifest_damage(catalog.folder, run)
        if damage is not None:
            problems.append(Problem("run", file, f"of the unfinished run of {run.source}: {damage}", PLAN_ANEW))
    return problems


def check_count(catalog: Catalog) -> list[Problem]:
    """COMMITS; opening the store has checked that it does not exceed the catalog's number."""
    if not commit_count.is_damaged(catalog.folder):
        return []
    detail = "one of its numbers is damaged: the catalog could lose its last change unnoticed"
    return [Problem("commits", commit_count.COMMITS_NAME, detail, _COUNT)]


def check_runs(catalog: Catalog, progress: Progress) -> Iterator[list[Problem]]:
    """Each run's SHA256SUMS, and its existing listed files, one by one."""
    for run_id in catalog.column("SELECT run_id FROM core.runs ORDER BY run_id"):
        if run_sums.is_damaged(catalog.folder, run_id):
            detail = "it was changed, or a write was cut off: files that it lists may be sound and seem damaged"
            yield [Problem("run_sums", f"runs/{run_id}/{run_sums.SUMS_NAME}", detail, _LIST)]
        for file, changed in run_sums.changed_files(catalog.folder, run_id):
            progress(file)
            kind, cure = ("run_shard", _EXTRACT) if "/shards/" in file else ("run_file", _DELETE)
            yield [Problem(kind, file, "its SHA-256 is not the recorded one", cure)] if changed else []


def check_modes(folder: Folder) -> list[Problem]:
    """Whether others may open the store's folder; if not, file modes do not matter."""
    if folder.is_private():
        return []
    wide = sum(map(_is_wide, folder.root.rglob("*")))
    detail = f"other users of this machine may open the store's folder, and {wide} of its files"
    return [Problem("mode", ".", detail, "`facepipe check --repair` keeps them out.")]


def _is_wide(path: Path) -> bool:
    """Whether it is a file that others may open; False if deleted or renamed meanwhile."""
    try:
        return path.is_file() and bool(path.stat().st_mode & 0o077)
    except FileNotFoundError:
        return False


def check_orphans(catalog: Catalog, files: Iterable[str]) -> list[Problem]:
    """One problem for each existing file of `files` that no row names.

    `files` must be listed before, outside the catalog's thread: a file being stored then is committed or declared by
    now, one being deleted is missing.
    """
    runs = dict(catalog.rows("SELECT run_id, state FROM core.runs"))
    unfinished = {run for run, state in runs.items() if state != "finished"}
    needed = _needed(catalog)
    build = f"runs/{BUILD}" if catalog.other is not None else None  # workers may be writing
    kept = (file for file in files if build is None or not file.startswith(build))
    unneeded = [file for file in kept if file not in needed and not _of_run(file, runs, unfinished)]
    orphans = [file for file in unneeded if catalog.folder.path(file).exists()]
    return [_orphan(file) for file in sorted(orphans)]


def _orphan(file: str) -> Problem:
    if _is_page(file):
        return Problem("page", file, "it is not known whom it shows, and may be somebody who was forgotten", _UNKNOWN)
    return Problem("orphan", file, "no row of the catalog names it", _REMOVE)


def _is_page(file: str) -> bool:
    return file.startswith("runs/") and file.endswith(f"/{PAGE}")


def list_files(root: Path) -> Iterator[str]:
    """The relative paths of all files of a store."""
    current = (root / CURRENT_NAME).read_text("utf-8").strip()
    for entry in root.iterdir():
        if entry.is_file() and _OURS.fullmatch(entry.name) and entry.name not in (current, current + ".wal"):
            yield entry.name
    for part in PARTS:
        for entry in (root / part).rglob("*"):
            if not entry.is_dir():
                yield entry.relative_to(root).as_posix()


def _needed(catalog: Catalog) -> set[str]:
    files = set(
        catalog.column(
            "SELECT file FROM core.embedding_shards UNION SELECT path FROM core.pending_deletes"
            " UNION SELECT file FROM core.page_subjects UNION SELECT file FROM core.segments"
        )
    )
    files.update(map(object_file, catalog.column("SELECT image_guid FROM core.objects")))
    for guid in cleanup.declared_images(catalog.folder):
        files |= {object_file(guid), object_file(guid) + TEMPORARY}
    return files


def _of_run(file: str, runs: dict[str, str], unfinished: set[str]) -> bool:
    """Whether a run keeps the file, or an unfinished run may own it. Not for pages, which are recorded."""
    if _is_page(file):
        return False
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
