"""A second generation of a store's numbers, by another model: begun, built while the current one is in use, completed,
switched to, dropped. People, faces and constraints are independent of generations.

A build adds detections and vectors, some photos per transaction; commits of new photos add theirs. The tables show
which faces are left, so a killed build can continue. When none is left, the generation gets its references and is
complete. From then on each change maintains them (`keep_references`), whichever generation is current.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import ReindexMissing, ReindexUnderWay
from pipeline.store import cleanup
from pipeline.store.catalog.connection import Catalog, OpenStore
from pipeline.store.catalog.opening import generation_row, read_generations
from pipeline.store.catalog.references import add_embedding_shard
from pipeline.store.commits.removal import bury_references, remove_unshown_images, remove_unshown_posts
from pipeline.store.erasure import rewrite_stale_shards
from pipeline.store.files import shards
from pipeline.store.files.durable import Folder
from pipeline.store.records import MEASURED_SCHEMA, Generation, StoreIdentity
from pipeline.store.schema import QUALITY, embedded
from pipeline.types import QUALITIES, utc_now

# Tables with rows per generation, and those with files.
_OF_GENERATION: Final = (
    *("detections", "embeddings", "pending_embeddings", "reference_faces", "tombstones"),
    *("embedding_shards", "segments", "generations"),
)
_WITH_FILES: Final = frozenset({"embedding_shards", "segments"})
# Of core.faces f: a face that a build measures. A tag, where nothing was detected, has no landmarks in any generation.
_TO_MEASURE: Final = (
    "outcome <> 'removed' AND NOT (outcome = 'drawn'"
    " AND f.face_id IN (SELECT face_id FROM core.detections WHERE landmarks IS NULL))"
)
# Faces without a detection in generation $1, of the first $3 media above $2 with such faces; $4: the current
# generation.
_LEFT: Final = f"""
    WITH wanted AS MATERIALIZED (
        SELECT DISTINCT media_id FROM core.faces f WHERE media_id > $2 AND {_TO_MEASURE}
            AND NOT EXISTS (SELECT 1 FROM core.detections d WHERE d.face_id = f.face_id AND d.generation = $1)
        ORDER BY media_id LIMIT $3
    )
    SELECT m.media_id, m.account_id, m.path, m.sha256, m.bytes, m.width, m.height, f.face_id, f.outcome,
        d.x1, d.y1, d.x2, d.y2, d.landmarks, d.confidence, {", ".join(f"d.{name}" for name in QUALITIES)},
        d.rejection_reasons, r.image_guid, o.sha256 AS image_sha256
    FROM wanted JOIN core.media m USING (media_id) JOIN core.faces f USING (media_id)
    JOIN core.detections d ON d.face_id = f.face_id AND d.generation = $4
    LEFT JOIN core.reference_faces r ON r.face_id = f.face_id AND r.generation = $4
    LEFT JOIN core.objects o ON o.image_guid = r.image_guid
    WHERE d.landmarks IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM core.detections t WHERE t.face_id = f.face_id AND t.generation = $1)
    ORDER BY m.media_id, f.ordinal
