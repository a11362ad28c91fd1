"""Nights: what `run` finds of an archive that lives, what it does with it, and what it reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown

from pipeline import open_store
from pipeline.config import load_settings
from pipeline.jobs.run_report import RunReport
from pipeline.run import stages
from pipeline.run.dry_run import dry_run
from pipeline.run.run import RunRequest, scan
from pipeline.store.catalog import forgotten
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, serving, write_photo
from tests.store.store_samples import failing_at


def reports(store: Path) -> list[dict[str, Any]]:
    """The reports of all runs, the earliest first."""
    with LocalStore.open(store, command="test") as client:
        runs = client.read("SELECT run_id FROM core.runs WHERE state = 'finished' ORDER BY started_at")
    files = [store / "runs" / run_id / "run.json" for run_id in runs["run_id"].to_pylist()]
    return [json.loads(file.read_text()) for file in files if file.exists()]  # a deletion deletes earlier ones


def no_models(*_: object) -> None:
    raise AssertionError("models were asked for")


@pytest.mark.slow
def test_a_night_without_new_photos_has_a_run_of_its_own(
    photos: Path, night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something moved, went or is back; where nothing did, it has none."""
    monkeypatch.setattr(stages, "ShardStages", no_models)
    away = photos.parent / "away.png"
    (photos / "a1.png").rename(photos / "z.png")
    (photos / "d3.png").rename(away)
    report = run_over(photos, night)
    assert (report.moved, report.vanished, report.images) == (1, 1, 0)
    assert run_over(photos, night).run_id == report.run_id
    away.rename(photos / "d3.png")
    back = run_over(photos, night)
    assert (back.back, back.moved, back.run_id != report.run_id) == (1, 0, True)
    assert "            0 moved, 0 vanished, 1 back" in back.lines()
    first, second, third = reports(night)
    assert (first["new"], first["moved"]) == (6, 0)
    assert second["moved_files"] == [[str(photos / "a1.png"), str(photos / "z.png")]]
    assert second["vanished_files"] == [str(photos / "d3.png")]
    assert (third["run_id"], third["back"], third["images"]) == (back.run_id, 1, 0)
    assert problems(night) == []


@pytest.mark.slow
def test_changed_and_forgotten_photos_are_listed_the_forgotten_ones_not_in_the_store(photos: Path, night: Path) -> None:
    with LocalStore.open(night, command="test") as client:
        client.submit(lambda catalog: forgotten.remember(catalog, 1, forgotten.PATH, [str(photos / "x.png")]))
    write_photo(photos, "x.png", Shown(20))
    write_photo(photos, "a2.png", Shown(21))
    report = run_over(photos, night)
    assert (report.changed_files, report.forgotten_files) == ([str(photos / "a2.png")], [str(photos / "x.png")])
    assert f"            changed: {photos / 'a2.png'}" in report.lines()
    text = "\n".join(report.lines())
    assert "1 left out: they were forgotten, or their only person was; --json lists them" in text
    assert str(photos / "x.png") not in text
    assert report.as_dict()["forgotten_files"] == [str(photos / "x.png")]
    kept = reports(night)[-1]
    assert (kept["changed_files"], kept["forgotten"]) == ([str(photos / "a2.png")], 1)
    assert all(b"x.png" not in file.read_bytes() for file in night.rglob("*") if file.is_file())


