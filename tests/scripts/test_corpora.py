"""The photos that the speed benchmarks make of real ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from corpora import SIZES, Sources, make_corpus, read_sources, scene

from pipeline.evaluation.bench.reference import image_size


@pytest.fixture
def sources(photos: Path) -> Sources:
    return read_sources(photos)


def test_sizes_and_number(sources: Sources, tmp_path: Path) -> None:
    assert {image_size(file) for file in make_corpus("a", sources, tmp_path, 3)} == {(250, 250)}
    assert [image_size(file) for file in make_corpus("b", sources, tmp_path, 2)] == [SIZES["b"]] * 2
    mixed = make_corpus("d", sources, tmp_path, 8)
    sizes = [image_size(file) for file in mixed]
    assert len(set(sizes)) >= 4
    assert sizes.count((250, 250)) == 3
    assert any(width == pytest.approx(2 * height, rel=0.02) for width, height in sizes)  # the group photo, enlarged


def test_the_same_arguments_make_the_same_photos_and_make_them_once(sources: Sources, tmp_path: Path) -> None:
    first, again = (make_corpus("d", sources, tmp_path / name, 8) for name in ("one", "two"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    first[0].write_bytes(b"kept")
    assert make_corpus("d", sources, tmp_path / "one", 8)[0].read_bytes() == b"kept"
    make_corpus("d", sources, tmp_path / "one", 8, seed=6)
    assert first[0].read_bytes() != b"kept"
    assert json.loads((first[0].parent / "made-of.json").read_text("utf-8"))["seed"] == 6
    assert not list(tmp_path.glob("*/*unfinished*"))


def test_a_scene_is_filled_with_photos_and_no_noise(sources: Sources) -> None:
    picture = scene(np.random.default_rng(1), sources, (400, 300))
    assert picture.size == (400, 300)
    pixels = np.asarray(picture).astype(int)
    assert np.ptp(pixels) > 150
    # Neighbours are alike in an enlarged photo, and independent in noise, where this is about a third of the range.
    assert np.abs(np.diff(pixels, axis=1)).mean() < 10


def test_a_folder_without_photos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="groups-with-boxes"):
        read_sources(tmp_path)


def test_portraits_are_taken_as_they_are(sources: Sources, tmp_path: Path) -> None:
    files = make_corpus("a", sources, tmp_path, len(sources.portraits) + 1)
    originals = [path.read_bytes() for path in sources.portraits]
    assert [file.read_bytes() for file in files] == [*originals, originals[0]]
