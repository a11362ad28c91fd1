"""The local engine: reading and decoding in threads, the models on one device.

It turns manifest shards into tables of extracted faces. Files are read ahead across shard bounds, so that the
device does not wait at the end of a shard; what is read ahead is bounded in images and in pixels.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.config import Settings
from pipeline.decode import Decoder
from pipeline.device import usable_cores
from pipeline.errors import ImageChanged, ImageIsFolder, ImageMissing, ImageRejected, ImageUnreadable
from pipeline.extract import FaceExtractor, face_schema
from pipeline.files import read_file
from pipeline.manifest import EXTRACT
from pipeline.types import DUPLICATE, NO_FACE, OK, DecodedImage


def shard_schema(embedding_size: int) -> pa.Schema:
    """What extraction leaves of each manifest row. `faces` is null where no image was decoded.

    `sha256` is null for a file whose bytes are not known (it changed or vanished meanwhile): the next run takes
    it up.
    """
    face = pa.struct(list(face_schema(embedding_size)))
    columns = [
        ("row", pa.int64()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("sha256", pa.string()),
        ("pixel_sha256", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("format", pa.string()),
        ("faces", pa.list_(face)),
    ]
    return pa.schema(columns)


@dataclass
class _Item:
    """A manifest row on its way through the engine."""

    shard: int
    last: bool  # of its shard
    fields: dict[str, Any]  # of shard_schema, but for the faces
    number: int = 0  # among the items that are decoded
    image: Future[DecodedImage] | None = None
    faces: pa.Table | None = None


class _NotRead(Exception):
    """The file's bytes could not be had, though the scan could read them."""

    def __init__(self, problem: ImageRejected) -> None:
        self.problem = problem


class _Gate:
    """Holds decoding back while the images that are decoded and wait have more than `limit` pixels.

    The image that is wanted next always passes, so that nothing waits for ever. Each decoder thread may pass once
    while there is room: at most that many images come on top of the limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._moved = threading.Condition()
        self._waiting = 0
        self._wanted = -1
        self._closed = False

    def enter(self, number: int) -> None:
        """Waits until image `number` may be decoded."""
        with self._moved:
            self._moved.wait_for(lambda: self._closed or self._waiting <= self._limit or number <= self._wanted)

    def want(self, number: int) -> None:
        """Image `number` is what the next batch waits for."""
        with self._moved:
            self._wanted = number
            self._moved.notify_all()

    def count(self, pixels: int) -> None:
        """So many pixels were decoded, or (negative) taken."""
        with self._moved:
            self._waiting += pixels
            self._moved.notify_all()

    def close(self) -> None:
        """Nobody wants any more: lets everything pass."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()


