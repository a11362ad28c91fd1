"""`facepipe account` and `facepipe directory`, over real stores without photographs or weights."""

from __future__ import annotations

import base64
import dataclasses
import json
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline.config import Settings
from pipeline.store.catalog.accounts import verify_password
from pipeline.store.checks.check import check_store
from pipeline.store.files.crypto import MasterKey
from pipeline.store.local import LocalStore
from pipeline.store.records import DirectoryCommit, NewReference, PersonRecord, PostedImage, StoreIdentity

SIZE = 8
MASTER = MasterKey(bytes(range(40, 72)), "a test")
IDENTITY = StoreIdentity(
    embedder="random",
    weights="none",
    weights_sha256="0" * 64,
    embedding_size=SIZE,
    preprocessing={},
    calibration={},
    mode="exact",
    output_settings=Settings().output_settings(),
    output_hash=Settings().output_hash(),
)


def facepipe(*words: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=stdin)


def report_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """The one JSON object on standard output."""
    assert result.exit_code == exit_code, result.output
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert isinstance(report, dict)
    return report


def insert(client: LocalStore, account: int, directory: str, number: int) -> None:
    person_id, guid, now = str(uuid.UUID(int=number)), str(uuid.UUID(int=1000 + number)), datetime(2026, 1, 1)
    person = PersonRecord(person_id, 0, f"P{number}", None, None, (), False, 1, now, now, now, guid)
    names = ("x1", "y1", "x2", "y2", "confidence", "center_pose_quality", "sharpness_quality", "contrast_quality")
    fields = {**dict.fromkeys(names, 0.5), "landmarks": [0.5] * 10}
    vector = np.eye(SIZE, dtype=np.float32)[number % SIZE]
    reference = NewReference(
        person_id, 0, "inserted", 1.5, fields, vector, guid, b"\xff\xd8\xff" + bytes(9), "image/jpeg"
    )
    image = PostedImage(f"{number:064x}", f"{number:064x}", 9, 9, 9, "jpeg", None, None)
    client.commit_directory(DirectoryCommit(account, directory, inserted=[person], references=[reference], image=image))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """ann with two directories, bob with one of the same name, cid with nothing and no password."""
    path = tmp_path / "store"
    with LocalStore.open_or_create(path, lambda: IDENTITY, command="test") as client:
        ann, bob = client.create_account("ann", "scrypt$x"), client.create_account("bob", "scrypt$y")
        client.create_account("cid", None)
        for number, (account, directory) in enumerate([(ann, "main"), (ann, "main"), (ann, "vip"), (bob, "main")]):
            insert(client, account, directory, number)
    return path


def stored_hash(store: Path, account: str) -> str:
    with LocalStore.open(store, command="test") as client:
        credentials = client.credentials(account)
    assert credentials is not None
    assert credentials.password_hash is not None
    return credentials.password_hash


def test_account_list(store: Path) -> None:
    accounts = report_of(facepipe("account", "list", "--store", store, "--json"))["accounts"]
    assert accounts == [
        {"account": "ann", "password_set": True, "directories": 2, "identities": 3},
        {"account": "bob", "password_set": True, "directories": 1, "identities": 1},
        {"account": "cid", "password_set": False, "directories": 0, "identities": 0},
    ]
    plain = facepipe("account", "list", "--store", store)
    assert "scrypt" not in plain.output
    ann, bob, cid = plain.stdout.splitlines()
    assert (ann, bob) == ("ann  2 directories, 3 identities", "bob  1 directory, 1 identity")
    assert "no password" in cid


def test_account_rotate_shows_a_generated_password_once(store: Path) -> None:
    report = report_of(facepipe("account", "rotate", "cid", "--store", store, "--json"))
    assert report.keys() == {"account", "store", "password"}
    assert verify_password(report["password"], stored_hash(store, "cid"))
    again = report_of(facepipe("account", "rotate", "cid", "--store", store, "--json"))
    assert again["password"] != report["password"]
    assert not verify_password(report["password"], stored_hash(store, "cid"))
    assert stored_hash(store, "ann") == "scrypt$x"
    plain = facepipe("account", "rotate", "cid", "--store", store)
    (shown,) = [line.split()[1] for line in plain.stdout.splitlines() if line.startswith("password")]
    assert verify_password(shown, stored_hash(store, "cid"))


@pytest.mark.parametrize("password", ["p:w:d", "pässwörd 密码", " x"])
def test_account_rotate_takes_a_password_and_does_not_show_it(store: Path, password: str) -> None:
    words = ("account", "rotate", "ann", "--store", store, "--password-stdin")
    result = facepipe(*words, "--json", stdin=f"{password}\r\nsecond line\n")
    assert report_of(result).keys() == {"account", "store"}
    assert password not in result.output
    assert verify_password(password, stored_hash(store, "ann"))