"""


def _references(person_ids: str) -> str:
    """References in generation $1 for those of these persons (an SQL query) without one: the face of their reference in
    $2, with its picture, number and commit; if that has no vector, or there is none, their best face with one."""
    return f"""
        WITH who AS MATERIALIZED (
            SELECT person_id FROM ({person_ids}) WHERE person_id NOT IN
                (SELECT person_id FROM core.reference_faces WHERE generation = $1)
        ), embedded AS MATERIALIZED (
            SELECT person_id, face_id FROM core.faces WHERE person_id IN (FROM who) AND face_id IN ({embedded()})
        ), known AS MATERIALIZED (
            SELECT * FROM core.reference_faces WHERE generation = $2 AND person_id IN (FROM who)
        )
        SELECT $1 AS generation, e.person_id, e.face_id, k.image_guid, k.seq, k.commit_number
        FROM embedded e JOIN core.detections d ON d.face_id = e.face_id AND d.generation = $1
        LEFT JOIN known k ON k.face_id = e.face_id
        QUALIFY row_number() OVER (PARTITION BY e.person_id ORDER BY k.face_id IS NULL, {QUALITY} DESC, e.face_id) = 1
    """


def begin(catalog: Catalog, identity: StoreIdentity) -> int:
    """Begins a generation, with the tags; returns its number. Raises ReindexUnderWay if another one exists."""
    if catalog.other is not None:
        raise ReindexUnderWay(path=catalog.folder.root, weights=catalog.other.identity.weights)
    cleanup.unlink_pending(catalog)  # of a dropped generation with the same number
    number = _number(catalog)
    with _changing(catalog, "reindex_begin"):
        catalog.insert("generations", [generation_row(number, identity, utc_now(), complete=False)])
        catalog.execute(  # tags
            "INSERT INTO core.detections SELECT * REPLACE (? AS generation) FROM core.detections"
            " WHERE generation = ? AND landmarks IS NULL",
            [number, catalog.generation],
        )
    return number


def left(catalog: Catalog, after: int, photos: int) -> pa.Table:
    """The faces missing in the other generation (if none, all faces), by photo: of the first `photos` such media above
    id `after`."""
    return catalog.read(_LEFT, [_number(catalog), after, photos, catalog.generation])


def count_left(catalog: Catalog) -> int:
    """The number of missing faces."""
    sql = (
        f"SELECT count(*) FROM core.faces f WHERE {_TO_MEASURE} AND NOT EXISTS"
        " (SELECT 1 FROM core.detections d WHERE d.face_id = f.face_id AND d.generation = ?)"
    )
    return int(catalog.one(sql, [_number(catalog)]))


@dataclass(frozen=True)
class MeasuredFaces:
    """Faces in the other generation, their vectors in a file."""

    model: str  # `StoreIdentity.model`
    faces: pa.Table  # MEASURED_SCHEMA
    written: shards.WrittenFile | None  # None: none has a vector


def write_measured(folder: Folder, other: Generation, faces: pa.Table, file: str) -> MeasuredFaces:
    """Writes vectors of faces (MEASURED_SCHEMA) to this embedding shard, for `insert_measured`. Raises StoreFull,
    StoreUnwritable."""
    faces = faces.select(MEASURED_SCHEMA.names).cast(MEASURED_SCHEMA)
    vectors = faces.filter(pc.is_valid(faces["embedding"]))
    written = None
    if len(vectors):
        embeddings = shards.vectors_of_bytes(vectors["embedding"], other.identity.embedding_size)
        rows = shards.embedding_rows(vectors["face_id"].to_numpy(), embeddings)
        written = shards.write_embeddings(folder, file, rows, other)
    return MeasuredFaces(other.identity.model, faces, written)


def insert_measured(
    catalog: Catalog, measured: MeasuredFaces, run_id: str | None = None, shard: int | None = None
) -> None:
    """Inside a transaction: inserts these faces, except removed ones and ones that the other generation already has.
    Does nothing if its model is another by now."""
    other = catalog.other
    if other is None or other.identity.model != measured.model:
        return
    faces, written = measured.faces, measured.written
    tables = {"measured": faces.drop_columns(["embedding"]), "embedded": faces.filter(pc.is_valid(faces["embedding"]))}
    new = (
        "WHERE face_id IN (SELECT face_id FROM core.faces WHERE outcome <> 'removed')"
        " AND face_id NOT IN (SELECT face_id FROM core.detections WHERE generation = $1)"
    )
    with catalog.tables(**tables), catalog.at(other.number):
        if written is not None:
            number = add_embedding_shard(catalog, written, run_id, shard)
            insert = f"INSERT INTO core.embeddings SELECT $1, face_id, $2 FROM embedded {new}"
            catalog.execute(insert, [other.number, number])
        insert = f"INSERT INTO core.detections BY NAME SELECT $1 AS generation, * FROM measured {new}"
        catalog.execute(insert, [other.number])


def commit_measured(store: OpenStore, faces: pa.Table, counts: Mapping[str, Any]) -> None:
    """Commits faces (MEASURED_SCHEMA) of the generation being built, and adds `counts` (numbers, lists) to `built`.
    Writes the file, then one transaction. Raises ReindexMissing, StoreFull, StoreUnwritable."""
    other = store.submit(_other)
    file = f"embeddings/g{other.number:04d}/again-{pc.min(faces['face_id'])}-{str(uuid.uuid4())[:8]}.parquet"
    try:
        store.submit(_commit_measured, write_measured(store.folder, other, faces, file), counts)
    finally:
        store.submit(cleanup.discard_unnamed, file)
    rewrite_stale_shards(store.at(other.number))  # drops faces removed meanwhile


def _commit_measured(catalog: Catalog, measured: MeasuredFaces, counts: Mapping[str, Any]) -> None:
    number = _other(catalog).number
    with catalog.transaction("reindex_shard"):
        insert_measured(catalog, measured)
        known = _built(catalog, number)
        added = json.dumps(known | {name: known.get(name, type(count)()) + count for name, count in counts.items()})
        catalog.execute("UPDATE core.generations SET built = ? WHERE generation = ?", [added, number])


def _built(catalog: Catalog, generation: int) -> dict[str, Any]:
    """The counts of a generation's builds."""
    text = catalog.one("SELECT built FROM core.generations WHERE generation = ?", [generation])
    return dict(json.loads(text)) if text else {}


