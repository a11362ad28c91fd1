"""Nights after something odd happened to the source, the clock or the file system."""

from __future__ import annotations

import csv
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest
from coded_faces import Shown

from pipeline.extraction.images import files
from pipeline.store.local import LocalStore
from pipeline.types import FileState, utc_now
from tests.people.coded_archive import make_store, problems, run_over, write_photo


@pytest.fixture
def photos(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(archive, tmp_path / "photos"))


def _change(photo: Path) -> None:
    """Other bytes of the same size, and the old mtime."""
    entry, data = photo.stat(), bytearray(photo.read_bytes())
    data[-1] ^= 1  # in the checksum of PNG's last chunk, which decoders do not mind
    photo.write_bytes(data)
    os.utime(photo, ns=(entry.st_atime_ns, entry.st_mtime_ns))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
def test_what_was_noted_later_than_now_is_read_again(photos: Path, tmp_path: Path, ahead: bool) -> None:
    """A clock that went backwards gives a changed file the times that it had: here all that was noted is the same."""
    run_over(photos, store := make_store(tmp_path / "store"))
    _change(photos / "a1.png")
    entry = (photos / "a1.png").stat()
    seen = utc_now() + timedelta(hours=1 if ahead else -1)
    with LocalStore.open(store, command="test") as client:
        client.submit(
            lambda catalog: catalog.execute(
                "UPDATE core.files SET size = ?, mtime_ns = ?, ctime_ns = ?, inode = ?, seen_at = ? WHERE path = ?",
                [entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns, entry.st_ino, seen, str(photos / "a1.png")],
            )
        )
        client.submit(lambda catalog: catalog.execute("UPDATE core.runs SET started_at = started_at + INTERVAL 1 DAY"))
    report = run_over(photos, store)
    assert (report.changed, report.already_in) == ((1, 5) if ahead else (0, 6))  # else the trick would not work
    assert run_over(photos, store).already_in == 6
    assert problems(store) == []


@pytest.mark.slow
def test_a_file_system_without_ctime_is_read_every_night(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, state = time.time_ns, files._state
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3 * 10**9)  # the photos are not just written
    monkeypatch.setattr(files, "_state", lambda entry: FileState(*state(entry))._replace(ctime_ns=0))
    run_over(photos, store := make_store(tmp_path / "store"))
    assert run_over(photos, store).already_in == 6
    _change(photos / "a1.png")
    report = run_over(photos, store)
    assert (report.changed_files, report.already_in) == ([str(photos / "a1.png")], 5)


@pytest.mark.slow
def test_a_photo_that_became_a_folder_and_a_folder_that_became_a_photo(photos: Path, tmp_path: Path) -> None:
    write_photo(photos / "sub", "x.png", Shown(20))
    run_over(photos, store := make_store(tmp_path / "store"))
    for old, new in (("a1.png", "kept"), ("sub/x.png", "sub.png")):
        (photos / old).rename(tmp_path / new)
    (photos / "a1.png").mkdir()
    (tmp_path / "kept").rename(photos / "a1.png" / "a.png")
    (photos / "sub").rmdir()
    (tmp_path / "sub.png").rename(photos / "sub")  # without a suffix: its first bytes tell
    report = run_over(photos, store)
    assert (report.moved, report.vanished, report.new, report.already_in) == (2, 0, 0, 5)
    assert [str(photos / "sub" / "x.png"), str(photos / "sub")] in report.moved_files
    assert problems(store) == []


def test_a_person_with_two_names_in_a_manifest_is_reported(photos: Path, tmp_path: Path) -> None:
    store, manifest = make_store(tmp_path / "store"), tmp_path / "list.csv"
    with manifest.open("w", newline="") as out:
        rows = [["a1.png", "Ann"], ["a2.png", "Anne"], ["c2.png", "Bea"]]
        csv.writer(out).writerows([["path", "name"], *([str(photos / name), who] for name, who in rows)])
    report = run_over(manifest, store)
    assert [(Path(entry["path"]).name, entry["name"], entry["person_name"]) for entry in report.label_conflicts] == [
        ("a2.png", "Anne", "Ann")
    ]
    assert f"            {photos / 'a2.png'}: Anne, but the person is called Ann" in report.lines()
