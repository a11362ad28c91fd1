"""`facepipe account` and `facepipe directory`, over real stores without photographs or weights."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.store.catalog.accounts import verify_password
from pipeline.store.checks.check import check_store
from pipeline.store.files.encryption import MasterKey
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe, report_of
from tests.cli.test_commands import IDENTITY
from tests.store.store_samples import SIZE, commit, insertion

pytestmark = pytest.mark.usefixtures("quick_hashes")
MASTER = MasterKey(bytes(range(40, 72)), "a test")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """ann with two directories, bob with one of the same name, cid with nothing and no password."""
    path, identity = tmp_path / "store", dataclasses.replace(IDENTITY, embedding_size=SIZE)
    with LocalStore.open_or_create(path, lambda: identity, command="test") as client:
        ann, bob = client.create_account("ann", "scrypt$x"), client.create_account("bob", "scrypt$y")
        client.create_account("cid", None)
        for seed, (account, directory) in enumerate([(ann, "main"), (ann, "main"), (ann, "vip"), (bob, "main")]):
            commit(client, insertion(account, directory, seed, f"P{seed}"))
    return path


def stored_hash(store: Path, account: str) -> str:
    with LocalStore.open(store, command="test") as client:
        credentials = client.credentials(account)
    assert credentials is not None
    assert credentials.password_hash is not None
    return credentials.password_hash


def test_account_list(store: Path) -> None:
    accounts = answer("account", "list", "--store", store)["accounts"]
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


def test_a_generated_password_is_shown_once(store: Path) -> None:
    passwords = []
    for command, name in (("create", "dan"), ("password", "cid"), ("rotate", "cid")):  # rotate: its former name
        report = answer("account", command, name, "--store", store)
        assert report.keys() == {"account", "store", "password"}
        assert verify_password(report["password"], stored_hash(store, name))
        passwords.append(report["password"])
    assert len(set(passwords)) == 3
    assert not verify_password(passwords[1], stored_hash(store, "cid"))
    assert stored_hash(store, "ann") == "scrypt$x"
    for command, name in (("create", "eve"), ("password", "cid")):
        plain = facepipe("account", command, name, "--store", store)
        (shown,) = [line.split()[1] for line in plain.stdout.splitlines() if line.startswith("password")]
        assert verify_password(shown, stored_hash(store, name))


def test_a_store_without_calibration_is_made_with_a_warning(weights_cache: Path, tmp_path: Path) -> None:
    words = ("account", "create", "ann", "--weights", "casia-webface", "--set", f"model.cache={weights_cache}")
    made = facepipe(*words, "--store", tmp_path / "none", "--calibration", "none", "--json")
    (warning,) = report_of(made)["warnings"]
    assert f"warning: {warning}" in made.stderr
    assert "(weights casia-webface) are not calibrated" in warning
    calibrated = facepipe(*words, "--store", tmp_path / "calibrated", "--json")
    assert "warnings" not in report_of(calibrated)
    assert "calibrated" not in calibrated.stderr


@pytest.mark.parametrize("password", ["p:w:d", "pässwörd 密码", " x", "s3cret phrase"])
def test_a_password_from_standard_input_is_taken_and_not_shown(store: Path, password: str) -> None:
    for command, name in (("create", "dan"), ("password", "ann")):
        words = ("account", command, name, "--store", store, "--password-stdin", "--json")
        result = facepipe(*words, stdin=f"{password}\r\nsecond line\n")
        assert report_of(result).keys() == {"account", "store"}
        assert password not in result.output
        assert verify_password(password, stored_hash(store, name))


@pytest.mark.parametrize("stdin", [b"", b"\n", b"p\xe4ss\n", b"a\x00b\n", b"trailing \n", b"x" * 1001])
def test_what_is_no_password_is_refused(store: Path, stdin: bytes) -> None:
    for command, name in (("create", "dan"), ("password", "ann")):
        result = facepipe("account", command, name, "--store", store, "--password-stdin", stdin=stdin)
        assert result.exit_code == 2
    assert stored_hash(store, "ann") == "scrypt$x"
    assert "dan" not in facepipe("account", "list", "--store", store).stdout


def test_account_create_refuses_a_name_in_use_or_with_spaces(store: Path, tmp_path: Path) -> None:
    assert answer("account", "create", "ann", "--store", store, exit_code=47)["error"] == "account-exists"
    assert facepipe("account", "create", "no spaces", "--store", tmp_path / "new").exit_code == 2
    assert not (tmp_path / "new").exists()


def test_the_password_of_nobody(store: Path) -> None:
    assert "ann, bob, cid" in answer("account", "password", "dan", "--store", store, exit_code=46)["message"]


def test_directory_list(store: Path) -> None:
    rows = answer("directory", "list", "--store", store)["directories"]
    assert [(row["account"], row["directory"], row["identities"]) for row in rows] == [
        ("ann", "main", 2),
        ("ann", "vip", 1),
        ("bob", "main", 1),
    ]
    only = answer("directory", "list", "--store", store, "--account", "bob")["directories"]
    assert only == rows[2:]
    assert facepipe("directory", "list", "--store", store, "--account", "cid").stdout == "no directories\n"
    assert facepipe("directory", "list", "--store", store, "--account", "dan").exit_code == 46
    assert facepipe("directory", "list", "--store", store).stdout.splitlines()[0] == "ann  main  2 identities"


def test_directory_delete(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        assert client.fold() == 4  # into one file, from which half must go
    words = ("directory", "delete", "\u2003main", "--store", store, "--account", "ann")  # taken as "main"
    report = answer(*words, "--yes")
    assert report == {"account": "ann", "directory": "main", "identities": 2, "photos": 0}
    rows = answer("directory", "list", "--store", store)["directories"]
    assert [(row["account"], row["directory"]) for row in rows] == [("ann", "vip"), ("bob", "main")]
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
    assert len([file for file in (store / "objects").rglob("*") if file.is_file()]) == 2
    (vectors,) = (store / "embeddings").glob("*/*")
    assert pq.read_table(vectors).num_rows == 2
    again = answer(*words, "--yes", exit_code=51)
    assert again["error"] == "directory-unknown"
    assert "Directories: vip." in again["message"]


def test_directory_delete_asks(store: Path) -> None:
    words = ("directory", "delete", "main", "--store", store, "--account", "ann")
    for reply in ("n\n", "", "\n"):
        result = facepipe(*words, stdin=reply)
        assert result.exit_code == 130
        assert "Delete main of ann with its 2 identities and 0 photos?" in result.stderr
        assert result.stdout == ""
    assert len(answer("directory", "list", "--store", store)["directories"]) == 3
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
    lost = answer("account", "create", "ann", "--store", path, exit_code=49)
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

    for words in (("account", "list"), ("account", "password", "ann"), ("directory", "list"), ("check",)):
        answer(*words, "--store", path)
    assert not (tmp_path / "config").exists()


def test_a_plain_store_is_not_encrypted_afterwards(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    refused = answer("account", "create", "dan", "--store", store, "--encrypt", exit_code=45)
    assert "security.encrypt" in refused["message"]
    assert not (tmp_path / "config").exists()
    assert "dan" not in facepipe("account", "list", "--store", store).stdout
