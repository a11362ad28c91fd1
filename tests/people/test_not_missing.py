"""With `--on-missing forget`: photos that only seem to be gone stay in the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from coded_faces import Shown

from pipeline.config import Settings, load_settings
from pipeline.run import run as run_module
from pipeline.store.local import LocalStore
from tests.people.coded_archive import make_store, run_over, write_photo

FORGET = load_settings(
    environ={}, flags={"run.threads": 1, "run.device": "cpu", "run.on_missing": "forget", "run.missing_limit": 1.0}
)
OUT = "p00.png"  # the photo that seems to be gone


def excluding(pattern: str) -> Settings:
    return replace(FORGET, source=replace(FORGET.source, exclude=pattern))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(3):
        write_photo(tmp_path / "photos", f"p{number:02d}.png", Shown(number + 1))
    return tmp_path / "photos"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def stored(store: Path) -> list[tuple[str, str]]:
    """Directory and name of each photo that is known."""
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT directory, path FROM core.files ORDER BY 1, 2").to_pylist()
    return [(row["directory"], Path(row["path"]).name) for row in rows]


@pytest.mark.slow
def test_a_source_in_two_directories(photos: Path, store: Path) -> None:
    for directory in ("a", "b", "a", "b"):
        report = run_over(photos, store, settings=FORGET, directory=directory)
        assert (report.vanished, report.back, report.forgotten_missing) == (0, 0, 0)
    assert len(stored(store)) == 6
    (photos / OUT).unlink()
    assert run_over(photos, store, settings=FORGET, directory="b").forgotten_missing == 2
    assert len(stored(store)) == 4


def test_a_row_of_a_manifest_for_another_directory(photos: Path, store: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.csv"
    for directory in ("x", "y", "y"):
        rows = [f"photos/p{n:02d}.png,{'x' if n else directory}\n" for n in range(3)]
        manifest.write_text("path,directory\n" + "".join(rows))
        assert run_over(manifest, store, settings=FORGET).forgotten_missing == 0
    assert {("x", OUT), ("y", OUT)} <= set(stored(store))


@pytest.mark.slow
def test_a_photo_that_moved_to_another_source(photos: Path, store: Path, tmp_path: Path) -> None:
    write_photo(tmp_path / "others", "q.png", Shown(9))
    both = {"settings": FORGET, "further_sources": (tmp_path / "others",)}
    run_over(photos, store, **both)
    (photos / OUT).rename(tmp_path / "others" / OUT)
    report = run_over(photos, store, **both)
    assert (report.new, report.forgotten_missing) == (1, 1)
    assert run_over(photos, store, **both).forgotten == 0
    assert ("main", OUT) in stored(store)


@pytest.mark.slow
def test_a_row_that_the_settings_leave_out_of_a_manifest(photos: Path, store: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.csv"
    manifest.write_text("path\n" + "".join(f"photos/{file.name}\n" for file in sorted(photos.iterdir())))
    run_over(manifest, store, settings=FORGET)
    assert run_over(manifest, store, settings=excluding(f"photos/{OUT}")).forgotten_missing == 0
    assert run_over(manifest, store, settings=FORGET).back == 1
    manifest.write_text("path\n" + "".join(f"photos/{file.name}\n" for file in sorted(photos.iterdir())[1:]))
    assert run_over(manifest, store, settings=FORGET).forgotten_missing == 1


def test_a_name_that_is_not_utf_8_and_is_left_out(photos: Path, store: Path) -> None:
    (photos / OUT).rename(photos / os.fsdecode(b"p\xe9.png"))
    run_over(photos, store, settings=FORGET)
    assert run_over(photos, store, settings=excluding("p?.png")).forgotten_missing == 0
    assert run_over(photos, store, settings=FORGET).back == 1


def test_a_photo_that_is_back_before_it_is_forgotten(photos: Path, store: Path, tmp_path: Path) -> None:
    run_over(photos, store, settings=FORGET)
    (photos / OUT).rename(tmp_path / OUT)
    write_photo(photos, "new.png", Shown(8))
    extract: Callable[..., None] = run_module._Command._extract_and_commit

    def extracting(command: run_module._Command, *args: object, **options: object) -> None:
        extract(command, *args, **options)
        if (tmp_path / OUT).exists():
            (tmp_path / OUT).rename(photos / OUT)

    with patch.object(run_module._Command, "_extract_and_commit", extracting):
        assert run_over(photos, store, settings=FORGET).forgotten_missing == 0
    assert run_over(photos, store, settings=FORGET).back == 1


def test_a_folder_of_which_nobody_can_tell(photos: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a share that is not connected: what is in it is not listed, and asking for it fails otherwise."""
    write_photo(photos / "share", "s.png", Shown(7))
    run_over(photos, store, settings=FORGET)
    (photos / "share").rename(photos.with_name("away"))
    look = os.lstat

    def failing(path: str, *args: object, **options: object) -> os.stat_result:
        if "/share/" in os.fspath(path):
            raise OSError(107, "Transport endpoint is not connected")
        return look(path, *args, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", failing)
        report = run_over(photos, store, settings=FORGET)
    assert (report.vanished, report.forgotten_missing) == (1, 0)
    photos.with_name("away").rename(photos / "share")
    assert run_over(photos, store, settings=FORGET).back == 1
