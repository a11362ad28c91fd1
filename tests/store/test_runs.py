"""Runs, their manifests and shards, and what a later run reuses."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import StoreDamaged, StoreError, StoreFull
from pipeline.store.catalog import pages, runs
from pipeline.store.checks.check import check_store
from pipeline.store.files import run_sums
from pipeline.store.local import LocalStore
from pipeline.store.records import KNOWN_FILES_SCHEMA, MEDIA_SCHEMA, RunRow, ScanNotes
from tests.store.store_samples import (
    FILE_STATE,
    JPEG,
    MANIFEST,
    NOW,
    SHARD_ROWS,
    SOURCE,
    commit,
    commit_shard,
    execute,
    failing_at,
    flip,
    forget_segments,
    identity,
    insertion,
    manifest_batches,
    sha,
    shard_commit,
    unit_vectors,
)
from tests.stored import stored_people


def test_a_run_goes_from_scanning_to_finished(client: LocalStore) -> None:
    account = client.create_account("ann", None)
    assert client.unfinished_run(SOURCE, account) is None
    run = client.begin_run(SOURCE, "folder", account, "main", {"threshold": 0.54})
    assert (run.state, run.rows, run.shards, run.settings) == ("scanning", None, None, {"threshold": 0.54})
    with pytest.raises(StoreError, match="is scanning, not open"):
        client.finish_run(run.run_id, {})
    client.plan_run(run.run_id, 4, 1)
    with pytest.raises(StoreError, match="is open, not scanning"):
        client.plan_run(run.run_id, 4, 1)
    with pytest.raises(StoreError, match="0 of 1 shards are committed"):
        client.finish_run(run.run_id, {})
    assert client.unfinished_run(None, None) == client.run_row(run.run_id)
    commit_shard(client, shard_commit(client, run, 0))
    client.write_manifest(run.run_id, manifest_batches(), MANIFEST, shard_rows=SHARD_ROWS)
    client.finish_run(run.run_id, {"images": 4})
    assert not client.folder.path(f"runs/{run.run_id}/manifest.parquet").exists()  # it names persons
    assert client.unfinished_run(SOURCE, account) is None
    last = client.ask(runs.last_run, SOURCE, account)
    assert last is not None
    assert (last.run_id, last.state, last.summary) == (run.run_id, "finished", {"images": 4})
    assert last.finished_at is not None
    assert last.finished_at >= last.started_at
    with pytest.raises(StoreError, match="is finished"):
        commit_shard(client, shard_commit(client, run, 0))


def test_runs_are_told_apart_by_source_and_account(client: LocalStore) -> None:
    ann, bob = client.create_account("ann", None), client.create_account("bob", None)
    first = client.begin_run("/a", "folder", ann, "main", {})
    second = client.begin_run("/a", "folder", bob, "main", {})
    third = client.begin_run("/b", "manifest", ann, "main", {})

    def found(source: str | None, account: int | None) -> str | None:
        run = client.unfinished_run(source, account)
        return run and run.run_id

    assert found("/a", ann) == first.run_id
    assert found("/a", bob) == second.run_id
    assert found(None, ann) == third.run_id
    assert found("/a", None) == second.run_id
    assert found("/c", ann) is None


def planned(**settings: int) -> RunRow:
    """A run with a manifest; the catalog knows nothing of it."""
    return RunRow("run", SOURCE, "folder", 1, "main", settings, "open", None, None, NOW, None, None)


def manifest_shards(client: LocalStore, run: RunRow) -> list[list[int]]:
    """The rows of each shard of a manifest."""
    client.forget_manifest()
    shards = len(client.shard_starts(run)) - 1
    return [client.read_manifest(run, shard)["row"].to_pylist() for shard in range(shards)]


@given(
    batches=st.lists(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=9), max_size=8),
    shard_rows=st.integers(1, 7),
    shard_pixels=st.integers(1, 30),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shards_end_before_they_pass_a_limit(
    client: LocalStore, batches: list[list[int | None]], shard_rows: int, shard_pixels: int
) -> None:
    pixels = [count or 0 for batch in batches for count in batch]
    columns = pa.schema([("row", pa.int64()), ("pixels", pa.int64())])
    numbers = itertools.count()
    rows = ([{"row": next(numbers), "pixels": count} for count in batch] for batch in batches)
    tables = (pa.RecordBatch.from_pylist(batch, columns) for batch in rows)
    limits = {"shard_rows": shard_rows, "shard_pixels": shard_pixels}
    assert client.write_manifest("run", tables, columns, **limits) == len(pixels)
    shards = manifest_shards(client, planned(shard_rows=shard_rows))
    assert [row for shard in shards for row in shard] == list(range(len(pixels)))
    for shard, following in itertools.zip_longest(shards, shards[1:]):
        total = sum(pixels[row] for row in shard)
        assert len(shard) == 1 or (len(shard) <= shard_rows and total <= shard_pixels)
        if following:
            assert len(shard) == shard_rows or total + pixels[following[0]] > shard_pixels


@pytest.mark.parametrize("group_rows", [2, 3, 100])
def test_shards_of_an_earlier_version_have_as_many_rows_each(client: LocalStore, group_rows: int) -> None:
    client.write_manifest("run", manifest_batches([8]), MANIFEST)
    file = client.path / "runs/run/manifest.parquet"
    pq.write_table(pq.read_table(file).replace_schema_metadata(None), file, row_group_size=group_rows)
    (client.path / "runs/run/SHA256SUMS").unlink()
    assert manifest_shards(client, planned(shard_rows=3)) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert client.read_manifest_columns("run", ["path"]).num_rows == 8


def test_a_row_group_has_the_rows_of_a_shard_at_most(client: LocalStore) -> None:
    client.write_manifest("run", manifest_batches([3, 3, 3, 1]), MANIFEST, shard_rows=4)
    metadata = pq.read_metadata(client.path / "runs/run/manifest.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [4, 4, 2]


def test_a_manifest_whose_rows_fail_is_not_written(client: LocalStore) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from manifest_batches([2])
        raise LookupError("the source went away")

    with pytest.raises(LookupError):
        client.write_manifest("run", failing(), MANIFEST, shard_rows=2)
    assert list((client.path / "runs" / "run").iterdir()) == []


def test_run_shards(client: LocalStore) -> None:
    table = pa.table({"x": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), "y": [b"bytes"]})
    assert client.extracted_shards("run") == set()
    client.write_run_shard("run", 3, table, {"weights": "w"})
    assert client.extracted_shards("run") == {3}
    assert client.read_run_shard("run", 3).equals(table)
    file = client.path / "runs/run/shards/00003.parquet"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(StoreDamaged, match=r"00003\.parquet.*facepipe check --repair"):
        client.read_run_shard("run", 3)


def test_report_names_stay_inside_the_run(client: LocalStore) -> None:
    client.write_report("run", "run.json", b"{}")
    assert (client.path / "runs/run/run.json").read_bytes() == b"{}"
    for name in ("../x", "a/b", "x.tmp", ""):
        with pytest.raises(StoreError, match="cannot name a report"):
            client.write_report("run", name, b"")


def test_a_report_that_could_not_be_written_again_is_the_former_one(client: LocalStore, run: RunRow) -> None:
    client.write_report(run.run_id, "run.json", b"{}")
    full = StoreFull(path=client.path, detail="no space left")
    with failing_at("report.rename", full), pytest.raises(StoreFull):
        client.write_report(run.run_id, "run.json", b"[]")
    file = client.path / "runs" / run.run_id / "run.json"
    assert file.read_bytes() == b"{}"
    assert "run_file" not in [problem.kind for problem in check_store(client).problems]
    file.write_bytes(b"{ }")
    assert "run_file" in [problem.kind for problem in check_store(client).problems]


def test_known_files_are_of_one_source_and_account(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    known = client.known_files(SOURCE, run.account_id).read_all()
    assert known.schema.equals(KNOWN_FILES_SCHEMA)
    path = f"{SOURCE}/0-0.jpg"
    (row,) = [row for row in known.to_pylist() if row["path"] == path]
    assert (row.pop("seen_at") is None, row.pop("gone_at"), row.pop("label")) == (False, None, None)
    size = len(JPEG + path.encode())
    assert row == {"path": path, "directory": "main", "sha256": sha(path), "media_id": 1, "size": size, **FILE_STATE}
    assert len(known) == SHARD_ROWS
    assert client.known_files("/elsewhere", run.account_id).read_all().num_rows == 0
    assert client.known_files(SOURCE, run.account_id + 1).read_all().num_rows == 0


def test_rows_that_changed_or_repeat_are_not_known_and_unreadable_ones_are(client: LocalStore, run: RunRow) -> None:
    commit = shard_commit(client, run, 0)
    rows = commit.media.to_pylist()
    rows[0] |= {"sha256": None, "status": "changed"}
    rows[1] |= {"status": "duplicate_row"}
    rows[2] |= {"sha256": None, "status": "missing"}
    commit_shard(client, dataclasses.replace(commit, media=pa.Table.from_pylist(rows, MEDIA_SCHEMA)))
    known = client.known_files(SOURCE, run.account_id).read_all()
    assert known["path"].to_pylist() == [rows[2]["path"], rows[3]["path"]]
    assert known["sha256"].to_pylist() == [None, rows[3]["sha256"]]


def test_what_was_read_again_is_noted(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    before = client.known_files(SOURCE, run.account_id).read_all().to_pylist()
    client.note_scan(SOURCE, run.account_id, ScanNotes([(3, 33, 34, 35, 36), (2, 22, 23, 24, 25)]))
    after = client.known_files(SOURCE, run.account_id).read_all().to_pylist()
    assert [row for row in after if row["media_id"] in (1, 4)] == [before[0], before[3]]
    states = {row["media_id"]: [row[n] for n in ("size", "mtime_ns", "ctime_ns", "inode")] for row in after}
    assert (states[2], states[3]) == ([22, 23, 24, 25], [33, 34, 35, 36])
    assert all(new["seen_at"] > old["seen_at"] for old, new in zip(before[1:3], after[1:3], strict=True))


def test_a_move_changes_the_path_and_nothing_else(client: LocalStore, run: RunRow) -> None:
    """Also of rows that repeat the file, and only in this source, account and directory."""
    commit_shard(client, shard_commit(client, run, 0))
    commit_shard(client, shard_commit(client, run, 1))
    execute(client, f"UPDATE core.media SET path = '{SOURCE}/0-0.jpg', status = 'duplicate_row' WHERE media_id = 5")
    execute(client, f"UPDATE core.media SET path = '{SOURCE}/0-0.jpg', directory = 'other' WHERE media_id = 6")
    execute(client, f"UPDATE core.files SET path = '{SOURCE}/0-0.jpg', directory = 'other' WHERE media_id = 6")
    tables = {
        name: f"SELECT * REPLACE (NULL AS path) FROM core.{name} ORDER BY media_id" for name in ("media", "files")
    }
    before = {name: client.read(sql) for name, sql in tables.items()}
    moved = ScanNotes(moved=[(f"{SOURCE}/0-0.jpg", "main", "/x/ä.jpg"), (f"{SOURCE}/0-1.jpg", "main", "/x/b.jpg")])
    client.note_scan(SOURCE, run.account_id + 1, moved)
    client.note_scan("/elsewhere", run.account_id, moved)
    assert "/x/b.jpg" not in client.known_files(SOURCE, run.account_id).read_all()["path"].to_pylist()
    client.note_scan(SOURCE, run.account_id, moved)
    assert {name: client.read(sql) for name, sql in tables.items()} == before
    for table, others in (("media", {5: "/x/ä.jpg"}), ("files", {})):
        paths = dict(zip(*client.read(f"SELECT media_id, path FROM core.{table}").to_pydict().values(), strict=True))
        expected = {1: "/x/ä.jpg", 2: "/x/b.jpg", 3: f"{SOURCE}/0-2.jpg", 6: f"{SOURCE}/0-0.jpg", **others}
        assert {number: paths[number] for number in expected} == expected


def test_a_photo_is_gone_until_it_is_back(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    both = "core.media m JOIN core.files f USING (media_id)"
    sql = f"SELECT media_id, m.gone_at, f.gone_at AS known_at FROM {both} ORDER BY media_id"
    client.note_scan(SOURCE, run.account_id, ScanNotes(gone=[2, 3]))
    rows = [tuple(row.values()) for row in client.read(sql).to_pylist()]
    assert [media for media, *times in rows if None not in times] == [2, 3]
    assert [media for media, *times in rows if times == [None, None]] == [1, 4]
    client.note_scan(SOURCE, run.account_id, ScanNotes(back=[3]))
    assert [row["media_id"] for row in client.read(sql).to_pylist() if row["gone_at"]] == [2]
    assert client.known_files(SOURCE, run.account_id).read_all()["gone_at"].null_count == 3


def test_the_labels_of_a_row_are_kept_as_a_digest(client: LocalStore, run: RunRow) -> None:
    commit = shard_commit(client, run, 0)
    rows = commit.media.to_pylist()
    for row, (name, external_id) in zip(rows, [("Ä", None), ("Ä", None), (None, "Ä"), (None, None)], strict=True):
        row |= {"name": name, "external_id": external_id}
    commit_shard(client, dataclasses.replace(commit, media=pa.Table.from_pylist(rows, MEDIA_SCHEMA)))
    labels = client.read("SELECT label FROM core.files ORDER BY media_id")["label"].to_pylist()
    assert labels[0] == labels[1] != labels[2]
    assert [len(label or "") for label in labels] == [64, 64, 64, 0]
    key = bytes.fromhex(client.read("SELECT fact_key FROM core.store")["fact_key"][0].as_py())
    assert labels[0] == hmac.new(key, 'label:["Ä", null]'.encode(), hashlib.sha256).hexdigest()  # as FORMAT.md says it


def test_a_scan_that_was_cut_off_starts_again(client: LocalStore) -> None:
    account = client.create_account("bob", None)
    cut = client.begin_run("/again", "folder", account, "main", {"threshold": 0.54})
    again = client.ask(runs.rebegin_run, cut.run_id, "csv", "other", {"threshold": 1.0})
    assert (again.run_id, again.state) == (cut.run_id, "scanning")
    assert (again.source_kind, again.directory, again.settings) == ("csv", "other", {"threshold": 1.0})
    client.plan_run(cut.run_id, 1, 1)
    with pytest.raises(StoreError, match="is open, not scanning"):
        client.ask(runs.rebegin_run, cut.run_id, "csv", "main", {})


def test_media_of_hashes_have_all_their_embeddings(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    hashes = [sha(f"{SOURCE}/0-{row}.jpg") for row in range(SHARD_ROWS)]
    assert client.media_of_hashes(run.account_id, hashes) == {}  # each has a rejected face, which has no embedding
    execute(client, "DELETE FROM core.faces WHERE outcome = 'rejected' AND media_id <= 2")
    execute(client, "DELETE FROM core.faces WHERE media_id = 3")
    execute(client, "UPDATE core.media SET status = 'no_face' WHERE media_id = 3")
    assert client.media_of_hashes(run.account_id, [*hashes, "unknown"]) == {hashes[0]: 1, hashes[1]: 2, hashes[2]: 3}
    execute(client, "UPDATE core.media SET status = 'truncated' WHERE media_id = 2")
    assert client.media_of_hashes(run.account_id, hashes[:2]) == {hashes[0]: 1}
    assert client.media_of_hashes(run.account_id, []) == {}
    assert client.media_of_hashes(run.account_id + 1, hashes) == {}


def test_faces_of_media(client: LocalStore, run: RunRow) -> None:
    shard = shard_commit(client, run, 0)
    commit_shard(client, shard)
    with pytest.raises(StoreDamaged, match="has no stored embedding"):
        client.faces_of_media([1])  # its second face was rejected
    execute(client, "DELETE FROM core.faces WHERE outcome = 'rejected'")
    faces = client.faces_of_media([3, 1])
    assert faces["media_id"].to_pylist() == [1, 3]
    vectors = np.array(faces["embedding"].to_pylist(), np.float32)
    np.testing.assert_array_equal(vectors, unit_vectors(SHARD_ROWS, seed=0)[[0, 2]])
    row = faces.to_pylist()[1]
    given = shard.faces.to_pylist()[4]
    for name in ("x1", "y2", "landmarks", "confidence", "contrast_quality"):
        assert row[name] == given[name]
    assert (row["width"], row["height"], row["format"]) == (250, 200, "jpeg")
    assert client.faces_of_media([]).num_rows == 0


def test_pending_embeddings_are_read_like_those_in_shards(client: LocalStore, run: RunRow) -> None:
    commit_shard(client, shard_commit(client, run, 0))
    before = np.array(stored_people(client, run.account_id, "main").vectors)
    vector = before[2].tobytes()
    execute(client, "DELETE FROM core.embeddings WHERE face_id = 5")
    execute(client, "INSERT INTO core.pending_embeddings VALUES (1, 5, ?)", [vector])
    execute(client, "DELETE FROM core.faces WHERE outcome = 'rejected'")
    np.testing.assert_array_equal(
        np.array(client.faces_of_media([3])["embedding"].to_pylist(), np.float32), before[2:3]
    )
    forget_segments(client)
    np.testing.assert_array_equal(stored_people(client, run.account_id, "main").vectors, before)


def test_a_store_is_reopened_with_its_runs(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        run = client.begin_run("/a", "folder", client.create_account("ann", None), "main", {"a": [1]})
    with LocalStore.open(tmp_path / "s", command="test") as client:
        assert client.unfinished_run("/a", 1) == run


# Files of an unfinished run that something changed


@pytest.fixture
def extracted(client: LocalStore, run: RunRow) -> Path:
    """The folder of a run with a manifest and two extracted shards."""
    for shard in range(2):
        client.write_run_shard(run.run_id, shard, pa.table({"row": [shard]}), {})
    client.write_report(run.run_id, "run.json", b"{}")
    return client.path / "runs" / run.run_id


def _copy(to: Path, name: str, other: str) -> None:
    (to / name).write_bytes((to / other).read_bytes())


def _copy_with_line(folder: Path) -> None:
    _copy(folder, "shards/00001.parquet", "shards/00000.parquet")
    sums = (folder / "SHA256SUMS").read_text()
    line = next(line for line in sums.splitlines() if line.endswith("00000.parquet"))
    (folder / "SHA256SUMS").write_text(sums + line.replace("00000.parquet", "00001.parquet") + "\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "another shard": lambda folder: _copy(folder, "shards/00001.parquet", "shards/00000.parquet"),
    "one bit": lambda folder: flip(folder / "shards/00001.parquet", 40),
    "another shard and its line": _copy_with_line,
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_changed_shard_of_a_run_is_refused(client: LocalStore, run: RunRow, extracted: Path, change: str) -> None:
    CHANGES[change](extracted)
    assert client.read_run_shard(run.run_id, 0)["row"].to_pylist() == [0]
    with pytest.raises(StoreDamaged, match=r"00001\.parquet.*facepipe check --repair"):
        client.read_run_shard(run.run_id, 1)


@pytest.mark.parametrize("change", ["another shard", "one bit"])
def test_check_finds_a_changed_shard_and_repair_has_it_extracted_again(
    client: LocalStore, run: RunRow, extracted: Path, change: str
) -> None:
    assert client.check().problems == []
    CHANGES[change](extracted)
    (problem,) = client.check().problems
    assert (problem.kind, problem.where) == ("run_shard", f"runs/{run.run_id}/shards/00001.parquet")
    assert client.check(repair=True).problems == []
    assert client.extracted_shards(run.run_id) == {0}
    client.write_run_shard(run.run_id, 1, pa.table({"row": [1]}), {})
    assert client.read_run_shard(run.run_id, 1)["row"].to_pylist() == [1]


@pytest.mark.parametrize("change", ["one bit", "of another run", "list lost"])
def test_a_changed_manifest_is_refused(client: LocalStore, run: RunRow, extracted: Path, change: str) -> None:
    if change == "one bit":
        flip(extracted / "manifest.parquet", 40)
    elif change == "list lost":
        (extracted / "SHA256SUMS").unlink()
    else:
        client.write_manifest("other", manifest_batches(), MANIFEST)
        for name in ("manifest.parquet", "SHA256SUMS"):
            (extracted / name).write_bytes((extracted.parent / "other" / name).read_bytes())
    client.forget_manifest()
    for read in (
        lambda: client.read_manifest(run, 0),
        lambda: client.read_manifest_columns(run.run_id, ["row"]),
    ):
        with pytest.raises(StoreDamaged, match=r"manifest\.parquet"):
            read()


@pytest.mark.parametrize("name", ["run.json", "report.html"])
def test_check_finds_a_changed_report_and_repair_deletes_it(client: LocalStore, extracted: Path, name: str) -> None:
    file = f"runs/{extracted.name}/report.html"
    assert client.ask(pages.note_page, file, [], [])
    client.write_report(extracted.name, "report.html", b"<html>")
    flip(extracted / name, 1)
    assert [problem.kind for problem in client.check().problems] == ["run_file"]
    checked = client.check(repair=True)
    assert [problem.detail.partition("; ")[2] for problem in checked.repaired] == [
        "deleted, because nothing depends on it"
    ]
    assert checked.problems == []
    assert not list(client.path.rglob(name))


def sums_of(folder: Path) -> dict[str, str]:
    """The hashes of the run's files as they are."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_each_flipped_bit_of_a_list_of_hashes_is_found_and_repaired(client: LocalStore, extracted: Path) -> None:
    sums, expected = extracted / "SHA256SUMS", sums_of(extracted)
    whole = sums.read_bytes()
    assert run_sums.listed(client.folder, extracted.name) == expected
    assert not run_sums.is_damaged(client.folder, extracted.name)
    for position in range(len(whole)):
        sums.write_bytes(whole)
        flip(sums, position, position % 8)
        assert run_sums.is_damaged(client.folder, extracted.name), position
        run_sums.rebuild(client.folder, extracted.name)
        assert not run_sums.is_damaged(client.folder, extracted.name)
        assert run_sums.listed(client.folder, extracted.name).items() >= expected.items(), position


