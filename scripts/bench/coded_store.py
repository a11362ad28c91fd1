"""Stores full of coded faces, made by the calls that a run makes."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import accumulate, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from coded_faces import SIDE, CodedExtractor, Shown, coded_identity, photo, vector

from pipeline.config import load_settings
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, fixed_lists, shard_schema
from pipeline.matching.calibration import Calibration
from pipeline.people.rules import row_of
from pipeline.store.catalog.accounts import hash_password
from pipeline.store.files.objects import object_file
from pipeline.store.local import LocalStore
from pipeline.store.records import (
    FACES_SCHEMA,
    FILES_SCHEMA,
    MEDIA_SCHEMA,
    RUN,
    Change,
    PersonRecord,
    Rows,
    RunRow,
    ShardCommit,
    embeddings_schema,
)
from pipeline.types import OK, utc_now

Thresholds: TypeAlias = tuple[tuple[float, float], ...]  # (false match rate, T) each

USER, PASSWORD = "ann", "correct horse"
AUTHORIZATION = f"{USER}:{PASSWORD}"
_PLANTED_SHARD_ROWS = 5_000


def make_store(path: Path, size: int, thresholds: Thresholds = ()) -> LocalStore:
    """An empty store for embeddings of `size` numbers, with one account."""
    identity = replace(coded_identity(size), calibration=Calibration(thresholds=thresholds).as_dict())
    client = LocalStore.open_or_create(path, lambda: identity, command="make")
    client.create_account(USER, hash_password(PASSWORD))
    return client


@contextmanager
def copied(template: Path | None, prepare: Callable[[Path, Path], None]) -> Iterator[tuple[Path, Path]]:
    """A copy of the store that `prepare(store, photos)` made, and its folder of photos. They are made once, if a folder
    is named as their `template`; then the copy lies beside it, on the same disk."""
    if template is not None:
        template.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=template and template.absolute().parent) as folder:
        kept = (template or Path(folder) / "template").absolute()
        if not kept.exists():
            prepare(kept / "store", kept / "photos")
        store = Path(shutil.copytree(kept / "store", Path(folder) / "store"))
        os.sync()  # the copy's pages must not be written while times are taken
        yield store, kept / "photos"


def person_id(person: int) -> str:
    """Of a planted person."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"person-{person}"))


