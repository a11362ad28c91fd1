"""Where the embeddings of an evaluation come from: a store that has them already, or the models.

Of each photo it is the face whose box's centre lies nearest the photo's centre, as is usual for LFW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.decode import Decoder
from pipeline.device import usable_cores
from pipeline.door import Store
from pipeline.errors import ImageRejected
from pipeline.extract import QUALITIES, FaceExtractor
from pipeline.files import read_file, shown
from pipeline.references import check_embeddings
from pipeline.store.shards import read_embeddings, vectors_of
from pipeline.types import ACCEPTED_STATUSES, DUPLICATE_ROW, BoolArray, DecodedImage, FloatArray

NOT_IN_STORE: Final = "not in the store"
NOT_KEPT: Final = "the store keeps no embedding of a face that its quality gate rejected"
DELETED: Final = "a person on it was deleted from the store"


@dataclass(frozen=True)
class Portraits:
    """n photos, and the face nearest the centre of each. Raises EmbeddingInvalid for a vector that is neither of norm
    1 nor all NaN."""

    paths: Sequence[str]  # [n] as the store and reports show them; none stands twice
    embeddings: FloatArray  # [n, d] float32 of norm 1; all NaN where no face was found
    quality: FloatArray  # [n, 3] in [0, 1] as `extract.QUALITIES`; NaN where no face was found
    skipped: dict[str, str]  # the other paths that were asked for -> why nothing can be said of them

    def __post_init__(self) -> None:
        check_embeddings(self.embeddings[self.has_face], self.embeddings.shape[1])

    @cached_property
    def row(self) -> dict[str, int]:
        """Where each path stands."""
        return {path: row for row, path in enumerate(self.paths)}

    @cached_property
    def has_face(self) -> BoolArray:
        """[n]"""
        # A vector that is NaN in part is no missing face but a broken one.
        return np.asarray(~np.isnan(self.embeddings).all(axis=1))


def from_images(
    extractor: FaceExtractor,
    decoder: Decoder,
    paths: Sequence[Path],
    advance: Callable[[int], None] = lambda _count: None,
) -> Portraits:
    """Decodes and extracts the photos, each once; `advance(n)` as n of them are done.

    A photo that cannot be read or decoded is in `skipped` with its reason. Raises DeviceOutOfMemory.
    """
    files = {shown(path): path for path in paths}
    skipped: dict[str, str] = {}
    kept: list[str] = []
    vectors = [np.empty((0, extractor.embedder.embedding_size), np.float32)]
    qualities = [np.empty((0, len(QUALITIES)), np.float32)]
    for batch in _decoded(files, decoder, extractor, skipped, advance):
        tables = extractor.extract([image for _, image in batch])
        kept += [name for name, _ in batch]
        for (_, image), faces in zip(batch, tables, strict=True):
            vector, quality = _central(faces, image, vectors[0].shape[1])
            vectors.append(vector)
            qualities.append(quality)
        advance(len(batch))
    return Portraits(kept, np.concatenate(vectors), np.concatenate(qualities), skipped)


def _decoded(
    files: dict[str, Path],
    decoder: Decoder,
    extractor: FaceExtractor,
    skipped: dict[str, str],
    advance: Callable[[int], None],
) -> Iterator[list[tuple[str, DecodedImage]]]:
    """Batches of what can be decoded, within the settings' limits."""
    limits = extractor.settings.run
    batch: list[tuple[str, DecodedImage]] = []
    pixels = 0
    for name, image in _read(files, decoder, limits.threads or usable_cores()):
        if isinstance(image, ImageRejected):
            skipped[name] = f"{image.status}: {image.reason}"
            advance(1)
            continue
        size = image.width * image.height
        if batch and (len(batch) >= limits.batch_images or pixels + size > limits.batch_pixels):
            yield batch
            batch, pixels = [], 0
        batch.append((name, image))
        pixels += size
    if batch:
        yield batch


def _read(files: dict[str, Path], decoder: Decoder, threads: int) -> Iterator[tuple[str, DecodedImage | ImageRejected]]:
    """The photos in their order, `threads` of them decoded at a time."""

    def work(path: Path) -> DecodedImage | ImageRejected:
        try:
            return decoder(read_file(path, decoder.settings.max_bytes))
        except ImageRejected as problem:
            return problem

    items = list(files.items())
    with ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        for start in range(0, len(items), threads):
            part = items[start : start + threads]
            yield from zip([name for name, _ in part], pool.map(work, [path for _, path in part]), strict=True)


