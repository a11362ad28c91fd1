"""The main job on real weights and real photos: what is found, and what a second run does not do again."""

from __future__ import annotations

import dataclasses
import json
import math
import threading
from functools import partial
from pathlib import Path

import pytest

from pipeline.config import Settings
from pipeline.errors import Interrupted, StoreFull, StoreMismatch, UsageError
from pipeline.extraction import stored_picture
from pipeline.extraction.images.decode import Decoder
from pipeline.matching.calibration import Calibration
from pipeline.run.run import RunRequest, extract, group, run, scan
from pipeline.store.files import faults
from pipeline.store.local import LocalStore
from pipeline.tools.doctor import OK, WARN, Finding, examine
from pipeline.types import ByteArray, DecodedImage
from tests.integration.conftest import RecordedProgress, Runner
from tests.integration.snapshot import assert_whole, occurrences, pictures, snapshot
from tests.searching import search
from tests.waiting import until


def _faces(store: Path) -> list[tuple[str, str, str]]:
    """(file, outcome, person) of every face."""
    return [(Path(f[0]).name, f[3], Path(f[6].split("#")[0]).name if f[6] else "") for f in snapshot(store)["faces"]]


@pytest.mark.slow
def test_finds_the_two_people(photos: Path, runner: Runner, tmp_path: Path) -> None:
    report = runner(photos)
    assert (report.images, report.new, report.changed, report.already_in) == (10, 10, 0, 0)
    assert report.statuses == {"duplicate": 1, "no_face": 1, "ok": 7, "truncated": 1}
    assert (report.persons, report.new_persons, report.faces) == (2, 2, 9)
    assert report.rejected == {"truncated": 1}
    assert report.work.decoded == 9
    assert set(_faces(tmp_path / "store")) == {
        ("a1.jpg", "inserted", "a1.jpg"),
        ("a2.png", "matched", "a1.jpg"),
        ("b1.jpg", "inserted", "b1.jpg"),
        ("b2.jpg", "matched", "b1.jpg"),
        ("c-both.png", "matched", "a1.jpg"),
        ("c-both.png", "matched", "b1.jpg"),
        ("d-copy.jpg", "matched", "a1.jpg"),
        ("g1.webp", "matched", "a1.jpg"),
        ("h1.bmp", "matched", "b1.jpg"),
    }
    assert occurrences(tmp_path / "store") == {("a1.jpg", "main"): 5, ("b1.jpg", "main"): 4}
    summary = json.loads(next((tmp_path / "store" / "runs").glob("*/run.json")).read_text())
    assert summary["persons"] == 2
    assert summary["backend"].startswith(("openvino ", "torch "))
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_the_report_says_what_to_expect_of_the_threshold(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    """Each face has one chance of a wrong join with each identity that was inserted before it."""
    report = runner(photos)
    with LocalStore.open(tmp_path / "store", command="test") as client:
        calibration = Calibration.from_dict(client.identity.calibration)
        faces = client.read_table("faces").read_all().sort_by("face_id")["outcome"].to_pylist()
    fmr, same = calibration.fmr_at(settings.match.threshold)
    assert fmr == same
    chances = [1 - (1 - fmr) ** faces[:number].count("inserted") for number in range(len(faces))]
    expected = report.wrong_joins
    assert expected is not None
    assert expected.per_1000_photos == pytest.approx((1000 * sum(chances) / len(chances),) * 2)
    assert (expected.identities, expected.thresholds) == (2, (settings.match.threshold,))
    one = expected.threshold_for_1_in_1000[0]
    fmr_for_one = calibration.fmr_at(one)[0]
    assert 1 - (1 - fmr_for_one) ** 2 == pytest.approx(1e-3)
    assert report.warnings == ()
    assert f"expect      {expected}" in report.lines()
    assert f"with 2 records 1 in 1,000 needs T = {math.floor(1000 * one) / 1000}" in str(expected)
    summary = json.loads(next((tmp_path / "store" / "runs").glob("*/run.json")).read_text())
    assert summary["wrong_joins"] == json.loads(json.dumps(dataclasses.asdict(expected)))
    assert runner(photos).wrong_joins is None  # nothing was decided
    (of_next,) = findings(settings, tmp_path / "store", "expect")
    joins = 1000 * (1 - (1 - fmr) ** 2)
    assert of_next.level == OK
    assert of_next.detail.startswith(f"main of default: about {joins:.2g} wrong joins per 1,000 photos at T = 0.54; ")


@pytest.mark.slow
def test_uncalibrated_distances_are_said_at_each_run(photos: Path, settings: Settings, tmp_path: Path) -> None:
    none = dataclasses.replace(settings, model=dataclasses.replace(settings.model, calibration="none"))
    for used in (none, settings):  # making the store, and using it
        progress = RecordedProgress()
        report = run(RunRequest(photos, tmp_path / "store", used), progress)
        (warning,) = report.warnings
        assert "(weights casia-webface) are not calibrated" in warning
        assert f"warning: {warning}" in progress.notes
        assert report.as_dict()["warnings"] == (warning,)
    run_json = json.loads(next((tmp_path / "store" / "runs").glob("*/run.json")).read_text())
    assert run_json["warnings"] == [warning]
    assert run_json["wrong_joins"]["threshold_for_1_in_1000"] == [0, 4]
    (finding,) = findings(settings, tmp_path / "store", "calibration")
    assert (finding.level, finding.detail) == (WARN, warning)
    assert not findings(settings, tmp_path / "store", "expect")


def findings(settings: Settings, store: Path, subject: str) -> list[Finding]:
    """The doctor's, of one subject."""
    return [finding for finding in examine(settings, store) if finding.subject == subject]


@pytest.mark.slow
def test_the_same_run_again_does_no_image_work(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    first = runner(photos)
    before = snapshot(tmp_path / "store")
    nowhere = dataclasses.replace(settings.model, weights="auto", cache=str(tmp_path / "no-such-cache"))
    again = runner(photos, settings=dataclasses.replace(settings, model=nowhere))
    assert (again.new, again.changed, again.already_in, again.images) == (0, 0, 10, 0)
    assert (again.work.decoded, again.work.detector_calls, again.work.embedder_calls) == (0, 0, 0)
    assert (again.run_id, again.persons) == (first.run_id, 2)
    assert not (tmp_path / "no-such-cache").exists()
    assert snapshot(tmp_path / "store") == before


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_new_and_changed_files_are_taken_up(photos: Path, runner: Runner, tmp_path: Path) -> None:
    runner(photos)
    (photos / "i-new.jpg").write_bytes((photos / "b2.jpg").read_bytes())
    (photos / "e-noise.png").write_bytes((photos / "h1.bmp").read_bytes())
    report = runner(photos)
    assert (report.new, report.changed, report.already_in) == (1, 1, 9)
    # Both have bytes that the store knows: nothing is decoded, and their faces are grouped again.
    assert (report.work.decoded, report.statuses, report.persons) == (0, {"duplicate": 2}, 2)
    assert ("i-new.jpg", "matched", "b1.jpg") in _faces(tmp_path / "store")
    assert runner(photos).already_in == 11


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_what_was_seen_once_is_no_new_sighting(photos: Path, runner: Runner, tmp_path: Path) -> None:
    """A row of the manifest whose file goes, comes back, and goes again."""
    manifest = tmp_path / "rows.csv"
    manifest.write_text("path\nphotos/a1.jpg\n")
    first = runner(manifest)
    data = (photos / "a1.jpg").read_bytes()
    (photos / "a1.jpg").unlink()
    gone, still_gone = runner(manifest), runner(manifest)
    assert [(report.vanished, report.already_in, report.statuses) for report in (gone, still_gone)] == [
        (1, 0, {}),
        (0, 0, {}),
    ]
    (photos / "a1.jpg").write_bytes(data)
    again = runner(manifest)
    assert (first.persons, again.new, again.changed, again.already_in) == (1, 0, 0, 1)
    (photos / "a1.jpg").unlink()
    assert runner(manifest).vanished == 1
    assert [p[4] for p in snapshot(tmp_path / "store")["persons"]] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_a_known_photo_in_another_directory_makes_its_own_identity(
    photos: Path, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner(photos)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.png").write_bytes((photos / "a2.png").read_bytes())  # matched there: has no stored image
    threads: list[str] = []
    decode = Decoder.__call__

    def decode_and_tell(decoder: Decoder, data: bytes) -> DecodedImage:
        threads.append(threading.current_thread().name)
        return decode(decoder, data)

    monkeypatch.setattr(Decoder, "__call__", decode_and_tell)
    report = runner(tmp_path / "other", directory="second")
    # Not on the threads that a server's models compute on: posts that wait for these hold the memory for decoding.
    assert [name.rpartition("_")[0] for name in threads] == ["commit"]
    assert (report.new_persons, report.work.detector_calls) == (1, 0)
    assert_whole(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_scan_extract_group_are_the_run_in_steps(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    runner(photos)
    steps = RunRequest(source=photos, store=tmp_path / "steps", settings=settings)
    rest = dataclasses.replace(steps, source=None)
    assert scan(steps).new == 10
    with pytest.raises(UsageError, match="extract"):
        group(rest)
    with pytest.raises(UsageError, match="planned already"):
        scan(steps)
    extracted = extract(rest)
    assert (extracted.new, extracted.images, extracted.persons) == (10, 0, 0)
    assert extracted.lines()[:2] == [
        "images      10 new, 0 changed; 0 were in already",
        "            none; 10 not in yet",
    ]
    report = group(rest)
    assert (report.new, report.images, report.persons, report.work.decoded) == (10, 10, 2, 0)
    assert snapshot(tmp_path / "steps") == snapshot(tmp_path / "store")
    assert pictures(tmp_path / "steps") == pictures(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_pictures_are_made_of_new_references_only_and_are_the_same_however_they_are_had(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    encode = stored_picture.encode_reference_image

    def counted(pixels: ByteArray) -> bytes:
        made.append(1)
        return encode(pixels)

    for module in ("extraction.engine", "people.shards"):
        monkeypatch.setattr(f"pipeline.{module}.encode_reference_image", counted)
    report = runner(photos)
    assert sum(report.outcomes.values()) > len(made) == report.outcomes["inserted"] == 2
    no_room = partial(stored_picture.HeldPictures, 0)
    monkeypatch.setattr("pipeline.run.stages.HeldPictures", no_room)
    run(RunRequest(photos, tmp_path / "no-room", settings))
    assert len(made) > 2 + report.outcomes["inserted"]
    assert pictures(tmp_path / "no-room") == pictures(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("photo", ["there", "gone"])
def test_pictures_are_cut_from_the_photo_where_a_run_was_killed_before_its_commit(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, photo: str
) -> None:
    store = tmp_path / "killed"

    def fail(name: str) -> None:
        if name == "commit_shard.begin":
            raise StoreFull(path=store, detail="no space left")

    faults.install(fail)
    try:
        with pytest.raises(StoreFull):
            run(RunRequest(photos, store, settings))
    finally:
        faults.install(None)
    assert list(store.glob("runs/*/shards/00000.parquet"))
    if photo == "gone":
        for name in ("a1.jpg", "a2.png"):
            (photos / name).unlink()
    report = run(RunRequest(photos, store, settings))
    assert_whole(store)
    if photo == "gone":  # one would have become a reference, then the other: rows with a reason, nothing else
        assert (report.persons, report.statuses["changed"]) == (2, 2)
        return
    runner(photos)
    assert snapshot(store) == snapshot(tmp_path / "store")
    assert pictures(store) == pictures(tmp_path / "store")


@pytest.mark.usefixtures("loaded_once")
def test_ctrl_c_finishes_the_shard_and_the_same_command_goes_on(
    photos: Path, settings: Settings, tmp_path: Path
) -> None:
    stop = threading.Event()

    class StopSoon(RecordedProgress):
        def advance(self, count: int = 1) -> None:
            super().advance(count)
            if self.phases[-1] == "run":
                stop.set()

    request = RunRequest(source=photos, store=tmp_path / "store", settings=settings)
    with pytest.raises(Interrupted, match="1 of 4 shards"):
        run(request, StopSoon(), stop)
    progress = RecordedProgress()
    report = run(request, progress, threading.Event())
    assert (report.images, report.new, report.changed, report.already_in, report.persons) == (10, 10, 0, 0, 2)
    assert report.work.decoded == 6
    assert "unfinished run" in progress.notes[0]


@pytest.mark.slow
def test_the_next_shard_is_extracted_while_one_is_committed(photos: Path, runner: Runner, tmp_path: Path) -> None:
    first: list[Path] = []

    def hook(name: str) -> None:
        if name == "commit_shard.begin" and not first:
            until(lambda: list((tmp_path / "store").glob("runs/*/shards/00001.parquet")), "no second shard meanwhile")
            first.extend((tmp_path / "store").glob("runs/*/shards/*.parquet"))

    faults.install(hook)
    try:
        assert runner(photos).persons == 2
    finally:
        faults.install(None)
    assert {file.stem for file in first} >= {"00000", "00001"}


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
def test_the_photo_of_a_known_person_is_recognised(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    runner(photos)
    (face,) = search((photos / "b2.jpg").read_bytes(), tmp_path / "store", settings, None, "main", 5)
    assert face.identity is not None
    assert face.identity.similarity_score >= 1.0
    assert face.similar[0].person_id == face.identity.person_id
    assert len(face.similar) == 2
    assert face.similar[1].similarity_score < 1.0
    (same,) = search((photos / "a1.jpg").read_bytes(), tmp_path / "store", settings, None, "main", 1)
    assert same.identity is not None
    assert same.identity.similarity_score == pytest.approx(2 / (2 - 0.54**0.5), abs=1e-12)
    assert search((photos / "e-noise.png").read_bytes(), tmp_path / "store", settings, None, "main", 5) == []


@pytest.mark.usefixtures("loaded_once")
def test_other_settings_than_the_stores_are_refused(photos: Path, runner: Runner, settings: Settings) -> None:
    runner(photos)
    other = dataclasses.replace(settings, detect=dataclasses.replace(settings.detect, min_face_px=40))
    with pytest.raises(StoreMismatch, match=r"detect\.min_face_px = 20"):
        runner(photos, settings=other)
    weights = dataclasses.replace(settings, model=dataclasses.replace(settings.model, weights="vggface2"))
    with pytest.raises(StoreMismatch, match="casia-webface"):
        runner(photos, settings=weights)


@pytest.mark.slow
@pytest.mark.usefixtures("loaded_once")
@pytest.mark.faces
def test_broken_files_all_end_as_rows(faces_dir: Path, runner: Runner, tmp_path: Path) -> None:
    report = runner(faces_dir / "broken-files")
    rows = {Path(row[0]).name: row[8] for row in snapshot(tmp_path / "store")["media"]}
    assert rows == {
        "corrupted.png": "truncated",
        "empty.png": "unsupported",
        "truncated.jpg": "ok",  # it lacks its last 17 bytes, and no block of its picture
        **{f"einstein.{suffix}": "ok" for suffix in ("bmp", "gif", "ico", "jpeg", "png", "tiff", "webp")},
    }
    assert (report.persons, report.outcomes) == (2, {"inserted": 2, "matched": 6})