class LocalEngine:
    """Runs extraction on this machine. The models are loaded when the first image needs them."""

    def __init__(
        self, settings: Settings, embedding_size: int, decoder: Decoder, load: Callable[[], FaceExtractor]
    ) -> None:
        self._settings = settings
        self._schema = shard_schema(embedding_size)
        self._decoder = decoder
        self._load = load
        self._threads = settings.run.threads or usable_cores()

    def run_shards(
        self, shards: Iterable[tuple[int, pa.Table]], advance: Callable[[int], None]
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """(number, manifest rows) -> (number, table of `shard_schema`), in order; `advance(n)` as rows are done."""
        gate = _Gate(2 * self._settings.run.batch_pixels)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="decode") as pool:
            try:
                items = self._read_ahead(shards, pool, gate)
                yield from self._collect(self._batches(items, gate), advance)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                gate.close()

    def _read_ahead(
        self, shards: Iterable[tuple[int, pa.Table]], pool: ThreadPoolExecutor, gate: _Gate
    ) -> Iterator[_Item]:
        """Items in order, a bounded number of them being decoded."""
        ahead: deque[_Item] = deque()
        numbers = count()
        limit = self._settings.run.batch_images + 2 * self._threads
        for number, rows in shards:
            for position, row in enumerate(rows.to_pylist()):
                item = _Item(number, position == len(rows) - 1, _fields(row))
                if row["action"] == EXTRACT:
                    item.number = next(numbers)
                    item.image = pool.submit(self._decode, row, item.number, gate)
                ahead.append(item)
                while len(ahead) >= limit:
                    yield ahead.popleft()
        yield from ahead

    def _decode(self, row: dict[str, Any], number: int, gate: _Gate) -> DecodedImage:
        gate.enter(number)
        image = self._decoder(self._read(row))
        gate.count(image.width * image.height)
        return image

    def _read(self, row: dict[str, Any]) -> bytes:
        try:
            data = read_file(Path(os.fsdecode(row["file"])), self._settings.decode.max_bytes)
        except (ImageMissing, ImageIsFolder, ImageUnreadable) as exc:
            raise _NotRead(exc) from exc
        except MemoryError as exc:
            raise _NotRead(ImageUnreadable(detail="there is not enough memory to read it")) from exc
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise _NotRead(ImageChanged())
        return data

    def _batches(self, items: Iterable[_Item], gate: _Gate) -> Iterator[list[_Item]]:
        """Items up to the batch limits or the end of a shard."""
        batch: list[_Item] = []
        images = pixels = 0
        for item in items:
            size = _settle(item, gate)
            if images and (
                images >= self._settings.run.batch_images or pixels + size > self._settings.run.batch_pixels
            ):
                yield batch
                batch, images, pixels = [], 0, 0
            batch.append(item)
            images, pixels = images + bool(size), pixels + size
            if item.last:
                yield batch
                batch, images, pixels = [], 0, 0

    def _collect(
        self, batches: Iterable[list[_Item]], advance: Callable[[int], None]
    ) -> Iterator[tuple[int, pa.Table]]:
        shard: list[_Item] = []
        for batch in batches:
            self._extract(batch)
            advance(len(batch))
            shard.extend(batch)
            if batch[-1].last:
                yield batch[-1].shard, self._table(shard)
                shard = []

    def _extract(self, batch: list[_Item]) -> None:
        decoded = [item for item in batch if item.image is not None]
        if not decoded:
            return
        images = [item.image.result() for item in decoded if item.image is not None]
        for item, faces in zip(decoded, self._load().extract(images), strict=True):
            item.faces, item.image = faces, None
            item.fields["status"] = OK if len(faces) else NO_FACE

    def _table(self, items: list[_Item]) -> pa.Table:
        columns = {
            name: pa.array([item.fields[name] for item in items], self._schema.field(name).type)
            for name in self._schema.names
            if name != "faces"
        }
        columns["faces"] = _nested([item.faces for item in items], self._schema.field("faces").type)
        return pa.table(columns, schema=self._schema)


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """What is known before decoding; a row that is not extracted keeps the plan's status or is a duplicate."""
    fields = dict.fromkeys(("pixel_sha256", "width", "height", "format"))
    return {**fields, **{k: row[k] for k in ("row", "sha256", "reason")}, "status": row["status"] or DUPLICATE}


def _settle(item: _Item, gate: _Gate) -> int:
    """Waits for the item's image and returns its number of pixels; a refused image becomes a status."""
    if item.image is None:
        return 0
    gate.want(item.number)
    try:
        image = item.image.result()
    except (ImageRejected, _NotRead) as exc:
        problem = exc.problem if isinstance(exc, _NotRead) else exc
        item.image = None
        item.fields.update(status=problem.status, reason=problem.reason)
        if isinstance(exc, _NotRead):
            item.fields["sha256"] = None
        return 0
    gate.count(-image.width * image.height)
    item.fields.update(pixel_sha256=image.pixel_sha256, width=image.width, height=image.height, format=image.format)
    return image.width * image.height


def _nested(tables: list[pa.Table | None], kind: pa.DataType) -> pa.ListArray:
    """One list of faces per item, null for none."""
    offsets, total = [], 0
    for table in tables:
        offsets.append(None if table is None else total)
        total += 0 if table is None else len(table)
    present = [t for t in tables if t is not None]
    values = pa.concat_tables(present).combine_chunks().to_struct_array() if present else []
    flat = pa.chunked_array(values, type=kind.value_type).combine_chunks() if present else pa.array([], kind.value_type)
    return pa.ListArray.from_arrays(pa.array([*offsets, total], pa.int32()), flat)
