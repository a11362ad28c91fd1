"""A whole archive under another root: `run NEW --moved-from OLD`."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown

from pipeline.errors import UsageError
from pipeline.jobs.people import People
from pipeline.jobs.run_report import RunReport
from pipeline.jobs.store import open_store
from pipeline.run import stages
from pipeline.run.dry_run import dry_run
from pipeline.run.run import RunRequest, abandon, scan
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest
from tests.asking import ask_for
from tests.integration.conftest import RecordedProgress
from tests.people.changes import contents
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, serving, write_photo
from tests.store.store_samples import failing_at


def _run(new: Path, store: Path, old: Path, progress: RecordedProgress | None = None) -> RunReport:
    return run_over(new, store, progress, moved_from=old)


def _rows(store: Path) -> dict[str, list[dict[str, Any]]]:
    """What must stay, and the paths and sources, which must not."""
    kept = {"faces": "*", "persons": "*", "media": "* EXCLUDE path", "files": "media_id, directory, gone_at, label"}
    with LocalStore.open(store, command="test") as client:
        return {
            name: client.read(f"SELECT {what} FROM core.{name} ORDER BY ALL").to_pylist() for name, what in kept.items()
        }


def _paths(store: Path) -> list[str]:
    """Of media; the same as those of files."""
    with LocalStore.open(store, command="test") as client:
        media, files = (
            client.read(f"SELECT path FROM core.{name} WHERE path IS NOT NULL ORDER BY 1")["path"].to_pylist()
            for name in ("media", "files")
        )
    assert media == files
    return list(media)


def _named(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*.png"))


@pytest.fixture
def moved(photos: Path, night: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The photos' new folder; whoever decodes one there fails."""

    def no_models(*_: object) -> None:
        raise AssertionError("models were asked for")

    monkeypatch.setattr(stages, "ShardStages", no_models)
    new = tmp_path / "Ärchive's" / "photos"
    new.parent.mkdir()
    photos.rename(new)
    return new


@pytest.mark.slow
def test_all_stays_but_the_paths(photos: Path, moved: Path, night: Path) -> None:
    before = _rows(night)
    tried = dry_run(RunRequest(moved, night, SETTINGS, moved_from=photos))
    assert (tried.already_in, tried.new, tried.moved_sources) == (
        6,
        0,
        [[str(photos), str(moved)]],
    )
    assert _paths(night) == [str(photos / path.name) for path in sorted(moved.iterdir())]
    report = _run(moved, night, photos)
    assert (report.already_in, report.new, report.changed, report.moved, report.vanished) == (6, 0, 0, 0, 0)
    assert f"            all moved: {photos} -> {moved}" in report.lines()
    assert (_rows(night), _paths(night)) == (before, _named(moved))
    kept = json.loads((night / "runs" / str(report.run_id) / "run.json").read_text())
    assert kept["moved_sources"] == [[str(photos), str(moved)]]
    with LocalStore.open(night, command="test") as client:
        assert client.read("SELECT DISTINCT source FROM core.runs")["source"].to_pylist() == [str(moved)]
    assert problems(night) == []


@pytest.mark.slow
def test_the_same_command_the_next_night_goes_on(photos: Path, moved: Path, night: Path) -> None:
    _run(moved, night, photos)
    (moved / "a1.png").rename(moved / "z.png")
    progress = RecordedProgress()
    report = _run(moved, night, photos, progress)
    assert (report.moved, report.already_in, report.moved_sources) == (1, 5, [])
    assert progress.notes[-1] == f"The store has nothing from {photos} any more: its photos are those of {moved}."


@pytest.mark.slow
def test_what_changed_on_the_way_is_found_as_on_any_night(photos: Path, night: Path, tmp_path: Path) -> None:
    new = photos.rename(tmp_path / "new")
    (new / "a1.png").rename(new / "z.png")
    (new / "a2.png").unlink()
    write_photo(new, "n.png", Shown(30))
    report = _run(new, night, photos)
    assert (report.new, report.moved, report.vanished, report.already_in) == (1, 1, 1, 4)
    assert report.moved_files == [[str(new / "a1.png"), str(new / "z.png")]]
    assert report.vanished_files == [str(new / "a2.png")]
    assert problems(night) == []