@pytest.mark.parametrize("stdin", [b"", b"\n", b"p\xe4ss\n", b"a\x00b\n", b"trailing \n", b"x" * 1001])
def test_account_rotate_refuses_what_is_no_password(store: Path, stdin: bytes) -> None:
    result = facepipe("account", "rotate", "ann", "--store", store, "--password-stdin", stdin=stdin)
    assert result.exit_code == 2
    assert stored_hash(store, "ann") == "scrypt$x"


def test_account_rotate_of_nobody(store: Path) -> None:
    assert "ann, bob, cid" in report_of(facepipe("account", "rotate", "dan", "--store", store, "--json"), 46)["message"]


def test_directory_list(store: Path) -> None:
    rows = report_of(facepipe("directory", "list", "--store", store, "--json"))["directories"]
    assert [(row["account"], row["directory"], row["identities"]) for row in rows] == [
        ("ann", "main", 2),
        ("ann", "vip", 1),
        ("bob", "main", 1),
    ]
    only = report_of(facepipe("directory", "list", "--store", store, "--account", "bob", "--json"))["directories"]
    assert only == rows[2:]
    assert facepipe("directory", "list", "--store", store, "--account", "cid").stdout == "no directories\n"
    assert facepipe("directory", "list", "--store", store, "--account", "dan").exit_code == 46
    assert facepipe("directory", "list", "--store", store).stdout.splitlines()[0] == "ann  main  2 identities"


def test_directory_delete(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        assert client.fold() == 4  # into one file, from which half must go
    words = ("directory", "delete", "main", "--store", store, "--account", "ann")
    report = report_of(facepipe(*words, "--yes", "--json"))
    assert report == {"account": "ann", "directory": "main", "identities": 2}
    rows = report_of(facepipe("directory", "list", "--store", store, "--json"))["directories"]
    assert [(row["account"], row["directory"]) for row in rows] == [("ann", "vip"), ("bob", "main")]
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
    assert len([file for file in (store / "objects").rglob("*") if file.is_file()]) == 2
    (vectors,) = (store / "embeddings").glob("*/*")
    assert pq.read_table(vectors).num_rows == 2
    again = report_of(facepipe(*words, "--yes", "--json"), 51)
    assert again["error"] == "directory-unknown"
    assert "Directories: vip." in again["message"]


def test_directory_delete_asks(store: Path) -> None:
    words = ("directory", "delete", "main", "--store", store, "--account", "ann")
    for answer in ("n\n", "", "\n"):
        result = facepipe(*words, stdin=answer)
        assert result.exit_code == 130
        assert "Delete main of ann with its 2 identities?" in result.stderr
        assert result.stdout == ""
    assert len(report_of(facepipe("directory", "list", "--store", store, "--json"))["directories"]) == 3
    assert report_of(facepipe(*words, "--json", stdin="y\n"))["identities"] == 2


def test_directory_delete_wants_an_account_where_there_are_several(store: Path) -> None:
    result = facepipe("directory", "delete", "main", "--store", store, "--yes", "--json")
    assert "--account" in report_of(result, 2)["message"]


def test_an_encrypted_store_wants_its_key_for_a_new_account_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path, key = tmp_path / "store", tmp_path / "key"
    made = dataclasses.replace(IDENTITY, encrypted=True, master_key_id=MASTER.key_id)
    LocalStore.open_or_create(path, lambda: made, command="test").close()
    lost = report_of(facepipe("account", "create", "ann", "--store", path, "--json"), 49)
    assert "FACEPIPE_SECURITY__MASTER_KEY" in lost["message"]
    assert str(tmp_path / "config" / "facepipe" / "master.key") in lost["message"]

    key.write_text(base64.b64encode(bytes(32)).decode())
    key.chmod(0o600)
    with_file = ("account", "create", "ann", "--store", path, "--master-key-file", key, "--json")
    wrong = report_of(facepipe(*with_file), 50)
    assert str(key) in wrong["message"]
    assert key.read_text() not in wrong["message"]

    key.write_text(base64.b64encode(MASTER.data).decode())
    assert report_of(facepipe(*with_file))["master_key"] == str(key)
    key.unlink()
    monkeypatch.setenv("FACEPIPE_SECURITY__MASTER_KEY", base64.b64encode(MASTER.data).decode())
    plain = facepipe("account", "create", "bob", "--store", path)
    assert "Keep a copy" in plain.stdout
    assert base64.b64encode(MASTER.data).decode() not in plain.output
    monkeypatch.delenv("FACEPIPE_SECURITY__MASTER_KEY")

    for words in (("account", "list"), ("account", "rotate", "ann"), ("directory", "list"), ("check",)):
        report_of(facepipe(*words, "--store", path, "--json"))
    assert not (tmp_path / "config").exists()


def test_a_plain_store_is_not_encrypted_afterwards(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    refused = report_of(facepipe("account", "create", "dan", "--store", store, "--encrypt", "--json"), 45)
    assert "security.encrypt" in refused["message"]
    assert not (tmp_path / "config").exists()
    assert "dan" not in facepipe("account", "list", "--store", store).stdout