def test_damage_to_a_list_of_hashes_stays_visible_when_it_grows(client: LocalStore, extracted: Path) -> None:
    flip(extracted / "SHA256SUMS", 5)
    client.write_report(extracted.name, "run.json", b"{}")
    assert run_sums.is_damaged(client.folder, extracted.name)


def test_a_list_of_hashes_that_was_cut_off_goes_on(client: LocalStore, extracted: Path) -> None:
    sums = extracted / "SHA256SUMS"
    sums.write_bytes(sums.read_bytes()[:-20])
    client.write_report(extracted.name, "run.json", b"{}")
    assert not run_sums.is_damaged(client.folder, extracted.name)


def test_a_list_of_hashes_without_checksums_is_of_an_earlier_version(client: LocalStore, extracted: Path) -> None:
    sums = extracted / "SHA256SUMS"
    sums.write_text("".join(line + "\n" for line in sums.read_text().splitlines() if not line.startswith("#")))
    assert client.check().problems == []
    client.write_report(extracted.name, "run.json", b"{}")
    assert client.check().problems == []
    flip(sums, 5)
    assert [problem.kind for problem in client.check().problems] == ["run", "run_sums"]


def test_repair_of_a_list_of_hashes_keeps_the_files(client: LocalStore, run: RunRow, extracted: Path) -> None:
    """What seems to be damaged, because its hash in the list is."""
    expected = sums_of(extracted)
    data = (extracted / "SHA256SUMS").read_bytes()
    for name in ("run.json", "shards/00001.parquet"):
        digits = expected[name].encode()
        digit = next(
            place for place, character in enumerate(digits) if chr(character).isdigit()
        )  # still a hash after it
        flip(extracted / "SHA256SUMS", data.index(digits) + digit)
    found = {(problem.kind, problem.where.rpartition("/")[2]) for problem in client.check().problems}
    assert found == {("run_sums", "SHA256SUMS"), ("run_shard", "00001.parquet"), ("run_file", "run.json")}
    with client.lock_runs("run"):  # a run writes to it
        assert {problem.kind for problem in client.check(repair=True).problems} == {kind for kind, _ in found}
    assert client.check(repair=True).problems == []
    assert sums_of(extracted) == expected
    assert client.extracted_shards(run.run_id) == {0, 1}
    assert client.read_manifest(run, 0).num_rows > 0


