"""A full disk and a read-only disk: real ones, in a mount namespace of their own."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from pipeline.errors import StoreFull, StoreUnwritable
from pipeline.store.catalog.connection import translate
from pipeline.store.files import durable
from pipeline.store.files.durable import Folder, disk_errors, sync
from pipeline.store.local import LocalStore
from tests.store.store_samples import Asked, commit, insertion, no_room
from tests.stored import stored_people

PRELUDE = """
import os, shutil, sys
from pathlib import Path
from tests.store.store_samples import *
from pipeline.errors import *
store = Path(sys.argv[1]) / "store"
"""
# Commits shards until the disk is full; then space is freed, and the same shard is committed.
FILL = """
from dataclasses import replace
filler = store.parent / "filler"
filler.write_bytes(bytes(8 * 2**20))
client = LocalStore.open_or_create(store, identity, command="fill")
account = client.create_account("ann", None)
run = client.begin_run(SOURCE, "folder", account, "main", {})
client.write_manifest(run.run_id, manifest_batches([400]), MANIFEST, shard_rows=4)
client.plan_run(run.run_id, 400, 100)
for shard in range(100):
    commit = shard_commit(client, run, shard)
    (change,) = commit.changes
    pictures = {p: (guid, data * SCALE, kind) for p, (guid, data, kind) in change.pictures.items()}
    commit = replace(commit, changes=[replace(change, pictures=pictures)])
    try:
        commit_shard(client, commit)
    except StoreFull as exc:
        assert exc.exit_code == 44, exc
        break
else:
    raise AssertionError("the disk was never full")
assert shard > 0
assert client.committed_shards(run.run_id) == set(range(shard))
client.close()
filler.unlink()
with LocalStore.open(store, command="go on") as client:
    assert client.committed_shards(run.run_id) == set(range(shard))
    assert check_store(client).problems == []
    commit_shard(client, commit)
    assert check_store(client).problems == []
    assert len(stored_people(client, account, "main")) == 4 * (shard + 1)
print("full after", shard)
"""
# Posts until the disk is full at a checkpoint of the catalog's log; then space is freed.
FULL_AT_THE_LOG = """
import os
from dataclasses import replace
from pipeline.store.catalog import connection as catalog
catalog._LOG_BYTES = 300_000
client = LocalStore.open_or_create(store, identity, command="fill")
account = client.create_account("ann", None)
def post(number):
    one = insertion(account, "main", number, f"P{number}")
    commit(client, replace(one, inserted=[replace(one.inserted[0], name=os.urandom(10_000).hex())]))
post(0)
filler = store.parent / "filler"
disk = os.statvfs(store)
filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize - 450_000))
log = store / "catalog-0001.duckdb.wal"
done = 1
try:
    for number in range(1, 100):
        post(number)
        done += 1
except StoreFull:
    pass
assert done < 100 and log.stat().st_size > 300_000, (done, log.stat().st_size)
assert client.directories()[0].identities == done  # it can still be read
filler.unlink()
for number in range(100, 120):  # and written, without reopening it
    post(number)
assert log.stat().st_size < 350_000, log.stat().st_size
client.close()
with LocalStore.open(store, command="look") as client:
    assert len(stored_people(client, account, "main")) == done + 20
    assert check_store(client).problems == []
print("full after", done)
"""
READ_ONLY = """
from pipeline.jobs import store as opening
for attempt in (lambda: LocalStore.open(store, command="x"),
                lambda: LocalStore.open(store, command="x", repair=True),
                lambda: LocalStore.open_or_create(store, identity, command="x"),
                lambda: LocalStore.open_or_create(store.parent / "new", identity, command="x")):
    try:
        attempt()
    except StoreUnwritable as exc:
        assert "Read-only file system" in str(exc), exc
    else:
        raise AssertionError("it could be written")
