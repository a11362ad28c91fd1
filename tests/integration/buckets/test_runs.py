"""Runs whose photos are in a bucket: the same as from a folder, over a network that fails."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.config import Settings, SourceSettings, load_settings
from pipeline.errors import BucketFailed, ImageOutside, PictureUnavailable, SourceEmpty, UsageError
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source
from pipeline.jobs.run_report import RunReport
from pipeline.run.dry_run import dry_run
from pipeline.run.run import RunRequest, abandon, extract, group, run, scan
from pipeline.serve.ui.photos import Photos
from pipeline.store.records import StoredFace
from pipeline.tools.sample_photos import write_samples
from tests.integration.buckets.conftest import put
from tests.integration.buckets.faulty import DENIED, RESET, UNAVAILABLE, FaultyProxy, failing
from tests.integration.conftest import RecordedProgress, Runner
from tests.integration.snapshot import assert_whole, pictures, snapshot

pytestmark = pytest.mark.usefixtures("loaded_once")


def upload(client: Any, folder: Path, prefix: str) -> int:
    """Puts the folder's files below the prefix; returns how many."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    for file in files:
        put(client, f"{prefix}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return len(files)


def contents(store: Path, source: str) -> str:
    """The store's tables, with paths as they are below the source."""
    return repr(snapshot(store)).replace(source, "")


@pytest.fixture
def uploaded(bucket: str, client: Any, photos: Path) -> str:
    """The ten photos in a bucket."""
    upload(client, photos, f"{bucket}/photos")
    return f"{bucket}/photos"


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., Path]:
    """Writes a manifest."""

    def write(*locations: str) -> Path:
        file = tmp_path / "list.jsonl"
        file.write_text("".join(json.dumps({"uri": location}) + "\n" for location in locations))
        return file

    return write


def statuses(store: Path) -> dict[str, str]:
    return {row[0].rpartition("/")[2]: row[8] for row in snapshot(store)["media"]}


def run_both(
    tmp_path: Path, settings: Settings, folder: Path, client: Any, bucket: str, proxy: FaultyProxy
) -> RunReport:
    """The folder into one store, and from a bucket where 1 request in 20 fails into another: the same; and again."""
    photos = upload(client, folder, f"{bucket}/photos")
    local = RunRequest(source=folder, store=tmp_path / "local", settings=settings)
    far = dataclasses.replace(local, source=f"{bucket}/photos", store=tmp_path / "far")
    run(local)
    proxy.choose = failing(0.05, seed=1)
    first = run(far)
    assert contents(far.store, f"{bucket}/photos") == contents(local.store, str(folder))
    assert pictures(far.store) == pictures(local.store)
    assert_whole(far.store)
    asked, failed = proxy.asked.total(), proxy.failed.total()
    print(f"{photos} photos: {asked / photos:.2f} requests per photo; failed: {proxy.failed}")
    assert failed
    # Each photo is read for its hash, for its faces, and at most once for their pictures on the run's page; and what
    # failed is asked for again.
    assert photos < asked <= 3 * photos + 2 + failed
    proxy.asked.clear()
    proxy.choose = lambda *_: None
    again = run(far)
    assert (again.already_in, again.new, again.changed) == (photos, 0, 0)
    assert proxy.asked == {"LIST": 1}
    return first


@pytest.mark.slow
def test_from_a_failing_bucket_as_from_a_folder(
    tmp_path: Path, settings: Settings, photos: Path, client: Any, bucket: str, proxy: FaultyProxy
) -> None:
    (photos / "below").mkdir()
    (photos / "a1.jpg").rename(photos / "below" / "ä 1%.jpg")
    run_both(tmp_path, settings, photos, client, bucket, proxy)


@pytest.mark.slow
def test_the_sample_photos_from_a_failing_bucket(
    tmp_path: Path, settings: Settings, client: Any, bucket: str, proxy: FaultyProxy
) -> None:
    pytest.importorskip("skimage", reason="the extra `demo` is not installed")
    write_samples(tmp_path / "samples")
    run_both(tmp_path, settings, tmp_path / "samples", client, bucket, proxy)


