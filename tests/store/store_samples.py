"""A small store with random vectors, made by the calls that a run makes.

Also a script: `python -m tests.store.store_samples DIR` plays the scenario, `--kill some|ends|every` kills it at its
fault points.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import os
import re
import resource
import shutil
import signal
import tarfile
import traceback
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from pipeline.people.rules import difference, row_of
from pipeline.store import local, segments
from pipeline.store.catalog import pages, runs
from pipeline.store.catalog import persons as person_rows
from pipeline.store.catalog.directories import directory_ids
from pipeline.store.catalog.forgotten import FACE, PHOTOS
from pipeline.store.checks.check import check_store
from pipeline.store.export import export_store
from pipeline.store.files import durable, faults
from pipeline.store.files.objects import Row
from pipeline.store.files.shards import embedding_rows
from pipeline.store.local import LocalStore
from pipeline.store.records import (
    COUNTERS,
    FACES_SCHEMA,
    FILES_SCHEMA,
    MEDIA_SCHEMA,
    RUN,
    Change,
    Committed,
    FaceVector,
    Fact,
    PersonRecord,
    PostedFace,
    PostedImage,
    PostedPhoto,
    Rows,
    RunRow,
    ScanNotes,
    ShardCommit,
    StoreIdentity,
)
from pipeline.store.schema import TABLES
from pipeline.types import QUALITIES
from tests.stored import stored_people

SIZE = 8
SHARD_ROWS = 4
SHARDS = 2
SOURCE = "/photos"
MANIFEST = pa.schema([("row", pa.int64()), ("path", pa.string())])
JPEG = b"\xff\xd8\xff\xe0"
FILE_STATE = {"mtime_ns": 10**18, "ctime_ns": 10**18 + 1, "inode": 2**63 - 1}
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901)


def identity() -> StoreIdentity:
    return StoreIdentity(
        embedder="random",
        weights="none",
        weights_sha256="0" * 64,
        embedding_size=SIZE,
        preprocessing={"size": 160},
        calibration={"g": 1.0},
        mode="exact",
        output_settings={"detect": {"min_face_px": 20}},
        output_hash="1" * 64,
        pixel_key="2" * 32,
    )


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def unit_vectors(count: int, seed: int, size: int = SIZE) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def face_fields() -> dict[str, object]:
    """The detection of a face."""
    box = {"x1": 10.0, "y1": 20.0, "x2": 60.0, "y2": 80.0}
    return {**box, "landmarks": [float(n) for n in range(10)], "confidence": 0.99, **dict.fromkeys(QUALITIES, 0.75)}


def shard_commit(
    client: LocalStore, run: RunRow, shard: int, *, rows: int = SHARD_ROWS, directory: str = "main"
) -> ShardCommit:
    """`rows` media of two faces each: the first becomes a person, the second is rejected; all from the counters.

    From the second shard on the first person of the first shard matches again.
    """
    first_media_id, first_face_id = client.reserve_ids(rows, 2 * rows)
    media, faces, persons, chosen, pictures, vectors = [], [], {}, {}, {}, {}
    for row, vector in enumerate(unit_vectors(rows, seed=shard)):
        media_id = first_media_id + row
        path = f"{SOURCE}/{shard}-{row}.jpg"
        face_id = first_face_id + 2 * row
        guid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"object-{face_id}"))
        person = str(uuid.uuid5(uuid.NAMESPACE_OID, f"person-{face_id}"))
        data = JPEG + path.encode()
        media.append(
            {
                "media_id": media_id,
                "row": shard * rows + row,
                "path": path,
                "directory": directory,
                "sha256": sha(path),
                "pixel_hash": sha("pixels" + path),
                "bytes": len(data),
                "width": 250,
                "height": 200,
                "format": "jpeg",
                "status": "ok",
                "extra": '{"note":"x"}',
            }
        )
        face = {"media_id": media_id, **face_fields(), "x1": 10.0 + row}
        inserted = {"person_id": person, "outcome": "inserted", "similarity_score": 1.5}
        rejected = {"outcome": "rejected", "rejection_reasons": "center-pose,contrast"}
        faces.append(face | {"face_id": face_id, "ordinal": 0} | inserted)
        faces.append(face | {"face_id": face_id + 1, "ordinal": 1} | rejected)
        persons[person] = row_of(PersonRecord.new(person, NOW, name=f"Person {row}", image_guid=guid))
        chosen[person] = face_id
        pictures[person] = guid, data, "image/jpeg"
        vectors[face_id] = FaceVector(vector, (), (10, 20, 60, 80))
    earlier = stored_people(client, run.account_id, directory).persons[:1]
    change = Change(
        run.account_id,
        directory,
        origin=RUN,
        before=Rows(dict.fromkeys(persons)),
        after=Rows(persons, references=chosen),
        seen={record.person_id: 1 for record in earlier},
        seqs={record.person_id: record.seq for record in earlier},
        pictures=pictures,
        vectors=vectors,
    )
    return ShardCommit(
        run_id=run.run_id,
        shard=shard,
        account_id=run.account_id,
        media=pa.Table.from_pylist(media, MEDIA_SCHEMA),
        faces=pa.Table.from_pylist(faces, FACES_SCHEMA),
        embeddings=embedding_rows(list(vectors), unit_vectors(rows, seed=shard)),
        files=pa.Table.from_pylist([{"media_id": row["media_id"], **FILE_STATE} for row in media], FILES_SCHEMA),
        changes=[change],
        finished_run_shards=[shard],
    )


def manifest_batches(sizes: Sequence[int] = (3, 3, 2)) -> Iterator[pa.RecordBatch]:
    """The rows of a manifest, so many in each batch."""
    numbers = itertools.count()
    for size in sizes:
        rows = [{"row": n, "path": f"{SOURCE}/{n}.jpg"} for n in itertools.islice(numbers, size)]
        yield pa.RecordBatch.from_pylist(rows, MANIFEST)


def person(name: str, **changed: object) -> PersonRecord:
    """A person to insert, whose id follows from the name."""
    person_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"posted-{name}"))
    return PersonRecord.new(person_id, NOW, **{"name": name, "external_id": f"x-{name}", **changed})


def picture(seed: int) -> bytes:
    """The image of a reference."""
    return JPEG + b"picture %d" % seed * 50


@dataclasses.dataclass(frozen=True)
class Reference:
    """A face of a posted image that becomes the reference of a person."""

    person_id: str
    ordinal: int
    outcome: str
    embedding: np.ndarray
    image_guid: str
    image: bytes


def reference(record: PersonRecord, seed: int, *, ordinal: int = 0, outcome: str = "inserted") -> Reference:
    """A face for the person, whose vector and image follow from the seed."""
    return Reference(
        person_id=record.person_id,
        ordinal=ordinal,
        outcome=outcome,
        embedding=unit_vectors(1, seed)[0],
        image_guid=str(uuid.uuid5(uuid.NAMESPACE_OID, f"posted-image-{seed}")),
        image=picture(seed),
    )


def posted(seed: int) -> PostedImage:
    return PostedImage(sha(f"posted {seed}"), sha(f"posted pixels {seed}"), 1000, 250, 200, "jpeg", "Posted", None)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a request changes in a directory."""

    account_id: int
    directory: str
    inserted: Sequence[PersonRecord] = ()  # each with its reference
    updated: Sequence[PersonRecord] = ()  # as they will be
    deleted: Sequence[str] = ()
    forget: bool = False
    references: Sequence[Reference] = ()
    image: PostedImage | None = None

    def change(self, client: LocalStore) -> Change:
        known = persons_of(client, self.account_id, self.directory)
        media_id, face_id = client.reserve_ids(1, len(self.references))
        faces = dict(enumerate(self.references, face_id))
        hashes = (self.image.sha256, self.image.pixel_hash) if self.image else ()
        columns = {}
        for record in self.updated:
            changed = difference(known.get(record.person_id, person("nobody")), record)
            columns[record.person_id] = {**changed, "modified_at": record.modified_at}
        old = {p: {name: getattr(known[p], name) for name in new} for p, new in columns.items() if p in known}
        new = [record.person_id for record in self.inserted]
        kind = "insert" if all(set(each) <= {*COUNTERS, "modified_at"} for each in columns.values()) else "update"
        return Change(
            self.account_id,
            self.directory,
            ("forget" if self.forget else "delete") if self.deleted else kind,
            before=Rows({**{person_id: {} for person_id in columns}, **old, **dict.fromkeys(new)}),
            after=Rows(
                {**columns, **{record.person_id: row_of(record) for record in self.inserted}},
                references={face.person_id: number for number, face in faces.items()},
            ),
            seqs={record.person_id: record.seq for record in self.updated},
            photo=PostedPhoto(
                media_id,
                self.image,
                [
                    PostedFace(number, face.person_id, face.ordinal, face.outcome, 1.5, face_fields())
                    for number, face in faces.items()
                ],
            )
            if self.image is not None
            else None,
            replaced=[face.person_id for face in self.references if face.person_id not in new],
            pictures={face.person_id: (face.image_guid, face.image, "image/jpeg") for face in self.references},
            vectors={n: FaceVector(face.embedding, hashes, (10, 20, 60, 80)) for n, face in faces.items()},
            deleted=self.deleted,
            remembered=(PHOTOS | ({FACE} if self.forget else set())) if self.deleted else frozenset(),
        )