for _ in range(2):
    with opening.open_store(store, command="x", reading=True) as client:
        assert client.check().problems == []
        assert client.export(Path(sys.argv[2]) / "exported")["persons"] == 9
        shutil.rmtree(Path(sys.argv[2]) / "exported")
        try:
            client.create_account("bob", None)
        except StoreUnwritable:
            pass
        else:
            raise AssertionError("it could be written")
print("refused")
"""
READ_ONLY_ERASURE = """
import contextlib, io
from pipeline.jobs import store as opening
told = io.StringIO()
with contextlib.redirect_stderr(told), opening.open_store(store, command="x", reading=True) as client:
    problems = client.check().problems
assert [problem.where for problem in problems] == [*sys.argv[2:]], problems
assert all("unfinished erasure" in problem.detail for problem in problems)
assert told.getvalue().startswith("An erasure in the store"), told.getvalue()
print("told")
"""
# Makes a store on disks that are fuller and fuller, until one is too full; then space is freed.
FULL_AT_CREATION = """
disk = os.statvfs(store.parent)
told = set()
for left in range(0, 1_400_000, 70_000):
    filler = store.parent / "filler"
    filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize - left))
    try:
        LocalStore.open_or_create(store, identity, command="x").close()
    except StoreFull:
        pass
    else:
        break
    filler.unlink()
    try:
        LocalStore.open(store, command="x").close()
        told.add("a store")
    except StoreMissing:
        told.add("missing")
filler.unlink()
with LocalStore.open_or_create(store, identity, command="x") as client:
    assert client.check().problems == []
assert "missing" in told, told
print("full at", left)
"""


def in_namespace(folder: Path, mount: str, script: str, *arguments: str) -> str:
    """Runs `script` with something mounted at `folder`; only that process sees the mount."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare(1) here")
    wanted = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--map-root-user", "--mount"]
    shell = f'{mount} || exit 77; exec "$@"'
    command = [*wanted, "sh", "-c", shell, "sh", sys.executable, "-W", "error", "-c", PRELUDE + script, str(folder)]
    command += arguments
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 2000], ids=["small images", "large images"])
def test_a_full_disk_loses_nothing_that_was_committed(tmp_path: Path, scale: int) -> None:
    """With large images the disk fills in an object, with small ones anywhere, the catalog's log included."""
    mount = f"mount -t tmpfs -o size={10 if scale == 1 else 14}m tmpfs '{tmp_path}'"
    assert "full after" in in_namespace(tmp_path, mount, f"SCALE = {scale}\n" + FILL)


@pytest.mark.slow
def test_a_disk_that_is_full_at_a_checkpoint_of_the_log(tmp_path: Path) -> None:
    """DuckDB would report a durable commit as failed, and refuse all work until it is reopened."""
    mount = f"mount -t tmpfs -o size=14m tmpfs '{tmp_path}'"
    assert "full after" in in_namespace(tmp_path, mount, FULL_AT_THE_LOG)