@pytest.mark.slow
@pytest.mark.faces
def test_photographs_from_a_failing_bucket(
    tmp_path: Path, settings: Settings, faces_dir: Path, client: Any, bucket: str, proxy: FaultyProxy
) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for file in sorted((faces_dir / "lfw-view1").rglob("*.jpg"))[:60]:
        (folder / file.name).write_bytes(file.read_bytes())
    run_both(tmp_path, settings, folder, client, bucket, proxy)


@pytest.mark.slow
def test_a_manifest_is_read_without_listing(
    runner: Runner, uploaded: str, proxy: FaultyProxy, listed: Callable[..., Path], tmp_path: Path
) -> None:
    manifest = listed(f"{uploaded}/b1.jpg", f"{uploaded.replace('s3:', 'S3:')}/a1.jpg", f"{uploaded}/gone.jpg")
    report = runner(manifest)
    assert (report.new, dict(report.statuses)["missing"]) == (3, 1)
    # Twice looked whether they can be read (before a store is made, and by the scan); their hashes, and their faces.
    assert proxy.asked == {"GET": 2 * 3 + 3 + 2}
    proxy.asked.clear()
    assert runner(manifest).already_in == 3
    assert proxy.asked == {"GET": 3 + 1, "HEAD": 3}


@pytest.mark.slow
def test_what_changes_in_a_bucket_is_taken_up(runner: Runner, uploaded: str, client: Any, photos: Path) -> None:
    runner(uploaded)
    put(client, f"{uploaded}/a1.jpg", (photos / "b2.jpg").read_bytes())
    put(client, f"{uploaded}/new.jpg", (photos / "a2.png").read_bytes())
    bucket, _, key = uploaded.removeprefix("s3://").partition("/")
    client.delete_object(Bucket=bucket, Key=f"{key}/h1.bmp")
    report = runner(f"{uploaded}/")
    assert (report.new, report.changed, report.vanished, report.already_in) == (1, 1, 1, 8)


@pytest.mark.slow
def test_a_file_that_moves_within_a_bucket_is_the_same(runner: Runner, uploaded: str, client: Any) -> None:
    runner(uploaded)
    bucket, _, key = uploaded.removeprefix("s3://").partition("/")
    client.copy_object(Bucket=bucket, Key=f"{key}/z/b1.jpg", CopySource=f"{bucket}/{key}/b1.jpg")
    client.delete_object(Bucket=bucket, Key=f"{key}/b1.jpg")
    report = runner(uploaded)
    assert (report.moved, report.moved_files) == (1, [[f"{uploaded}/b1.jpg", f"{uploaded}/z/b1.jpg"]])


@pytest.mark.slow
def test_an_archive_that_moves_into_a_bucket(
    runner: Runner, photos: Path, client: Any, bucket: str, tmp_path: Path
) -> None:
    runner(photos)
    upload(client, photos, f"{bucket}/archive")
    report = runner(f"{bucket}/archive", moved_from=photos)
    assert (report.new, report.already_in, report.vanished) == (0, 10, 0)
    assert report.moved_sources == [[str(photos), f"{bucket}/archive"]]


class _BeforeReading(RecordedProgress):
    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def start(self, phase: str, total: int | None) -> None:
        super().start(phase, total)
        if phase == "run" and self.phases.count("run") == 1:
            self._act()


@pytest.mark.slow
def test_an_object_that_goes_or_changes_after_the_scan(
    uploaded: str, client: Any, tmp_path: Path, settings: Settings, photos: Path
) -> None:
    bucket, _, key = uploaded.removeprefix("s3://").partition("/")

    def act() -> None:
        client.delete_object(Bucket=bucket, Key=f"{key}/a2.png")
        put(client, f"{uploaded}/b1.jpg", (photos / "g1.webp").read_bytes())

    run(RunRequest(uploaded, tmp_path / "store", settings), _BeforeReading(act))
    found = statuses(tmp_path / "store")
    assert (found["a2.png"], found["b1.jpg"], found["b2.jpg"]) == ("missing", "changed", "ok")


