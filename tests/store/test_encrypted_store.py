"""A store whose images are encrypted: what its files hold, who can read them, and what needs no key."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.errors import MasterKeyMissing, MasterKeyWrong, ObjectUnknown, StoreDamaged
from pipeline.store.checks.check import check_store
from pipeline.store.export import export_store
from pipeline.store.files import faults
from pipeline.store.files.encryption import MasterKey, decrypt_image
from pipeline.store.files.objects import object_file, read_object
from pipeline.store.local import LocalStore
from pipeline.store.records import RunRow, StoreIdentity
from tests.store.store_samples import JPEG, commit, commit_shard, execute, identity, insertion, picture, shard_commit
from tests.stored import stored_people

MASTER = MasterKey(bytes(range(150, 182)), "a test")
PICTURE = picture(1)


def encrypted_identity() -> StoreIdentity:
    return dataclasses.replace(identity(), encrypted=True, master_key_id=MASTER.key_id)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[LocalStore]:
    with LocalStore.open_or_create(tmp_path / "store", encrypted_identity, command="test") as made:
        yield made


@pytest.fixture
def client(locked: LocalStore) -> LocalStore:
    locked.unlock(MASTER)
    return locked


def objects_of(client: LocalStore) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = client.read("SELECT * FROM core.objects ORDER BY image_guid").to_pylist()
    return rows


def test_shards_and_posts_are_encrypted_under_their_accounts_keys(client: LocalStore, run: RunRow) -> None:
    ann, bob = run.account_id, client.create_account("bob", None)
    shard = shard_commit(client, run, 0)
    commit_shard(client, shard)
    (posted,) = commit(client, insertion(bob, "main", 1, "A"))
    expected = {guid: (ann, data) for guid, data, _ in shard.pictures} | {posted.image_guid: (bob, PICTURE)}
    rows = objects_of(client)
    assert {row["image_guid"] for row in rows} == set(expected)
    ann_key, bob_key = client.image_key(ann), client.image_key(bob)
    assert ann_key is not None
    assert bob_key is not None
    assert len(ann_key) == len(bob_key) == 32
    assert ann_key != bob_key
    for row in rows:
        guid = str(row["image_guid"])
        account, data = expected[guid]
        at_rest = read_object(client.folder, guid)
        assert (row["encrypted"], row["bytes"]) == (True, len(at_rest))
        assert row["sha256"] == hashlib.sha256(at_rest).hexdigest()
        assert data not in at_rest
        assert not at_rest.startswith(JPEG)
        assert decrypt_image(ann_key if account == ann else bob_key, at_rest) == data
        assert client.read_image(account, guid) == (data, "image/jpeg")
        assert client.read_image(account, guid, at_rest=True) == (at_rest, "application/octet-stream")
        with suppress(StoreDamaged):  # one padding in 256 is valid by chance
            assert client.read_image(bob if account == ann else ann, guid)[0] != data
    assert check_store(client).problems == []


def test_no_file_of_the_store_holds_an_image_or_a_key(client: LocalStore, run: RunRow) -> None:
    ann = run.account_id
    crops = pa.table({"row": [0], "crop": pa.array([PICTURE], pa.binary())})
    client.write_run_shard(run.run_id, 5, crops, {"shard": 5})
    commit_shard(client, shard_commit(client, run, 0))
    commit(client, insertion(ann, "main", 1, "A"))
    key = client.image_key(ann)
    assert key is not None
    assert client.read_run_shard(run.run_id, 5).equals(crops)
    execute(client, "CHECKPOINT")
    needles = [PICTURE[:40], JPEG + b"/photos", b"PAR1"]
    for secret in (key, MASTER.data):
        needles += [secret, secret.hex().encode(), base64.b64encode(secret)]
    files = [file for file in client.path.rglob("*") if file.is_file()]
    assert len(files) > 6
    for file in files:
        data = file.read_bytes()
        held = [needle for needle in needles if needle in data]
        # Only images are encrypted; embeddings and manifests are plain Parquet.
        assert held in ([], [b"PAR1"]), file
        assert held == [] or file.parent.parent.name == "embeddings" or file.name == "manifest.parquet", file


def test_a_damaged_run_shard_is_an_error(client: LocalStore, run: RunRow) -> None:
    client.write_run_shard(run.run_id, 0, pa.table({"row": [0]}), {})
    file = client.path / "runs" / run.run_id / "shards" / "00000.parquet"
    file.write_bytes(file.read_bytes()[:-16])
    with pytest.raises(StoreDamaged, match="facepipe check --repair"):
        client.read_run_shard(run.run_id, 0)


def test_without_the_key_only_images_are_locked(tmp_path: Path, client: LocalStore, run: RunRow) -> None:
    ann = run.account_id
    commit_shard(client, shard_commit(client, run, 0))
    guid = str(objects_of(client)[0]["image_guid"])
    client.close()
    with LocalStore.open(tmp_path / "store", command="test") as locked:
        assert locked.identity == encrypted_identity()
        assert check_store(locked).problems == []
        assert export_store(locked, tmp_path / "out")["persons"] == 4
        assert len(stored_people(locked, ann, "main")) == 4
        assert locked.accounts() == ["ann"]
        locked.set_password("ann", "scrypt$x")
        assert locked.read_image(ann, guid, at_rest=True)[0] == read_object(locked.folder, guid)
        for closed in (
            lambda: locked.image_key(ann),
            lambda: locked.read_image(ann, guid),
            lambda: locked.create_account("bob", None),
            lambda: commit(locked, insertion(ann, "main", 1, "A")),
            lambda: locked.write_run_shard(run.run_id, 1, pa.table({"row": [0]}), {}),
        ):
            with pytest.raises(MasterKeyMissing, match="without it nobody can read the images"):
                closed()
        assert locked.accounts() == ["ann"]
        assert check_store(locked).problems == []


def test_another_master_key_is_refused_and_changes_nothing(locked: LocalStore) -> None:
    other = MasterKey(bytes(32), "/another/file")
    with pytest.raises(MasterKeyWrong, match="/another/file") as wrong:
        locked.unlock(other)
    assert other.key_id in str(wrong.value)
    assert MASTER.key_id in str(wrong.value)
    assert locked.master_key is None
    locked.unlock(MASTER)
    assert locked.create_account("ann", None) == 1


def test_swapped_and_changed_wrapped_keys_are_errors(client: LocalStore) -> None:
    ann, bob = client.create_account("ann", None), client.create_account("bob", None)
    keys = dict(client.submit(lambda c: c.rows("SELECT account_id, image_key FROM core.accounts")))
    for account, wrapped in ((ann, keys[bob]), (ann, keys[ann][:-8] + "AAAAAAA="), (ann, None)):
        execute(client, "UPDATE core.accounts SET image_key = ? WHERE account_id = ?", [wrapped, account])
        with pytest.raises(StoreDamaged, match="image key of account 1 cannot be unwrapped"):
            client.image_key(account)
    assert [p.detail for p in check_store(client).problems] == [
        "an account without an image key in an encrypted store, or with one in another"
    ]
    assert client.image_key(bob)
    with pytest.raises(StoreDamaged, match="account 77"):
        client.image_key(77)


def test_a_changed_or_lost_object_is_damaged_and_another_guid_unknown(client: LocalStore, account: int) -> None:
    (first,) = commit(client, insertion(account, "main", 1, "A"))
    (second,) = commit(client, insertion(account, "main", 2, "B"))
    path = client.path / object_file(first.image_guid)
    data = bytearray(path.read_bytes())
    data[20] ^= 1  # CBC alone would return another picture
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match="was changed"):
        client.read_image(account, first.image_guid)
    (client.path / object_file(second.image_guid)).unlink()
    with pytest.raises(StoreDamaged, match="cannot be read"):
        client.read_image(account, second.image_guid)
    with pytest.raises(ObjectUnknown):
        client.read_image(account, str(uuid.uuid4()))
    assert sorted(p.kind for p in check_store(client).problems) == ["object", "object"]


def test_check_finds_objects_that_are_not_encrypted_as_they_should_be(client: LocalStore, account: int) -> None:
    (person,) = commit(client, insertion(account, "main", 1, "A"))
    path = client.path / object_file(person.image_guid)
    path.write_bytes(PICTURE)
    values = [len(PICTURE), hashlib.sha256(PICTURE).hexdigest()]
    execute(client, "UPDATE core.objects SET bytes = ?, sha256 = ?", values)
    assert [p.detail for p in check_store(client).problems] == ["does not have the length of an encrypted image"]
    execute(client, "UPDATE core.objects SET encrypted = false")
    assert [p.detail for p in check_store(client).problems] == ["an image encrypted differently from its store"]
    execute(client, "UPDATE core.store SET master_key_id = NULL")
    assert len(check_store(client).problems) == 2


def test_a_store_that_is_not_encrypted_needs_no_key(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "plain", identity, command="test") as client:
        client.unlock(MASTER)
        assert client.master_key is None
        ann = client.create_account("ann", None)
        (person,) = commit(client, insertion(ann, "main", 1, "A"))
        assert client.image_key(ann) is None
        assert (
            client.read_image(ann, person.image_guid)
            == (PICTURE, "image/jpeg")
            == client.read_image(ann, person.image_guid, at_rest=True)
        )
        assert read_object(client.folder, person.image_guid) == PICTURE


def test_a_shard_that_is_committed_again_after_a_crash_is_readable(client: LocalStore, run: RunRow) -> None:
    """Its images get the same names and other IVs."""
    ann = run.account_id
    shard = shard_commit(client, run, 0)
    client.prepare_shard(shard)  # never committed
    guid, data, _ = shard.pictures[0]
    before = read_object(client.folder, guid)
    commit_shard(client, shard)
    assert read_object(client.folder, guid) != before
    assert client.read_image(ann, guid)[0] == data
    assert check_store(client).problems == []


def test_keys_are_in_no_log_and_no_repr(client: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    with caplog.at_level(logging.DEBUG):
        key = client.image_key(client.create_account("ann", None))
        assert key is not None
        print(client, client.identity, client.master_key, vars(client.master_key).keys(), file=stream)
    for secret in (key, MASTER.data):
        for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)):
            assert form not in stream.getvalue() + caplog.text


def test_many_images_are_written_by_several_threads_and_few_by_none(
    client: LocalStore, run: RunRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: set[str] = set()

    def hook(name: str) -> None:
        if name == "object.fsync":
            writers.add(threading.current_thread().name)

    monkeypatch.setattr(faults, "_hook", hook)
    commit(client, insertion(run.account_id, "main", 1, "A"))
    assert writers == {threading.main_thread().name}
    writers.clear()
    commit_shard(client, shard_commit(client, run, 0))
    assert writers
    assert all(name.startswith("store-files") for name in writers)