def test_scan_finishes_a_run_that_has_nothing_to_extract(photos: Path, night: Path) -> None:
    (photos / "a1.png").rename(photos / "z.png")
    report = scan(RunRequest(photos, night, SETTINGS))
    assert (report.moved, len(reports(night))) == (1, 2)
    assert scan(RunRequest(photos, night, SETTINGS)).moved == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["begin_run.committed", "manifest.rename", "plan_run.commit", "plan_run.committed", "report.rename"]
)
def test_what_a_night_found_is_reported_once_wherever_it_broke_off(photos: Path, night: Path, point: str) -> None:
    (photos / "a1.png").rename(photos / "z.png")
    with failing_at(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        run_over(photos, night)
    assert run_over(photos, night).moved == 1
    assert [report["moved"] for report in reports(night)] == [0, 1]
    assert problems(night) == []


FORGETTING = load_settings(environ={}, flags={"run.threads": 1, "run.device": "cpu", "run.on_missing": "forget"})


def forgetting(source: Path, store: Path, limit: float = 0.2, **wishes: Any) -> RunReport:
    """A night that forgets what is missing."""
    settings = replace(FORGETTING, run=replace(FORGETTING.run, missing_limit=limit))
    return run_over(source, store, settings=settings, **wishes)


def paths_of(store: Path) -> list[str | None]:
    """The names of the photos that the store knows."""
    with LocalStore.open(store, command="test") as client:
        return [Path(path).name for path in client.read("SELECT path FROM core.files ORDER BY 1")["path"].to_pylist()]


def people_of(store: Path) -> list[tuple[str | None, int]]:
    """The name of each person, and the faces."""
    with open_store(store) as opened:
        return [(person.name, person.faces) for person in opened.people.all()]


def ids_of(store: Path) -> list[str]:
    """The persons."""
    with open_store(store) as opened:
        return [person.person_id for person in opened.people.all()]


class TestForget:
    """The photos: six of three people. Person 3 is on one alone, `d3.png`, and person 2 on two."""

    @pytest.mark.slow
    def test_a_missing_photo_goes_with_its_faces_and_who_is_on_no_other(self, photos: Path, night: Path) -> None:
        (photos / "d3.png").unlink()
        tried = dry_run(RunRequest(photos, night, FORGETTING))
        assert (tried.forgotten_missing, tried.forgotten_missing_files) == (1, [str(photos / "d3.png")])
        assert len(people_of(night)) == 3
        report = forgetting(photos, night)
        assert (report.vanished, report.forgotten_missing, report.too_many_missing) == (1, 1, 0)
        assert f"            forgotten: {photos / 'd3.png'}" in report.lines()
        assert people_of(night) == [(None, 3), (None, 2)]
        assert "d3.png" not in paths_of(night)
        kept = reports(night)[-1]
        assert (kept["forgotten_missing"], kept["vanished"], kept["vanished_files"]) == (1, 1, [])
        assert all(b"d3.png" not in file.read_bytes() for file in night.glob("runs/*/*.json"))
        assert problems(night) == []
        again = forgetting(photos, night)
        assert (again.vanished, again.forgotten_missing, again.run_id) == (0, 0, report.run_id)

    @pytest.mark.slow
    def test_it_stays_out_by_path_and_by_bytes(self, photos: Path, night: Path) -> None:
        data = (photos / "d3.png").read_bytes()
        (photos / "d3.png").unlink()
        forgetting(photos, night)
        (photos / "again.png").write_bytes(data)
        write_photo(photos, "d3.png", Shown(31))
        write_photo(photos, "other.png", Shown(3, 1))  # saved anew, under another name
        report = forgetting(photos, night)
        assert (report.new, report.forgotten) == (1, 2)
        assert len(people_of(night)) == 3

    @pytest.mark.slow
    def test_a_named_person_stays(self, photos: Path, night: Path) -> None:
        with open_store(night) as opened:
            opened.people.name(opened.people.all()[2].person_id, "Dee")
        (photos / "d3.png").unlink()
        forgetting(photos, night)
        assert people_of(night)[2] == ("Dee", 0)

    @pytest.mark.slow
    def test_where_many_are_missing_none_is_forgotten_unless_that_is_wanted(self, photos: Path, night: Path) -> None:
        for name in ("d3.png", "c2.png"):
            (photos / name).unlink()
        report = forgetting(photos, night)
        assert (report.vanished, report.forgotten_missing, report.too_many_missing) == (2, 0, 2)
        assert report.vanished_files == [str(photos / "c2.png"), str(photos / "d3.png")]
        warning = report.warnings[-1]
        assert warning.startswith("2 photos are missing, more than run.missing_limit of their source")
        assert "--yes" in warning
        assert f"warning     {warning}" in report.lines()
        again = forgetting(photos, night)
        assert (again.vanished, again.too_many_missing, again.warnings) == (0, 2, report.warnings)
        assert len(people_of(night)) == 3
        assert forgetting(photos, night, forget_many=True).forgotten_missing == 2
        assert (len(people_of(night)), problems(night)) == (2, [])

    def test_the_limit_is_a_share_of_the_source(self, photos: Path, night: Path) -> None:
        for name in ("d3.png", "c2.png", "a2.png"):
            (photos / name).unlink()
        assert forgetting(photos, night, 0.49).too_many_missing == 3
        assert forgetting(photos, night, 0.5).forgotten_missing == 3

    @pytest.mark.slow
    def test_what_earlier_nights_missed_goes_unless_it_is_back(self, photos: Path, night: Path) -> None:
        away = photos.parent / "away.png"
        (photos / "d3.png").rename(away)
        (photos / "c2.png").unlink()
        run_over(photos, night)
        away.rename(photos / "d3.png")
        report = forgetting(photos, night)
        assert (report.back, report.vanished, report.forgotten_missing) == (1, 0, 1)
        assert paths_of(night) == ["a1.png", "a2.png", "b-both.png", "d3.png", "e-poor.png"]
        with LocalStore.open(night, command="test") as client:
            summaries = client.read("SELECT summary FROM core.runs")["summary"].to_pylist()
        assert [json.loads(summary)["vanished"] for summary in summaries] == [0, 2, 0]
        assert "c2.png" not in str(summaries)

    @pytest.mark.slow
    def test_who_is_on_a_new_photo_stays_the_same_person(self, photos: Path, night: Path) -> None:
        """The photo was saved again, under another name."""
        before = ids_of(night)
        (photos / "d3.png").unlink()
        write_photo(photos, "z3.png", Shown(3, 1))
        report = forgetting(photos, night)
        assert (report.new, report.forgotten_missing) == (1, 1)
        assert ids_of(night) == before

    def test_a_photo_that_is_there_and_left_out_by_the_settings_is_not_forgotten(
        self, photos: Path, night: Path
    ) -> None:
        settings = replace(FORGETTING, source=replace(FORGETTING.source, exclude="d3.png"))
        (photos / "c2.png").unlink()
        report = run_over(photos, night, settings=settings)
        assert (report.vanished, report.forgotten_missing, report.too_many_missing) == (2, 1, 0)
        listed = [line.strip() for line in report.lines() if line.strip().startswith(("vanished", "forgotten", "and"))]
        assert listed == [f"vanished: {photos / 'd3.png'}", f"forgotten: {photos / 'c2.png'}"]

    @pytest.mark.slow
    def test_of_a_manifest_rows_go_that_are_no_longer_there_or_have_no_file(self, photos: Path, tmp_path: Path) -> None:
        store, manifest = make_store(tmp_path / "store"), tmp_path / "list.csv"
        names = sorted(path.name for path in photos.iterdir())
        manifest.write_text("path\n" + "".join(f"photos/{name}\n" for name in names))
        run_over(manifest, store)
        manifest.write_text("path\n" + "".join(f"photos/{name}\n" for name in names if name != "d3.png"))
        (photos / "a2.png").unlink()
        assert forgetting(manifest, store, 0.5).forgotten_missing == 2
        assert paths_of(store) == ["a1.png", "b-both.png", "c2.png", "e-poor.png"]
        again = forgetting(manifest, store, 0.5)  # the row of a2.png is still there
        assert (again.forgotten_files, again.statuses, problems(store)) == ([str(photos / "a2.png")], {}, [])

    @pytest.mark.slow
    @pytest.mark.parametrize("point", ["plan_run.committed", "change.commit", "change.committed"])
    def test_the_next_night_ends_it(
        self, photos: Path, night: Path, point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pipeline.run.missing._PIECE", 1)
        for name in ("d3.png", "c2.png"):
            (photos / name).unlink()
        with failing_at(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            forgetting(photos, night, 1)
        done = point == "change.committed"
        assert len(paths_of(night)) == 6 - done
        report = forgetting(photos, night, 1)
        assert (report.vanished, report.forgotten_missing) == (2, 2 - done)
        assert paths_of(night) == ["a1.png", "a2.png", "b-both.png", "e-poor.png"]
        assert all(b"c2.png" not in file.read_bytes() for file in night.glob("runs/*/*.json"))
        assert problems(night) == []

    @pytest.mark.slow
    def test_beside_a_server(self, photos: Path, night: Path) -> None:
        (photos / "d3.png").unlink()
        with serving(night) as service:
            assert forgetting(photos, night).forgotten_missing == 1
            assert sum(map(len, service.directories.all())) == 2
        assert problems(night) == []

    def test_scan_only_marks(self, photos: Path, night: Path) -> None:
        (photos / "d3.png").unlink()
        assert scan(RunRequest(photos, night, FORGETTING)).vanished_files == [str(photos / "d3.png")]
        assert len(people_of(night)) == 3
