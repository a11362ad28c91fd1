"""Builds a second index of a store, with other weights or settings, while the present one stays in use.

Each known face is cut out of its photo, measured and embedded again. If the photo is missing or has changed, the stored
picture of a reference is used, if it is large enough.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.config import AUTO, RAY, EmbedSettings, Settings
from pipeline.errors import (
    BucketFailed,
    ImageMissing,
    ImageRejected,
    ImageUnreadable,
    Interrupted,
    PhotosMissing,
    ReindexUnderWay,
    StoreDamaged,
    StoreFull,
    UsageError,
)
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import (
    EXTRACT,
    KNOWN_FACES_SCHEMA,
    PLACES,
    PLACES_SCHEMA,
    SKIP,
    ExtractedFace,
    ExtractedRow,
    faces_of_table,
    read_rows,
)
from pipeline.extraction.stored_picture import origins_of_cuts, photo_again
from pipeline.jobs.cluster.connection import require_ray, set_environment
from pipeline.jobs.cluster.left_shards import shard_metadata
from pipeline.jobs.models import load_extractor
from pipeline.jobs.shard_progress import ShardProgress, loading_models
from pipeline.jobs.store import Store, open_store
from pipeline.jobs.store_identity import make_identity, settings_of_generation
from pipeline.matching.calibration import Calibration
from pipeline.runtime.buckets import is_address
from pipeline.store import (
    MEASURED_SCHEMA,
    ShardFolder,
    StoreIdentity,
    open_image,
    read_object,
    remove_builds,
    vector_bytes,
)
from pipeline.types import OK, QUALITIES, Progress

if TYPE_CHECKING:
    from pipeline.jobs.cluster.engine import RayEngine

CHANGEABLE: Final = ("align.margin_px", "align.resampling", "embed.centre", "run.mode")  # and the weights
_TRIED: Final = 16  # photos, for the estimate
_PAGE: Final = 8192  # photos per query for faces
_FACE_BYTES: Final = 200  # of a face's catalog rows, without the vector
LEAST_SHARE: Final = 0.8  # least side of the box in a stored picture, as a share of the network's input side
_COMPARED: Final = 500  # faces embedded from both stored picture and photo, at most
Face: TypeAlias = dict[str, Any]  # a row of `Store.unmeasured_faces`
_Row: TypeAlias = dict[str, Any]  # of MEASURED_SCHEMA


@dataclass(frozen=True)
class Estimate:
    """What a build needs."""

    weights: str
    calibrated: bool  # has thresholds for false match rates
    photos: int
    faces: int
    missing: int  # photos whose files are missing
    bytes: int  # on the store's disk
    free_bytes: int
    seconds: float | None  # None: no photo could be tried


def reindex(
    path: Path,
    settings: Settings,
    changed: Sequence[str],
    progress: Progress,
    stop: Event,
    *,
    missing_too: bool = False,
    say: Callable[[Estimate], None] = lambda _: None,
) -> dict[str, Any]:
    """Builds another index of the store at `path`, or continues; the active one stays. Returns `generation_summary`,
    with the weights.

    `settings`: only the weights count, and the settings `changed` (keys of CHANGEABLE). `missing_too`: however many
    photos are missing. `say` receives the estimate before the build. Raises ReindexUnderWay, PhotosMissing, StoreFull,
    StoreLocked, Interrupted, UsageError, ModelError, DeviceError.
    """
    values = {key: getattr(getattr(settings, key.split(".")[0]), key.split(".")[1]) for key in changed}
    weights = None if settings.model.weights == AUTO else settings.model.weights
    if settings.run.engine == RAY:
        require_ray()
    with open_store(path, settings, command="reindex") as store:
        store.unlock()
        with store.lock_reindex("reindex"):
            build = Reindex(store, next_identity(store, weights, values), progress, stop)
            estimate = build.estimate(missing_too=missing_too)
            if not build.begun:
                say(estimate)
            build.build()
            return {"weights": build.identity.weights, **store.generation_summary()}


def next_identity(store: Store, weights: str | None, changed: Mapping[str, Any]) -> StoreIdentity:
    """Returns a new index's identity: these weights (None: those of the store, or of the build in progress), and
    settings by keys of CHANGEABLE. Raises UsageError if nothing would change, UnknownWeights, WeightsMissing,
    WeightsCorrupt."""
    other = store.other_identity()
    if weights is None and not changed and other is not None:
        return other
    identity, settings = store.identity, settings_of_generation(store.settings, store.identity)
    if weights is not None and weights != identity.weights:
        settings = dataclasses.replace(settings, embed=EmbedSettings())  # whether to centre depends on the weights
    model = dataclasses.replace(settings.model, weights=weights or identity.weights)
    settings = dataclasses.replace(settings, model=model)
    for key, value in changed.items():
        if key not in CHANGEABLE:
            allowed = ", ".join(CHANGEABLE)
            raise UsageError(message=f"A new index keeps the boxes of all faces: it can change {allowed}, not {key}.")
        section, name = key.split(".")
        new = dataclasses.replace(getattr(settings, section), **{name: value})
        settings = dataclasses.replace(settings, **{section: new})
    own = {name: getattr(identity, name) for name in ("encrypted", "master_key_id", "pixel_key")}
    made = dataclasses.replace(make_identity(settings), **own)
    if made.model == identity.model:
        raise UsageError(message="The store's index is made with these weights and settings: there is nothing to do.")
    return made


class Reindex:
    """The build of a store's other index."""

    def __init__(self, store: Store, identity: StoreIdentity, progress: Progress, stop: Event) -> None:
        """Raises ReindexUnderWay if the store has a different other index."""
        other = store.other_identity()
        if other is not None and other.model != identity.model:
            raise ReindexUnderWay(path=store.path, weights=other.weights)
        self.begun = other is not None
        self.identity = identity
        self._store = store
        self._stop = stop
        self._shown = ShardProgress(progress, stop)
        self._settings = settings_of_generation(store.settings, identity)
        self._decoder = Decoder(self._settings.decode)
        self._keys: dict[int, bytes | None] = {}  # of accounts
        self._compared = 0  # faces embedded from both stored picture and photo
        self._since = time.monotonic()  # the last commit
        self._photos = self._missing = self._missing_allowed = 0  # of photos with files; set by `estimate`

    def estimate(self, *, missing_too: bool = False) -> Estimate:
        """Estimates the remaining build by trying some photos. `missing_too`: however many are missing. Raises
        PhotosMissing, StoreFull, ModelError, DeviceError."""
        photos = faces = missing = 0
        tried: list[list[Face]] = []
        self._shown.start("look for photos", self._store.count_unmeasured())
        for page in self._pages():
            there = [Path(photo[0]["path"]).exists() for photo in page if _is_file(photo)]
            tried += page[: _TRIED - len(tried)]
            photos, missing = photos + len(there), missing + there.count(False)
            faces += sum(map(len, page))
            self._shown.advance(sum(map(len, page)))
        self._photos, self._missing_allowed = photos, photos if missing_too else max(missing, self._limit(photos))
        if missing > self._limit(photos) and not missing_too:
            raise PhotosMissing(missing=missing, photos=photos)
        needed = faces * (_FACE_BYTES + 6 * self.identity.embedding_size)  # the vector, and its int8 copy in the index
        free = shutil.disk_usage(self._store.path).free
        if needed > free:
            detail = f"the index needs about {needed:,} bytes, and {free:,} are free"
            raise StoreFull(path=self._store.path, detail=detail)
        weights, rates = self.identity.weights, Calibration.from_dict(self.identity.calibration).thresholds
        return Estimate(weights, bool(rates), photos, faces, missing, needed, free, self._seconds(tried, faces))

    def _limit(self, photos: int) -> int:
        return math.floor(self._settings.run.missing_limit * photos)

    def _seconds(self, tried: Sequence[Sequence[Face]], faces: int) -> float | None:
        """Estimates the build from these photos."""
        extractor, begun = self._load(), time.monotonic()
        done = [face for photo in tried for face, _ in self._measured(extractor, photo)]
        return (time.monotonic() - begun) / len(done) * faces if done else None

    def build(self) -> None:
        """Builds the index, or continues, until it has all faces. Once `stop` is set, raises Interrupted after the
        shard in progress; the same call continues."""
        if not self.begun:
            self._store.begin_generation(self.identity)
        self._since = time.monotonic()
        while not self._store.complete_generation():
            left = self._store.count_unmeasured()
            self._shown.start("reindex", left)
            self._pass()
            if self._store.count_unmeasured() == left:
                detail = f"{left} faces can't be read in the catalog"
                raise StoreDamaged(path=self._store.path, detail=detail, cure="`facepipe check` lists them.")

    def _pass(self) -> None:
        """Measures the remaining faces."""
        shards: dict[int, tuple[list[list[Face]], pa.Table]] = {}

        def manifests() -> Iterator[tuple[int, pa.Table]]:
            for number, photos in enumerate(self._shards()):
                shards[number] = photos, _manifest(photos)
                yield number, shards[number][1]

        with ExitStack() as stack:
            engine = self._ray_engine(stack) if self._settings.run.engine == RAY else self._local_engine()
            results = stack.enter_context(closing(engine.run_shards(manifests(), lambda _: None)))
            for number, table in results:
                photos, manifest = shards.pop(number)
                self._commit(photos, read_rows(manifest, table))
                if self._stop.is_set():
                    raise Interrupted(detail="what is done is in the store")

    def _local_engine(self) -> LocalEngine:
        size, pixel_hash = self.identity.embedding_size, PixelHash(self.identity.pixel_key)
        return LocalEngine(self._settings, size, self._decoder, pixel_hash, self._load)

    def _ray_engine(self, stack: ExitStack) -> RayEngine:
        """The end of `stack` removes what workers wrote."""
        set_environment(self._settings.ray)
        from pipeline.jobs.cluster.engine import RayEngine  # late: it loads Ray
        from pipeline.jobs.cluster.worker import Order

        identity, store = self.identity, self._store
        runs = store.folder.path("runs")
        remove_builds(runs)
        folder = ShardFolder.of_build(self._settings.run.shard_folder or str(runs), identity.output_hash)
        stack.callback(_clear, folder)
        metadata = {**shard_metadata(identity), "run_id": folder.address.split("/")[-2]}
        starting = partial(self._shown.meanwhile, "starting the workers")
        return RayEngine(Order(self._settings, identity, None, store.path, folder, metadata), starting)

    def _pages(self) -> Iterator[list[list[Face]]]:
        """Yields pages of photos with unmeasured faces, each as its faces, in order."""
        after = 0
        while len(table := self._store.unmeasured_faces(after, _PAGE)):
            yield [[*faces] for _, faces in groupby(table.to_pylist(), key=itemgetter("media_id"))]
            after = table["media_id"][-1].as_py()

    def _shards(self) -> Iterator[list[list[Face]]]:
        size = self._settings.run.shard_rows
        for page in self._pages():
            for start in range(0, len(page), size):
                yield page[start : start + size]

    def _commit(self, photos: Sequence[Sequence[Face]], extracted: Iterable[ExtractedRow]) -> None:
        """Commits a shard's faces from their photos, else their stored pictures, else without a vector."""
        extractor = self._load()
        rows, counts, cosines = list[_Row](), Counter[str](), list[float]()
        for photo, row in zip(photos, extracted, strict=True):
            self._missing += row.status in (ImageMissing.status, ImageUnreadable.status) and _is_file(photo)
            if self._missing > self._missing_allowed:  # a disk may have been unmounted
                raise PhotosMissing(missing=self._missing, photos=self._photos)
            if row.status == OK:
                counts["from_photos"] += len(photo)
                rows += [_row(face, found) for face, found in zip(photo, row.faces, strict=True)]
                cosines += self._cosines(extractor, photo, row.faces)
                continue
            for face in photo:
                found = self._from_picture(extractor, face)
                counts["from_pictures" if found else "without"] += 1
                rows.append(_row(face, found))
        table, (since, self._since) = pa.Table.from_pylist(rows, MEASURED_SCHEMA), (self._since, time.monotonic())
        self._store.commit_measured(table, {**counts, "cosines": cosines, "seconds": self._since - since})
        self._shown.advance(len(rows))

    def _measured(self, extractor: BatchExtractor, photo: Sequence[Face]) -> list[tuple[Face, ExtractedFace]]:
        """Measures a photo's faces, if it is readable."""
        try:
            image = photo_again(photo[0]["path"], photo[0]["sha256"], self._decoder) if _is_file(photo) else None
        except ImageRejected:
            image = None
        if image is None:
            return []
        (table,) = extractor.extract([image], known=[_places(photo)])
        return [*zip(photo, faces_of_table(table), strict=True)]

    def _from_picture(self, extractor: BatchExtractor, face: Face) -> ExtractedFace | None:
        """Measures a face from its stored picture; None without one large enough."""
        x1, y1, x2, y2 = (face[name] for name in ("x1", "y1", "x2", "y2"))
        if face["image_sha256"] is None or min(x2 - x1, y2 - y1) < LEAST_SHARE * extractor.embedder.input_size:
            return None
        account, guid = face["account_id"], face["image_guid"]
        if account not in self._keys:
            self._keys[account] = self._store.image_key(account)
        folder = self._store.folder
        try:
            data = open_image(folder, guid, read_object(folder, guid), face["image_sha256"], self._keys[account])
            image = self._decoder(data)
        except (StoreDamaged, ImageRejected):  # replaced since, or damaged, which `check` reports
            return None
        ((left, top),) = origins_of_cuts(np.array([[x1, y1, x2, y2]], np.float32))
        moved = {name: face[name] - (left if name[0] == "x" else top) for name in ("x1", "y1", "x2", "y2")}
        points = np.array(face["landmarks"], np.float32).reshape(5, 2) - (left, top)
        place = face | moved | {"landmarks": points.ravel().tolist()}
        (table,) = extractor.extract([image], known=[_places([place])])
        return next(iter(faces_of_table(table)), None)

    def _cosines(
        self, extractor: BatchExtractor, photo: Sequence[Face], faces: Sequence[ExtractedFace]
    ) -> Iterator[float]:
        """For some faces, the cosine between photo and stored picture."""
        for face, found in zip(photo, faces, strict=True):
            if self._compared < _COMPARED and face["image_guid"] is not None:
                picture = self._from_picture(extractor, face)
                self._compared += picture is not None
                if picture is not None:
                    yield float(picture.embedding @ found.embedding)

    @cache  # noqa: B019  as long as the build
    def _load(self) -> BatchExtractor:
        with loading_models(self._stop), self._shown.meanwhile("loading the models"):
            return load_extractor(self._settings, self.identity, self._store.path, NETWORK_THREADS)