def complete(catalog: Catalog) -> bool:
    """Adds the other generation's missing references. False, with no effect, if it lacks faces. Raises
    ReindexMissing."""
    other = _other(catalog)
    if count_left(catalog):
        return False
    with _changing(catalog, "reindex_complete"):
        _insert_references(catalog, other, "SELECT person_id FROM core.persons")
        sql = "UPDATE core.generations SET completed_at = coalesce(completed_at, ?) WHERE generation = ?"
        catalog.execute(sql, [utc_now(), other.number])
    return True


def keep_references(
    catalog: Catalog, directory: int, person_ids: Iterable[str], face_ids: Sequence[int], media_ids: Sequence[int]
) -> None:
    """Inside a change's transaction, as its last step: updates the other generation's references, if it is complete.

    `person_ids`: persons with a new or removed current reference, or new faces; `face_ids`, `media_ids`: faces that may
    no longer belong to the person whose reference they are there.
    """
    other = catalog.other
    if other is None or not other.complete:
        return
    lost = (face_ids or media_ids) and catalog.column(
        "SELECT r.person_id::VARCHAR FROM core.reference_faces r LEFT JOIN core.faces f ON f.face_id = r.face_id"
        " WHERE r.generation = ? AND f.person_id IS DISTINCT FROM r.person_id"
        " AND (r.face_id IN (SELECT unnest(?::BIGINT[])) OR f.media_id IN (SELECT unnest(?::BIGINT[])))",
        [other.number, list(face_ids), list(media_ids)],
    )
    if lost:
        with catalog.at(other.number):
            pictures = bury_references(catalog, directory, lost, erase=False)
        remove_unshown_images(catalog, [guid for guid, _ in pictures])
    wanted = sorted({*person_ids, *lost})
    if wanted:
        these = "SELECT person_id FROM core.persons WHERE person_id IN (SELECT unnest($4::UUID[]))"
        _insert_references(catalog, other, these, wanted)


def _insert_references(catalog: Catalog, other: Generation, person_ids: str, *values: object) -> None:
    """Adds references of persons (an SQL query, `values` from $4) without one in the other generation. If that is
    complete, only new numbers are kept: an older one may be within the range of a segment without it."""
    kept = "coalesce(commit_number = $3, false)" if other.complete else "seq IS NOT NULL"
    drawn = "row_number() OVER (ORDER BY person_id) - 1 + (SELECT next_person_seq FROM core.store)"
    numbers = catalog.column(
        f"INSERT INTO core.reference_faces BY NAME SELECT * REPLACE (if({kept}, seq, {drawn}) AS seq,"
        f" coalesce(commit_number, $3) AS commit_number) FROM ({_references(person_ids)}) RETURNING seq",
        [other.number, catalog.generation, catalog.commit_number, *values],
    )
    catalog.raise_counters({"next_person_seq": max(numbers, default=0) + 1})


def newer(catalog: Catalog, *, back: bool = False) -> int:
    """The newer generation's number, with `back` the older one's. Raises ReindexMissing if it lacks faces, or a run is
    unfinished: its shards may be extracted by one model only."""
    other, root = _other(catalog, older=back), catalog.folder.root
    if not other.complete or count_left(catalog):
        detail = f"that by {other.identity.weights} lacks faces: `facepipe reindex` adds them"
        raise ReindexMissing(path=root, detail=detail)
    for (source,) in catalog.rows("SELECT source FROM core.runs WHERE state <> 'finished' LIMIT 1"):
        detail = f"a run of {source} is not finished: run it again first, or `facepipe abandon` it"
        raise ReindexMissing(path=root, detail=detail)
    return other.number


