"""The engine on real photos: order, bounds, and images that changed after the scan."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from PIL import Image

from pipeline.config import DecodeSettings, RunSettings, Settings
from pipeline.errors import DeviceOutOfMemory
from pipeline.extraction.engine import LocalEngine
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images import files
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import (
    EXTRACT,
    KNOWN_FACES_SCHEMA,
    MANIFEST_SCHEMA,
    PLACE_COLUMNS,
    PLACES,
    REUSE_ROW,
    SKIP,
)
from pipeline.types import DUPLICATE_ROW
from tests.extraction.helpers import encode, pillow_as_library, with_scans

PIXEL_HASH = PixelHash("0" * 32)


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path) -> Path:
    """One face, 150 x 176 pixels."""
    path = tmp_path_factory.mktemp("photo") / "hopper.png"
    Image.open(hopper_path).convert("RGB").resize((150, 176)).save(path)
    return path


def _row(number: int, file: Path, **fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(MANIFEST_SCHEMA.names)
    known: dict[str, Any] = {"path": str(file), "file": os.fsencode(file), "directory": "main"}
    if file.exists():
        sha256, size, _, state = hash_file(file)
        known |= {"sha256": sha256, "bytes": size, **(state._asdict() if state else {})}
    return {**row, "row": number, "action": EXTRACT, **known, **fields}


def _shards(rows: list[dict[str, Any]], size: int) -> list[tuple[int, pa.Table]]:
    starts = range(0, len(rows), size)
    return [(k, pa.Table.from_pylist(rows[s : s + size], MANIFEST_SCHEMA)) for k, s in enumerate(starts)]


def _engine(
    extractor: BatchExtractor,
    decoder: Decoder | None = None,
    load: Callable[[], BatchExtractor] | None = None,
    threads: int = 2,
    **run: Any,
) -> LocalEngine:
    settings = Settings(run=RunSettings(device="cpu", threads=threads, **run))
    size, decoder = extractor.embedder.embedding_size, decoder or Decoder(settings.decode)
    return LocalEngine(settings, size, decoder, PIXEL_HASH, load or (lambda: extractor))


def _decoders() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("decode")]


def test_order_is_kept_and_batches_end_with_shards(extractor: BatchExtractor, photo: Path, tmp_path: Path) -> None:
    """Seven rows of different widths in shards of three and batches of two."""
    files = [tmp_path / f"{k}.png" for k in range(7)]
    for k, file in enumerate(files):
        Image.open(photo).crop((0, 0, 150 - k, 176)).save(file)
    done: list[int] = []
    shards = _shards([_row(k, f) for k, f in enumerate(files)], 3)
    results = list(_engine(extractor, batch_images=2).run_shards(shards, done.append))
    assert [number for number, _ in results] == [0, 1, 2]
    rows = [row for _, table in results for row in table.to_pylist()]
    assert [(r["row"], r["width"], r["status"], len(r["faces"])) for r in rows] == [
        (k, 150 - k, "ok", 1) for k in range(7)
    ]
    assert done == [2, 1, 2, 1, 1]
    assert _decoders() == []


def test_known_faces_are_embedded_again(extractor: BatchExtractor, photo: Path, tmp_path: Path) -> None:
    """Those that a row gives and no others; no picture is encoded, and files are compared as ever."""
    files = [shutil.copy(photo, tmp_path / f"{k}.png") for k in range(4)]
    rows = [_row(k, file) for k, file in enumerate(files)]
    ((_, found),) = _engine(extractor).run_shards(_shards(rows, 4), lambda _: None)
    (face,) = found["faces"][0].as_py()
    place = {name: face[name] for name in PLACE_COLUMNS}
    files[2].unlink()
    for row, faces in zip(rows, ([place], [place, place | {"x2": place["x2"] - 40}], [place], [place]), strict=True):
        row[PLACES.name] = faces
    ((_, again),) = _engine(extractor).run_shards([(0, pa.Table.from_pylist(rows, KNOWN_FACES_SCHEMA))], lambda _: None)
    one, two, gone, last = again.to_pylist()
    assert one["faces"] == last["faces"] == [face | {"crop": None}]
    assert two["faces"][0] == one["faces"][0]
    assert two["faces"][1]["embedding"] != face["embedding"]
    assert (gone["status"], gone["faces"], gone["sha256"]) == ("missing", None, None)


def test_bad_images_among_good_ones_are_rows(extractor: BatchExtractor, photo: Path, tmp_path: Path) -> None:
    names = ("good", "cut", "text", "changed", "gone", "folder", "last")
    files = {name: tmp_path / f"{name}.png" for name in names}
    for file in files.values():
        shutil.copy(photo, file)
    files["cut"].write_bytes(photo.read_bytes()[:5000])
    files["text"].write_bytes(b"no image")
    rows = [_row(k, files[name]) for k, name in enumerate(names)]
    files["changed"].write_bytes(b"other bytes")
    files["gone"].unlink()
    files["folder"].unlink()
    files["folder"].mkdir()
    rows.append(_row(7, files["good"], action=SKIP, status=DUPLICATE_ROW, reason="again"))
    rows.append(_row(8, files["last"], action=REUSE_ROW, source_row=0))
    ((_, table),) = _engine(extractor).run_shards(_shards(rows, 9), lambda _: None)
    results = table.to_pylist()
    assert [r["status"] for r in results] == [
        *("ok", "truncated", "unsupported", "changed", "missing", "not_a_file", "ok"),
        *("duplicate_row", "duplicate"),
    ]
    # Files that were read keep their hash; the next run tries the others again.
    assert [r["sha256"] is None for r in results] == [False, False, False, True, True, True, False, False, False]
    assert [r["faces"] is None for r in results] == [r["status"] != "ok" for r in results]
    assert "changed while" in results[3]["reason"]


def test_a_file_is_hashed_again_only_where_it_may_have_changed(
    extractor: BatchExtractor, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest's hash of "known" is of no file, so whoever hashes it finds another one."""
    paths = {name: tmp_path / f"{name}.png" for name in ("known", "young", "edited", "moved", "earlier")}
    for path in paths.values():
        shutil.copy(photo, path)
    other = {"sha256": "0" * 64}
    young = _row(0, paths["young"], **other)
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    rows = [young, *(_row(k, paths[n], **other) for k, n in enumerate(("known", "moved"), 1)), _row(3, paths["edited"])]
    time.sleep(0.02)  # a step of the file system's clock
    before = paths["edited"].stat()
    data = bytearray(photo.read_bytes())
    data[-1] ^= 1
    paths["edited"].write_bytes(data)
    os.utime(paths["edited"], ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.copy2(paths["moved"], tmp_path / "copy")
    (tmp_path / "copy").replace(paths["moved"])
    ((_, table),) = _engine(extractor).run_shards(_shards(rows, 4), lambda _: None)
    assert table["status"].to_pylist() == ["changed", "ok", "changed", "changed"]
    assert table["sha256"].to_pylist() == [None, "0" * 64, None, None]
    ((number, shard),) = _shards([_row(0, paths["earlier"], **other)], 1)
    of_earlier_version = shard.drop_columns(["mtime_ns", "ctime_ns", "inode"])
    ((_, table),) = _engine(extractor).run_shards([(number, of_earlier_version)], lambda _: None)
    assert table["status"].to_pylist() == ["changed"]


def test_a_jpeg_without_its_last_blocks_is_a_row_with_a_remark(
    extractor: BatchExtractor, photo: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cut.jpg"
    file.write_bytes(encode(Image.open(photo))[:-20])
    ((_, table),) = _engine(extractor).run_shards(_shards([_row(0, file)], 1), lambda _: None)
    (row,) = table.to_pylist()
    assert (row["status"], len(row["faces"])) == ("ok", 1)
    assert "the image data end early" in row["reason"]


def test_a_jpeg_of_endless_scans_is_a_row_with_a_reason(extractor: BatchExtractor, photo: Path, tmp_path: Path) -> None:
    file = tmp_path / "scans.jpg"
    file.write_bytes(with_scans(encode(Image.open(photo), progressive=True), 5000))
    ((_, table),) = _engine(extractor).run_shards(_shards([_row(0, file)], 1), lambda _: None)
    (row,) = table.to_pylist()
    assert (row["status"], row["faces"]) == ("too_large", None)
    assert "a JPEG file with more than 100 scans" in row["reason"]


def test_without_an_image_no_model_is_loaded(extractor: BatchExtractor, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(b"no image")
    rows = [_row(0, tmp_path / "x.jpg"), _row(1, tmp_path / "y.jpg", action=SKIP, status="missing", reason="gone")]

    def load() -> BatchExtractor:
        raise AssertionError

    ((_, table),) = _engine(extractor, load=load).run_shards(_shards(rows, 2), lambda _: None)
    assert table["status"].to_pylist() == ["unsupported", "missing"]


@pytest.mark.parametrize(("batch_images", "batch_pixels", "most"), [(4, 10**9, 4 + 1 + 7), (64, 30_000, 2 + 3 + 2)])
def test_reading_ahead_is_bounded(
    extractor: BatchExtractor, photo: Path, batch_images: int, batch_pixels: int, most: int
) -> None:
    """While the models are at work the decoders stop: by the number of images, and by their pixels.

    Images: a batch, the one that did not fit, and the rest of what is read ahead. Pixels (26,400 each): the batch
    and the one that did not fit, three that pass twice the limit, and one that each thread may be inside with.
    """
    decoder = Decoder(Settings().decode)
    decoded: list[int] = []

    def load() -> BatchExtractor:
        if not decoded:
            seen = -1
            while seen != decoder.counts.calls:  # until nothing moves any more
                seen = decoder.counts.calls
                time.sleep(0.3)
            decoded.append(seen)
        return extractor

    engine = _engine(extractor, decoder, load, batch_images=batch_images, batch_pixels=batch_pixels)
    shards = _shards([_row(k, photo) for k in range(16)], 16)
    ((_, table),) = engine.run_shards(shards, lambda _: None)
    assert table["status"].to_pylist() == ["ok"] * 16
    assert 2 <= decoded[0] <= most
    assert decoder.counts.calls == 16


def test_leaving_early_leaves_no_threads(extractor: BatchExtractor, photo: Path) -> None:
    """Also where decoders stand and wait for room."""
    engine = _engine(extractor, batch_pixels=30_000)
    results = engine.run_shards(_shards([_row(k, photo) for k in range(12)], 1), lambda _: None)
    assert next(results)[0] == 0
    assert _decoders() != []
    results.close()
    assert _decoders() == []


def test_an_error_of_the_models_ends_the_run(extractor: BatchExtractor, photo: Path) -> None:
    class Broken(Exception):
        pass

    def load() -> BatchExtractor:
        raise Broken

    with pytest.raises(Broken):
        list(_engine(extractor, load=load).run_shards(_shards([_row(k, photo) for k in range(8)], 4), lambda _: None))
    assert _decoders() == []


def test_a_photo_without_a_face_has_an_empty_list(extractor: BatchExtractor, tmp_path: Path) -> None:
    files = [tmp_path / f"{k}.png" for k in range(4)]
    for file, size in zip(files, [(1, 1), (12, 12), (3000, 1), (40, 30)], strict=True):
        Image.new("RGB", size, (90, 120, 60)).save(file)
    ((_, table),) = _engine(extractor).run_shards(_shards([_row(k, f) for k, f in enumerate(files)], 4), lambda _: None)
    assert table["status"].to_pylist() == ["no_face"] * 4
    assert table["faces"].to_pylist() == [[]] * 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "batch_images", "images", "batches"),
    [
        (1, 4, 10, [4, 4, 2]),
        (2, 32, 10, [5, 5]),
        (2, 4, 10, [3, 3, 3, 1]),
        (3, 32, 2, [1, 1]),
        (2, 32, 40, [7] * 5 + [5]),
    ],
)
def test_a_shard_is_shared_evenly(
    extractor: BatchExtractor, photo: Path, threads: int, batch_images: int, images: int, batches: list[int]
) -> None:
    """However small it is, and with the same faces as in a single batch."""
    engine = _engine(extractor, threads=threads, batch_images=batch_images)
    done: list[int] = []
    ((_, table),) = engine.run_shards(_shards([_row(k, photo) for k in range(images)], images), done.append)
    assert done == batches
    (expected,) = extractor.extract([Decoder(Settings().decode)(photo.read_bytes())])
    for faces in table["faces"].to_pylist():
        assert faces[0]["x1"] == pytest.approx(expected["x1"][0].as_py(), abs=1e-3)
        assert faces[0]["embedding"] == pytest.approx(expected["embedding"][0].as_py(), abs=1e-5)


def test_jpeg_files_decoded_on_the_device_give_the_same_rows(
    extractor: BatchExtractor, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA in the mode `fast`: the pool reads and checks the files, the worker decodes them."""
    names = ("one.jpg", "cut.jpg", "broken.jpg", "other.png", "two.jpg")
    files = [tmp_path / name for name in names]
    exif = Image.Exif()
    exif[0x0132] = "2004:02:29 13:14:15"
    for file in files:
        Image.open(photo).save(file, quality=95, exif=exif)
    files[1].write_bytes(files[0].read_bytes()[:5000])
    broken = bytearray(files[0].read_bytes())
    at = broken.index(b"\xff\xc4") + 5  # a Huffman table, which the header does not describe
    broken[at : at + 16] = bytes([255] * 16)
    files[2].write_bytes(broken)
    shards = _shards([_row(k, file) for k, file in enumerate(files)], 5)
    ((_, reference),) = _engine(extractor).run_shards(shards, lambda _: None)
    monkeypatch.setattr("pipeline.extraction.engine.decodes_on_device", lambda _: True)
    monkeypatch.setattr("pipeline.extraction.images.device_jpeg.JpegLibrary.__call__", pillow_as_library)
    decoder = Decoder(Settings().decode)
    ((_, table),) = _engine(extractor, decoder).run_shards(shards, lambda _: None)
    assert decoder.counts.calls == 5
    rows, expected = table.to_pylist(), reference.to_pylist()
    assert [row["status"] for row in rows] == ["ok", "truncated", "unreadable", "ok", "ok"]
    for row, reference_row in zip(rows, expected, strict=True):
        # Decoders differ in the last bits: only pixels of the reference decoder have a hash.
        assert row["pixel_hash"] == (reference_row["pixel_hash"] if row["row"] in (1, 2, 3) else None)
        for key in ("row", "status", "reason", "sha256", "width", "height", "format", "taken_at"):
            assert row[key] == reference_row[key], key
        assert row["taken_at"] == (datetime(2004, 2, 29, 13, 14, 15) if row["status"] == "ok" else None)
    for row in (0, 3, 4):
        (face,), (same,) = rows[row]["faces"], expected[row]["faces"]
        for side in ("x1", "y1", "x2", "y2"):
            assert face[side] == pytest.approx(same[side], abs=1)
        assert sum(a * b for a, b in zip(face["embedding"], same["embedding"], strict=True)) > 0.99
        with Image.open(io.BytesIO(face["crop"])) as crop, Image.open(io.BytesIO(same["crop"])) as other:
            assert crop.size == other.size


def test_a_file_that_the_device_leaves_to_the_cpu_keeps_its_remark(
    extractor: BatchExtractor, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = encode(Image.open(photo))
    (tmp_path / "whole.jpg").write_bytes(whole)
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) * 9 // 10] + b"\xff\xd9")
    shards = _shards([_row(0, tmp_path / "whole.jpg"), _row(1, tmp_path / "cut.jpg")], 2)
    settings = Settings(run=RunSettings(device="cpu"), decode=DecodeSettings(truncated="accept"))

    def engine() -> LocalEngine:
        size, decoder = extractor.embedder.embedding_size, Decoder(settings.decode)
        return LocalEngine(settings, size, decoder, PIXEL_HASH, lambda: extractor)

    ((_, reference),) = engine().run_shards(shards, lambda _: None)
    monkeypatch.setattr("pipeline.extraction.engine.decodes_on_device", lambda _: True)
    monkeypatch.setattr("pipeline.extraction.images.device_jpeg.JpegLibrary.__call__", _fail)
    ((_, table),) = engine().run_shards(shards, lambda _: None)
    remarks = table["reason"].to_pylist()
    assert remarks == reference["reason"].to_pylist()
    assert remarks[0] is None
    assert "of the picture is missing" in remarks[1]


def _fail(*_: object) -> NoReturn:
    raise RuntimeError("the device fails")


def test_an_image_too_large_beside_others_is_tried_alone(
    extractor: BatchExtractor, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batches meet on the device and both run out of memory; each is then tried where no other is."""
    lock, inside, alone = threading.Lock(), 0, []
    met = threading.Barrier(2)
    tried: set[int] = set()
    extract = BatchExtractor.extract

    def crowded(self: BatchExtractor, images: Any, *others: Any) -> Any:
        nonlocal inside
        with lock:
            inside += 1
            again = id(images[0]) in tried
            tried.add(id(images[0]))
        try:
            if not again:
                met.wait(30)
                raise DeviceOutOfMemory(device="The device", detail="planted")
            tables = extract(self, images, *others)
            alone.append(inside == 1)
            return tables
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(BatchExtractor, "extract", crowded)
    shards = _shards([_row(k, photo) for k in range(2)], 2)
    ((_, table),) = _engine(extractor, batch_images=1).run_shards(shards, lambda _: None)
    assert table["status"].to_pylist() == ["ok", "ok"]
    assert alone == [True, True]


def test_an_image_too_large_for_the_device_ends_the_run(
    extractor: BatchExtractor, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise DeviceOutOfMemory(device="The device", detail="planted")

    monkeypatch.setattr(BatchExtractor, "extract", full)
    with pytest.raises(DeviceOutOfMemory, match="planted"):
        list(_engine(extractor).run_shards(_shards([_row(0, photo)], 1), lambda _: None))
    assert _decoders() == []
