"""Small pictures inside a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.evaluation.pages.thumbnails import SIDE_PX, Thumbnails, data_uri


def test_a_picture_is_small_upright_and_whole(hopper_path: Path, tmp_path: Path) -> None:
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.open(hopper_path).save(turned, exif=exif)
    for file, size in ((hopper_path, (82, SIDE_PX)), (turned, (SIDE_PX, 82))):
        start, _, data = data_uri(file, DecodeSettings()).partition(",")
        assert start == "data:image/jpeg;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == size


def test_there_are_no_more_than_asked_for(hopper_path: Path, astronaut_path: Path) -> None:
    made = Thumbnails({"a": hopper_path, "b": astronaut_path}, DecodeSettings(), limit=1)
    assert made.of("a") is not None
    assert made.of("b") is None


def test_what_cannot_be_shown_takes_no_room(hopper_path: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(hopper_path.read_bytes()[:2000])
    files = {"broken": tmp_path / "broken.jpg", "gone": tmp_path / "gone.jpg", "good": hopper_path}
    made = Thumbnails(files, DecodeSettings(), limit=1)
    assert made.of("unknown") is made.of("broken") is made.of("gone") is None
    assert made.of("good") is not None