def test_an_object_that_is_denied_alone_is_a_row(
    runner: Runner, uploaded: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    proxy.choose = lambda _, path: DENIED if path.endswith("/b1.jpg") else None
    runner(uploaded)
    assert statuses(tmp_path / "store")["b1.jpg"] == "unreadable"


def test_no_store_is_made_where_the_bucket_cannot_be_used(
    runner: Runner, uploaded: str, proxy: FaultyProxy, listed: Callable[..., Path], tmp_path: Path
) -> None:
    for source in ("s3://there-is-none/photos", listed("s3://there-is-none/a.jpg")):
        with pytest.raises(BucketFailed, match="NoSuchBucket"):
            runner(source)
    proxy.choose = lambda *_: DENIED
    for source in (uploaded, listed(f"{uploaded}/a1.jpg")):
        with pytest.raises(BucketFailed):
            runner(source)
    proxy.choose = lambda *_: None
    with pytest.raises(SourceEmpty):
        runner(f"{uploaded}/none")
    with pytest.raises(UsageError, match="no address"):
        runner("s3://")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [RESET, UNAVAILABLE])
def test_a_bucket_that_stops_answering_stops_the_run_and_it_goes_on(
    uploaded: str, proxy: FaultyProxy, tmp_path: Path, settings: Settings, fault: str
) -> None:
    request = RunRequest(uploaded, tmp_path / "store", settings)

    def fail() -> None:
        proxy.choose = lambda *_: fault

    with pytest.raises(BucketFailed, match="The same command goes on"):
        run(request, _BeforeReading(fail))
    proxy.choose = lambda *_: None
    assert run(request).new == 10
    assert_whole(request.store)
    assert "missing" not in statuses(request.store).values()


@pytest.mark.slow
def test_photos_that_are_missing_from_a_bucket_are_forgotten_but_not_too_many(
    uploaded: str, client: Any, tmp_path: Path, settings: Settings
) -> None:
    forget = dataclasses.replace(settings, run=dataclasses.replace(settings.run, on_missing="forget"))
    request = RunRequest(uploaded, tmp_path / "store", forget)
    run(request)
    bucket, _, key = uploaded.removeprefix("s3://").partition("/")
    client.delete_object(Bucket=bucket, Key=f"{key}/h1.bmp")
    assert run(request).forgotten_missing == 1
    for name in ("a1.jpg", "b1.jpg", "b2.jpg"):
        client.delete_object(Bucket=bucket, Key=f"{key}/{name}")
    report = run(request)
    assert (report.forgotten_missing, report.too_many_missing) == (0, 3)
    for name in ("a2.png", "c-both.png", "d-copy.jpg", "e-noise.png", "f-broken.jpg", "g1.webp"):
        client.delete_object(Bucket=bucket, Key=f"{key}/{name}")
    with pytest.raises(SourceEmpty):
        run(request)


@pytest.mark.slow
def test_what_is_not_listed_because_it_is_excluded_is_not_forgotten(
    uploaded: str, tmp_path: Path, settings: Settings
) -> None:
    forget = dataclasses.replace(settings, run=dataclasses.replace(settings.run, on_missing="forget"))
    request = RunRequest(uploaded, tmp_path / "store", forget)
    run(request)
    without = dataclasses.replace(forget, source=dataclasses.replace(forget.source, exclude="h1.bmp"))
    assert run(dataclasses.replace(request, settings=without)).forgotten_missing == 0


@pytest.mark.slow
def test_the_stages_alone_and_a_dry_run(uploaded: str, tmp_path: Path, settings: Settings) -> None:
    request = RunRequest(uploaded, tmp_path / "store", settings)
    assert dry_run(request).new == 10
    assert scan(request).new == 10
    extract(request)
    assert group(request).new == 10
    assert statuses(request.store)["a1.jpg"] == "ok"
    assert run(dataclasses.replace(request, source=f"{uploaded}/")).already_in == 10
    with pytest.raises(UsageError, match="no unfinished run"):
        abandon(request.store, f"{uploaded}/")


@pytest.mark.slow
def test_on_the_command_line(
    uploaded: str,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--device", "cpu", "--weights", "casia-webface", "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["run", uploaded, "--store", str(tmp_path / "store"), *flags])
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out)["new"] == 10
    with pytest.raises(SystemExit) as ended:
        main(["run", "s3://there-is-none", "--store", str(tmp_path / "other"), *flags])
    assert ended.value.code == 19