def persons_of(client: LocalStore, account: int, directory: str) -> dict[str, PersonRecord]:
    """The persons of a directory. Reads no vector."""
    found = client.ask(person_rows.persons_after, account, directory, 0, 1_000_000).records()
    return {record.person_id: record for record in found}


def counters(client: LocalStore) -> tuple[int, ...]:
    """The next media id, face id and number of a person."""
    sql = "SELECT next_media_id, next_face_id, next_person_seq FROM core.store"
    return client.submit(lambda catalog: catalog.rows(sql)[0])


def commit(client: LocalStore, asked: Asked, ahead: dict[str, Row] | None = None) -> list[PersonRecord]:
    """Commits it; the inserted and the updated persons as they are afterwards."""
    client.commit(asked.change(client), ahead)
    known = persons_of(client, asked.account_id, asked.directory)
    return [known[record.person_id] for record in (*asked.inserted, *asked.updated)]


def insertion(account: int, directory: str, seed: int, *names: str) -> Asked:
    """A post whose faces become new persons of these names."""
    people = [person(name) for name in names]
    references = [reference(one, seed + place, ordinal=place) for place, one in enumerate(people)]
    return Asked(account, directory, inserted=people, references=references, image=posted(seed))


def replacement(account: int, directory: str, seed: int, record: PersonRecord) -> Asked:
    """A post whose face replaces the person's reference."""
    changed = dataclasses.replace(record, occurrence=record.occurrence + 1)
    references = [reference(record, seed, outcome="matched")]
    return Asked(account, directory, updated=[changed], references=references, image=posted(seed))


