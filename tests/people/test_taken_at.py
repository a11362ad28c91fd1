"""When photos were taken, from their files to what lists and exports tell."""

from __future__ import annotations

import csv
import io
import shutil
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from coded_faces import Shown, photo
from PIL import Image

from pipeline.people.types import PostRequest
from pipeline.run.run import RunRequest, extract, scan
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import SETTINGS, ArchiveExtractor, make_store, problems, run_over, serving
from tests.people.correcting import People

FIRST, LATER = datetime(1904, 1, 2, 3, 4, 5), datetime(2106, 5, 6, 7, 8, 9)


def write(path: Path, taken: datetime | None, *faces: Shown) -> Path:
    exif = Image.Exif()
    exif[0x0112] = 1
    if taken is not None:
        exif[0x0132] = f"{taken:%Y:%m:%d %H:%M:%S}"
    path.parent.mkdir(exist_ok=True)
    Image.open(io.BytesIO(photo(*faces))).save(path, exif=exif)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photos of 1904 and 2106, one without date, a copy of the first, and a broken one."""
    made = tmp_path / "dated"
    write(made / "a.png", FIRST, Shown(1))
    write(made / "b.png", LATER, Shown(2))
    write(made / "c.png", None, Shown(3))
    shutil.copy(made / "a.png", made / "d-copy.png")
    (made / "e-broken.png").write_bytes((made / "b.png").read_bytes()[:-80])
    return made


@pytest.fixture
def dated(folder: Path, tmp_path: Path) -> Path:
    """A store that a run filled from `folder`."""
    run_over(folder, made := make_store(tmp_path / "store-of-dated"))
    return made


def dates(store: Path) -> dict[str, datetime | None]:
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT path, taken_at FROM main.media WHERE path IS NOT NULL").to_pylist()
    return {Path(row["path"]).name: row["taken_at"] for row in rows}


def test_a_run_stores_it_and_lists_and_exports_tell_it(dated: Path, tmp_path: Path) -> None:
    known = {"a.png": FIRST, "b.png": LATER, "c.png": None, "d-copy.png": FIRST, "e-broken.png": None}
    assert dates(dated) == known
    answer("export", "--store", dated, "--to", tmp_path / "exported")
    media, shown = (pq.read_table(tmp_path / "exported" / f"{name}.parquet").to_pylist() for name in ("media", "faces"))
    assert {Path(row["path"]).name: row["taken_at"] for row in media} == known
    who = {Path(face["path"]).name: face["person_id"] for face in shown}
    faces = answer("people", "photos", who["a.png"], "--store", dated)["faces"]
    assert [face["taken_at"] for face in faces] == [str(FIRST)] * 2  # of the copy as well
    lines = facepipe("people", "photos", who["b.png"], "--store", dated).stdout
    assert lines.rstrip().endswith(f"taken {LATER}")
    assert "taken" not in facepipe("people", "photos", who["c.png"], "--store", dated).stdout
    (row,) = csv.DictReader(io.StringIO(facepipe("people", "photos", who["b.png"], "--store", dated, "--csv").stdout))
    assert row["taken_at"] == str(LATER)
    assert problems(dated) == []


def test_beside_a_server(folder: Path, tmp_path: Path) -> None:
    """It commits the shards that the command extracted, and answers its questions."""
    store = make_store(tmp_path / "served")
    with serving(store):
        run_over(folder, store)
        faces = answer("people", "list", "--store", store)["people"]
        found = [
            answer("people", "photos", one["person_id"], "--store", store)["faces"][0]["taken_at"] for one in faces
        ]
    assert found == [str(FIRST), str(LATER), None]


def test_copies_in_later_runs_take_it_from_the_stored_photo(dated: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    for name in ("b.png", "c.png"):
        shutil.copy(folder / name, tmp_path / "more" / f"again-{name}")
    report = run_over(tmp_path / "more", dated)
    assert report.statuses["duplicate"] == 2
    found = dates(dated)
    assert (found["again-b.png"], found["again-c.png"]) == (LATER, None)


def test_a_file_that_changes_gets_the_date_of_its_new_bytes(dated: Path, folder: Path) -> None:
    write(folder / "b.png", FIRST, Shown(2, 1))
    run_over(folder, dated)
    with LocalStore.open(dated, command="test") as client:
        rows = client.read("SELECT status, taken_at FROM core.media WHERE media_id IN (2, 6) ORDER BY media_id")
    assert rows.to_pylist() == [{"status": "replaced", "taken_at": None}, {"status": "ok", "taken_at": FIRST}]


def test_unchanged_files_of_an_earlier_version_are_not_read_again(dated: Path, folder: Path) -> None:
    with LocalStore.open(dated, command="test") as client:
        client.submit(lambda catalog: catalog.execute("UPDATE core.media SET taken_at = NULL"))
    report = run_over(folder, dated)
    assert report.images == 0
    assert set(dates(dated).values()) == {None}


def test_it_is_forgotten_with_the_photo(dated: Path) -> None:
    with LocalStore.open(dated, command="test") as client:
        people = People(client, *(face.person_id for face in client.stored_faces(1, "main", range(1, 4), [])))
        people.correct("forget_photos", media_ids=[1, 2])
        rows = client.read("SELECT media_id, status, taken_at FROM core.media ORDER BY 1").to_pylist()
        assert [row["status"] for row in rows[:2]] == ["forgotten"] * 2
        assert [row["taken_at"] for row in rows] == [None, None, None, FIRST, None]
        people.close()


def test_posted_photos_have_none(dated: Path, folder: Path) -> None:
    with serving(dated) as service:
        service.post(1, "main", write(folder / "posted.png", FIRST, Shown(9)).read_bytes(), PostRequest())
    with LocalStore.open(dated, command="test") as client:
        assert client.read("SELECT taken_at FROM core.media WHERE path IS NULL")["taken_at"].to_pylist() == [None]


def test_a_run_that_an_earlier_version_extracted_goes_on_without_it(folder: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path / "unfinished")
    request = RunRequest(folder, store, settings=SETTINGS)
    with patch("pipeline.run.stages.load_extractor", ArchiveExtractor.load):
        scan(request)
        extract(request)
    with LocalStore.open(store, command="test") as client:
        (run,) = client.read("SELECT run_id FROM core.runs")["run_id"].to_pylist()
        for shard in client.extracted_shards(run):
            table = client.read_run_shard(run, shard)
            client.write_run_shard(run, shard, table.drop_columns(["taken_at"]), {})
    run_over(folder, store)
    assert dates(store) == dict.fromkeys(("a.png", "b.png", "c.png", "d-copy.png", "e-broken.png"))
    assert problems(store) == []
