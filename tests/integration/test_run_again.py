"""Runs that meet a changed world: files that go, other settings, another spelling, a failing disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pipeline.config import Settings
from pipeline.errors import (
    DeviceFailed,
    DeviceOutOfMemory,
    Interrupted,
    ManifestInvalid,
    SourceEmpty,
    SourceMissing,
    StoreDamaged,
    StoreFull,
    StoreMismatch,
    StoreMissing,
    UsageError,
)
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs import models
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.run.dry_run import dry_run
from pipeline.run.run import RunRequest, abandon, extract, group, run, scan
from pipeline.store.checks.check import check_store
from pipeline.store.files import faults
from pipeline.store.local import LocalStore
from tests.integration.conftest import RecordedProgress, Runner
from tests.integration.snapshot import assert_whole, occurrences, snapshot
from tests.store.store_samples import execute

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture
def two(photos: Path, tmp_path: Path) -> Path:
    """A folder with a1.jpg and b1.jpg, and a copy of the second."""
    folder = tmp_path / "two"
    folder.mkdir()
    for name, original in (("a1.jpg", "a1.jpg"), ("b1.jpg", "b1.jpg"), ("c1.jpg", "b1.jpg")):
        shutil.copy(photos / original, folder / name)
    return folder


class _AtStart(RecordedProgress):
    """Does something when the image work begins: between the scan and the reading."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def start(self, phase: str, total: int | None) -> None:
        super().start(phase, total)
        if phase == "run" and self.phases.count("run") == 1:
            self._act()


class _AtFirstImage(_AtStart):
    """Does it when the first images are done."""

    def start(self, phase: str, total: int | None) -> None:
        self.phases.append(phase)

    def advance(self, count: int = 1) -> None:
        super().advance(count)
        if self.phases[-1] == "run":
            self._act()


