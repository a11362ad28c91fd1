"""`check` finds every kind of damage; `repair` repairs derived files, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.errors import StoreDamaged, StoreFull
from pipeline.store import cleanup
from pipeline.store.catalog.opening import INTENTS_NAME
from pipeline.store.catalog.references import SegmentSecrets, open_segments, segment_rows
from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.files import commit_count
from pipeline.store.files.durable import Folder
from pipeline.store.files.objects import object_file
from pipeline.store.files.segment_header import PAGE_BYTES, Header
from pipeline.store.files.segments import SegmentRows, codes_of
from pipeline.store.files.segments import write as write_segment
from pipeline.store.files.shards import embedding_rows, parquet_bytes
from pipeline.store.local import LocalStore
from pipeline.store.records import CheckReport, Problem, RunRow
from tests.store.store_samples import (
    Asked,
    commit,
    commit_shard,
    execute,
    flip,
    insertion,
    no_room,
    play,
    replacement,
    segments_of,
    shard_commit,
    small_segments,
    tombstones_of,
    unit_vectors,
)
from tests.stored import stored_people

SECTIONS = ("codes", "scales", "errors", "vectors", "seq", "order", "person_ids", "boxes")
SECTIONS += ("person_keys", "person_rows", "image_high", "image_low", "image_rows")


def check(store: Path) -> CheckReport:
    with LocalStore.open(store, command="test") as client:
        return check_store(client)


def kinds(report: CheckReport) -> set[str]:
    return {problem.kind for problem in report.problems}


def first(store: Path, pattern: str) -> Path:
    return sorted(path for path in store.glob(pattern) if path.is_file())[0]


def test_a_whole_store_is_clean_and_counted(store: Path) -> None:
    seen: list[str] = []
    with LocalStore.open(store, command="test") as client:
        report = check_store(client, seen.append)
    assert report.problems == []
    assert (report.counts["media"], report.counts["faces"], report.counts["persons"]) == (8, 16, 8)
    assert sum(name.startswith("embeddings/") for name in seen) == 2
    assert sum(name.startswith("objects/") for name in seen) == 8
    assert sum(name.startswith("references/") for name in seen) == 1


@pytest.mark.parametrize("position", [0, 3, 100, -1, -100])
@pytest.mark.parametrize(
    ("pattern", "kind"),
    [("embeddings/*/*", "embedding"), ("objects/*/*/*", "object"), ("references/*/*", "segment")],
)
def test_a_flipped_bit_is_found(store: Path, pattern: str, kind: str, position: int) -> None:
    file = first(store, pattern)
    flip(file, position % file.stat().st_size)
    report = check(store)
    assert kinds(report) == {kind}
    assert report.problems[0].where == file.relative_to(store).as_posix()
    assert report.problems[0].cure


@pytest.mark.slow
@pytest.mark.parametrize("position", [0, 19, 20, 28, 29, 30, 4095, 4096, 4100, 4125, 8191])
def test_a_flipped_bit_in_the_count_of_commits_is_found_and_repaired(store: Path, position: int) -> None:
    flip(store / "COMMITS", position)
    assert kinds(check(store)) == {"commits"}
    with LocalStore.open(store, command="test") as client:
        assert client.check(repair=True).problems == []
        last = client.read("SELECT number FROM core.commits")["number"].to_pylist()
        assert [commit_count.recorded(client.folder)] == last
        commit(client, insertion(1, "main", 100, "A"))
        commit(client, insertion(1, "main", 101, "B"))
        assert client.check().problems == []


@pytest.mark.parametrize("damage", ["truncated", "deleted", "emptied"])
@pytest.mark.parametrize(("pattern", "kind"), [("embeddings/*/*", "embedding"), ("objects/*/*/*", "object")])
def test_a_lost_file_is_found(store: Path, pattern: str, kind: str, damage: str) -> None:
    file = first(store, pattern)
    if damage == "deleted":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-7] if damage == "truncated" else b"")
    assert kinds(check(store)) == {kind}


@pytest.mark.slow
def test_flipped_bits_in_the_catalog_are_found_at_opening_or_by_check(store: Path) -> None:
    """One bit in every other block; only those in free blocks may pass. A refused opening must free the store."""
    file = store / "catalog-0001.duckdb"
    with duckdb.connect(str(file), read_only=True) as connection:
        (size, blocks, free) = connection.execute(
            "SELECT block_size, total_blocks, free_blocks FROM pragma_database_size()"
        ).fetchall()[0]
    whole = file.read_bytes()
    passed = 0
    for position in [100, *range(3 * 4096 + size // 2, blocks * size, 2 * size)]:
        flip(file, position)
        with contextlib.suppress(StoreDamaged):
            passed += kinds(check(store)) != {"catalog"}
        file.write_bytes(whole)
        (store / "catalog-0001.duckdb.wal").unlink(missing_ok=True)
    assert passed <= free
    assert blocks > 10
    assert check(store).problems == []


# Damage to the catalog, and the problem that `check` reports.
BROKEN = {
    "INSERT INTO core.erasures BY NAME SELECT created_at AS deleted_at, 'x' AS receipt FROM core.store": (
        "an erasure with a receipt that is no SHA-256"
    ),
    "UPDATE core.store SET receipt_key = '00'": "a key of receipts that is no 32 bytes",
    "DELETE FROM core.media WHERE media_id = 1": "faces.media_id refers to a missing media.media_id",
    "DELETE FROM core.directories": "persons.directory_id refers to a missing directories.directory_id",
    "DELETE FROM core.accounts": "media.account_id refers to a missing accounts.account_id",
    "DELETE FROM core.runs": "shards.run_id refers to a missing runs.run_id",
    "DELETE FROM core.persons WHERE seq = 1": "reference_faces.person_id refers to a missing persons.person_id",
    "DELETE FROM core.objects": "reference_faces.image_guid refers to a missing objects.image_guid",
    "DELETE FROM core.faces WHERE face_id = 1": "reference_faces.face_id refers to a missing faces.face_id",
    "DELETE FROM core.detections WHERE face_id = 2": "a face without detection",
    "DELETE FROM core.embeddings WHERE face_id = 1": "a reference without embedding",
    "DELETE FROM core.embedding_shards": "embeddings.embedding_shard_id refers to a missing",
    "DELETE FROM core.reference_faces WHERE seq = 1": "a person with embeddings and without reference",
    "UPDATE core.faces SET person_id = (SELECT person_id FROM core.persons WHERE seq = 2) WHERE face_id = 1": (
        "a reference that is another person's face"
    ),
    "UPDATE core.reference_faces SET image_guid = NULL WHERE seq = 1": "an image that no reference shows",
    "UPDATE core.media SET status = 'replaced' WHERE media_id = 1": "a photo that left of which something is stored",
    "DELETE FROM core.shards WHERE shard = 0": "media of a shard that is not committed",
    "INSERT INTO core.media SELECT * FROM core.media WHERE media_id = 1": "two rows of media with one (media_id)",
    "INSERT INTO core.faces SELECT * FROM core.faces WHERE face_id = 1": "two rows of faces with one (face_id)",
    "INSERT INTO core.reference_faces SELECT * REPLACE (99 AS seq, 3 AS face_id) FROM core.reference_faces"
    " WHERE seq = 1": "two rows of reference_faces with one (generation, person_id)",
    "INSERT INTO core.embeddings SELECT * FROM core.embeddings WHERE face_id = 1": "two embeddings of one face",
    "INSERT INTO core.embeddings VALUES (1, 2, 1)": "a rejected face with a person or an embedding",
    "UPDATE core.faces SET person_id = NULL WHERE face_id = 1": "an inserted or matched face without person",
    "UPDATE core.detections SET landmarks = NULL WHERE face_id = 1": "a face without landmarks that was not drawn",
    "UPDATE core.persons SET seq = 2 WHERE seq = 1": "two rows of persons with one (seq)",
    "UPDATE core.media SET duplicate_of = 77 WHERE media_id = 1": "media.duplicate_of refers to a missing",
    "UPDATE core.store SET next_media_id = 8": "next_media_id is not above media.media_id",
    "UPDATE core.store SET next_face_id = 1": "next_face_id is not above faces.face_id",
    "UPDATE core.store SET next_person_seq = 8": "next_person_seq is not above persons.seq",
    "UPDATE core.shards SET faces = 1 WHERE shard = 0": "a shard with another number of faces than recorded",
    "UPDATE core.shards SET media = 1 WHERE shard = 0": "a shard with another number of media than recorded",
    "UPDATE core.persons SET parent_id = person_id WHERE seq = 1": "a cycle of parents",
    "UPDATE core.persons SET parent_id = uuid() WHERE seq = 1": "persons.parent_id refers to a missing",
    "UPDATE core.runs SET shards = 3": "a finished run with missing shards",
    "CREATE OR REPLACE VIEW main.persons AS SELECT person_id::VARCHAR AS person_id, person_id::VARCHAR AS"
    " root_person_id FROM core.persons WHERE seq > 1": "has 7 rows instead of 8",
    "INSERT INTO core.pending_deletes VALUES ('../x', now()::TIMESTAMP)": "is not the path of a file of the store",
}


# The same for a store of three posted persons A, B and C, the last not folded, and one removed from a run.
BROKEN_POSTED = {
    "UPDATE core.media SET path = 'x' WHERE run_id IS NULL": "a posted image with a run's shard, row or path",
    "UPDATE core.media SET shard = 0 WHERE run_id IS NULL": "a posted image with a run's shard, row or path",
    "DELETE FROM core.faces WHERE face_id IN (17, 18)": "a posted image without a face",
    "DELETE FROM core.reference_faces WHERE face_id = 17": "a face of a posted image that is not a reference",
    "UPDATE core.faces SET outcome = 'removed' WHERE face_id = 17": "a removed face of a posted image",
    "INSERT INTO core.detections (generation, face_id) SELECT 1, face_id FROM core.faces WHERE outcome = 'removed'": (
        "a removed face with a person, a detection"
    ),
    "INSERT INTO core.embeddings SELECT 1, face_id, 1 FROM core.faces WHERE outcome = 'removed'": (
        "a removed face with a person, a detection"
    ),
    "INSERT INTO core.facts (correction_id, kind, face_id) VALUES (0, 'nobody', 99)": "facts.face_id refers to a",
    "INSERT INTO core.facts VALUES (0, 'is', 17, uuid(), NULL, 'user', NULL)": "facts.person_id refers to a missing",
    "INSERT INTO core.facts VALUES (0, 'is', 17, NULL, NULL, 'user', NULL)": "a fact that says nothing",
    "INSERT INTO core.facts SELECT 0, 'not_same', NULL, person_id, person_id, 'user', NULL FROM core.persons": (
        "a fact that says nothing"
    ),
    "INSERT INTO core.facts SELECT 0, unnest(['nobody', 'is']), 17, person_id, NULL, 'user', NULL FROM core.persons"
    " WHERE name = 'A'": "two facts that contradict each other",
    "INSERT INTO core.facts (correction_id, kind) VALUES (0, 'twice')": "a fact that says nothing",
    "INSERT INTO core.facts (correction_id, kind, face_id) VALUES (0, 'twice', 17), (0, 'twice', 17)": (
        "two facts that contradict each other"
    ),
    "INSERT INTO core.corrections VALUES (9, 1, 1, 'x', 'api', NULL, '{}', '{}', [], NULL, NULL, NULL,"
    " 1, 1, NULL, NULL)": ("next_correction_id is not above corrections.correction_id"),
    "INSERT INTO core.corrections VALUES (0, 1, 7, 'name', 'api', NULL, '{', '{}', [], NULL, NULL, NULL,"
    " 1, 1, NULL, NULL)": ("corrections.directory_id refers to a missing directories.directory_id"),
    "INSERT INTO core.corrections VALUES (0, 1, 1, 'name', 'api', NULL, '{', '{}', [], NULL, NULL, NULL,"
    " 1, 1, NULL, NULL)": ("are not JSON"),
    "INSERT INTO core.corrections VALUES (0, 1, 1, 'undo', 'user', NULL, '{}', '{}', [], NULL, NULL, 7,"
    " 1, 1, NULL, NULL)": ("corrections.undoes refers to a missing corrections.correction_id"),
    "INSERT INTO core.forgotten VALUES (7, 'path', '00', NULL)": "forgotten.account_id refers to a missing",
    "INSERT INTO core.files (account_id, media_id) VALUES (1, 99)": "files.media_id refers to a missing media.media_id",
    "DELETE FROM core.pending_embeddings": "a reference without embedding",
    "INSERT INTO core.pending_embeddings SELECT * FROM core.pending_embeddings": "two embeddings of one face",
    "UPDATE core.pending_embeddings SET face_id = 99": "pending_embeddings.face_id refers to a missing faces.face_id",
    "UPDATE core.pending_embeddings SET embedding = '1234'::BLOB": "a pending embedding of another size",
    "UPDATE core.pending_embeddings SET embedding = repeat('AAAA', 8)::BLOB": "its pending embedding's norm is not 1",
    "UPDATE core.embedding_shards SET shard = 5 WHERE run_id IS NULL": "a run or a shard number without the other",
    'UPDATE core.embedding_shards SET "rows" = 1 WHERE run_id IS NULL': "an embedding shard with fewer rows than faces",
    "DELETE FROM core.embeddings WHERE face_id = 17": "its face ids are not those of the catalog",
    "INSERT INTO core.objects SELECT * REPLACE ('abcd0000' AS image_guid) FROM core.objects LIMIT 1": (
        "an image that no reference shows"
    ),
    "INSERT INTO core.directories BY NAME SELECT 9 AS directory_id, 1 AS account_id, 'a' AS name": (
        "a directory without identity"
    ),
    "UPDATE core.persons SET tags = 'x' WHERE name = 'A'": "tags that are not a list",
    "UPDATE core.persons SET metadata = '[1]' WHERE name = 'A'": "metadata that is not an object",
    "UPDATE core.persons SET metadata = '{' WHERE name = 'A'": "metadata that is not an object",
    "INSERT INTO core.replaced_images VALUES ('abcd0000', uuid(), now()::TIMESTAMP)": (
        "replaced_images.person_id refers to a missing persons.person_id"
    ),
    "UPDATE core.store SET next_person_seq = 11": "next_person_seq is not above reference_faces.seq",
    "UPDATE core.reference_faces SET seq = 3 WHERE face_id = 17": "two rows of reference_faces with one",
}


@pytest.fixture(scope="module")
def posted_store(finished_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(shutil.copytree(finished_store, tmp_path_factory.mktemp("posted") / "store"))
    with LocalStore.open(path, command="test") as client:
        commit(client, insertion(1, "posted", 100, "A", "B"))
        client.fold()
        commit(client, insertion(1, "posted", 102, "C"))
        commit(client, Asked(1, "main", deleted=[stored_people(client, 1, "main").persons[0].person_id]))
        assert check_store(client).problems == []
    return path


def assert_found(client: LocalStore, sql: str, detail: str) -> None:
    execute(client, sql)
    problems = check_store(client).problems
    assert any(detail in problem.detail for problem in problems), problems


@pytest.mark.parametrize(("sql", "detail"), BROKEN.items(), ids=lambda text: text[:40])
def test_a_broken_rule_of_the_catalog_is_found(filled: LocalStore, sql: str, detail: str) -> None:
    assert_found(filled, sql, detail)


@pytest.mark.slow
@pytest.mark.parametrize(("sql", "detail"), BROKEN_POSTED.items(), ids=lambda text: text[:50])
def test_a_broken_rule_of_posts_is_found(posted_store: Path, tmp_path: Path, sql: str, detail: str) -> None:
    with LocalStore.open(shutil.copytree(posted_store, tmp_path / "store"), command="test") as client:
        assert_found(client, sql, detail)


def test_references_in_no_segment_and_removed_ones_in_one_are_not_a_problem(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main").persons
    commit(filled, insertion(1, "main", 100, "A"))
    commit(filled, Asked(1, "main", deleted=[before[3].person_id]))
    commit(filled, replacement(1, "main", 101, before[4]))
    assert segments_of(filled) == [(8, 1, 8)]
    assert tombstones_of(filled) == [(4, True), (5, False)]
    assert check_store(filled).problems == []


def test_a_merge_chain_is_not_a_cycle_and_has_one_root(filled: LocalStore) -> None:
    set_parent = "UPDATE core.persons SET parent_id = (SELECT person_id FROM core.persons WHERE seq = ?) WHERE seq = ?"
    for child, parent in ((1, 2), (2, 3), (4, 3)):
        execute(filled, set_parent, [parent, child])
    roots = filled.read(
        "SELECT c.seq, r.seq AS root FROM main.persons v JOIN core.persons c ON c.person_id::VARCHAR = v.person_id"
        " JOIN core.persons r ON r.person_id::VARCHAR = v.root_person_id ORDER BY c.seq"
    )
    assert roots["root"].to_pylist() == [3, 3, 3, 3, 5, 6, 7, 8]
    assert check_store(filled).problems == []
    execute(filled, set_parent, [1, 3])
    cycle = [problem for problem in check_store(filled).problems if problem.detail == "a cycle of parents"]
    assert len(cycle) == 4


@pytest.mark.parametrize(
    ("ids", "scale", "metadata", "detail"),
    [
        ([1, 3, 5, 8], 1.0, {}, "face ids are not those of the catalog"),
        ([1, 3, 5, 7], 1.1, {}, "norm is not 1"),
        ([1, 3, 5, 7], float("nan"), {}, "norm is not 1"),
        ([1, 3, 5, 7], 1.0, {"weights_sha256": "f" * 64}, "its metadata have weights_sha256"),
    ],
)
def test_an_embedding_shard_with_other_metadata_or_contents_is_found(
    client: LocalStore, run: RunRow, ids: list[int], scale: float, metadata: dict[str, str], detail: str
) -> None:
    """The hash is right and the contents are wrong, as a faulty writer would leave them."""
    commit_shard(client, shard_commit(client, run, 0))
    file = first(client.path, "embeddings/*/*")
    written = json.loads(pq.read_schema(file).metadata[b"facepipe"])
    data = parquet_bytes(embedding_rows(ids, unit_vectors(4, 0) * np.float32(scale)), {**written, **metadata})
    file.write_bytes(data)
    values = [len(data), hashlib.sha256(data).hexdigest()]
    execute(client, "UPDATE core.embedding_shards SET bytes = ?, sha256 = ?", values)
    assert any(detail in p.detail for p in check_store(client).problems if p.kind == "embedding")


def test_an_object_that_is_not_an_image_is_found(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    execute(client, "UPDATE core.objects SET media_type = 'image/png'")
    assert {p.detail for p in check_store(client).problems} == {"is not image/png"}


def test_orphans_are_found_and_removed_and_nothing_else(store: Path) -> None:
    run = first(store, "runs/*/run.json").parent
    left = [
        "objects/ab/cd/abcd0000-0000-0000-0000-000000000000",
        "objects/ab/cd/abcd.tmp",
        "embeddings/g0001/nobody-00000.parquet",
        "references/g0001/1-1-ab12cd34.segment",
        "runs/nobody/manifest.parquet",
        f"runs/{run.name}/shards/00009.parquet",
        "catalog-0002.duckdb",
    ]
    (store / "notes.txt").write_text("the user's own")
    before = {path for path in store.rglob("*") if path.is_file()}
    with LocalStore.open(store, command="test") as client:
        for name in left:
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(b"x")
        report = check_store(client)
        assert sorted(problem.where for problem in report.problems) == sorted(left)
        assert kinds(report) == {"orphan"}
        assert len(repair_store(client, report)) == len(left)
        assert check_store(client).problems == []
    assert before <= {path for path in store.rglob("*") if path.is_file()}
    assert not any((store / name).exists() for name in left)


def test_files_of_an_unfinished_run_are_not_orphans(client: LocalStore, run: RunRow) -> None:
    client.write_run_shard(run.run_id, 0, embedding_rows([1], unit_vectors(1, 0)), {})
    client.folder.make("embeddings/g0001")
    client.folder.write(f"embeddings/g0001/{run.run_id}-00000.parquet", b"x", "embeddings")
    client.folder.make("objects/ab/cd")
    client.folder.write("objects/ab/cd/abcd0000", b"x", "object")
    assert check_store(client).problems == []
    execute(client, "UPDATE core.runs SET state = 'finished', shards = 0")
    assert len(check_store(client).problems) == 3


def test_half_written_files_are_removed_at_opening(store: Path) -> None:
    run = first(store, "runs/*/run.json").parent
    for name in ("CURRENT.tmp", "references/g0001/1-9-ab12cd34.segment.tmp", f"runs/{run.name}/report.html.tmp"):
        (store / name).write_bytes(b"x")
    assert check(store).problems == []
    assert not list(store.rglob("*.tmp"))


# Index segments


def section_of(file: Path, name: str) -> int:
    """Where a section begins."""
    return Header.read(file.read_bytes()[:PAGE_BYTES]).sections[name].offset


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a folder": _folder,
    "a bit of the header": lambda file: flip(file, 200),
    **{
        f"a bit of the {name}": partial(lambda name, file: flip(file, section_of(file, name)), name)
        for name in SECTIONS
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_segment_is_found_and_written_again(store: Path, damage: Callable[[Path], object]) -> None:
    file = first(store, "references/*/*")
    content = file.read_bytes()
    damage(file)
    with small_segments(), LocalStore.open(store, command="test") as client:
        report = client.check()
        assert [(problem.kind, problem.where) for problem in report.problems] == [
            ("segment", file.relative_to(store).as_posix())
        ]
        assert "check --repair" in report.problems[0].cure
        repaired = client.check(repair=True)
        assert [problem.kind for problem in repaired.repaired] == ["segment"]
        assert repaired.problems == []
        assert client.check().problems == []
        assert segments_of(client) == [(8, 1, 8)]
        assert first(store, "references/*/*").read_bytes() == content
        assert len(stored_people(client, 1, "main")) == 8


def test_without_enough_references_a_repair_goes_on_without_a_segment(store: Path) -> None:
    flip(first(store, "references/*/*"), 5)
    with LocalStore.open(store, command="test") as client:
        assert client.check(repair=True).problems == []
        assert segments_of(client) == []
        assert client.check().problems == []
        assert len(stored_people(client, 1, "main")) == 8


def written_as(change: Callable[[SegmentRows], SegmentRows]) -> Callable[[LocalStore], None]:
    """Another segment at the same place, with valid checksums."""

    def write(client: LocalStore) -> None:
        secrets = client.submit(SegmentSecrets.of)
        (row,) = client.submit(segment_rows, 1)
        (segment,) = client.submit(open_segments, 1, [row], np.empty(0, np.int64))
        write_segment(client.folder, row.file, segment.key, change(segment.live()), secrets.images)

    return write


def swapped(name: str) -> Callable[[LocalStore], None]:
    """The first two rows of a column are swapped."""

    def change(rows: SegmentRows) -> SegmentRows:
        columns = getattr(rows, name).copy()
        columns[[0, 1]] = columns[[1, 0]]
        return replace(rows, **{name: columns})

    return written_as(change)


def _scaled(rows: SegmentRows) -> SegmentRows:
    return replace(rows, codes=rows.codes._replace(errors=rows.codes.errors * np.float32(1.001)))


def _of_a_directory(client: LocalStore) -> None:
    """The segment of another directory takes the place."""
    with small_segments():
        commit(client, insertion(1, "other", 100, "A", "B"))
        client.fold()
    one, other = (client.path / row.file for number in (1, 2) for row in client.submit(segment_rows, number))
    one.write_bytes(other.read_bytes())


# A segment that is not what the catalog and the embeddings say, and what `check` says of it.
WRONG: dict[str, tuple[Callable[[LocalStore], None], str]] = {
    "vectors": (swapped("vectors"), "its vectors differ from the embeddings"),
    "persons": (swapped("person_ids"), "its person_ids, person_keys, person_rows differ|its person_ids, person_rows"),
    "order": (swapped("order"), "its order differ"),
    "boxes": (swapped("boxes"), "its boxes differ"),
    "images": (
        written_as(lambda rows: replace(rows, images=rows.images._replace(rows=rows.images.rows[::-1]))),
        "image",
    ),
    "codes": (
        written_as(lambda rows: replace(rows, codes=codes_of(rows.vectors * np.float32(0.9)))),
        "its codes|scales",
    ),
    "errors": (written_as(_scaled), "its errors differ"),
    "numbers": (written_as(lambda rows: replace(rows, seq=rows.seq + 1)), "are not those that the catalog says"),
    "of another directory": (_of_a_directory, "it is of SegmentKey"),
    "a row more in the catalog": (
        lambda client: execute(client, 'UPDATE core.segments SET "rows" = 9'),
        "it has 8 references, not 9",
    ),
    "another range": (
        lambda client: execute(client, "UPDATE core.segments SET last_seq = 7"),
        "are not those that the catalog says",
    ),
    "a tombstone of a reference": (
        lambda client: execute(client, "INSERT INTO core.tombstones VALUES (1, 1, 3, NULL, NULL, false)"),
        "its references are not those of the directory",
    ),
    "a lost tombstone": (
        lambda client: execute(client, "DELETE FROM core.reference_faces WHERE seq = 3"),
        "its references are not those of the directory",
    ),
    "of numbers that another has": (
        lambda client: execute(client, "INSERT INTO core.segments SELECT * FROM core.segments"),
        "it has references of another one",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("change", "detail"), WRONG.values(), ids=WRONG)
def test_a_segment_with_other_contents_is_found_and_written_again(
    filled: LocalStore, change: Callable[[LocalStore], None], detail: str
) -> None:
    """Its checksums are right."""
    expected = np.array(stored_people(filled, 1, "main").vectors)
    change(filled)
    details = [problem.detail for problem in check_store(filled).problems if problem.kind == "segment"]
    assert len(details) == 1
    assert re.search(detail, details[0]), details
    with small_segments():
        repaired = filled.check(repair=True)
    assert [problem.kind for problem in repaired.repaired] == ["segment"]
    left = {problem.kind for problem in repaired.problems}
    assert left == ({"reference"} if detail == WRONG["a lost tombstone"][1] and left else set())
    assert segments_of(filled)[0][:2] == ((7, 1) if left else (8, 1))
    if not left:
        np.testing.assert_array_equal(stored_people(filled, 1, "main").vectors, expected)


def test_an_unreadable_embedding_is_not_told_as_a_damaged_segment(store: Path) -> None:
    first(store, "embeddings/*/*").unlink()
    assert kinds(check(store)) == {"embedding"}


def test_what_cannot_be_repaired_stays_as_it_is(store: Path) -> None:
    flip(first(store, "objects/*/*/*"), 5)
    first(store, "embeddings/*/*").unlink()
    with LocalStore.open(store, command="test") as client:
        report = check_store(client)
        assert kinds(report) == {"object", "embedding"}
        assert repair_store(client, report) == []
        assert check_store(client).problems == report.problems


def test_a_store_goes_on_after_repair(store: Path) -> None:
    (store / "objects/ab").mkdir(exist_ok=True)
    (store / "objects/ab/x").write_bytes(b"x")
    with LocalStore.open(store, command="test") as client:
        repair_store(client, check_store(client))
    play(store)
    with duckdb.connect(str(store / "catalog-0001.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM main.persons").fetchall() == [(8,)]


# In a store that others write to meanwhile


def test_other_threads_are_answered_while_a_check_reads(store: Path) -> None:
    done = threading.Event()

    with LocalStore.open(store, command="test") as client:

        def ask() -> None:
            client.accounts()
            done.set()

        asking = threading.Thread(target=ask)

        def tell(what: str) -> None:
            if what.startswith("objects") and not asking.ident:
                asking.start()
            if what == "orphans":  # a check in one piece would deadlock here
                assert done.wait(60)

        assert check_store(client, tell).problems == []
        asking.join()


def test_an_object_that_is_about_to_be_committed_is_not_an_orphan(store: Path) -> None:
    coming, left = "ab" * 16, "cd" * 16
    with LocalStore.open(store, command="test") as client:
        cleanup.declare_images(client.folder, [coming])
        for guid in (coming, left):
            path = store / object_file(guid)
            path.parent.mkdir(parents=True)
            path.write_bytes(b"x")
        (store / (object_file(coming) + ".tmp")).write_bytes(b"x")
        report = check_store(client)
        assert [problem.where for problem in report.problems] == [object_file(left)]
        repair_store(client, report)
        assert [(store / object_file(guid)).exists() for guid in (coming, left)] == [True, False]


def test_a_file_that_is_being_deleted_is_not_a_problem(filled: LocalStore) -> None:
    """A check may run between a shard's commit and the deletion of its files."""

    def tell(what: str) -> None:
        if what == "orphans":
            filled.submit(lambda catalog: cleanup.delete_later(catalog, ["runs/x/shards/00000.parquet"]))

    assert check_store(filled, tell).problems == []
    assert [problem.kind for problem in check_store(filled).problems] == ["pending_delete"]


def test_an_intent_that_was_cut_off_leaves_the_others_readable(filled: LocalStore) -> None:
    cleanup.declare_images(filled.folder, ["ab" * 16])
    with (filled.path / INTENTS_NAME).open("a") as file:  # as a full disk leaves it
        file.write("ef" * 3)
    cleanup.declare_images(filled.folder, ["cd" * 16, "aa" * 16])
    assert cleanup.declared_images(filled.folder) == {"ab" * 16, "cd" * 16, "aa" * 16}


def test_an_intent_that_does_not_fit_on_the_disk_is_an_error(store: Path) -> None:
    with no_room(), pytest.raises(StoreFull):
        cleanup.declare_images(Folder(store), ["ab" * 16])


def test_an_orphan_that_was_committed_meanwhile_is_not_removed(filled: LocalStore) -> None:
    needed = sorted(path for path in (filled.path / "objects").rglob("*") if path.is_file())[0]
    old = Problem("orphan", needed.relative_to(filled.path).as_posix(), "it was one when it was looked for", "")
    repair_store(filled, CheckReport([old], {}))
    assert needed.exists()
    assert check_store(filled).problems == []