def post(client: LocalStore, account: int) -> None:
    """The requests of the scenario, on a store with a finished run; skips the steps that are done."""
    found = {record.name: record for record in stored_people(client, account, "posted").persons}
    if "A" not in found:
        commit(client, insertion(account, "posted", 100, "A", "B"))
        found = {record.name: record for record in stored_people(client, account, "posted").persons}
    if found["A"].occurrence == 1:
        client.fold()
        commit(client, replacement(account, "posted", 200, found["A"]))
    if "B" in found:
        commit(client, Asked(account, "posted", deleted=[found["B"].person_id]))
    of_run = [record.person_id for record in stored_people(client, account, "main").persons if record.seq == 2]
    if of_run:
        commit(client, Asked(account, "main", deleted=of_run, forget=True))
    correct(client, account)
    client.fold()


def correct(client: LocalStore, account: int) -> None:
    """Splits the face of the person of number 3 off, who keeps the name; and undoes a renaming. Skips what is done."""
    stored = stored_people(client, account, "main")
    old, new = next(p for p in (*stored.persons, *stored.faceless) if p.seq == 3), person("Split")
    if old not in stored.faceless:
        (face,) = client.stored_faces(account, "main", [], [old.person_id])
        was = {name: getattr(face, name) for name in ("person_id", "outcome", "similarity_score", "rejection_reasons")}
        now = was | {"person_id": new.person_id, "outcome": "matched", "similarity_score": None}
        is_new = Fact("is", face.face_id, new.person_id)
        client.commit(
            Change(
                account_id=account,
                directory="main",
                kind="split",
                origin="user",
                before=Rows(
                    {new.person_id: None}, {face.face_id: was}, {new.person_id: None, old.person_id: face.face_id}
                ),
                after=Rows(
                    {new.person_id: row_of(new)},
                    {face.face_id: now},
                    {new.person_id: face.face_id, old.person_id: None},
                    [is_new],
                ),
                seqs={old.person_id: old.seq},
                pictures={new.person_id: (str(uuid.uuid5(uuid.NAMESPACE_OID, "split")), picture(300), "image/jpeg")},
                vectors=client.face_vectors([face.face_id]),
            )
        )
    before, after = Rows({old.person_id: {"name": old.name}}), Rows({old.person_id: {"name": "Another"}})
    renaming = Change(account, "main", "name", "user", before, after, seqs={old.person_id: old.seq})
    last = client.correction_to_undo(account, "main", None, "user")
    if client.read("SELECT count(*) AS n FROM core.corrections WHERE kind IN ('split', 'name')")["n"][0].as_py() == 1:
        client.commit(renaming)
        last = client.correction_to_undo(account, "main", None, "user")
    if last is not None and last.kind == "name":
        rows = {"before": last.after, "after": last.before}
        client.commit(dataclasses.replace(renaming, kind="undo", undoes=last.correction_id, **rows))


