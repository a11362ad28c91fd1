"""What of deleted people was left where a deletion did not look: in runs that go on, in photos of their name without a
face of theirs, in leftovers of crashes, in undone corrections, and in stores of earlier versions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from coded_faces import Shown, photo
from coded_store import USER

from pipeline.errors import ReceiptPending, StoreFull
from pipeline.jobs.people import People as JobPeople
from pipeline.jobs.receipts import complete, verify
from pipeline.jobs.store import Store, open_store
from pipeline.people.types import PostRequest
from pipeline.store.files.lock import RUN_LOCK_NAME, StoreLock
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, serving, write_photo
from tests.people.correcting import People
from tests.store.store_samples import at_fault_points, execute, failing_at

BY_FOLDER = replace(SETTINGS, source=replace(SETTINGS.source, labels="parent"))
GRACE, ADA = "Grace Hopper", "Ada Lovelace"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two people in folders of their names, both on one photo; and one of Grace's that shows nobody."""
    folder = tmp_path / "photos"
    for number, name in enumerate((GRACE, ADA), 1):
        for variant in (1, 2):
            write_photo(folder / name, f"{name[0]}{variant}.png", Shown(number, variant))
    write_photo(folder / GRACE, "holiday.png")
    write_photo(folder / GRACE, "poor.png", Shown(9, 0, 0.1))
    write_photo(folder, "both.png", Shown(1, 3), Shown(2, 3))
    return folder


@pytest.fixture
def store(tmp_path: Path, photos: Path) -> Path:
    made = make_store(tmp_path / "store")
    run_over(photos, made, settings=BY_FOLDER)
    return made


@contextmanager
def opened(store: Path) -> Iterator[tuple[Store, JobPeople]]:
    with open_store(store, SETTINGS, command="test") as here:
        yield here, JobPeople(here, USER)


def forget(store: Path, who: str = GRACE, **wishes: object) -> None:
    with opened(store) as (here, people):
        people.forget(who, **wishes)  # type: ignore[arg-type]
        here.erase(now=True)


def holding(store: Path, *texts: str) -> set[str]:
    """The files that have one of these texts."""
    files = {file.relative_to(store).as_posix(): file.read_bytes() for file in store.rglob("*") if file.is_file()}
    return {name for name, data in files.items() if any(text.encode() in data for text in texts)}


def interrupt_a_run(photos: Path, store: Path) -> None:
    """After its extraction."""
    write_photo(photos / GRACE, "new-of-grace.png", Shown(1, 7))
    with failing_at("commit_shard.begin", StoreFull(path=store, detail="full")), pytest.raises(StoreFull):
        run_over(photos, store, settings=BY_FOLDER)
    assert {name.rpartition("/")[2] for name in holding(store, "new-of-grace")} >= {"manifest.parquet"}


@pytest.mark.parametrize("ahead", ["", " + INTERVAL 1 HOUR"])  # of the clock when the run began
def test_of_a_run_that_dies_after_the_erasure_nothing_stays(
    photos: Path, store: Path, tmp_path: Path, ahead: str
) -> None:
    interrupt_a_run(photos, store)
    with LocalStore.open(store, command="test") as client:
        execute(client, f"UPDATE core.runs SET started_at = started_at{ahead} WHERE state <> 'finished'")
    receipt = tmp_path / "receipt.json"
    with StoreLock.acquire(store, "run", RUN_LOCK_NAME):
        forget(store, receipt=receipt)
        with opened(store) as (here, _):
            assert here.erase(now=False).since is None  # nothing to do before its end
            with pytest.raises(ReceiptPending, match="run"):
                complete(here, receipt)
    with opened(store) as (here, _):
        assert holding(store, "new-of-grace")
        here.erase(now=True)
        assert holding(store, "new-of-grace") == set()
        assert complete(here, receipt).state == "erased"
    assert problems(store) == []


def test_run_json_names_nobody_who_is_forgotten_while_it_is_written(photos: Path, store: Path) -> None:
    (photos / GRACE / "G2.png").rename(photos / GRACE / "renamed.png")
    write_photo(photos / ADA, "A4.png", Shown(2, 4))
    done: list[str] = []
    with serving(store) as service:

        def forget_first(point: str) -> None:
            if point == "report.write" and not done:
                done.append(point)
                with service.directories.using(1, "main") as directory:
                    (grace,) = [record.person_id for record in directory.everybody() if record.name == GRACE]
                service.correct(CorrectionRequest(1, "main", "forget", [grace]))

        with at_fault_points(forget_first):
            run_over(photos, store, settings=BY_FOLDER)
    assert done
    with LocalStore.open(store, command="test", erase_within_h=0.0):
        assert holding(store, "renamed.png", "G2.png") == set()
    assert problems(store) == []