def plant(client: LocalStore, count: int, directory: str = "main", *, one: bool = False) -> None:
    """The persons 0 .. count - 1 as identities, of one photo each; or `one` of so many photos. Without their
    pictures, which take a file each: `check` misses those. The folders where the pictures would lie are there."""
    rows = _PLANTED_SHARD_ROWS
    run = _plan(client, "planted", [("", "", 0)] * count, rows, directory)
    for shard in range(-(-count // rows)):
        persons = range(shard * rows, min(count, (shard + 1) * rows))
        prepared = client.prepare_shard(_planted(client, run, shard, persons, directory, one=one))
        client.commit_prepared(prepared)
        client.finish_shard()
    client.finish_run(run.run_id, {})


class _WithoutPictures(ShardCommit):
    pictures = ()  # type: ignore[assignment]


def _planted(
    client: LocalStore, run: RunRow, shard: int, persons: Sequence[int], directory: str, *, one: bool
) -> ShardCommit:
    size = client.identity.embedding_size
    first_media_id, first_face_id = client.reserve_ids(len(persons), len(persons))
    guids = [str(uuid.uuid5(uuid.NAMESPACE_OID, f"image-{person}")) for person in persons]
    for guid in guids:
        client.folder.path(object_file(guid)).parent.mkdir(parents=True, exist_ok=True)
    faces = CodedExtractor(size).table([Shown(persons[0])]).drop_columns(["embedding", "crop"]).to_pylist()[0]
    media, found, made, references, pictures = [], [], {}, {}, {}
    for place, person in enumerate(persons):
        media_id, face_id = first_media_id + place, first_face_id + place
        known = {"media_id": media_id, "row": person, "path": f"{person}.png", "directory": directory, "status": OK}
        hashes = {name: _sha256(f"{name} {person}") for name in ("sha256", "pixel_hash")}
        media.append({**dict.fromkeys(MEDIA_SCHEMA.names), **known, **hashes, "width": SIDE, "height": SIDE})
        owner = {"person_id": person_id(0 if one else person), "face_id": face_id}
        outcome = "matched" if one and person else "inserted"
        found.append({**owner, **faces, "media_id": media_id, "ordinal": 0, "outcome": outcome})
        if outcome == "matched":
            continue
        known_as = str(owner["person_id"])
        made[known_as] = row_of(PersonRecord.new(known_as, utc_now(), image_guid=guids[place]))
        references[known_as], pictures[known_as] = face_id, (guids[place], b"", "")
    vectors = np.stack([vector(Shown(person), size) for person in persons])
    change = Change(
        run.account_id,
        directory,
        origin=RUN,
        before=Rows(dict.fromkeys(made)),
        after=Rows(made, references=references),
        pictures=pictures,
    )
    ids = pa.array([row["face_id"] for row in found], pa.int64())
    return _WithoutPictures(
        run_id=run.run_id,
        shard=shard,
        account_id=run.account_id,
        media=pa.Table.from_pylist(media, MEDIA_SCHEMA),
        faces=pa.Table.from_pylist(found, FACES_SCHEMA),
        embeddings=pa.table([ids, fixed_lists(vectors)], schema=embeddings_schema(size)),
        files=pa.Table.from_pylist([{"media_id": row["media_id"]} for row in media], FILES_SCHEMA),
        changes=[change] if made else [],
    )


def extracted_run(
    client: LocalStore,
    source: str,
    faces: Sequence[Shown],
    extractor: CodedExtractor,
    rows: int,
    directory: str = "main",
    folder: Path | None = None,
    threshold: float | None = None,
) -> RunRow:
    """`extracted_photos` of one photo per face."""
    tables = (extractor.table([face]) for face in faces)
    return extracted_photos(client, source, [*map(photo, faces)], tables, rows, directory, folder, threshold)


def extracted_photos(
    client: LocalStore,
    source: str,
    photos: Sequence[bytes],
    tables: Iterable[pa.Table],
    rows: int,
    directory: str = "main",
    folder: Path | None = None,
    threshold: float | None = None,
) -> RunRow:
    """A planned run of these photos with their `tables` of faces, in shards of `rows`, whose extraction is done: each
    shard is ready to be enrolled, by `threshold` or else the default. With `folder` the photos lie there."""
    decode, pixel_hash = Decoder(load_settings(environ={}).decode), PixelHash(client.identity.pixel_key)
    tables = iter(tables)
    paths = [f"{k}.png" if folder is None else str(folder / f"{k}.png") for k in range(len(photos))]
    files = [(p, hashlib.sha256(data).hexdigest(), len(data)) for p, data in zip(paths, photos, strict=True)]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in zip(paths, photos, strict=True):
            Path(path).write_bytes(data)
    run = _plan(client, source, files, rows, directory, threshold)
    schema = shard_schema(client.identity.embedding_size)
    for shard, start in enumerate(range(0, len(photos), rows)):
        images = [decode(data) for data in photos[start : start + rows]]
        found = [*islice(tables, rows)]
        columns = {
            "row": pa.array(range(start, start + len(images)), pa.int64()),
            "status": pa.array([OK] * len(images)),
            "reason": pa.array([None] * len(images), pa.string()),
            "sha256": pa.array([sha256 for _, sha256, _ in files[start : start + rows]]),
            "pixel_hash": pa.array([pixel_hash(image.pixels) for image in images]),
            "width": pa.array([image.width for image in images], pa.int32()),
            "height": pa.array([image.height for image in images], pa.int32()),
            "format": pa.array([image.format for image in images]),
            "taken_at": pa.array([image.taken_at for image in images], pa.timestamp("us")),
            "faces": pa.ListArray.from_arrays(
                pa.array([*accumulate(map(len, found), initial=0)], pa.int32()),
                pa.concat_tables(found).to_struct_array().combine_chunks(),
            ),
        }
        client.write_run_shard(run.run_id, shard, pa.table(columns).cast(schema), {})
    return client.run_row(run.run_id)


def _plan(
    client: LocalStore,
    source: str,
    files: Sequence[tuple[str, str, int]],
    rows: int,
    directory: str,
    threshold: float | None = None,
) -> RunRow:
    """A planned run of `files` (path, SHA-256, bytes)."""
    flags = {} if threshold is None else {"match.threshold": threshold}
    settings = {"shard_rows": rows, "match": asdict(load_settings(environ={}, flags=flags).match)}
    run = client.begin_run(source, "folder", client.account_id(USER), directory, settings)
    plain = {**dict.fromkeys(MANIFEST_SCHEMA.names), "directory": directory, "action": EXTRACT}
    table = pa.Table.from_pylist(
        [
            {**plain, "row": row, "path": path, "file": path.encode(), "sha256": sha256, "bytes": size}
            for row, (path, sha256, size) in enumerate(files)
        ],
        MANIFEST_SCHEMA,
    )
    client.write_manifest(run.run_id, table.to_batches(), MANIFEST_SCHEMA, shard_rows=rows)
    client.plan_run(run.run_id, len(files), -(-len(files) // rows))
    return client.run_row(run.run_id)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
