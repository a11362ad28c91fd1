"""Making a store, opening one, and the errors when that is not possible."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from pipeline.errors import StoreDamaged, StoreError, StoreMissing, StoreTooNew, StoreUnwritable
from pipeline.store.local import LocalStore
from pipeline.store.records import StoreIdentity
from tests.store.store_samples import identity


def never() -> StoreIdentity:
    raise AssertionError("there is a store already")


def edit(store: Path, sql: str) -> None:
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as connection:
        connection.execute(sql)


def test_a_new_store_has_its_identity(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "a" / "store", identity, command="test") as client:
        assert client.identity == identity()
        assert client.generation == 1
        assert (client.path / "CURRENT").read_text() == "catalog-0001.duckdb\n"
        made = client.identity
    with LocalStore.open_or_create(tmp_path / "a" / "store", never, command="test") as client:
        assert client.identity == made


@pytest.mark.parametrize("make", [False, True])
def test_no_store(tmp_path: Path, make: bool) -> None:
    if make:
        (tmp_path / "store").mkdir()
    with pytest.raises(StoreMissing):
        LocalStore.open(tmp_path / "store", command="test")
    assert not (tmp_path / "store" / "LOCK").exists()


def test_after_a_failing_identity_the_next_try_succeeds(tmp_path: Path) -> None:
    def fail() -> StoreIdentity:
        raise LookupError("no weights")

    with pytest.raises(LookupError):
        LocalStore.open_or_create(tmp_path / "store", fail, command="test")
    LocalStore.open_or_create(tmp_path / "store", identity, command="test").close()


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(StoreUnwritable, match=r"holiday\.jpg"):
        LocalStore.open_or_create(tmp_path, identity, command="test")
    assert [p.name for p in tmp_path.iterdir()] == ["holiday.jpg"]
    with pytest.raises(StoreUnwritable, match="is a file"):
        LocalStore.open_or_create(tmp_path / "holiday.jpg", identity, command="test")


def test_a_lost_current_is_an_error_with_a_cure(store: Path) -> None:
    text = (store / "CURRENT").read_text()
    (store / "CURRENT").unlink()
    (store / "INTENTS").write_text("")  # as a killed server leaves it
    for attempt in (
        lambda: LocalStore.open(store, command="test"),
        lambda: LocalStore.open_or_create(store, identity, command="test"),
    ):
        with pytest.raises(StoreDamaged, match=r"CURRENT was lost.*catalog-0001\.duckdb"):
            attempt()
    (store / "CURRENT").write_text(text)
    LocalStore.open(store, command="test").close()


def test_a_catalog_in_use_without_current_is_not_replaced(tmp_path: Path) -> None:
    with LocalStore.open_or_create(tmp_path / "s", identity, command="test") as client:
        client.create_account("ann", None)
    (tmp_path / "s" / "CURRENT").unlink()
    with pytest.raises(StoreDamaged, match="a catalog in use"):
        LocalStore.open_or_create(tmp_path / "s", identity, command="test")


@pytest.mark.parametrize("text", ["", "../elsewhere.duckdb\n", "catalog-0002.duckdb\n"])
def test_a_current_that_names_no_catalog(store: Path, text: str) -> None:
    (store / "CURRENT").write_text(text)
    with pytest.raises(StoreDamaged, match="CURRENT names"):
        LocalStore.open(store, command="test")


@pytest.mark.parametrize("column", ["format_version", "schema_version"])
def test_a_newer_store_is_refused_before_its_tables_are_checked(store: Path, column: str) -> None:
    edit(store, f"UPDATE core.store SET {column} = 99; DROP VIEW main.persons; DROP TABLE core.objects")
    with pytest.raises(StoreTooNew, match=r"has format 99.*reads up to \d"):
        LocalStore.open(store, command="test")


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("DROP TABLE core.objects", "core.objects is missing"),
        ("ALTER TABLE core.media DROP COLUMN path", r"core\.media\.path is missing"),
        ("DROP VIEW main.faces", r"main\.faces is missing"),
        ("DELETE FROM core.store", "0 rows"),
        ("UPDATE core.store SET calibration = '{'", "not JSON"),
        ("DROP TABLE core.store", "core.store|store does not exist"),
    ],
)
def test_a_catalog_with_another_schema(store: Path, sql: str, told: str) -> None:
    edit(store, sql)
    with pytest.raises(StoreDamaged, match=told):
        LocalStore.open(store, command="test")
    with pytest.raises(StoreDamaged):  # and no lock is left behind
        LocalStore.open(store, command="test")


@pytest.mark.parametrize("damage", ["empty", "text", "half", "header"])
def test_a_catalog_that_duckdb_cannot_open(store: Path, damage: str) -> None:
    file = store / "catalog-0001.duckdb"
    data = bytearray(file.read_bytes())
    data[4100] ^= 0xFF
    contents = {
        "empty": b"x",
        "text": b"not a database" * 1000,
        "half": file.read_bytes()[:9000],
        "header": bytes(data),
    }
    file.write_bytes(contents[damage])
    with pytest.raises(StoreDamaged) as caught:
        LocalStore.open(store, command="test").close()
    assert "facepipe check" in str(caught.value)


def test_a_closed_store_is_an_error(store: Path) -> None:
    client = LocalStore.open(store, command="test")
    client.close()
    client.close()
    with pytest.raises(StoreError, match="is closed"):
        client.counters()
