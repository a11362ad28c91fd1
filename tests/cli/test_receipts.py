"""Receipts of erasures: `people forget --receipt`, and `facepipe erase receipt`, `verify` and `key`."""

from __future__ import annotations

import base64
import json
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from coded_faces import Shown, coded_identity, photo
from coded_store import USER

from pipeline.errors import PersonNotFound, ReceiptInvalid, ReceiptPending, ServerUnreachable, StoreFull
from pipeline.jobs.people import People
from pipeline.jobs.store import Store, open_store
from pipeline.people.types import PostRequest
from pipeline.store import CorrectionRequest, PersonChange, StoreIdentity, receipts
from pipeline.store.catalog import connection, rewriting
from pipeline.store.files.encryption import MasterKey
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe, report_of
from tests.people.coded_archive import SETTINGS, SIZE, problems, run_over, serving, write_photo
from tests.store.store_samples import copied_at_points, execute, failing_at, of_version

NAME, FORMER, EXTERNAL, STAYS = "Grace Höpper", "Graziella Former", "external-4711", "Eileen Collins"
NOTE, FORMER_NOTE = 'says "höi"', "said hello"
KEY = MasterKey(b"k" * 32, "test")
ENCODED_KEY = base64.b64encode(KEY.data).decode()


def filled(folder: Path, identity: StoreIdentity) -> Path:
    """Grace has two photos, one of them with Eileen, who has another."""
    photos, store = folder / "photos", folder / "store"
    write_photo(photos, "grace.png", Shown(1))
    write_photo(photos, "grace and eileen.png", Shown(1, 1), Shown(2))
    write_photo(photos, "eileen.png", Shown(2, 1))
    settings = SETTINGS
    with LocalStore.open_or_create(store, lambda: identity, command="make") as client:
        if identity.encrypted:
            client.unlock(KEY)
            settings = replace(SETTINGS, security=replace(SETTINGS.security, master_key=ENCODED_KEY))
        client.create_account(USER, None)
    run_over(photos, store, settings=settings)
    with open_store(store, settings, command="test") as opened:
        opened.unlock()
        people = People(opened)
        two, one = (people.find(person_of(people, name)) for name in ("eileen.png", "grace.png"))
        people.name(one, FORMER)
        people.name(one, NAME)
        people.by_ids("update", [one], change=PersonChange(external_id=EXTERNAL, tags=["pioneer"]))
        people.by_ids("update", [one], change=PersonChange(metadata={"notes": [FORMER_NOTE]}))
        people.by_ids("update", [one], change=PersonChange(metadata={"notes": [NOTE]}))
        people.name(two, STAYS)
    return folder


def person_of(people: People, file: str) -> str:
    return next(
        row.person_id
        for row in people.all()
        if any(f["path"].endswith(f"/{file}") for f in people.photos(row.person_id))
    )


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with patch.dict(connection._SETTINGS, force_compression="uncompressed"):
        return filled(tmp_path_factory.mktemp("receipts"), coded_identity(SIZE))


@pytest.fixture(scope="session")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    identity = replace(coded_identity(SIZE), encrypted=True, master_key_id=KEY.key_id)
    return filled(tmp_path_factory.mktemp("encrypted"), identity)


@pytest.fixture
def store(plain: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(plain / "store", tmp_path / "store"))


@pytest.fixture
def grace(plain: Path) -> Path:
    """The photo that shows only her."""
    return plain / "photos" / "grace.png"