def _places(faces: Sequence[Face]) -> pa.Table:
    """The faces' places in an image (PLACES_SCHEMA)."""
    return pa.Table.from_pylist(list(faces), PLACES_SCHEMA)


def _clear(folder: ShardFolder) -> None:
    with suppress(BucketFailed):  # must not hide why a build ended
        folder.clear()


def _is_file(photo: Sequence[Face]) -> bool:
    """Whether it has a local path."""
    path = photo[0]["path"]
    return path is not None and not is_address(path)


def _manifest(photos: Sequence[Sequence[Face]]) -> pa.Table:
    """The photos' manifest rows; a posted one has no file."""
    plain = {**dict.fromkeys(KNOWN_FACES_SCHEMA.names), "directory": ""}
    rows = []
    for row, faces in enumerate(photos):
        path = faces[0]["path"]
        known = {"sha256": faces[0]["sha256"], "bytes": faces[0]["bytes"], PLACES.name: _places(faces).to_pylist()}
        action = {"action": SKIP, "status": ImageMissing.status} if path is None else {"action": EXTRACT, **known}
        rows.append({**plain, "row": row, "path": path or "", "file": os.fsencode(path or ""), **action})
    return pa.Table.from_pylist(rows, KNOWN_FACES_SCHEMA)


def _row(face: Face, found: ExtractedFace | None) -> _Row:
    """The face for the new index: same place, and still rejected if it was."""
    kept = {name: face[name] for name in MEASURED_SCHEMA.names if name in face}
    if found is None:
        return kept
    qualities = dict(zip(QUALITIES, found.qualities, strict=True))
    return {**kept, **qualities, "embedding": None if face["outcome"] == "rejected" else vector_bytes(found.embedding)}
