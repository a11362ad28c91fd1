"""A store that is made encrypted and filled by real runs: no picture lies open in it; with the key, all are there."""

from __future__ import annotations

import base64
import dataclasses
import stat
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from pipeline.config import SecuritySettings, Settings
from pipeline.errors import MasterKeyMissing, MasterKeyWrong, StoreMismatch
from pipeline.jobs.store_identity import make_identity
from pipeline.run.run import RunRequest, extract, group, run, scan
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.master_key import load_master_key
from tests.cli.report import facepipe, report_of
from tests.integration.conftest import RecordedProgress
from tests.integration.snapshot import assert_whole, snapshot
from tests.searching import search

pytestmark = pytest.mark.usefixtures("loaded_once")

JPEG = b"\xff\xd8\xff"


@pytest.fixture
def few(photos: Path) -> Path:
    """Three of the photos, of two people."""
    for file in photos.iterdir():
        if file.name not in ("a1.jpg", "b1.jpg", "b2.jpg"):
            file.unlink()
    return photos


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "master.key"


@pytest.fixture
def encrypting(settings: Settings, key: Path) -> Settings:
    return dataclasses.replace(settings, security=SecuritySettings(encrypt=True, master_key_file=str(key)))


def with_key(settings: Settings, key: Path) -> Settings:
    """Nothing asks for encryption: an encrypted store stays one."""
    return dataclasses.replace(settings, security=SecuritySettings(master_key_file=str(key)))


def held_open(store: Path) -> list[Path]:
    """Files with a JPEG in them. Three bytes come by chance once in 16 million; a whole start of a file does not."""
    starts = (JPEG + b"\xe0\x00\x10JFIF", JPEG + b"\xdb", JPEG + b"\xe1")
    files = [file for file in store.rglob("*") if file.is_file()]
    return [file for file in files if any(start in file.read_bytes() for start in starts)]


@pytest.mark.slow
def test_a_run_makes_an_encrypted_store_and_its_images_decrypt(
    few: Path, encrypting: Settings, settings: Settings, key: Path, tmp_path: Path
) -> None:
    store, progress = tmp_path / "store", RecordedProgress()
    report = run(RunRequest(source=few, store=store, settings=encrypting), progress, threading.Event())
    assert report.persons == 2
    assert any(str(key) in note and "Keep a copy" in note for note in progress.notes)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert held_open(store) == []

    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []  # without the key
        client.unlock(load_master_key(encrypting.security, store))
        account = client.account_id("default")
        guids = client.read("SELECT image_guid FROM core.objects")["image_guid"].to_pylist()
        assert len(guids) == 2
        for guid in guids:
            data, media_type = client.read_image(account, guid)
            assert media_type == "image/jpeg"
            assert data.startswith(JPEG)
            assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape[0] > 50

    run(RunRequest(source=few, store=tmp_path / "plain", settings=settings))
    assert len(held_open(tmp_path / "plain")) == 2  # so it would have been seen
    assert snapshot(store) == snapshot(tmp_path / "plain")

    # Searching needs no key, and a key that was there before is not told of again.
    (face,) = search((few / "b2.jpg").read_bytes(), store, settings, None, "main", 1)
    assert face.identity is not None
    again = RecordedProgress()
    run(RunRequest(source=few, store=store, settings=with_key(settings, key)), again, threading.Event())
    assert again.notes == []


@pytest.mark.slow
def test_what_extraction_leaves_is_encrypted_and_a_run_without_the_key_ends_before_it_begins(
    few: Path, encrypting: Settings, settings: Settings, key: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    scan(RunRequest(source=few, store=store, settings=encrypting))
    rest = RunRequest(source=None, store=store, settings=with_key(settings, key))
    extract(rest)
    shards = list(store.glob("runs/*/shards/*.parquet"))
    assert len(shards) == 1
    assert not any(b"PAR1" in shard.read_bytes() for shard in shards)
    assert held_open(store) == []

    lost = key.rename(tmp_path / "elsewhere")
    progress = RecordedProgress()
    for work in (group, run):
        with pytest.raises(MasterKeyMissing, match=r"no file .*master\.key"):
            work(dataclasses.replace(rest, source=few), progress)
    key.write_text(base64.b64encode(bytes(32)).decode())
    key.chmod(0o600)
    with pytest.raises(MasterKeyWrong, match=str(key)):
        group(rest, progress)
    assert progress.advanced == 0

    lost.replace(key)
    assert group(rest).persons == 2
    assert_whole(store)
    assert held_open(store) == []


def test_a_plain_store_is_refused_where_encryption_is_asked_for(
    few: Path, encrypting: Settings, settings: Settings, key: Path, tmp_path: Path
) -> None:
    LocalStore.open_or_create(tmp_path / "store", lambda: make_identity(settings), command="test").close()
    with pytest.raises(StoreMismatch, match=r"security\.encrypt = false"):
        run(RunRequest(source=few, store=tmp_path / "store", settings=encrypting))
    assert not key.exists()
    with LocalStore.open(tmp_path / "store", command="test") as client:  # and the lock is free again
        assert client.accounts() == []


@pytest.mark.slow
def test_account_create_makes_the_key_on_first_use(
    weights_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    key = tmp_path / "config" / "facepipe" / "master.key"

    def create(*words: object) -> dict[str, Any]:
        result = facepipe("account", "create", *words, "--json", cache=weights_cache)
        assert key.read_text().strip() not in result.output
        return report_of(result)

    weights = ("--encrypt", "--weights", "casia-webface")
    assert create("ann", "--store", tmp_path / "a", *weights)["master_key"] == str(key)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    made = key.read_bytes()
    assert create("ann", "--store", tmp_path / "b", *weights)["master_key"] == str(key)
    assert create("bob", "--store", tmp_path / "a")["master_key"] == str(key)
    assert key.read_bytes() == made