@pytest.fixture(params=["alone", "served", "encrypted"])
def each(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store that nobody holds, one that a server holds, and an encrypted one."""
    kind = request.param
    made: Path = request.getfixturevalue("encrypted" if kind == "encrypted" else "plain")
    store = Path(shutil.copytree(made / "store", tmp_path / "each"))
    if kind == "served":
        with serving(store):
            yield store
    else:
        if kind == "encrypted":
            monkeypatch.setenv("FACEPIPE_SECURITY__MASTER_KEY", ENCODED_KEY)
        yield store
    assert problems(store) == []


def forget(store: Path, file: Path, *more: object, who: str = NAME, exit_code: int = 0) -> dict[str, Any]:
    return answer("people", "forget", who, "--receipt", file, "--yes", *more, "--store", store, exit_code=exit_code)


def erased(store: Path, file: Path) -> dict[str, Any]:
    """A completed receipt."""
    forget(store, file)
    answer("erase", "--now", "--store", store)
    return answer("erase", "receipt", file, "--store", store)


def names(store: Path) -> set[str]:
    return {row["name"] for row in answer("people", "list", "--store", store)["people"]}


def verified(file: Path, *words: object, exit_code: int = 0) -> dict[str, Any]:
    return answer("erase", "verify", file, *words, exit_code=exit_code)


def rows(store: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("erase", "log", "--store", store)["erasures"]
    return found


def test_a_receipt_is_pending_then_signed_then_verified(each: Path, tmp_path: Path, plain: Path) -> None:
    file, key = tmp_path / "grace.json", answer("erase", "key", "--store", each)["public_key"]
    values = ("--name", NAME, "--external-id", EXTERNAL, "--photo", plain / "photos" / "grace.png")
    person = answer("people", "show", NAME, "--store", each)["person_id"]
    shown = facepipe("people", "forget", NAME, "--receipt", file, "--yes", "--store", each)
    assert f"receipt {file}: pending" in shown.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    pending = json.loads(file.read_text())
    assert (pending["format"], pending["version"], pending["state"]) == ("facepipe erasure receipt", 1, "pending")
    assert pending["public_key"] == key
    assert [(part["kind"], part["kept_photos"], part["keeps_digests"]) for part in pending["parts"]] == [
        ("forget", 1, True)
    ]
    digests = pending["parts"][0]["digests"]
    assert {of: len(found) for of, found in digests.items()} == {
        "name": 2,
        "external_id": 1,
        "tag": 1,
        "metadata": 2,
        "person_id": 1,
        "path": 1,
        "sha256": 1,
        "pixel_hash": 1,
    }
    for word in (NAME, FORMER, EXTERNAL, "pioneer", person, "grace.png"):
        assert json.dumps(word)[1:-1] not in file.read_text()
    assert receipts.read(file.read_text()).has("person_id", person)

    waiting = answer("erase", "receipt", file, "--store", each, exit_code=70)
    assert waiting["error"] == "receipt-pending"
    assert "erase --now" in waiting["message"]
    assert json.loads(file.read_text()) == pending
    assert answer("erase", "verify", file, *values, exit_code=70)["error"] == "receipt-pending"

    answer("erase", "--now", "--store", each)
    done = answer("erase", "receipt", file, "--store", each)
    (part,) = done["parts"]
    assert (done["state"], part["people"], part["faces"], part["photos"]) == ("erased", 1, 2, 1)
    assert part["deleted_at"] <= part["erased_at"]
    assert "catalog" in done["rewritten"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert answer("erase", "receipt", file, "--store", each) == done  # again

    for source in ((), ("--key", key), ("--key", key.upper()), ("--store", each)):
        report = verified(file, *values, *source)
        assert report["key_known"] == bool(source)
        assert [value["in_receipt"] for value in report["values"]] == [True] * 3
        assert [value["found"] for value in report["values"]] == [[] if "--store" in source else None] * 3
    assert verified(file, "--name", FORMER)["values"][0]["in_receipt"]
    assert [path.name for path in tmp_path.glob("grace*")] == ["grace.json"]


def test_the_store_holds_neither_salt_nor_digests(each: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    erased(each, file)
    content = json.loads(file.read_text())
    secrets = [content["salt"], *(d for part in content["parts"] for found in part["digests"].values() for d in found)]
    assert len(secrets) == 11
    files = {path.name: path.read_bytes() for path in each.rglob("*") if path.is_file()}
    for secret in secrets:
        for pattern in (secret.encode(), bytes.fromhex(secret)):
            assert [name for name, data in files.items() if pattern in data] == []
    assert [name for name, data in files.items() if content["pending_sha256"].encode() in data]  # the search finds


def test_any_value_can_be_verified(store: Path, grace: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "grace.json", tmp_path / "other.json"
    person = answer("people", "show", NAME, "--store", store)["person_id"]
    given = {"person-id": person, "tag": "pioneer", "path": grace, "name": FORMER, "external-id": EXTERNAL}
    words = [f"{kind}={text}" for kind, text in given.items()] + [f"metadata={text}" for text in (NOTE, FORMER_NOTE)]
    asked = [part for word in words for part in ("--value", word)]
    forget(store, other, who=STAYS)
    answer("erase", "--now", "--store", store)
    answer("erase", "receipt", other, "--store", store)
    values = verified(other, *asked, "--store", store, exit_code=71)["values"]
    assert not any(value["in_receipt"] for value in values)
    assert all(len(value["found"]) > 1 for value in values)  # a column, and the catalog's bytes
    assert "core.faces.person_id (2 rows)" in values[0]["found"]

    erased(store, file)
    values = verified(file, *asked, "--store", store)["values"]
    assert [value["kind"] for value in values] == [*(kind.replace("-", "_") for kind in given), "metadata", "metadata"]
    assert all(value["in_receipt"] and value["found"] == [] for value in values)
    for word in ("pioneer", "colour=red"):
        assert "--value takes KIND=TEXT" in verified(file, "--value", word, exit_code=2)["message"]
    assert "is empty" in verified(file, "--value", "tag=", exit_code=2)["message"]


def test_a_signed_log_of_all_erasures(each: Path, tmp_path: Path) -> None:
    """Also of those without a receipt of their own."""
    file = tmp_path / "log.json"
    assert facepipe("people", "forget", NAME, "--yes", "--store", each).exit_code == 0
    answer("erase", "--now", "--store", each)
    answer("directory", "delete", "main", "--yes", "--store", each)
    answer("erase", "--now", "--store", each)
    answer("erase", "log", "--receipt", file, "--store", each)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    report = verified(file, "--store", each)
    parts = [(part["kind"], part["people"], part["erased_at"] is not None) for part in report["parts"]]
    assert (report["state"], parts) == ("log", [("forget", 1, True), ("delete_directory", 1, True)])
    assert "delete-directory at 20" in facepipe("erase", "verify", file).stdout
    assert not verified(file, "--name", NAME, exit_code=71)["values"][0]["in_receipt"]
    assert NAME not in file.read_text()
    taken = answer("erase", "log", "--receipt", file, "--store", each, exit_code=2)
    assert "it exists already" in taken["message"]
    inside = answer("erase", "log", "--receipt", each / "log.json", "--store", each, exit_code=2)
    assert "would be in the store" in inside["message"]
    file.write_text(file.read_text().replace('"people": 1', '"people": 2'))
    assert "was changed" in verified(file, exit_code=69)["message"]


def test_a_signed_log_says_what_is_not_erased_yet(store: Path, tmp_path: Path) -> None:
    facepipe("people", "forget", NAME, "--yes", "--store", store)
    answer("erase", "log", "--receipt", tmp_path / "log.json", "--store", store)
    assert ", not erased yet: 1 people" in facepipe("erase", "verify", tmp_path / "log.json").stdout


def test_what_is_still_in_the_store_is_found(store: Path, grace: Path, tmp_path: Path) -> None:
    """Before anything is erased, by the receipt of somebody else; then only among the bytes; then no longer."""
    other = tmp_path / "other.json"
    forget(store, other, who=STAYS)
    answer("erase", "--now", "--store", store)
    answer("erase", "receipt", other, "--store", store)
    words = ("--name", NAME, "--external-id", EXTERNAL, "--photo", grace, "--store", store)
    report = verified(other, *words, exit_code=71)
    assert report["error"] == "not-erased"
    found = {value["kind"]: value["found"] for value in report["values"]}
    assert {"core.persons.name (1 row)", "catalog-0002.duckdb"} <= set(found["name"])
    assert {"core.persons.external_id (1 row)", "catalog-0002.duckdb"} <= set(found["external_id"])
    assert {"core.media.sha256 (1 row)", "catalog-0002.duckdb"} <= set(found["photo"])
    assert not any(value["in_receipt"] for value in report["values"])
    assert "found in core.persons.name" in facepipe("erase", "verify", other, *words).stdout

    file = tmp_path / "grace.json"
    forget(store, file)
    receipt = file.read_text()
    execute_erased(store, receipt)  # as if the catalog had been rewritten
    answer("erase", "receipt", file, "--store", store)
    values = verified(file, *words, exit_code=71)["values"]
    assert all(value["in_receipt"] for value in values)
    assert {place for value in values for place in value["found"]} == {"catalog-0002.duckdb"}
    answer("erase", "--now", "--store", store)
    assert [value["found"] for value in verified(file, *words)["values"]] == [[], [], []]


def execute_erased(store: Path, receipt: str) -> None:
    with LocalStore.open(store, command="test") as client:
        execute(client, f"UPDATE core.erasures SET erased_at = deleted_at WHERE receipt = '{receipts.sha256(receipt)}'")


def test_traces_in_other_files_are_found(store: Path, tmp_path: Path) -> None:
    """In UTF-16, in names of files, and in compressed columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "grace.json"
    erased(store, file)
    (store / "runs" / "left.txt").write_bytes(NAME.encode("utf-16-be"))
    (store / "runs" / f"{NAME}.txt").write_bytes(b"")
    (store / "runs" / "json.txt").write_text(json.dumps(NAME))
    pq.write_table(pa.table({"path": [f"/photos/{NAME}/{n}.jpg" for n in range(999)]}), store / "runs" / "left.parquet")
    (value,) = verified(file, "--name", NAME, "--store", store, exit_code=71)["values"]
    assert set(value["found"]) == {"runs/left.txt", f"runs/{NAME}.txt", "runs/json.txt", "runs/left.parquet"}


def test_a_short_name_is_searched_in_columns_only(store: Path, tmp_path: Path) -> None:
    answer("people", "name", STAYS, "Al", "--store", store)
    file = tmp_path / "grace.json"
    erased(store, file)
    (value,) = verified(file, "--name", "Al", "--store", store, exit_code=71)["values"]
    assert (value["found"], value["is_short"]) == (["core.persons.name (1 row)"], True)
    assert "too short" in facepipe("erase", "verify", file, "--name", "Al", "--store", store).stdout


def test_photos_that_show_others_are_a_part_of_it(each: Path, tmp_path: Path, plain: Path) -> None:
    file = tmp_path / "both.json"
    forget(each, file, "--photos", "--no-trace")
    answer("erase", "--now", "--store", each)
    parts = answer("erase", "receipt", file, "--store", each)["parts"]
    counts = [(part["kind"], part["people"], part["faces"], part["photos"]) for part in parts]
    assert counts == [("forget", 1, 2, 1), ("forget_photos", 0, 2, 1)]
    assert not any(part["keeps_digests"] for part in parts)
    with_eileen = ("--photo", plain / "photos" / "grace and eileen.png")
    assert verified(file, *with_eileen, "--store", each)["values"][0]["in_receipt"]


def test_without_trace_no_digests_are_kept_of_photos_of_others(store: Path, tmp_path: Path) -> None:
    forget(store, tmp_path / "both.json", "--photos", "--no-trace")
    with LocalStore.open(store, command="look") as client:
        assert len(client.read("SELECT * FROM core.forgotten")) == 0


def test_a_part_that_failed_is_left_out(store: Path, tmp_path: Path) -> None:
    file, by_ids = tmp_path / "both.json", People.by_ids

    def failing(people: People, kind: str, *ids: Any, **fields: Any) -> Any:
        if kind == "forget_photos" and not fields.get("dry_run"):
            raise StoreFull(path=store, detail="full")
        return by_ids(people, kind, *ids, **fields)

    with patch.object(People, "by_ids", failing):
        forget(store, file, "--photos", exit_code=44)
    assert [part["kind"] for part in json.loads(file.read_text())["parts"]] == ["forget", "forget_photos"]
    answer("erase", "--now", "--store", store)
    assert [part["kind"] for part in answer("erase", "receipt", file, "--store", store)["parts"]] == ["forget"]


def test_all_deletions_are_recorded_in_numbers(store: Path, tmp_path: Path) -> None:
    with serving(store) as service:
        image = photo(Shown(7))
        posted = service.post(1, "main", image, PostRequest(name="Posted")).faces[0].person
        assert posted is not None
        service.correct(CorrectionRequest(1, "main", "delete", [posted.record.person_id]))
    assert facepipe("people", "forget", NAME, "--yes", "--store", store).exit_code == 0
    answer("directory", "delete", "main", "--yes", "--store", store)
    kinds = [(row["kind"], row["people"], row["faces"], row["photos"], row["receipt"]) for row in rows(store)]
    assert kinds == [
        ("delete", 1, 1, 0, None),
        ("forget", 1, 2, 1, None),
        ("delete_directory", 1, 3, 2, None),
    ]
    assert not any(row["erased_at"] for row in rows(store))
    answer("erase", "--now", "--store", store)
    assert all(row["erased_at"] >= row["deleted_at"] for row in rows(store))
    assert all(row["account"] == USER for row in rows(store))
    first, *_ = facepipe("erase", "log", "--store", store).stdout.splitlines()
    assert re.search(rf"  {USER}  delete  1 people, 1 faces, 0 photos  erased 20", first)


def test_a_run_in_progress_keeps_a_receipt_pending_until_its_end(store: Path, tmp_path: Path, plain: Path) -> None:
    """Its manifest lists her photos."""
    file, at_end = tmp_path / "grace.json", Store.end_run
    write_photo(tmp_path / "more", "another.png", Shown(1, 5))

    def forgetting(opened: Store, *ended: Any) -> Any:
        local = opened.local
        name = People(Store(local, SETTINGS)).show(NAME).person_id
        People(Store(local, SETTINGS)).forget(name, no_trace=True, receipt=file)
        local.erase(now=True)
        assert local.read("SELECT erased_at FROM core.erasures")["erased_at"].to_pylist() == [None]
        with pytest.raises(ReceiptPending, match="a run that is in progress"):
            local.sign_receipt(file.read_text())
        row = at_end(opened, *ended)
        with pytest.raises(ReceiptPending, match="to be erased by"):
            local.sign_receipt(file.read_text())
        return row

    with patch.object(Store, "end_run", forgetting):
        run_over(tmp_path / "more", store)
    answer("erase", "--now", "--store", store)
    assert answer("erase", "receipt", file, "--store", store)["state"] == "erased"


def test_where_nothing_waits_the_receipt_can_be_signed_at_once(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FACEPIPE_STORE__ERASE_WITHIN", "0")
    forget(store, tmp_path / "grace.json")
    assert answer("erase", "receipt", tmp_path / "grace.json", "--store", store)["state"] == "erased"


def test_what_is_deleted_while_the_catalog_is_copied_is_not_said_to_be_erased(store: Path, tmp_path: Path) -> None:
    file, fill = tmp_path / "eileen.json", rewriting.CatalogCopy.fill
    forget(store, tmp_path / "grace.json")
    with open_store(store, command="test") as opened:

        def forgetting(copy: rewriting.CatalogCopy) -> None:
            fill(copy)
            People(opened).forget(STAYS, receipt=file)

        with patch.object(rewriting.CatalogCopy, "fill", forgetting):
            opened.local.erase_catalog()
    assert [row["erased_at"] is None for row in rows(store)] == [False, True]
    assert answer("erase", "receipt", tmp_path / "grace.json", "--store", store)["state"] == "erased"
    assert answer("erase", "receipt", file, "--store", store, exit_code=70)["error"] == "receipt-pending"


@pytest.mark.parametrize("version", [1, 10])
def test_a_store_of_an_earlier_version_gets_a_key(tmp_path: Path, version: int) -> None:
    keys = set()
    for number in range(2):
        store = of_version(version, tmp_path / str(number))
        keys.add(answer("erase", "key", "--store", store)["public_key"])
        assert answer("erase", "key", "--store", store)["public_key"] in keys
    assert len(keys) == 2
    assert all(re.fullmatch("[0-9a-f]{64}", key) for key in keys)


# Bad input


def test_a_file_that_exists_is_kept_and_nothing_is_forgotten(each: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    file.write_text("mine")
    assert "exists already" in forget(each, file, exit_code=2)["message"]
    assert file.read_text() == "mine"
    (tmp_path / "link.json").symlink_to(tmp_path / "nowhere.json")
    assert "exists already" in forget(each, tmp_path / "link.json", exit_code=2)["message"]
    assert names(each) == {NAME, STAYS}


def test_a_file_that_cannot_be_written_and_nothing_is_forgotten(each: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(each / "runs", target_is_directory=True)
    for file, said in (
        (tmp_path / "nowhere" / "grace.json", "No such file"),
        (Path("/proc/grace.json"), "cannot be written"),
        (each / "grace.json", "would be in the store"),
        (tmp_path / "link" / "grace.json", "would be in the store"),
        (each.parent / "." / each.name / "runs" / ".." / "grace.json", "would be in the store"),
    ):
        report = forget(each, file, exit_code=2)
        assert said in report["message"], report
        assert not file.exists()
    assert names(each) == {NAME, STAYS}


def test_a_full_disk_leaves_no_half_receipt(store: Path, tmp_path: Path) -> None:
    with patch("pipeline.jobs.receipts.os.fsync", side_effect=OSError(28, "No space left on device")):
        assert "No space left" in forget(store, tmp_path / "grace.json", exit_code=2)["message"]
    assert not (tmp_path / "grace.json").exists()
    assert names(store) == {NAME, STAYS}


def test_a_refused_erasure_leaves_no_receipt(each: Path, tmp_path: Path) -> None:
    """Somebody renames her between the receipt and the erasure."""
    file, correct = tmp_path / "grace.json", Store._correct

    def renamed(store: Store, request: Any, *more: Any) -> Any:
        if request.kind == "forget" and not request.dry_run:
            assert file.exists()
            correct(store, replace(request, kind="name", change=PersonChange(name="Grace"), receipt=None, seen=None))
        return correct(store, request, *more)

    with patch.object(Store, "_correct", renamed):
        assert forget(each, file, exit_code=14)["error"] == "changed-since"
    assert not file.exists()
    assert names(each) == {"Grace", STAYS}


def test_a_failed_transaction_leaves_no_receipt(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    with failing_at("change.commit", StoreFull(path=store, detail="full")):
        assert forget(store, file, exit_code=44)["error"] == "store-full"
    assert not file.exists()
    assert names(store) == {NAME, STAYS}


def test_an_erasure_whose_clean_up_failed_keeps_its_receipt(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    with failing_at("unlink", StoreFull(path=store, detail="full")):
        assert forget(store, file, exit_code=53)["error"] == "clean-up-left"
    assert names(store) == {STAYS}
    assert "receipt " in facepipe("erase", "log", "--store", store).stdout
    answer("erase", "--now", "--store", store)
    assert answer("erase", "receipt", file, "--store", store)["state"] == "erased"


@pytest.mark.slow
def test_killed_anywhere_the_store_knows_the_receipt_of_what_is_deleted(store: Path, tmp_path: Path) -> None:
    file, known = tmp_path / "grace.json", set()
    (tmp_path / "copies").mkdir()
    with open_store(store, command="test") as opened:
        people = People(opened)
        copies = copied_at_points(store, tmp_path / "copies", lambda: people.forget(NAME, receipt=file), every=True)
    for copy in map(Path, copies.values()):
        is_deleted = names(copy) == {STAYS}
        known.add(is_deleted)
        assert [row["receipt"] for row in rows(copy)] == [receipts.sha256(file.read_text())] * is_deleted
        answer("erase", "--now", "--store", copy)
        with open_store(copy, command="test") as opened:
            if is_deleted:
                assert receipts.read(opened.sign_receipt(file.read_text())).has("name", NAME)
            else:
                with pytest.raises(ReceiptInvalid, match="nothing was forgotten with it"):
                    opened.sign_receipt(file.read_text())
    assert known == {True, False}


def test_a_server_that_ends_meanwhile_leaves_the_receipt(store: Path, tmp_path: Path) -> None:
    """Nobody can tell what it did."""
    file = tmp_path / "grace.json"

    def gone(*_: object, **__: object) -> None:
        raise ServerUnreachable(path=store, url="http://127.0.0.1:1", detail="it ended")

    with patch.object(People, "_forget", gone), patch.object(Store, "sign_receipt", gone):
        forget(store, file, exit_code=52)
    unknown = answer("erase", "receipt", file, "--store", store, exit_code=69)
    assert "nothing was forgotten with it" in unknown["message"]


def test_somebody_forgotten_twice(each: Path, tmp_path: Path) -> None:
    forget(each, tmp_path / "one.json")
    assert forget(each, tmp_path / "two.json", exit_code=72)["error"] == PersonNotFound(who="", directory="").code
    assert not (tmp_path / "two.json").exists()


def test_a_receipt_of_another_store(each: Path, store: Path, tmp_path: Path) -> None:
    with LocalStore.open(store, command="test") as client:  # a copy has the same key
        execute(client, f"UPDATE core.store SET receipt_key = '{'7' * 64}'")
    file = tmp_path / "grace.json"
    forget(store, file)
    assert "of another store" in answer("erase", "receipt", file, "--store", each, exit_code=69)["message"]
    answer("erase", "--now", "--store", store)
    answer("erase", "receipt", file, "--store", store)
    assert "of another store" in answer("erase", "receipt", file, "--store", each, exit_code=69)["message"]
    assert "of another store" in verified(file, "--store", each, exit_code=69)["message"]
    assert "of another store" in verified(file, "--key", "00" * 32, exit_code=69)["message"]


def test_a_receipt_that_was_changed(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    forget(store, file)
    text = file.read_text()
    answer("erase", "--now", "--store", store)
    file.write_text(text.replace('"keeps_digests": true', '"keeps_digests": false'))
    assert "was changed" in answer("erase", "receipt", file, "--store", store, exit_code=69)["message"]
    file.write_text(text)
    answer("erase", "receipt", file, "--store", store)
    signed = file.read_text()
    changes = [
        (r'"people": 1', '"people": 2'),
        (r'"erased_at": "20', '"erased_at": "19'),
        (r'"salt": "..', '"salt": "00'),
        (r'"signature": "..', '"signature": "00'),
        (r'"signature": "', '"signature": "zz'),
        (r'"rewritten": \[', '"rewritten": [ "all",'),
    ]
    for old, new in changes:
        changed, count = re.subn(old, new, signed, count=1)
        assert (count, changed != signed) == (1, True)
        file.write_text(changed)
        for words in ((), ("--store", store)):
            assert "was changed" in verified(file, "--name", NAME, *words, exit_code=69)["message"], old
        assert "was changed" in answer("erase", "receipt", file, "--store", store, exit_code=69)["message"]
    file.write_text(json.dumps(json.loads(signed)))  # other white space is the same receipt
    assert verified(file, "--name", NAME, "--store", store)["values"][0]["in_receipt"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: "not JSON", "not JSON"),
        (lambda _: "[" * 100_000, "not JSON"),
        (lambda _: "[]", 'no "format"'),
        (lambda _: "{}", 'no "format"'),
        (lambda content: content | {"format": "other"}, 'no "format"'),
        (lambda content: content | {"version": 2}, "version 2, and this facepipe reads up to 1"),
        (lambda content: content | {"version": "1"}, "has not the fields"),
        (lambda content: content | {"state": "done"}, "has not the fields"),
        (lambda content: content | {"salt": "xyz"}, "has not the fields"),
        (lambda content: content | {"public_key": 7}, "has not the fields"),
        (lambda content: content | {"parts": [7]}, "has not the fields"),
        (lambda content: content | {"parts": [{"kind": "forget", "digests": {"name": 7}}]}, "has not the fields"),
        (lambda content: {name: value for name, value in content.items() if name != "parts"}, "has not the fields"),
    ],
)
def test_what_is_no_receipt(store: Path, tmp_path: Path, change: Any, said: str) -> None:
    file = tmp_path / "grace.json"
    file.write_text(receipts.pending("ab" * 32, [("forget", {"name": [NAME]}, 0)], keeps_digests=True))
    made = change(json.loads(file.read_text()))
    file.write_text(made if isinstance(made, str) else json.dumps(made))
    for words in (("erase", "receipt", file, "--store", store), ("erase", "verify", file)):
        report = answer(*words, exit_code=69)
        assert report["error"] == "receipt-invalid"
        assert said in report["message"]


def test_files_that_cannot_be_read(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "grace.json"
    assert "cannot be read" in answer("erase", "receipt", file, "--store", store, exit_code=2)["message"]
    assert "cannot be read" in verified(tmp_path, exit_code=2)["message"]
    file.write_bytes(b"\xff\xfe")
    assert "not JSON" in verified(file, exit_code=69)["message"]
    erased(store, tmp_path / "real.json")
    assert "cannot be read" in verified(tmp_path / "real.json", "--photo", tmp_path / "no", exit_code=2)["message"]
    assert "is empty" in verified(tmp_path / "real.json", "--name", "", exit_code=2)["message"]


def test_the_group_without_a_store() -> None:
    assert "--store" in report_of(facepipe("erase", "--json"), 2)["message"]