@pytest.mark.slow
def test_what_was_forgotten_where_it_was_stays_out(photos: Path, night: Path, tmp_path: Path) -> None:
    """Also a photo that was saved again, before the archive moved or after."""
    with open_store(night, SETTINGS, command="test") as store:
        People(store).forget_photos([4, 5])
    new = tmp_path / "new"
    photos.rename(new)
    write_photo(new, "c2.png", Shown(2, 5))
    tried = dry_run(RunRequest(new, night, SETTINGS, moved_from=photos))
    report = _run(new, night, photos)
    assert tried.forgotten_files == report.forgotten_files == [str(new / "c2.png"), str(new / "d3.png")]
    write_photo(new, "d3.png", Shown(3, 5))
    assert run_over(new, night).forgotten_files == report.forgotten_files
    assert _paths(night) == [str(new / name) for name in ("a1.png", "a2.png", "b-both.png", "e-poor.png")]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["forget", "delete"])
def test_a_photo_that_showed_only_deleted_people_leaves_digests_alone(
    photos: Path, night: Path, tmp_path: Path, how: str
) -> None:
    """Nothing tells its path or bytes, and no run takes it up, nor a copy, wherever the archive is."""
    with LocalStore.open(night, command="test") as store:
        (row,) = store.read("SELECT path, sha256, pixel_hash FROM core.media WHERE path LIKE '%/d3.png'").to_pylist()
        (face,) = store.read("SELECT person_id::VARCHAR AS id FROM core.faces WHERE face_id = 6").to_pylist()
        assert all(str(contents(store)).count(text) >= 1 for text in row.values())
    with serving(night) as service:
        if how == "delete":
            ask_for(service, "delete", 1, "main", [face["id"]])
        else:
            service.correct(CorrectionRequest(1, "main", "forget", [face["id"]]))
    with LocalStore.open(night, command="test") as store:
        assert not any(text in str(contents(store)) for text in row.values())
        assert store.read("SELECT status FROM core.media WHERE path IS NULL")["status"].unique().to_pylist() == [
            "forgotten"
        ]
    assert problems(night) == []
    assert run_over(photos, night).forgotten_files == [str(photos / "d3.png")]
    shutil.copy(photos / "d3.png", photos / "copy.png")
    new = photos.rename(tmp_path / "new")
    report = _run(new, night, photos)
    assert report.forgotten_files == [str(new / name) for name in ("copy.png", "d3.png")]
    assert (report.new, problems(night)) == (0, [])