def play(path: Path, *, posts: bool = False) -> None:
    """Makes the store, or goes on with one that was left at any point; then exports it."""
    with small_segments(), LocalStore.open_or_create(path, identity, command="play") as client:
        if "ann" not in client.accounts():
            client.create_account("ann", None)
        account = client.account_id("ann")
        last = client.ask(runs.last_run, SOURCE, account)
        if last is None or last.state != "finished":
            finish(client, last or client.begin_run(SOURCE, "folder", account, "main", {"threshold": 0.54}))
        if posts:
            post(client, account)
        forget_segments(client)
        client.fold()  # writes one for each directory
        target = export_of(path)
        for file in target.iterdir() if target.exists() else ():
            file.unlink()
        export_store(client, target)


def commit_shard(client: LocalStore, shard: ShardCommit) -> list[Committed]:
    """As a command commits a shard that nobody else works beside."""
    with client.embeddings_lock:
        prepared = client.prepare_shard(shard)
        committed = client.commit_prepared(prepared)
        client.finish_shard()
        return committed


def finish(client: LocalStore, run: RunRow) -> None:
    if run.state == "scanning":
        rows = client.write_manifest(run.run_id, manifest_batches(), MANIFEST, shard_rows=SHARD_ROWS)
        client.plan_run(run.run_id, rows, SHARDS)
    for shard in range(SHARDS):
        if shard in client.committed_shards(run.run_id):
            continue
        if shard not in client.extracted_shards(run.run_id):
            table = client.read_manifest(run, shard)
            client.write_run_shard(run.run_id, shard, table, {"shard": shard})
        commit_shard(client, shard_commit(client, run, shard))
    client.note_scan(SOURCE, run.account_id, ScanNotes([(1, 999, 10**18 + 2, 10**18 + 3, 7)]))
    client.note_labels([(1, None, None)])
    client.write_report(run.run_id, "run.json", b"{}")
    client.ask(pages.note_page, f"runs/{run.run_id}/report.html", [], [1])
    client.finish_run(run.run_id, {"images": SHARDS * SHARD_ROWS})