def test_what_of_a_prefix_is_taken(bucket: str, client: Any) -> None:
    for key in (
        "a.jpg",
        "a/b.PNG",
        "Ann/c.jpg",
        "Ann/.d.jpg",
        ".e/f.jpg",
        "@eaDir/g.jpg",
        "h.mp4",
        "i",
        "not/j.jpg",
        "k.gif",
    ):
        put(client, f"{bucket}/in/{key}", b"x")
    put(client, f"{bucket}/in-/z.jpg", b"x")
    counts = ScanCounts()
    settings = SourceSettings(labels="parent", exclude="not,*.gif", root=f"{bucket}/in/Ann")
    refs = list(scan_source(f"{bucket}/in/", settings, counts))
    assert [(ref.path, ref.name, ref.rejected is None) for ref in refs] == [
        (f"{bucket}/in/Ann/c.jpg", "Ann", True),
        (f"{bucket}/in/a.jpg", None, False),
        (f"{bucket}/in/a/b.PNG", "a", False),
    ]
    assert all(ref.path == ref.file and ref.state is not None for ref in refs)
    assert counts.left_alone == {"hidden": 1, "video": 1, "other": 1, "excluded": 1}
    assert counts.left_out == {"hidden": 1, "thumbnails": 1, "excluded": 1}
    assert counts.left_out_folders == [f"{bucket}/in/{folder}" for folder in (".e", "@eaDir", "not")]


@pytest.mark.parametrize(
    ("root", "location", "file", "outside"),
    [
        (None, "s3://b/in/a.jpg", "s3://b/in/a.jpg", False),
        ("/photos", "s3://b/in/a.jpg", "s3://b/in/a.jpg", True),
        ("s3://b/in", "s3://b/in/a.jpg", "s3://b/in/a.jpg", False),
        ("s3://b/in/", "x/../a.jpg", "s3://b/in/a.jpg", False),
        ("s3://b/in", "s3://b/in-/a.jpg", "s3://b/in-/a.jpg", True),
        ("s3://b/in", "../a.jpg", "s3://b/in/../a.jpg", True),
    ],
)
def test_where_a_manifest_may_point(
    listed: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    root: str | None,
    location: str,
    file: str,
    outside: bool,
) -> None:
    monkeypatch.setattr("pipeline.runtime.buckets.check", lambda _: None)
    (ref,) = scan_source(listed(location), SourceSettings(root=root))
    assert (ref.file, isinstance(ref.rejected, ImageOutside)) == (file, outside)


def test_the_page_shows_photos_of_a_prefix_that_may_be_shown(bucket: str, client: Any, photos: Path) -> None:
    data = (photos / "a1.jpg").read_bytes()
    put(client, f"{bucket}/in/a1.jpg", data)
    sha256 = hashlib.sha256(data).hexdigest()
    boxes = {"x1": 1.0, "y1": 1.0, "x2": 40.0, "y2": 40.0}
    face = StoredFace(
        1, None, "inserted", None, None, f"{bucket}/in/a1.jpg", sha256, **boxes, quality=1.0, has_embedding=True,
        media_id=1, width=256, height=300,
    )  # fmt: skip
    shown = Photos(load_settings(environ={}, flags={"ui.photo_roots": f"/none, {bucket}/in"}))
    assert shown.may_show(face.path)
    assert not shown.may_show(f"{bucket}/in-/a1.jpg")
    assert shown.whole(face).startswith(b"\xff\xd8")
    assert shown.face(face).startswith(b"\xff\xd8")
    with pytest.raises(PictureUnavailable):
        shown.face(dataclasses.replace(face, sha256="0" * 64))
    put(client, f"{bucket}/in/a1.jpg", b"another object")
    with pytest.raises(PictureUnavailable):
        shown.whole(face)
    hidden = Photos(load_settings(environ={}, flags={"ui.photo_roots": f"/, {bucket}/other"}))
    with pytest.raises(PictureUnavailable):
        hidden.whole(face)