def test_photos_of_the_name_are_forgotten_unless_they_show_others(photos: Path, store: Path, tmp_path: Path) -> None:
    """One shows nobody, of one the face was rejected; one shows somebody else, and is listed."""
    write_photo(photos / GRACE, "really-ada.png", Shown(2, 8))
    run_over(photos, store, settings=BY_FOLDER)
    with opened(store) as (here, people):
        answer = people.forget(GRACE, receipt=tmp_path / "receipt.json")
        assert sorted(Path(path).name for path in answer.kept_photos) == ["both.png", "really-ada.png"]
        here.erase(now=True)
    assert holding(store, "holiday.png", "poor.png", "G1.png") == set()
    with opened(store) as (here, _):
        complete(here, tmp_path / "receipt.json")
        _, values = verify(tmp_path / "receipt.json", {}, photos / GRACE / "holiday.png", store=here, key=None)
    assert [(value.in_receipt, value.found) for value in values] == [(True, [])]
    again = run_over(photos, store, settings=BY_FOLDER)
    assert (again.images, again.forgotten) == (0, 4)
    assert problems(store) == []


def test_a_photo_whose_face_was_said_not_to_be_theirs_stays(photos: Path, store: Path) -> None:
    with opened(store) as (here, people):
        face = next(row["face_id"] for row in people.photos(GRACE) if row["path"].endswith("G2.png"))
        people.move(face, None)
        answer = people.forget(GRACE)
        here.erase(now=True)
    assert sorted(Path(path).name for path in answer.kept_photos) == ["G2.png", "both.png"]
    assert holding(store, "G2.png")
    assert problems(store) == []


def test_photos_that_an_earlier_version_kept_are_forgotten(photos: Path, store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        grace = "(SELECT media_id FROM core.media WHERE path LIKE '%G_.png')"
        for table in ("detections", "embeddings", "reference_faces"):
            execute(
                client,
                f"DELETE FROM core.{table} WHERE face_id IN (FROM core.faces SELECT face_id WHERE media_id IN {grace})",
            )
        execute(client, f"UPDATE core.faces SET outcome = 'removed', person_id = NULL WHERE media_id IN {grace}")
        execute(client, "UPDATE core.store SET erase_since = now()::TIMESTAMP")  # as the upgrade does
        client.erase(now=True)
    for page in store.glob("runs/*/report.html"):  # went with the person
        page.unlink()
    assert holding(store, "G1.png", "G2.png") == set()
    assert run_over(photos, store, settings=BY_FOLDER).images == 0


def test_posted_photos_that_show_others_are_counted(store: Path) -> None:
    with serving(store) as service:
        service.post(1, "main", photo(Shown(1, 5), Shown(7)), PostRequest(insert_all=True))
        with opened(store) as (_, people):
            assert people.forget(GRACE).kept_posts == 1


def test_an_undone_correction_has_no_id_of_the_deleted(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        people = People(client, "", "", "")
        face, grace = next((face, person) for face, person in people.owners().items() if person)
        split = people.correct("split", str(grace), faces=(face,))
        (new,) = {*split.persons} - {grace}
        people.correct("undo")
        (undo,) = client.read("SELECT max(correction_id) AS id FROM core.corrections")["id"].to_pylist()
        people.correct("undo", correction_id=undo)  # the new person is there again
        people.correct("forget", new)
        client.erase(now=True)
        shown = client.read("SELECT * EXCLUDE (before, after) FROM core.corrections").to_pylist()
        assert new not in str([row for row in shown if row["kind"] != "forget"])
        people.close()


def test_crashes_leave_nothing_that_a_server_would_keep(photos: Path, store: Path) -> None:
    """Half-written and interrupted transfers, and the log of images before their transaction."""
    with serving(store) as service:
        service.post(1, "main", photo(Shown(1, 6)), PostRequest())
        (run,) = (store / "runs").iterdir()
        (store / "handover").mkdir(exist_ok=True)
        for name in ("manifest.parquet.tmp", "shards/00000.parquet.tmp", "../../handover/0.parquet"):
            (run / name).parent.mkdir(exist_ok=True)
            (run / name).write_text("Grace was here")
            os.utime(run / name, (0, 0))
        pictures = {path.name for path in (store / "objects").rglob("*") if path.is_file()}
        forget(store)
        gone = pictures - {path.name for path in (store / "objects").rglob("*") if path.is_file()}
        assert gone
        assert holding(store, "Grace was here", *gone) == set()


def test_a_forgotten_photo_has_no_size_and_a_deleted_directory_no_runs(photos: Path, store: Path) -> None:
    run_over(photos / ADA, store, settings=BY_FOLDER, directory="visitors")
    forget(store)
    with opened(store) as (here, _):
        here.delete_all(1, "visitors")
        here.erase(now=True)
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT * FROM core.media WHERE status = 'forgotten'").to_pylist()
        assert rows
        assert {name for row in rows for name, value in row.items() if value is not None} == {
            *("media_id", "run_id", "shard", "row", "account_id", "directory", "status", "added_at")
        }
    assert holding(store, "visitors") == set()
    assert problems(store) == []