def of_version(version: int, folder: Path) -> Path:
    """A store with tables of an older version: an account, and a run of two photos with a person each; from
    version 2 on also A and B, who were posted. A has tags and a flag, and from version 3 on a first name and metadata.
    B is merged with A, and had the reference replaced. Versions 5 and 6 are another
    store: it has corrections, one undone; in version 6 an undo and a redo are corrections. Versions 8, 10 and 11 are
    what `finish` and `post` make; the directory `main` of 10 has a threshold and a method."""
    with tarfile.open(Path(__file__).parent / "data" / f"store-v{version}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder / f"version-{version}")
    store = folder / f"version-{version}" / "store"
    store.chmod(0o700)  # which the archive does not keep
    return store


def execute(client: LocalStore, sql: str, params: Sequence[object] = ()) -> None:
    """Changes the catalog behind the store's back."""
    client.submit(lambda catalog: catalog.execute(sql, params))


@contextmanager
def small_segments(least: int = 2, most: int = SHARD_ROWS * SHARDS) -> Iterator[None]:
    """For the block so few references are worth an index segment, which has at most so many."""
    with patch.multiple(segments, FOLD_ROWS=least, MAX_ROWS=most), patch.multiple(local, MAX_ROWS=least):
        yield


def forget_segments(client: LocalStore) -> None:
    """From now on no reference is in an index segment: readers take their vectors from the embeddings."""
    for directory in client.submit(directory_ids):
        client.submit(segments.forget, directory)
    client.unlink_needless()


def segments_of(client: LocalStore, directory: int = 1) -> list[tuple[int, int, int]]:
    """The number of rows, and the first and the last number, of each segment. Their files are those on disk."""
    sql = 'SELECT file, "rows" AS n, first_seq, last_seq FROM core.segments WHERE directory_id = ? ORDER BY first_seq'
    on_disk = {file.relative_to(client.path).as_posix() for file in client.path.glob("references/*/*")}
    assert on_disk == set(client.read("SELECT file FROM core.segments")["file"].to_pylist())
    return [(row["n"], row["first_seq"], row["last_seq"]) for row in client.read(sql, [directory]).to_pylist()]


def tombstones_of(client: LocalStore, directory: int = 1) -> list[tuple[int, bool]]:
    """The number of each removed reference that is in a segment, and whether it is to be erased at once."""
    sql = 'SELECT seq, "erase" FROM core.tombstones WHERE directory_id = ? ORDER BY 1'
    return [(row["seq"], row["erase"]) for row in client.read(sql, [directory]).to_pylist()]


def flip(file: Path, position: int, bit: int = 0) -> None:
    """Changes one bit of a file."""
    data = bytearray(file.read_bytes())
    data[position] ^= 1 << bit
    file.write_bytes(data)


def rows_of(client: LocalStore) -> dict[str, int]:
    """How many rows each table has."""
    return {table: client.read(f"SELECT count(*) AS n FROM core.{table}")["n"][0].as_py() for table in TABLES}


@contextmanager
def at_fault_points(hook: Callable[[str], None]) -> Iterator[None]:
    """For the block `hook` is called at every fault point."""
    faults.install(hook)
    try:
        yield
    finally:
        faults.install(None)


def remove_faces(client: LocalStore) -> None:
    """Of everybody, while the photos keep their rows: as those that show others, or as earlier versions deleted a
    directory."""
    for table in ("detections", "embeddings", "reference_faces", "persons", "directories"):
        execute(client, f"DELETE FROM core.{table}")
    execute(client, "UPDATE core.faces SET outcome = 'removed', person_id = NULL")


def copied_at_points(store: Path, folder: Path, work: Callable[[], object], *, every: bool = False) -> dict[str, Path]:
    """Does `work`, and copies the store, or the folder around it, at each fault point: what a SIGKILL there leaves. The
    copies in `folder` are named by number and point. `every`: also at later calls of a point."""
    copies, met = dict[str, Path](), set[str]()
    one_writer = patch.object(durable, "_FEW", SHARD_ROWS)  # files stand still while they are copied

    def copy(point: str) -> None:
        if every or point not in met:
            met.add(point)
            copies[f"{len(copies)}-{point}"] = shutil.copytree(store, folder / f"{len(copies)}-{point}")

    with one_writer, at_fault_points(copy):
        work()
    return copies


@contextmanager
def failing_at(point: str, error: Exception) -> Iterator[None]:
    """For the block `error` is raised at each call of a fault point."""

    def fail(name: str) -> None:
        if name == point:
            raise error

    with at_fault_points(fail):
        yield


@contextmanager
def no_room() -> Iterator[None]:
    """For the block no file takes a byte, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Differ between two undisturbed runs.
_VOLATILE = ("run_id", "fact_key", "file", "created_at", "added_at", "modified_at", "last_occurrence_at", "replaced_at")
_VOLATILE += (
    "deleted_at",
    "erased_at",
    "receipt_key",
    "seen_at",
    "started_at",
    "finished_at",
    "committed_at",
    "made_at",
    "undone_at",
    "stated_at",
)
_VOLATILE += (
    "erase_since",
    "forgotten_at",
    "begun_at",
    "completed_at",
    "after",
    "digest",
    "commit_number",
)  # `after` has times, and a digest is under the key


def contents(path: Path) -> dict[str, list[str]]:
    """Every table of a store, in order, without run ids and times; and the files besides the catalog."""
    found: dict[str, list[str]] = {}
    with LocalStore.open(path, command="contents") as client:
        report = check_store(client)
        found["problems"] = [str(problem) for problem in report.problems]
        for table, columns in TABLES.items():
            kept = ", ".join(f'"{name}"' for name in columns if name not in _VOLATILE)
            rows = client.read(f"SELECT {kept} FROM core.{table}").to_pylist()
            found[table] = sorted(str(row) for row in rows)
    run = found_run(path)
    files = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    names = [file.as_posix() for file in files if file.parts[0] != "quarantine"]
    names = [re.sub(r"[0-9a-f]{8}\.segment$", "DRAWN.segment", name) for name in names]
    found["names"] = sorted(name.replace(run, "RUN") for name in names)
    return found


def found_run(path: Path) -> str:
    (run,) = (path / "runs").iterdir()
    return run.name


def in_child(work: Callable[[], None]) -> int:
    """Does `work` in a forked child; returns its wait status. For a process without threads of its own."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  the child must not return into the parent's code
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def play_in_child(path: Path, at_point: Callable[[str, int], None]) -> tuple[int, list[str]]:
    """Plays in a child, which calls `at_point` with the name and the number of each fault point. Returns the child's
    wait status and the points that it reached."""
    log = path.with_suffix(".points")

    def work() -> None:
        points = log.open("w", buffering=1)
        numbers = itertools.count()

        def hook(name: str) -> None:
            points.write(name + "\n")
            at_point(name, next(numbers))

        faults.install(hook)
        play(path, posts=True)

    return in_child(work), log.read_text().split()


def kill_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def export_of(path: Path) -> Path:
    """The folder that the scenario exports the store to."""
    return path.parent / (path.name + "-export")


def assert_goes_on(path: Path, expected: dict[str, list[str]]) -> None:
    """The scenario, continued in this store, ends as the undisturbed one."""
    play(path, posts=True)
    found = contents(path)
    for key, value in expected.items():
        assert found[key] == value, f"{path}: {key}: {found[key]} != {value}"


def kill_at_points(root: Path, calls: str) -> None:
    """The scenario killed at its fault points, each time continued and compared with the undisturbed one.

    `calls` of each point: the first and the last (ends), or every one.
    """
    whole = root / "whole"
    status, points = play_in_child(whole, lambda *_: None)
    assert status == 0, f"wait status {status}"
    ends = {points.index(name) for name in points} | {len(points) - 1 - points[::-1].index(name) for name in points}
    chosen = sorted(ends) if calls == "ends" else range(len(points))
    expected = contents(whole)
    assert not expected["problems"], expected["problems"]
    for number in chosen:
        path = root / f"{number}-{points[number]}"
        status, _ = play_in_child(path, lambda _, reached, number=number: reached == number and kill_now())
        assert status == signal.SIGKILL, f"{path.name}: wait status {status}"
        assert in_child(lambda path=path: assert_goes_on(path, expected)) == 0, path.name
        shutil.rmtree(path)
    print(len(chosen), "kills of", len(points), "points")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--kill", choices=["ends", "every"])
    arguments = parser.parse_args()
    if arguments.kill:
        kill_at_points(arguments.path, arguments.kill)
    else:
        play(arguments.path)


if __name__ == "__main__":
    main()