def switch(catalog: Catalog, *, back: bool = False) -> None:
    """Makes the newer generation current, with `back` the older one. Raises ReindexMissing."""
    with switching(catalog, back=back):
        pass


@contextmanager
def switching(catalog: Catalog, *, back: bool = False) -> Iterator[None]:
    """`switch` as a transaction; the block's changes belong to it. Raises ReindexMissing as `newer`."""
    number = newer(catalog, back=back)
    with _changing(catalog, "reindex_switch"):
        catalog.execute("UPDATE core.store SET current_generation = ?", [number])
        with catalog.at(number):
            yield


def drop(catalog: Catalog, *, older: bool = False) -> None:
    """Deletes the newer generation, with `older` the formerly current one, and pictures and posted faces only it
    showed; files are deleted later. Raises ReindexMissing."""
    number = _other(catalog, older=older).number
    with _changing(catalog, "reindex_drop"):
        guids = catalog.column(
            "SELECT image_guid FROM core.reference_faces WHERE generation = ? AND image_guid IS NOT NULL", [number]
        )
        for table in _OF_GENERATION:
            if table in _WITH_FILES:
                files = catalog.column(f"SELECT file FROM core.{table} WHERE generation = ?", [number])
                cleanup.delete_later(catalog, files)
            catalog.execute(f"DELETE FROM core.{table} WHERE generation = ?", [number])
        remove_unshown_images(catalog, guids)
        remove_unshown_posts(catalog)


@contextmanager
def _changing(catalog: Catalog, name: str) -> Iterator[None]:
    """A transaction that changes the generations. They are always read again: an error may follow the commit."""
    try:
        with catalog.transaction(name):
            yield
    finally:
        read_generations(catalog)


def _number(catalog: Catalog) -> int:
    """Of the other generation, or the next one."""
    if catalog.other is not None:
        return catalog.other.number
    corrected = catalog.one("SELECT coalesce(max(generation), 0) FROM core.corrections")  # their scores belong to it
    return max(catalog.generation, int(corrected)) + 1


def _other(catalog: Catalog, *, older: bool | None = None) -> Generation:
    """The other generation; must be older or newer than the current one if `older` is given. Raises ReindexMissing."""
    other, root = catalog.other, catalog.folder.root
    if other is None:
        raise ReindexMissing(path=root, detail="there is none")
    if older is not None and older != (other.number < catalog.generation):
        when, use = ("after", "swap` and `reindex abandon") if older else ("before", "rollback` and `reindex gc")
        detail = f"it comes {when} the one in use; `reindex {use}` are for it"
        raise ReindexMissing(path=root, detail=detail)
    return other


def summary(catalog: Catalog) -> dict[str, Any]:
    """The other generation's faces, vectors, missing faces, bytes (of both), and build counts. If complete, also
    references with another face than in the current generation, and persons with a reference only in the current one.
    Raises ReindexMissing."""
    other = _other(catalog)
    ((faces, vectors, stand_ins, lost),) = catalog.rows(
        """
        SELECT (SELECT count(*) FROM core.faces WHERE outcome <> 'removed'),
            (SELECT count(*) FROM core.embeddings WHERE generation = $1)
                + (SELECT count(*) FROM core.pending_embeddings WHERE generation = $1),
            (SELECT count(*) FROM core.reference_faces a JOIN core.reference_faces b USING (person_id)
                WHERE a.generation = $1 AND b.generation = $2 AND a.face_id <> b.face_id),
            (SELECT count(*) FROM core.reference_faces WHERE generation = $2 AND person_id NOT IN
                (SELECT person_id FROM core.reference_faces WHERE generation = $1))
        """,
        [other.number, catalog.generation],
    )
    sizes = [_disk_bytes(catalog, number) for number in (catalog.generation, other.number)]
    counted = {"faces": faces, "vectors": vectors, "left": count_left(catalog), "bytes": sizes}
    if other.complete:
        counted |= {"stand_ins": stand_ins, "without_reference": lost}
    return counted | _built(catalog, other.number)


def _disk_bytes(catalog: Catalog, generation: int) -> int:
    """Of a generation's files."""
    files = catalog.column("SELECT file FROM core.segments WHERE generation = ?", [generation])
    sql = "SELECT coalesce(sum(bytes), 0)::BIGINT FROM core.embedding_shards WHERE generation = ?"
    paths = map(catalog.folder.path, files)
    return int(catalog.one(sql, [generation])) + sum(path.stat().st_size for path in paths if path.exists())
