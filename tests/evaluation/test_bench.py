"""`facepipe bench`: the photos it compares, those it leaves out, each side's settings of torch, and the turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from corpora import two_people
from PIL import Image

from pipeline.config import DecodeSettings, load_settings
from pipeline.errors import SourceEmpty
from pipeline.evaluation.bench.bench import SameFaces, Side, bench, take_sample
from pipeline.evaluation.bench.harness import Timing, interleave, turn_ratios
from pipeline.evaluation.bench.parity import Extracted
from pipeline.evaluation.bench.reference import image_size, read_image, upright_crop
from pipeline.evaluation.report import Report
from pipeline.extraction.align import FIVE_POINT_SIZE, warp_crops
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.runtime.threads import using_threads
from pipeline.types import Detections, SilentProgress
from tests.cli.report import answer

ORIENTATION = 0x0112


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    """Two portraits and a group photo, one portrait lying on its side, a faceless, a transparent, a narrow and two
    broken files, and a text."""
    folder = two_people(tmp_path_factory.mktemp("bench") / "photos", hopper_path, astronaut_path)
    portrait = Image.open(next(folder.rglob("grace*.jpg")))
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    portrait.transpose(Image.Transpose.ROTATE_90).save(folder / "sideways.jpg", exif=exif, quality=95)
    Image.new("RGB", (200, 120), "grey").save(folder / "faceless.png")
    cut_out = portrait.convert("RGB")
    cut_out.putalpha(90)
    cut_out.save(folder / "transparent.png")
    (folder / "cut.jpg").write_bytes((folder / "sideways.jpg").read_bytes()[:4000])
    (folder / "empty.jpg").touch()
    Image.new("RGB", (200, 19)).save(folder / "strip.png")
    (folder / "notes.txt").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def comparison(photos: Path, weights_cache: Path) -> Report[SameFaces]:
    """Two turns over the photos, on one thread."""
    before = sorted(photos.parent.rglob("*"))
    flags = {"run.device": "cpu", "run.threads": "1", "model.cache": str(weights_cache)}
    report = bench(photos, load_settings(environ={}, flags=flags), SilentProgress(), repeats=2)
    assert sorted(photos.parent.rglob("*")) == before
    return report


@pytest.mark.slow
def test_the_comparison_of_a_folder(comparison: Report[SameFaces]) -> None:
    report = comparison.as_dict()
    assert report["images"] == 5
    assert report["left_out"] == {
        "facepipe refuses it: truncated": 1,
        "facepipe refuses it: unsupported": 1,
        "the reference decodes it otherwise (transparency, 16 bits)": 1,
        "smaller than a face of detect.min_face_px, where the reference fails": 1,
    }
    faces = report["faces"]
    assert (faces["reference_faces"], faces["found"], faces["extra"]) == (5, 5, 0)
    assert faces["cosine_median"] >= faces["cosine_min"] >= 0.9999
    for side in (report["facepipe"], report["reference"]):
        assert side["faces"] >= 5
        assert len(side["seconds"]) == 2
        assert side["images_per_s"] == pytest.approx(5 / np.median(side["seconds"]))
    ratios = np.divide(report["reference"]["seconds"], report["facepipe"]["seconds"])
    assert report["ratios"] == pytest.approx(ratios.tolist())
    assert report["ratio"] == pytest.approx(np.median(ratios))
    assert (report["weights"], report["mode"]) == ("casia-webface", "exact")
    assert report["device"].startswith("cpu")


@pytest.mark.slow
def test_the_comparison_in_words(comparison: Report[SameFaces]) -> None:
    lines = list(comparison.lines())
    subjects = [line[:12].strip() for line in lines]
    assert [s for s in subjects if s != "left out"] == ["images", "device", "facepipe", "reference", "ratio", "faces"]
    assert "cpu (1 threads)" in "\n".join(lines)


def test_photos_without_faces(tmp_path: Path, weights_cache: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (200, 120), "grey").save(photos / "one.png")
    report = answer("bench", photos, "--repeats", 1, "--threads", 1, "--device", "cpu", cache=weights_cache)
    assert report["threads"] == 1
    assert report["faces"] == {
        "reference_faces": 0,
        "found": 0,
        "extra": 0,
        "cosine_min": None,
        "cosine_median": None,
    }
    assert report["facepipe"]["faces"] == report["reference"]["faces"] == 0


@pytest.mark.slow
def test_an_embedder_that_facenet_pytorch_does_not_have(photos: Path, sface_cache: Path) -> None:
    words = ("--weights", "sface", "--images", 4, "--repeats", 1, "--device", "cpu")
    report = answer("bench", photos, *words, cache=sface_cache)
    faces = report["faces"]
    assert (report["weights"], report["images"]) == ("sface", 3)
    assert faces["found"] == faces["reference_faces"] > 0
    assert faces["cosine_median"] >= faces["cosine_min"] >= 0.9999
    assert report["reference"]["faces"] == report["facepipe"]["faces"]


@pytest.mark.parametrize("eyes_px", [20, 60, 120, 250, 700])
def test_upright_crops_of_the_reference_are_facepipes(eyes_px: float, astronaut_path: Path) -> None:
    face = np.array([[0, 0], [1, 0.1], [0.45, 0.6], [0, 1], [0.9, 1.1]], np.float32) * eyes_px
    landmarks = np.stack([face + 7.3, 400 - face])
    with Image.open(astronaut_path) as image:
        photo = image.convert("RGB")
    detections = Detections(
        torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4), torch.from_numpy(landmarks), torch.ones(2)
    )
    crops = warp_crops(TorchBatch([np.array(photo)], torch.device("cpu")), detections)
    for crop, points in zip(crops, landmarks, strict=True):
        assert (upright_crop(photo, points, FIVE_POINT_SIZE) - crop).abs().max() < 0.1


def test_nothing_that_can_be_compared(tmp_path: Path, weights_cache: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    error = answer("bench", tmp_path, "--device", "cpu", exit_code=SourceEmpty.exit_code, cache=weights_cache)
    assert "1: facepipe refuses it: unsupported" in error["message"]


def test_a_sample_is_spread_evenly(tmp_path: Path) -> None:
    settings = load_settings(environ={})
    for number in range(10):
        Image.new("RGB", (20, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
    for images, names in ((3, "036"), (1, "0"), (10, "0123456789"), (99, "0123456789")):
        files, left_out = take_sample(tmp_path, settings, images)
        assert "".join(file.stem for file in files) == names
        assert not left_out


def test_rows_of_a_manifest(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "one.png")
    manifest = tmp_path / "photos.csv"
    manifest.write_text("path\none.png\nnone.png\none.png\n")
    files, left_out = take_sample(manifest, load_settings(environ={}), 99)
    assert files == [tmp_path / "one.png"]
    assert left_out == {"facepipe refuses it: missing": 1}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_reference_sees_photos_upright(orientation: int, tmp_path: Path) -> None:
    file = tmp_path / "turned.png"
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    pixels = np.arange(4 * 7 * 3, dtype=np.uint8).reshape(4, 7, 3)
    Image.fromarray(pixels).save(file, exif=exif)
    upright = decode_image(file.read_bytes(), DecodeSettings())
    assert np.array_equal(np.asarray(read_image(file)), upright.pixels)
    assert image_size(file) == (upright.width, upright.height)


class TorchWatch:
    """A chain that records torch's settings in its turns."""

    def __init__(self) -> None:
        self.settings: list[tuple[int, bool]] = []

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        self.lists = lists

    def __call__(self, numbers: Iterable[int]) -> dict[Path, Extracted]:
        self.settings.append((torch.get_num_threads(), torch.backends.cudnn.allow_tf32))
        empty = np.zeros((0, 4), np.float32)
        faces = Extracted(empty, np.zeros((0, 5, 2), np.float32), empty[:, 0], empty)
        return {file: faces for number in numbers for file in self.lists[number]}