def test_a_shard_that_was_listed_and_never_written_is_no_damage(
    client: LocalStore, run: RunRow, extracted: Path
) -> None:
    with failing_at("shard.rename", LookupError()), pytest.raises(LookupError):
        client.write_run_shard(run.run_id, 2, pa.table({"row": [2]}), {})
    assert client.extracted_shards(run.run_id) == {0, 1}
    assert client.check().problems == []


def test_each_face_was_compared_with_the_identities_of_its_time(client: LocalStore) -> None:
    """A person posted between two shards counts for the later one, and for faces after the last insertion of the
    earlier one. One in another directory counts for none."""
    account = client.create_account("ann", None)
    begun = [client.begin_run(SOURCE, "folder", account, directory, {}) for directory in ("main", "main", "other")]
    for run in begun:
        client.plan_run(run.run_id, 2 * SHARD_ROWS, 2)
    first, second, other = begun
    commit_shard(client, shard_commit(client, first, 0))
    commit_shard(client, shard_commit(client, other, 0, directory="other"))
    commit(client, insertion(account, "main", 100, "A"))
    commit_shard(client, shard_commit(client, first, 1))
    commit_shard(client, shard_commit(client, second, 0))
    rows = client.ask(runs.compared_identities, account, [first.run_id, second.run_id]).to_pylist()
    assert {row["directory"] for row in rows} == {"main"}
    # Of two faces of a photo the first becomes a person: each photo adds one identity between them.
    expected = Counter((run.run_id, n) for run, start in ((first, 0), (first, 5), (second, 9)) for n in compared(start))
    expected += Counter({(first.run_id, SHARD_ROWS + 1): 1})
    expected -= Counter({(first.run_id, SHARD_ROWS): 1})
    counted = Counter({(row["run_id"], row["identities"]): row["faces"] for row in rows})
    assert counted == expected
    assert client.ask(runs.compared_identities, account, []).num_rows == 0


def compared(identities: int) -> list[int]:
    """What each face of a shard is compared with, where there were so many identities before."""
    return [identities + photo + ordinal for photo in range(SHARD_ROWS) for ordinal in (0, 1)]