@pytest.mark.slow
@pytest.mark.parametrize("point", ["begin_run.committed", "plan_run.commit", "plan_run.committed", "finish_run.commit"])
def test_killed_at_any_point_the_same_command_ends_it(photos: Path, moved: Path, night: Path, point: str) -> None:
    before = _rows(night)
    with failing_at(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        _run(moved, night, photos)
    moved_by_then = point in ("plan_run.committed", "finish_run.commit")
    assert _paths(night) == (
        _named(moved) if moved_by_then else [str(photos / p.name) for p in sorted(moved.iterdir())]
    )
    assert _run(moved, night, photos).moved_sources == [[str(photos), str(moved)]]
    assert (_rows(night), _paths(night), problems(night)) == (before, _named(moved), [])


@pytest.mark.slow
def test_beside_a_server(photos: Path, moved: Path, night: Path) -> None:
    with serving(night):
        assert _run(moved, night, photos).already_in == 6
    assert _paths(night) == _named(moved)


def test_an_old_folder_that_still_holds_files_is_noted(photos: Path, moved: Path, night: Path) -> None:
    shutil.copytree(moved, photos)
    progress = RecordedProgress()
    assert _run(moved, night, photos, progress).already_in == 6
    assert progress.notes[-1].startswith(f"{photos} still holds files.")


@pytest.mark.slow
def test_a_manifest_and_what_lies_beside_it(photos: Path, night: Path, tmp_path: Path) -> None:
    """A relative row, an absolute one elsewhere, and one that names no file; the manifest gets another name, too."""
    store, old = make_store(tmp_path / "other"), tmp_path / "old"
    write_photo(old / "in", "a.png", Shown(1))
    elsewhere = write_photo(tmp_path / "elsewhere", "b.png", Shown(2))
    with (old / "list.csv").open("w", newline="") as out:
        csv.writer(out).writerows([["path", "name"], ["in/a.png", "Ann"], [str(elsewhere), ""], ["", "nobody"]])
    run_over(old / "list.csv", store)
    before, new = _rows(store), old.rename(tmp_path / "new")
    (new / "list.csv").rename(new / "people.csv")
    with pytest.raises(UsageError, match=r"Did you mean \".*old/list\.csv\"\?"):
        _run(new / "people.csv", store, old)
    report = _run(new / "people.csv", store, old / "list.csv")
    assert (report.already_in, report.new, report.moved, report.vanished) == (3, 0, 0, 0)
    assert _rows(store) == before
    assert _paths(store) == sorted([str(new / "in" / "a.png"), str(elsewhere), f"{new / 'people.csv'} (line 4)"])


def test_photos_that_a_moved_manifest_left_behind_are_found_by_their_bytes(tmp_path: Path) -> None:
    store, old, new = make_store(tmp_path / "store"), tmp_path / "old", tmp_path / "new"
    photo = write_photo(old, "a.png", Shown(1))
    (old / "list.csv").write_text(f"path\n{photo}\n")
    run_over(old / "list.csv", store)
    before = _rows(store)
    new.mkdir()
    shutil.move(old / "list.csv", new)
    report = _run(new / "list.csv", store, old / "list.csv")
    assert (report.new, report.vanished, _paths(store)) == (0, 0, [str(photo)])
    assert _rows(store) == before


class TestRefused:
    def test_nothing_from_there(self, photos: Path, night: Path, tmp_path: Path) -> None:
        (tmp_path / "new").mkdir()
        write_photo(tmp_path / "new", "x.png", Shown(40))
        with pytest.raises(UsageError, match=f'nothing from .*Did you mean "{photos}"') as caught:
            _run(tmp_path / "new", night, tmp_path / "photo")
        assert f"{photos} (6 photos)" in str(caught.value)
        with pytest.raises(UsageError, match="no store at"):
            _run(tmp_path / "new", tmp_path / "none", photos)
        assert not (tmp_path / "none").exists()
        with pytest.raises(UsageError, match="is SOURCE"):
            _run(photos, night, photos / ".." / photos.name)

    @pytest.mark.slow
    def test_both_are_in(self, photos: Path, night: Path, tmp_path: Path) -> None:
        new = Path(shutil.copytree(photos, tmp_path / "new"))
        run_over(new, night)
        with pytest.raises(UsageError, match=r"6 photos from .*new beside 6 from .*two sources"):
            _run(new, night, photos)

    @pytest.mark.slow
    def test_a_run_is_not_finished(self, photos: Path, night: Path, tmp_path: Path) -> None:
        new = Path(shutil.copytree(photos, tmp_path / "new"))
        for source in (photos, new):
            write_photo(source, "n.png", Shown(50))
            scan(RunRequest(source, night, SETTINGS))
            with pytest.raises(UsageError, match=f"`facepipe abandon {source} --store {night}` gives it up") as caught:
                _run(new, night, photos)
            assert f"`facepipe run {source} --store {night}` goes on" in str(caught.value)
            abandon(night, source)
        scan(RunRequest(photos, night, SETTINGS))
        photos.rename(tmp_path / "gone")
        with pytest.raises(UsageError, match=f"is not finished: `facepipe abandon {photos}"):
            _run(new, night, photos)

    def test_a_folder_for_a_manifest(self, photos: Path, night: Path) -> None:
        (photos.parent / "list.csv").write_text("path\nx.png\n")
        with pytest.raises(UsageError, match=r"was a folder, and .* is a manifest"):
            _run(photos.parent / "list.csv", night, photos)

    def test_several_sources(self, photos: Path, night: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="one source, not 2"):
            run_over(photos, night, further_sources=(tmp_path,), moved_from=tmp_path / "x")