def test_the_reference_has_all_threads_and_the_same_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, advanced = TorchWatch(), []
    files = [Path(str(number)) for number in range(20)]
    side = Side(chain, [files[:12], files[12:]], advanced.append, partial(using_threads, 3))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # as its settings leave it
    with using_threads(1):  # as facepipe's workers leave it
        side.warm_up()
        assert [len(files) for files in chain.lists] == [12, 8]
        side()
        assert (torch.get_num_threads(), torch.backends.cudnn.allow_tf32) == (1, False)
    assert chain.settings == [(3, False), (3, False)]
    assert advanced == [12, 8]
    assert list(side.faces) == files


def test_variants_run_in_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    variants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timings = interleave(variants, repeats=3, warmup=2)
    assert "".join(calls) == "abab" + "ababab"
    assert [len(timings[name].seconds) for name in "ab"] == [3, 3]
    assert min(timings["a"].seconds) > 0


def test_median_and_ratio() -> None:
    assert Timing([3.0, 1.0, 2.0]).median == 2.0
    # The first turn fell into a busy minute: the ratio of the medians would be wrong.
    first, second = Timing([20.0, 2.0, 4.0]), Timing([10.0, 1.0, 1.0])
    assert turn_ratios(first, second) == [2.0, 2.0, 4.0]


def test_no_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats"):
        interleave({"a": lambda: None}, repeats=0)