def _central(faces: pa.Table, image: DecodedImage, size: int) -> tuple[FloatArray, FloatArray]:
    """The embedding [1, size] and the qualities [1, 3] of the face nearest the centre; NaN without a face."""
    if not len(faces):
        return np.full((1, size), np.nan, np.float32), np.full((1, len(QUALITIES)), np.nan, np.float32)
    corners = np.stack([faces[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float64)
    offsets = corners[:, :2] + corners[:, 2:] - np.array([image.width, image.height])
    row = int((offsets**2).sum(axis=1).argmin())
    quality = np.array([[faces[name][row].as_py() for name in QUALITIES]], np.float32)
    return vectors_of(faces["embedding"], size)[row : row + 1], quality


# Of each path the rows with its latest bytes; of each row the face whose centre lies nearest the photo's centre
# (squares of twice the distance, which order alike; of equals the larger face, which has the lower id); of these
# faces of one path one whose embedding is stored, if any is: another directory's gate may have rejected it. A row
# with a path is of a run, so its embeddings are in shards and never pending.
_NEAREST: Final = f"""
    WITH wanted AS (SELECT DISTINCT unnest($2::VARCHAR[]) AS path),
    latest AS (
        SELECT m.* FROM core.media m WHERE m.path IN (SELECT path FROM wanted) AND m.status <> '{DUPLICATE_ROW}'
        QUALIFY sha256 IS NOT DISTINCT FROM first_value(sha256) OVER (PARTITION BY path ORDER BY media_id DESC)
    ),
    nearest AS (
        SELECT m.media_id, m.path, m.status, m.reason, f.face_id, f.{", f.".join(QUALITIES)}
        FROM latest m LEFT JOIN main.faces f ON f.media_id = m.media_id
        QUALIFY row_number() OVER (
            PARTITION BY m.media_id
            ORDER BY (f.x1 + f.x2 - m.width) ** 2 + (f.y1 + f.y2 - m.height) ** 2, f.face_id
        ) = 1
    )
    SELECT n.*, s.file, n.media_id IN (SELECT media_id FROM core.faces WHERE outcome = 'removed') AS deleted
    FROM nearest n
    LEFT JOIN core.embeddings e ON e.face_id = n.face_id AND e.generation = $1
    LEFT JOIN core.embedding_shards s ON s.embedding_shard_id = e.embedding_shard_id
    QUALIFY row_number() OVER (PARTITION BY n.path ORDER BY s.file IS NULL, n.media_id DESC) = 1
"""


def from_store(client: Store, paths: Sequence[str]) -> Portraits:
    """What the store's current generation has of the photos at `paths`, in whatever directory; nothing is computed.

    In `skipped`: photos that the store does not know, that it could not read, of persons who were deleted, and those
    whose face its quality gate rejected, for of these it keeps no embedding. Raises StoreDamaged.
    """
    table = client.read(_NEAREST, [client.generation, list(paths)])
    position = {path: row for row, path in enumerate(table["path"].to_pylist())}
    columns = {name: table[name].to_pylist() for name in ("status", "reason", "face_id", "file", "deleted")}
    skipped: dict[str, str] = {}
    kept: list[str] = []
    for path in dict.fromkeys(paths):
        problem = _why_not(columns, position.get(path))
        if problem is None:
            kept.append(path)
        else:
            skipped[path] = problem
    rows = np.array([position[path] for path in kept], dtype=np.int64)
    picked = table.take(pa.array(rows))
    quality = np.stack([picked[name].to_numpy().astype(np.float32) for name in QUALITIES], axis=1)
    return Portraits(kept, _stored_vectors(client, picked), quality, skipped)


def _why_not(columns: dict[str, list[Any]], row: int | None) -> str | None:
    """Why nothing can be said of the photo at `row`; None where it has an embedding, or no face."""
    if row is None:
        return NOT_IN_STORE
    if columns["status"][row] not in ACCEPTED_STATUSES:
        return f"{columns['status'][row]}: {columns['reason'][row]}"
    if columns["deleted"][row]:
        return DELETED  # which of the faces was nearest the centre, nobody knows any more
    has_face = columns["face_id"][row] is not None
    return NOT_KEPT if has_face and columns["file"][row] is None else None


def _stored_vectors(client: Store, table: pa.Table) -> FloatArray:
    """[n, d] the embeddings of the faces in `table`, NaN where it has no face."""
    size = client.identity.embedding_size
    vectors = np.full((table.num_rows, size), np.nan, np.float32)
    faces = table["face_id"].to_numpy().astype(np.float64)  # null becomes NaN, which is no face's id
    for file in table["file"].unique().drop_null().to_pylist():
        ids, stored = read_embeddings(client.folder, file, size)
        order = np.argsort(ids)
        place = np.minimum(np.searchsorted(ids, faces, sorter=order), len(ids) - 1)
        hit = ids[order[place]] == faces
        vectors[hit] = stored[order[place[hit]]]
    return vectors