def test_a_file_that_goes_between_scan_and_reading_is_taken_up_when_it_is_back(
    two: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    data = (two / "b1.jpg").read_bytes()
    progress = _AtStart((two / "b1.jpg").unlink)
    report = run(RunRequest(two, tmp_path / "store", settings), progress, threading.Event())
    assert report.statuses == {"missing": 2, "ok": 1}  # the copy has nothing to take its faces from
    (two / "b1.jpg").write_bytes(data)
    again = runner(two)
    assert (again.statuses, again.changed, again.already_in) == ({"duplicate": 1, "ok": 1}, 2, 1)
    assert runner(two).already_in == 3


def _opens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the folder's files that are opened from now on."""
    opened: list[str] = []
    real = os.open

    def note(path: Any, *how: Any, **further: Any) -> int:
        if isinstance(path, str) and Path(path).parent == folder:
            opened.append(Path(path).name)
        return real(path, *how, **further)

    monkeypatch.setattr(os, "open", note)
    return opened


@pytest.mark.slow
def test_a_second_run_opens_only_what_changed(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3 * 10**9)  # the photos are not just written
    first = runner(photos)
    opened = _opens(photos, monkeypatch)
    assert (runner(photos).already_in, opened) == (first.new, [])
    names = {path.name for path in photos.iterdir()}
    rehash = dataclasses.replace(settings, run=dataclasses.replace(settings.run, rehash=True))
    assert run(RunRequest(photos, tmp_path / "store", rehash)).already_in == len(names)
    assert set(opened) == names
    opened.clear()
    (photos / "a2.png").touch()
    (photos / "g1.webp").replace(photos / "b1.jpg")
    assert dry_run(RunRequest(photos, tmp_path / "store", settings)).changed == 1
    assert sorted(opened) == ["a2.png", "b1.jpg"]
    opened.clear()
    report = runner(photos)
    assert (report.changed, report.already_in, report.statuses) == (1, len(names) - 2, {"duplicate": 1})
    # And one for the picture of the person who was known by the photo that was b1.jpg, one for the page.
    assert len(opened) == 4
    assert {"a2.png", "b1.jpg"} < {*opened} < {"a2.png", "b1.jpg", "b2.jpg", "c-both.png", "h1.bmp"}
    opened.clear()
    assert (runner(photos).already_in, opened) == (len(names) - 1, [])


def test_a_dry_run_goes_by_what_is_fixed_in_the_store(two: Path, settings: Settings, tmp_path: Path) -> None:
    """As the run after it does: a new photo is larger than this store's photos may be."""
    small = dataclasses.replace(settings, decode=dataclasses.replace(settings.decode, max_bytes=100_000))
    other = dataclasses.replace(settings, decode=dataclasses.replace(settings.decode, max_bytes=50_000))
    store = tmp_path / "store"
    assert run(RunRequest(two, store, small)).new == 3
    (two / "large.jpg").write_bytes(bytes(100_001))
    tried = dry_run(RunRequest(two, store, settings))
    assert (tried.new, tried.to_decode, dict(tried.rejected)) == (1, 0, {"too_large": 1})
    with pytest.raises(StoreMismatch):
        dry_run(RunRequest(two, store, other))
    assert dict(run(RunRequest(two, store, settings)).statuses) == {"too_large": 1}


def _places(store: Path) -> dict[str, list[Any]]:
    """What the store has of each file, by its name: media, whether it is missed, status, faces and persons."""
    with LocalStore.open(store, command="test") as client:
        table = client.read(
            "SELECT path, media_id, gone_at IS NOT NULL AS gone, status, list(face_id ORDER BY face_id) AS faces,"
            " list(person_id::VARCHAR ORDER BY face_id) AS persons"
            " FROM core.media LEFT JOIN core.faces USING (media_id) GROUP BY ALL"
        )
    return {Path(path).name: rest for path, *rest in zip(*table.to_pydict().values(), strict=True)}


@pytest.mark.slow
def test_a_moved_photo_keeps_all_it_has(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    """Among them one that was broken, one without a face, and one of two with the same bytes."""
    store = tmp_path / "store"
    runner(photos)
    before, counted = _places(store), sum(person[4] for person in snapshot(store)["persons"])
    moves = {"a1.jpg": "z/a.jpg", "c-both.png": "0.png", "e-noise.png": "z/e.png", "f-broken.jpg": "g.jpg"}
    (photos / "z").mkdir()
    for old, new in moves.items():
        (photos / old).rename(photos / new)
    shutil.copy(photos / "b1.jpg", photos / "b1-copy.jpg")  # a new sighting: the old path is there
    tried = dry_run(RunRequest(photos, store, settings))
    assert (tried.moved, tried.new, tried.vanished, tried.to_decode) == (4, 1, 0, 0)
    assert _places(store) == before
    report = runner(photos)
    assert (report.moved, report.vanished, report.new, report.changed, report.already_in) == (4, 0, 1, 0, 6)
    assert [str(photos / "a1.jpg"), str(photos / "z" / "a.jpg")] in report.moved_files
    assert f"            moved: {photos / 'a1.jpg'} -> {photos / 'z' / 'a.jpg'}" in report.lines()
    assert (report.work.decoded, report.statuses) == (0, {"duplicate": 1})
    expected = {Path(moves.get(name, name)).name: row for name, row in before.items()}
    after = _places(store)
    assert after.pop("b1-copy.jpg")[2] == "duplicate"
    assert after == expected
    assert sum(person[4] for person in snapshot(store)["persons"]) == counted + 1
    again = runner(photos)
    assert (again.moved, again.vanished, again.new, again.already_in) == (0, 0, 0, 11)
    assert_whole(store)


@pytest.mark.slow
def test_a_square_photo_that_is_turned_and_turned_back_keeps_its_person(
    astronaut_path: Path, runner: Runner, tmp_path: Path
) -> None:
    (tmp_path / "square").mkdir()
    _turn_there_and_back(runner, {tmp_path / "square" / "a.png": astronaut_path}, tmp_path / "store")


@pytest.mark.slow
@pytest.mark.faces
def test_a_turned_square_on_which_a_poor_face_is_found(faces_dir: Path, runner: Runner, tmp_path: Path) -> None:
    """In the first the detector finds one when the photo lies on its left side, in the second on its right."""
    (tmp_path / "square").mkdir()
    names = ("Adam_Kennedy_0001.jpg", "Abdul_Rahman_0001.jpg")
    originals = {tmp_path / "square" / n: faces_dir / "lfw-view1" / "images" / n[:-9] / n for n in names}
    _turn_there_and_back(runner, originals, tmp_path / "store")


def _turn_there_and_back(runner: Runner, originals: Mapping[Path, Path], store: Path) -> None:
    """All photos, in both directions; their people stay who they are, and turned photos replace no reference face."""
    for photo, original in originals.items():
        shutil.copy(original, photo)
    folder = next(iter(originals)).parent
    runner(folder)
    before = _references(store)
    assert len(before) >= len(originals)
    for turn in (Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270):
        for photo, original in originals.items():
            Image.open(original).transpose(turn).save(photo, quality=92)
        assert runner(folder).changed == len(originals)
        assert _references(store) == before
        for photo, original in originals.items():
            shutil.copy(original, photo)
        assert runner(folder).already_in == len(originals)
        assert _references(store) == before
    for photo, original in originals.items():
        Image.open(original).resize((240, 240)).save(photo, quality=92)
    assert runner(folder).changed == len(originals)
    after = _references(store)
    assert after.keys() == before.keys()
    assert not before.items() & after.items()  # the faces of the last version took over
    assert_whole(store)


def _references(store: Path) -> dict[str, int]:
    """Person -> its reference face."""
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT person_id::VARCHAR AS person, face_id FROM core.reference_faces").to_pylist()
    return {row["person"]: row["face_id"] for row in rows}


@pytest.mark.slow
def test_a_vanished_photo_is_marked_until_it_is_back(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    away.mkdir()
    runner(photos)
    before = _places(store)
    (photos / "a1.jpg").rename(away / "a1.jpg")
    (photos / "e-noise.png").rename(away / "e-noise.png")
    keep = dataclasses.replace(settings, run=dataclasses.replace(settings.run, on_missing="keep"))
    report = run(RunRequest(photos, store, keep))
    assert (report.vanished, report.vanished_files[0]) == (2, str(photos / "a1.jpg"))
    assert f"            vanished: {photos / 'a1.jpg'}" in report.lines()
    assert _places(store) == before
    report = runner(photos)
    assert (report.vanished, report.moved, report.already_in, report.new) == (2, 0, 8, 0)
    gone = {name: [row[0], name in ("a1.jpg", "e-noise.png"), *row[2:]] for name, row in before.items()}
    assert _places(store) == gone
    assert runner(photos).vanished == 0  # told once
    (away / "a1.jpg").rename(photos / "a1.jpg")
    (away / "e-noise.png").rename(photos / "i.png")  # it comes back elsewhere
    report = runner(photos)
    assert (report.moved, report.vanished, report.already_in, report.work.decoded) == (1, 0, 9, 0)
    assert _places(store) == {"i.png" if name == "e-noise.png" else name: row for name, row in before.items()}
    assert_whole(store)


def test_a_source_that_is_empty_or_no_folder_any_more_changes_nothing(
    two: Path, runner: Runner, tmp_path: Path
) -> None:
    """A disk that is not mounted."""
    runner(two)
    before = _places(tmp_path / "store")
    two.rename(tmp_path / "mounted")
    two.mkdir()
    with pytest.raises(SourceEmpty):
        runner(two)
    two.rmdir()
    with pytest.raises(SourceMissing):
        runner(two)
    two.write_text("a file")
    with pytest.raises(ManifestInvalid, match="not a folder"):
        runner(two)
    assert _places(tmp_path / "store") == before
    two.unlink()
    (tmp_path / "mounted").rename(two)
    assert (runner(two).already_in, _places(tmp_path / "store")) == (3, before)


def test_a_store_of_an_earlier_version_is_read_once_more(
    photos: Path, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3 * 10**9)
    runner(photos)
    with LocalStore.open(tmp_path / "store", command="test") as client:
        execute(client, "UPDATE core.files SET size = NULL, mtime_ns = NULL, ctime_ns = NULL, seen_at = NULL")
    opened = _opens(photos, monkeypatch)
    assert runner(photos).already_in == len(opened) == 10
    opened.clear()
    assert (runner(photos).already_in, opened) == (10, [])


@pytest.mark.slow
def test_photos_of_a_deleted_directory_stay_out(two: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    """Also a new one that repeats an old one, and if the directory was deleted after the scan that found that out."""
    store = tmp_path / "store"
    assert runner(two).persons == 2
    shutil.copy(two / "a1.jpg", two / "d1.jpg")
    scan(RunRequest(two, store, settings))
    with LocalStore.open(store, command="test") as client:
        client.delete_directory(client.account_id("default"), "main")
    report = runner(two)
    assert (report.persons, report.statuses) == (0, {"forgotten": 1})
    assert (runner(two).already_in, runner(two).forgotten) == (0, 4)
    assert [*store.glob("embeddings/*/*")] == []  # they went at the end of the run
    with LocalStore.open(store, command="test") as client:
        assert client.read("SELECT path FROM core.media WHERE path IS NOT NULL").num_rows == 0
    assert_whole(store)


def test_a_source_is_the_same_by_any_spelling(two: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner(two)
    assert runner(two / ".." / "two").already_in == 3
    monkeypatch.chdir(two.parent)
    assert runner(Path("two")).already_in == 3


def test_the_store_in_the_source_is_no_photo(two: Path, settings: Settings) -> None:
    store = two / "my store"
    request = RunRequest(two, store, settings)
    run(request)
    again = run(request)
    assert (again.new, again.already_in, again.other_files) == (0, 3, 0)
    assert len(snapshot(store)["objects"]) == 1


def test_an_empty_source_leaves_no_store(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "empty").mkdir()
    request = RunRequest(tmp_path / "empty", tmp_path / "store", settings)
    with pytest.raises(SourceEmpty):
        run(request)
    with pytest.raises(StoreMissing):
        extract(dataclasses.replace(request, source=None))
    assert not (tmp_path / "store").exists()


def _other(settings: Settings, threshold: float) -> Settings:
    return dataclasses.replace(settings, match=dataclasses.replace(settings.match, threshold=threshold))


def test_a_scan_that_was_cut_off_binds_nobody(
    two: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a planned run keeps its thresholds; of a scan that did not end nothing counts."""
    monkeypatch.setattr("pipeline.run.changed_files.CHUNK_ROWS", 1)
    stop = threading.Event()

    class StopSoon(RecordedProgress):
        def advance(self, count: int = 1) -> None:
            super().advance(count)
            if self.advanced == 2:
                stop.set()

    request = RunRequest(two, tmp_path / "store", settings)
    with pytest.raises(Interrupted, match="scan was not finished"):
        run(request, StopSoon(), stop)
    later = dataclasses.replace(request, settings=_other(settings, 1.5), directory="second")
    report = run(later)
    with LocalStore.open(tmp_path / "store", command="test") as client:
        (row,) = client.read("SELECT run_id, directory FROM core.runs").to_pylist()
        assert (str(row["run_id"]), row["directory"]) == (report.run_id, "second")
        assert client.run_row(str(report.run_id)).settings["match"]["threshold"] == 1.5


@pytest.mark.slow
def test_a_planned_run_keeps_its_thresholds_and_says_so(two: Path, settings: Settings, tmp_path: Path) -> None:
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, shard_rows=1))
    stop = threading.Event()
    request = RunRequest(two, tmp_path / "store", settings)
    with pytest.raises(Interrupted, match="0 of 3 shards are in"):  # asked to stop before the first
        run(request, _AtStart(stop.set), stop)
    progress = RecordedProgress()
    later = dataclasses.replace(request, settings=_other(settings, 4.0), directory="second")
    report = run(later, progress, threading.Event())
    assert "threshold = 0.54, directory = main" in progress.notes[0]
    # The planned run makes its two people; the new scan finds the same files, new to the directory "second",
    # where at T = 4 everybody is one.
    people = [(p[3], p[4]) for p in snapshot(tmp_path / "store")["persons"]]
    assert sorted(people) == [("main", 1), ("main", 2), ("second", 3)]
    assert (report.images, report.new, report.already_in) == (6, 6, 0)


def _stopped_run(photos: Path, store: Path, settings: Settings) -> RunRequest:
    """A run of four shards that was stopped after its first; its request."""
    request = RunRequest(photos, store, settings)
    stop = threading.Event()
    with pytest.raises(Interrupted, match="1 of 4 shards"):
        run(request, _AtFirstImage(stop.set), stop)
    return request


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 1
    file.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9]), _flip],
    ids=["missing", "cut", "flipped"],
)
def test_a_run_whose_manifest_is_damaged_is_planned_anew(
    photos: Path, settings: Settings, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store = tmp_path / "store"
    request = _stopped_run(photos, store, settings)
    (manifest,) = store.glob("runs/*/manifest.parquet")
    damage(manifest)
    with LocalStore.open(store, command="test") as client:
        (problem,) = check_store(client).problems
        assert (problem.kind, problem.where) == ("run", manifest.relative_to(store).as_posix())
        assert "facepipe run SOURCE" in problem.cure
        assert "facepipe abandon" in problem.cure
    with pytest.raises(StoreDamaged, match="`facepipe run SOURCE` plans its source anew"):
        group(dataclasses.replace(request, source=None))
    progress = RecordedProgress()
    report = run(request, progress, threading.Event())
    assert "1 of its 4 shards are in, the rest is planned anew" in progress.notes[0]
    assert (report.new, report.already_in, report.persons) == (7, 3, 2)
    assert occurrences(store) == {("a1.jpg", "main"): 5, ("b1.jpg", "main"): 4}
    assert_whole(store)
    assert run(request).already_in == 10


@pytest.mark.slow
def test_shards_are_bounded_in_pixels_and_the_store_is_the_same(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    runner(photos)
    settings = dataclasses.replace(settings, run=dataclasses.replace(settings.run, shard_pixels=160_000))
    report = run(RunRequest(photos, tmp_path / "small", settings))
    small, large = snapshot(tmp_path / "small"), snapshot(tmp_path / "store")
    # a1 a2, b1 b2, the large c, its copy and two more, and two whose headers do not tell
    assert (small.pop("runs"), large.pop("runs")) == (
        [(str(photos), "finished", 10, 6)],
        [(str(photos), "finished", 10, 4)],
    )
    # Other batches may round the embeddings otherwise.
    assert [face[:4] + face[6:7] for face in small["faces"]] == [face[:4] + face[6:7] for face in large["faces"]]
    assert (small["media"], small["persons"]) == (large["media"], large["persons"])
    assert report.images == 10
    assert_whole(tmp_path / "small")


@pytest.mark.slow
def test_an_abandoned_run_keeps_what_is_in_and_binds_nobody(photos: Path, settings: Settings, tmp_path: Path) -> None:
    store = tmp_path / "store"
    request = _stopped_run(photos, store, settings)
    ended = abandon(store)
    assert (ended.source, ended.state, ended.rows, ended.shards) == (str(photos), "finished", 3, 1)
    assert list(store.glob("runs/*/manifest.parquet")) == []
    assert_whole(store)
    with pytest.raises(UsageError, match="no unfinished run"):
        abandon(store, photos)
    everybody = dataclasses.replace(request, settings=_other(settings, 4.0))
    report = run(everybody)
    assert (report.new, report.already_in, report.outcomes) == (7, 3, {"matched": 6})
    assert_whole(store)


def test_another_threshold_holds_for_new_photos_only_and_the_run_says_so(
    two: Path, settings: Settings, tmp_path: Path
) -> None:
    request = RunRequest(two, tmp_path / "store", settings)
    first, same, other = RecordedProgress(), RecordedProgress(), RecordedProgress()
    run(request, first)
    run(request, same)
    assert first.notes == same.notes == []
    report = run(dataclasses.replace(request, settings=_other(settings, 4.0)), other)
    assert (report.already_in, report.persons) == (3, 2)
    (note,) = other.notes
    assert "new photos only" in note
    assert "decided with threshold = 0.54" in note


@pytest.mark.slow
def test_a_resumed_run_counts_each_photo_once(
    two: Path, photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    """Between the two commands a photo that is in goes, one changes and one comes."""
    runner(two)
    for name in ("a2.png", "b2.jpg", "c-both.png", "g1.webp", "h1.bmp"):
        shutil.copy(photos / name, two / name)
    (two / "notes.txt").write_text("no image")
    request = RunRequest(two, tmp_path / "store", settings)
    stop = threading.Event()
    with pytest.raises(Interrupted, match="1 of 2 shards"):
        run(request, _AtFirstImage(stop.set), stop)
    (two / "a2.png").unlink()
    shutil.copy(photos / "e-noise.png", two / "b2.jpg")
    shutil.copy(photos / "e-noise.png", two / "i-new.png")
    report = run(request)
    assert (report.new, report.changed, report.already_in, report.other_files) == (6, 1, 3, 1)
    assert report.images == sum(report.statuses.values()) == report.new + report.changed
    kept = [json.loads(file.read_text()) for file in (tmp_path / "store").glob("runs/*/run.json")]
    assert sorted((r["images"], r["new"], r["changed"], r["already_in"]) for r in kept) == [
        (2, 1, 1, 3),  # what came after the stop
        (3, 3, 0, 0),
        (5, 5, 0, 3),
    ]


def test_a_planned_run_with_a_threshold_that_is_none_any_more(two: Path, settings: Settings, tmp_path: Path) -> None:
    """Earlier versions took every T up to 4; now there is none between 3.99 and 4."""
    stop, store = threading.Event(), tmp_path / "store"
    request = RunRequest(two, store, settings)
    with pytest.raises(Interrupted):
        run(request, _AtStart(stop.set), stop)
    with LocalStore.open(store, command="test") as client:
        client.submit(
            lambda catalog: catalog.execute("UPDATE core.runs SET settings = replace(settings, '0.54', '3.995')")
        )
    progress = RecordedProgress()
    report = run(request, progress)
    assert any("threshold 3.995, which is taken as 3.99" in note for note in progress.notes)
    assert report.new == 3
    assert [p[4] for p in snapshot(store)["persons"]] == [3]  # at 3.99 nearly everybody is one


@pytest.fixture
def full_disk() -> Iterator[None]:
    def hook(name: str) -> None:
        if name == "embeddings.fsync":
            raise OSError(errno.ENOSPC, "No space left on device")

    faults.install(hook)
    yield
    faults.install(None)


@pytest.mark.usefixtures("full_disk")
def test_an_error_leaves_no_threads(photos: Path, settings: Settings, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(StoreFull) as caught:
        run(RunRequest(photos, tmp_path / "store", settings))
    # `caught` holds the traceback, and with it every frame that the error left.
    assert caught.tb is not None
    after = set(threading.enumerate()) - before
    assert [t.name for t in after if t.name.startswith(("commit", "decode", "hash", "store"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("batches", [0, 2], ids=["at once", "after two batches"])
def test_a_device_that_is_lost_midway_ends_the_run_and_the_same_command_goes_on(
    batches: int, photos: Path, settings: Settings, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract_batch, left = BatchExtractor._extract_batch, iter(range(batches))

    def lost(self: BatchExtractor, *arguments: Any) -> Any:
        if next(left, None) is None:
            raise RuntimeError("CUDA error: unspecified launch failure\nand how to look for its cause")
        return extract_batch(self, *arguments)

    request = RunRequest(photos, tmp_path / "store", settings)
    with monkeypatch.context() as patched:
        patched.setattr(BatchExtractor, "_extract_batch", lost)
        with pytest.raises(DeviceFailed, match=r"unspecified launch failure.*the same command goes on") as caught:
            run(request)
    assert caught.value.exit_code == 22
    run(request)
    assert_whole(tmp_path / "store")
    expected, found = snapshot(archive / "store"), snapshot(tmp_path / "store")
    assert [len(rows) for rows in found.values()] == [len(rows) for rows in expected.values()]
    assert occurrences(tmp_path / "store") == occurrences(archive / "store")


def test_a_device_without_room_for_the_models_is_an_error_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    monkeypatch.setattr(models, "load_detector", full)
    with pytest.raises(DeviceOutOfMemory, match=r"Tried to allocate 2\.00 MiB.*End what else uses it"):
        load_extractor(settings, make_identity(settings), tmp_path)
