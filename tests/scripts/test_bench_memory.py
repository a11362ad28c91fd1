"""The memory benchmark, on a handful of photos: what it runs, what it holds runs against, and that growth fails it."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path

import bench_memory as bench
import numpy as np
import pytest
from bench_common import check_result
from bench_corpora import read_sources
from PIL import Image

from tests.evaluation.bench_photos import make_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    return make_photos(tmp_path_factory.mktemp("memory") / "photos", hopper_path, astronaut_path)


def _size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        return image.size


def repeat(left: int, peak: int = 300, faces: int = 7, **read: int) -> bench.Repeat:
    return bench.Repeat(1.0, peak, left, read or {"ok": 4, "no_face": 1}, faces, persons=2)


def test_large_photos_lie_among_the_others(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "HUGE", (1100, 900))  # the real one takes half a minute to make
    sources = read_sources(photos)
    files = bench.photos(sources, tmp_path, 8)
    sizes = [_size(file) for file in files]
    assert len(set(files)) == len(sizes) == 8 + 1 + 1
    large = [sizes.index((4000, 3000)), sizes.index((1100, 900))]
    assert 0 < large[0] < large[1] < len(sizes) - 1
    written = [file.stat().st_mtime_ns for file in files]
    assert [file.stat().st_mtime_ns for file in bench.photos(sources, tmp_path, 8)] == written


def test_the_huge_picture_is_the_largest_that_is_taken() -> None:
    limit = bench.Settings().decode.max_pixels
    assert 0.99 * limit < bench.HUGE[0] * bench.HUGE[1] <= limit


def test_the_peak_is_of_the_block_and_the_rest_of_the_moment() -> None:
    meter = bench.Meter()
    with meter.sampling():
        block = np.ones(2**25)  # 256 MiB, resident
        held = meter.now()
        while meter.peak < held - 2**27:
            time.sleep(0.01)
        del block
    assert meter.now() < held - 2**27 < meter.peak
    with meter.sampling():
        pass
    assert meter.peak < held - 2**27


@pytest.mark.parametrize(
    "other",
    [repeat(100, faces=8), repeat(100, ok=5), repeat(100, ok=4, unreadable=1), repeat(100, ok=4)],
    ids=["other faces", "other statuses", "unreadable", "too few"],
)
def test_a_repeat_that_finds_anything_else_fails(other: bench.Repeat) -> None:
    bench.assert_equal(repeat(100), repeat(120), 5)
    with pytest.raises(AssertionError):
        bench.assert_equal(repeat(100), other, 5)


def test_growth_is_counted_from_the_second_repeat() -> None:
    figures = bench.figures_of([repeat(50 * 2**20, 2**30), repeat(100 * 2**20, 2**30), repeat(102 * 2**20, 2**31)])
    assert figures["rss_mib"] == [50, 100, 102]
    assert figures["rss_growth"] == pytest.approx(0.02)
    assert figures["peak_rss_growth"] == 1.0
    bench.assert_flat(figures, 0.03)
    with pytest.raises(AssertionError):
        bench.assert_flat(figures, 0.01)


def test_the_manifest_names_every_file_once(tmp_path: Path) -> None:
    path = bench.write_manifest([tmp_path / 'a, "b".jpg', tmp_path / "c.jpg"], tmp_path / "photos.csv")
    with path.open(newline="", encoding="utf-8") as rows:
        assert [row["path"] for row in csv.DictReader(rows)] == [str(tmp_path / 'a, "b".jpg'), str(tmp_path / "c.jpg")]


def test_three_whole_runs_and_their_result(
    photos: Path,
    weights_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    monkeypatch.setattr(bench, "photos", lambda *_: sorted(photos.rglob("*.jpg")))
    arguments = ["--faces", photos, "--work", tmp_path, "--results", tmp_path, "--repeats", 3, "--max-growth", 9]
    monkeypatch.setattr("sys.argv", ["bench_memory.py", *map(str, arguments)])
    bench.main()
    document = json.loads((tmp_path / "memory-cpu.json").read_text("utf-8"))
    check_result(document)
    figures = document["figures"]
    assert (figures["images"], figures["faces"], figures["persons"]) == (3, 4, 2)
    assert len(figures["rss_mib"]) == len(document["timings"]["run"]["seconds"]) == 3
    assert all(peak >= left for peak, left in zip(figures["peak_rss_mib"], figures["rss_mib"], strict=True))


def test_two_repeats_are_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--faces", str(tmp_path), "--work", str(tmp_path), "--repeats", "2"]
    monkeypatch.setattr("sys.argv", ["bench_memory.py", *arguments])
    with pytest.raises(SystemExit):
        bench.main()
