"""The benchmarks of single stages run, and fail where an answer is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import bench_decode
import bench_detect
import bench_embed
import numpy as np
import pytest
import torch
from bench_common import check_result
from jpeg_decoders import installed, pillow

from pipeline.models.weights import resolve
from tests.evaluation.bench_photos import make_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    return make_photos(tmp_path_factory.mktemp("stages") / "photos", hopper_path, astronaut_path)


def test_decoding(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_decode, "usable_cores", lambda: 2)
    files = [file.read_bytes() for file in sorted(photos.rglob("*.jpg"))]
    timings, figures = bench_decode.measure(files, repeats=1)
    names = [bench_decode.OURS, *installed()]
    assert timings.keys() == {f"{name}_{threads}" for name in names for threads in (1, 2)}
    assert figures["ratio_to_pillow_1"] > 0
    assert figures["images_per_s_facepipe_2"] > 0
    with pytest.raises(AssertionError, match="other pixels"):
        bench_decode.assert_equal(files, lambda data: pillow(data) ^ np.uint8(1))


def test_decoding_on_the_device(photos: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_decode, "usable_cores", lambda: 1)
    files = [file.read_bytes() for file in sorted(photos.rglob("*.jpg"))]
    timings, figures = bench_decode.measure(files, repeats=1, device=device)
    assert bench_decode.ON_DEVICE in timings
    assert figures["images_per_s_device"] > 0
    monkeypatch.setattr("pipeline.extraction.images.nvjpeg._decoded", lambda images, *_: [None] * len(images))
    with pytest.raises(AssertionError, match=f"{len(files)} files were left to the CPU"):
        bench_decode.on_device(files, device)


def test_a_result_is_written_as_the_schema_wants_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--faces", photos, "--work", tmp_path, "--results", tmp_path / "results", "--only", "a", "d"]
    monkeypatch.setattr("sys.argv", ["bench_decode.py", *map(str, arguments), "--images", "2", "--repeats", "1"])
    bench_decode.main()
    document = json.loads((tmp_path / "results" / "decode-cpu.json").read_text("utf-8"))
    check_result(document)
    assert document["settings"] == {"images": 2, "only": ["a", "d"], "repeats": 1, "device": None}
    assert document["figures"].keys() == {"a", "d"}


def test_every_bare_decoder_decodes(photos: Path) -> None:
    data = next(photos.rglob("both.jpg")).read_bytes()
    for name, decode in installed().items():
        assert decode(data).shape == (260, 520, 3), name
        assert np.abs(decode(data).astype(int) - pillow(data)).max() <= 3, name


def test_detection(photos: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    threads = torch.get_num_threads()
    timings, figures = bench_detect.measure(sorted(photos.rglob("*.jpg")), "cpu", repeats=1)
    torch.set_num_threads(threads)
    assert timings.keys() == {"facepipe", "reference"}
    assert (figures["images"], figures["reference_faces"], figures["missed"], figures["extra"]) == (3, 4, 0, 0)
    assert figures["ratio"] > 0


def test_embedding(photos: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    embed = bench_embed.ways(resolve("casia-webface", None, weights_cache), "cpu")
    assert {"facepipe_torch", "reference"} <= embed.keys()
    crops = bench_embed.face_crops(photos, 2, 160)
    assert crops.shape == (2, 3, 160, 160)
    timings, figures = bench_embed.measure(embed, crops, [1, 2], 1, "cpu")
    assert timings.keys() == {f"{name}_{batch}" for name in embed for batch in (1, 2)}
    assert figures["cosine_min"] >= bench_embed.WANT_COSINE
    embed["reference"] = lambda crops: embed["facepipe_torch"](crops.flip(3))
    with pytest.raises(AssertionError):
        bench_embed.measure(embed, crops, [1], 1, "cpu")