@pytest.mark.slow
def test_a_creation_that_a_full_disk_stopped_is_no_damage(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=8m tmpfs '{tmp_path}'"
    assert "full at" in in_namespace(tmp_path, mount, FULL_AT_CREATION)


@pytest.mark.slow
def test_on_a_read_only_disk_a_store_can_be_checked_and_exported_only(store: Path, tmp_path: Path) -> None:
    """Also one whose server was killed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with LocalStore.open(store, command="test") as client:
        commit(client, insertion(1, "main", 100, "A"))
        shutil.copytree(store, folder / "store")
    mount = f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'"
    assert in_namespace(folder, mount, READ_ONLY, str(tmp_path)).strip() == "refused"


@pytest.mark.slow
def test_on_a_read_only_disk_an_unfinished_erasure_is_told(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with LocalStore.open(store, command="test") as client:
        first = stored_people(client, 1, "main").persons[0]
        commit(client, Asked(1, "main", deleted=[first.person_id]))
        shutil.copytree(store, folder / "store")
        client.fold()
        (rewritten,) = client.path.glob("embeddings/*/*.1.parquet")
    (segment,) = folder.glob("store/references/*/*")
    mount = f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}'"
    shard = f"embeddings/g0001/{rewritten.name.replace('.1.parquet', '.parquet')}"
    spilled = "catalog-0001.duckdb.tmp"  # by a process that was killed
    (folder / "store" / spilled).mkdir()
    left = spilled, segment.relative_to(folder / "store").as_posix(), shard
    assert in_namespace(folder, mount, READ_ONLY_ERASURE, *left).strip() == "told"


class LogThatCannotBeSynced:
    """A connection whose next COMMIT ends as DuckDB's does when fdatasync(2) of the log fails with EIO."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._invalid = False
        self.close = connection.close

    def __getattr__(self, name: str) -> Any:
        if self._invalid:
            raise duckdb.FatalException("FATAL Error: Failed: database has been invalidated")
        return getattr(self._connection, name)

    def execute(self, sql: object, *params: object) -> object:
        if sql == "COMMIT":
            self._invalid = True
            raise duckdb.FatalException("FATAL Error: fsync failed!")
        return self.__getattr__("execute")(sql, *params)


def test_a_catalog_whose_log_could_not_be_synced_is_opened_again(filled: LocalStore) -> None:
    before = stored_people(filled, 1, "main").persons
    filled.submit(lambda catalog: setattr(catalog, "connection", LogThatCannotBeSynced(catalog.connection)))
    with pytest.raises(StoreUnwritable, match="fsync failed"):
        commit(filled, insertion(1, "main", 100, "A"))
    assert stored_people(filled, 1, "main").persons == before
    commit(filled, insertion(1, "main", 100, "A"))
    assert len(stored_people(filled, 1, "main")) == len(before) + 1
    assert filled.check().problems == []


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EROFS, StoreUnwritable),
        (errno.EACCES, StoreUnwritable),
        (errno.EIO, StoreUnwritable),
    ],
)
def test_errors_of_the_system_are_translated(tmp_path: Path, number: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=str(tmp_path)), disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('Could not write file "/s/catalog-0001.duckdb.wal": File too large', StoreFull),
        ('Could not write file "/s/catalog-0001.duckdb.wal": Input/output error', StoreUnwritable),
        ('Could not fsync file "/s/catalog-0001.duckdb.wal": Input/output error', StoreUnwritable),
    ],
)
def test_errors_of_the_system_in_duckdbs_words_are_translated(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    assert type(translate(duckdb.TransactionException(f"Failed to commit: {text}"), tmp_path)) is error


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.write("a", b"old", "report")

    def fail() -> None:
        with folder.replacing("a", "report") as file:
            file.write(b"new")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_folders_made_before_an_error_are_durable_after_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next try finds them there, and does not sync their parents."""
    folder, synced = Folder(tmp_path), list[Path]()
    mkdir = Path.mkdir

    def full_at_bb(path: Path, *how: object, **more: object) -> None:
        if path.name == "bb":
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, *how, **more)  # type: ignore[arg-type]

    def sync_and_tell(path: Path) -> None:
        synced.append(path)
        sync(path)

    monkeypatch.setattr(durable, "sync", sync_and_tell)
    files = [("aa/00/x", b"1"), ("aa/11/x", b"2"), ("bb/00/x", b"3")]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", full_at_bb)
        with pytest.raises(StoreFull):
            folder.write_all(files, "object")
    assert {tmp_path, tmp_path / "aa"} <= set(synced)
    folder.write_all(files, "object")
    assert {tmp_path / "bb", *(tmp_path / name for name in ("aa/00", "aa/11", "bb/00"))} <= set(synced)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == ["x", "x", "x"]


def test_writing_where_there_is_no_room(tmp_path: Path) -> None:
    with no_room(), pytest.raises(StoreFull, match="File too large"):
        Folder(tmp_path).write("a", b"x" * 100_000, "report")
    assert list(tmp_path.iterdir()) == []
