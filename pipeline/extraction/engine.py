"""Manifest shards to tables of extracted faces, on this machine.

Threads read and decode files; the models run on one device, on a CPU with one batch per core. Files are read ahead
across shards, bounded in images and pixels, so that the device does not wait. Other threads read bucket objects further
ahead, bounded in number and bytes.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import Settings
from pipeline.errors import ImageChanged, ImageIsFolder, ImageMissing, ImageRejected, ImageUnreadable
from pipeline.extraction.batches import BatchWorkers, DeviceBatches, ImageFaces, PixelBudget
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.device_jpeg import decodes_on_device
from pipeline.extraction.images.files import read_with_state
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import CROP, EXTRACT, IMAGE_COLUMNS, PLACES, PLACES_SCHEMA, shard_schema
from pipeline.extraction.stored_picture import HeldPictures, encode_reference_image
from pipeline.runtime.buckets import is_address
from pipeline.runtime.device import batch_threads, batch_workers
from pipeline.runtime.stage_times import DECODE, ENCODE, FOR_IMAGES, FOR_MODELS, HASH, READ, StageTimes
from pipeline.runtime.threads import over_threads, thread_count
from pipeline.types import DUPLICATE, NO_FACE, OK, DecodedImage, EncodedImage, FileState

NETWORK_THREADS = 1  # per network call: other cores have other batches
# Batches per worker and shard, so that none waits long for the last one,
_BATCHES_PER_WORKER = 4
# unless they would be smaller than this: from here on a core's time per image is constant.
_SMALL_BATCH = 8
_READS_AHEAD = 4  # objects read ahead, per concurrent read
_AHEAD_BYTES = 2**27  # of objects read ahead, and again of those not decoded


@dataclass
class _Item:
    """A manifest row in the engine."""

    shard: int
    last: bool  # of its shard
    file: str
    state: tuple[int | None, ...]  # FileState of the hashed file
    fields: dict[str, Any]  # of shard_schema, without faces
    batch_images: int  # maximum in its batch
    extract: bool
    far_bytes: int = 0  # of an object to read ahead
    data: Future[tuple[bytes, FileState | None]] | None = None  # of that object
    number: int = 0  # among decoded items
    pixels: int = 0  # taken from the budget
    image: Future[DecodedImage | EncodedImage] | None = None
    known: pa.Table | None = None  # `PLACE_COLUMNS`, used instead of detection
    faces: pa.Table | None = None
    crops: Sequence[bytes | None] = ()  # of the faces


class LocalEngine:
    """Runs extraction here; the models are loaded when first needed.

    `load` returns a thread-safe extractor with NETWORK_THREADS per network.
    """

    def __init__(
        self,
        settings: Settings,
        embedding_size: int,
        decoder: Decoder,
        pixel_hash: PixelHash,
        load: Callable[[], BatchExtractor],
        times: StageTimes | None = None,
        held: HeldPictures | None = None,
    ) -> None:
        """`held` keeps the faces' pixels while it has room; others are encoded at once."""
        self._settings = settings
        self._schema = shard_schema(embedding_size)
        self._pixel_hash = pixel_hash
        self._load = load
        self._times = StageTimes() if times is None else times
        self._threads = thread_count(settings.run.threads)
        self._workers = batch_workers(settings.run)
        self._open = decoder.prepare if decodes_on_device(settings.run) else decoder.open
        self._batches_on_device = DeviceBatches(settings, self._times)
        self._held = held

    def run_shards(
        self, shards: Iterable[tuple[int, pa.Table]], advance: Callable[[int], None]
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """(number, manifest rows) -> (number, table of `shard_schema`), in order; calls `advance(n)` as rows finish.

        Faces in rows of KNOWN_FACES_SCHEMA are only rated and embedded, without a picture.
        """
        budget = PixelBudget(2 * self._settings.run.batch_pixels)
        with (
            ThreadPoolExecutor(self._threads, thread_name_prefix="decode") as pool,
            ThreadPoolExecutor(self._settings.run.reads, thread_name_prefix="bucket") as reads,
            BatchWorkers(self._workers, self._extract, batch_threads(self._settings.run)) as workers,
            self._times.engine(self._workers),
        ):
            try:
                items = self._read_ahead(self._fetched(self._items(shards), reads), pool, budget)
                yield from self._collect(workers.in_order(self._loaded(self._batches(items, budget))), advance)
            finally:
                reads.shutdown(wait=False, cancel_futures=True)
                pool.shutdown(wait=False, cancel_futures=True)
                budget.close()

    def _items(self, shards: Iterable[tuple[int, pa.Table]]) -> Iterator[_Item]:
        for number, rows in shards:
            batch_images = self._batch_images(rows)
            for position, row in enumerate(rows.to_pylist()):
                state = tuple(row.get(name) for name in FileState._fields)  # missing in older manifests
                file, last = os.fsdecode(row["file"]), position == len(rows) - 1
                item = _Item(number, last, file, state, _fields(row), batch_images, extract=row["action"] == EXTRACT)
                if known := row.get(PLACES.name):
                    item.known = pa.Table.from_pylist(known, PLACES_SCHEMA)
                if item.extract and is_address(file):
                    item.far_bytes = row["bytes"] or 1
                yield item

    def _fetched(self, items: Iterable[_Item], reads: ThreadPoolExecutor) -> Iterator[_Item]:
        """The items in order, objects once read, while later ones are being read."""
        ahead: deque[_Item] = deque()
        size, limit = 0, _READS_AHEAD * self._settings.run.reads
        for item in items:
            if item.far_bytes:
                item.data = reads.submit(self._fetch, item.file)
            ahead.append(item)
            size += item.far_bytes
            while ahead and (not ahead[0].far_bytes or len(ahead) > limit or size > _AHEAD_BYTES):
                first = ahead.popleft()
                size -= first.far_bytes
                yield _once_read(first)
        yield from map(_once_read, ahead)

    def _fetch(self, file: str) -> tuple[bytes, FileState | None]:
        with self._times.stage(READ):
            return read_with_state(file, self._settings.decode.max_bytes)

    def _read_ahead(self, items: Iterable[_Item], pool: ThreadPoolExecutor, budget: PixelBudget) -> Iterator[_Item]:
        """The items in order, a bounded number being decoded."""
        ahead: deque[_Item] = deque()
        numbers, size = count(), 0
        limit = self._settings.run.batch_images + 2 * self._threads
        for item in items:
            if item.extract:
                item.number = next(numbers)
                item.image = pool.submit(self._decode, item, budget)
            ahead.append(item)
            size += item.far_bytes
            while len(ahead) >= limit or size > _AHEAD_BYTES:
                first = ahead.popleft()
                size -= first.far_bytes
                yield first
        yield from ahead

    def _batch_images(self, rows: pa.Table) -> int:
        """The maximum batch of this shard, small enough to share it evenly among workers."""
        images = pc.sum(pc.equal(rows["action"], EXTRACT)).as_py() or 0
        batches = -(-images // self._settings.run.batch_images)
        if self._workers > 1:
            batches = max(batches, min(_BATCHES_PER_WORKER * self._workers, images // _SMALL_BATCH))
        return -(-images // (-(-batches // self._workers) * self._workers or 1))

    def _decode(self, item: _Item, budget: PixelBudget) -> DecodedImage | EncodedImage:
        data = self._read(item)
        with self._times.stage(DECODE, calls=0):
            opened = self._open(data)
        with self._times.held_back():
            budget.enter(item.number, opened.width * opened.height)
            item.pixels = opened.width * opened.height
        with self._times.stage(DECODE):
            image = opened if isinstance(opened, EncodedImage) else opened.load_in_room()
            if isinstance(image, DecodedImage):  # a device's pixels differ in the last bits
                item.fields["pixel_hash"] = self._pixel_hash(image.pixels)
        self._times.images_waiting.add(1)
        return image

    def _read(self, item: _Item) -> bytes:
        """The file's bytes. If they cannot be read, or are not the scanned ones (ImageChanged), the item's hash becomes
        None."""
        try:
            if item.data is not None:
                (data, state), item.data = item.data.result(), None
            else:
                data, state = self._fetch(item.file)
            if state != item.state:
                with self._times.stage(HASH):
                    sha256 = hashlib.sha256(data).hexdigest()
                if sha256 != item.fields["sha256"]:
                    raise ImageChanged
        except (ImageMissing, ImageIsFolder, ImageUnreadable, ImageChanged):
            item.fields["sha256"] = None
            raise
        except MemoryError as exc:
            item.fields["sha256"] = None
            raise ImageUnreadable(detail="there is not enough memory to read it") from exc
        return data

    def _batches(self, items: Iterable[_Item], budget: PixelBudget) -> Iterator[list[_Item]]:
        """Batches up to the limits or the end of a shard."""
        batch: list[_Item] = []
        images = pixels = 0
        for item in items:
            with self._times.waiting(FOR_IMAGES, self._workers):
                size = _await_image(item, budget)
            self._times.images_waiting.add(-bool(size))
            if images and (images >= item.batch_images or pixels + size > self._settings.run.batch_pixels):
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
            advance(len(batch))
            shard.extend(batch)
            if batch[-1].last:
                yield batch[-1].shard, self._table(shard)
                shard = []

    def _loaded(self, batches: Iterable[list[_Item]]) -> Iterator[list[_Item]]:
        """The batches; loads the models for all workers before the first one with an image."""
        for batch in batches:
            if any(item.image is not None for item in batch):
                with self._times.waiting(FOR_MODELS, self._workers):
                    self._load()
            self._times.batches_waiting.add(1)
            yield batch

    def _extract(self, batch: list[_Item]) -> None:
        self._times.batches_waiting.add(-1)
        with self._times.worker():
            pairs = [(item, item.image.result()) for item in batch if item.image is not None]
            if pairs:
                self._find_faces(*zip(*pairs, strict=True))

    def _find_faces(self, decoded: Sequence[_Item], images: Sequence[DecodedImage | EncodedImage]) -> None:
        known = [item.known for item in decoded if item.known is not None] or None
        for item, found in zip(decoded, self._batches_on_device(self._load(), images, known), strict=True):
            if isinstance(found, ImageRejected):
                _reject(item, found)
                continue
            item.faces, item.image = found.faces, None
            item.crops = [None] * len(found.faces) if known else self._crops(item.fields["row"], found)
            item.fields.update(status=OK if len(found.faces) else NO_FACE, reason=found.remark)

    def _crops(self, row: int, found: ImageFaces) -> list[bytes | None]:
        """JPEG files of the faces, or None each if their pixels are held (never a device's)."""
        if found.on_host and self._held is not None and self._held.hold(row, found.pictures):
            return [None] * len(found.pictures)
        with self._times.stage(ENCODE, calls=len(found.pictures)):
            return [*over_threads(encode_reference_image, found.pictures)]

    def _table(self, items: list[_Item]) -> pa.Table:
        faces = self._schema.field("faces")
        plain = pa.schema([field for field in self._schema if field != faces])
        table = pa.Table.from_pylist([item.fields for item in items], plain)
        return table.append_column(faces, _nested(items, faces.type))


def _once_read(item: _Item) -> _Item:
    """Waits until the item's object is read or failed; decoding raises the error."""
    if item.data is not None:
        wait([item.data])
    return item


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    """The fields before decoding: a row without extraction has the plan's status or is a duplicate."""
    fields = dict.fromkeys(IMAGE_COLUMNS)
    return {**fields, **{k: row[k] for k in ("row", "sha256", "reason")}, "status": row["status"] or DUPLICATE}


def _await_image(item: _Item, budget: PixelBudget) -> int:
    """Waits for the item's image and returns its pixels, 0 without one; a rejection becomes a status."""
    if item.image is None:
        return 0
    budget.expect(item.number)
    try:
        image = item.image.result()
    except ImageRejected as exc:
        _reject(item, exc)
        return 0
    finally:
        budget.leave(item.pixels)
    item.fields.update(width=image.width, height=image.height, format=image.format, taken_at=image.taken_at)
    return image.width * image.height


def _reject(item: _Item, problem: ImageRejected) -> None:
    item.image = None
    item.fields.update(dict.fromkeys(IMAGE_COLUMNS), status=problem.status, reason=problem.reason)


def _nested(items: list[_Item], kind: pa.DataType) -> pa.ListArray:
    """A list of faces per item, or null."""
    offsets, total = [], 0
    for item in items:
        offsets.append(None if item.faces is None else total)
        total += 0 if item.faces is None else len(item.faces)
    flat = pa.array([], kind.value_type)
    tables = [item.faces for item in items if item.faces is not None]
    if tables:
        crops = pa.array([crop for item in items for crop in item.crops], CROP.type)
        values = pa.concat_tables(tables).append_column(CROP, crops).combine_chunks().to_struct_array()
        flat = pa.chunked_array(values, type=kind.value_type).combine_chunks()
    return pa.ListArray.from_arrays(pa.array([*offsets, total], pa.int32()), flat)
