"""facepipe's extraction as in `facepipe extract`, with settings comparable with the reference's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from pipeline.config import PILLOW, EmbedSettings, Settings
from pipeline.evaluation.bench.parity import Extracted
from pipeline.extraction.engine import NETWORK_THREADS, LocalEngine
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, PLACE_COLUMNS, fixed_lists
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.runtime.stage_times import StageTimes
from pipeline.store import vectors_of
from pipeline.types import FloatArray, boxes_of


def comparable(settings: Settings) -> Settings:
    """Returns `settings` to match the reference: all faces above the cascade's own threshold, Pillow's resampling, and
    embeddings not centred."""
    detect = replace(settings.detect, min_confidence=settings.detect.onet_threshold)
    align = replace(settings.align, resampling=PILLOW)
    return replace(settings, detect=detect, align=align, embed=EmbedSettings(centre=False))


class FacepipeChain:
    """Files to faces, through the engine. Loads the models. `times` records the time of each stage."""

    def __init__(self, settings: Settings, times: StageTimes | None = None) -> None:
        self.settings = settings
        identity = make_identity(settings)
        self.extractor = load_extractor(settings, identity, Path(), NETWORK_THREADS)
        self.pixel_hash = PixelHash(identity.pixel_key)
        size, decoder = identity.embedding_size, Decoder(settings.decode)
        self.engine = LocalEngine(settings, size, decoder, self.pixel_hash, lambda: self.extractor, times)
        self._lists: Sequence[Sequence[Path]] = []
        self._shards: list[pa.Table] = []

    def prepare(self, lists: Sequence[Sequence[Path]]) -> None:
        """Makes each list of files a manifest shard, as planning does before extraction."""
        self._lists, self._shards = lists, [manifest_rows(files) for files in lists]

    def __call__(self, numbers: Iterable[int]) -> dict[Path, Extracted]:
        """Returns the faces of the files in the lists `numbers`. Raises AssertionError for a file that is not an
        image."""
        faces: dict[Path, Extracted] = {}
        shards = ((number, self._shards[number]) for number in numbers)
        for number, table in self.engine.run_shards(shards, lambda _: None):
            faces.update(zip(self._lists[number], extracted_rows(table), strict=True))
        return faces


def manifest_rows(files: Sequence[Path]) -> pa.Table:
    """The manifest columns that the engine reads, for new files with their hashes."""
    rows = []
    for number, file in enumerate(files):
        hashed = hash_file(file)
        state = hashed.state._asdict() if hashed.state else {}
        known = {"row": number, "file": os.fsencode(file), "sha256": hashed.sha256, "bytes": hashed.bytes}
        rows.append({**known, **state, "action": EXTRACT})
    return pa.Table.from_pylist(rows, MANIFEST_SCHEMA)


def extracted_rows(table: pa.Table) -> Iterator[Extracted]:
    """The faces of each row of a shard's table."""
    for status, faces in zip(table["status"].to_pylist(), table["faces"], strict=True):
        assert faces.is_valid, status
        yield _extracted(pa.Table.from_struct_array(faces.values))


def _extracted(faces: pa.Table) -> Extracted:
    landmarks = vectors_of(faces["landmarks"], 10).reshape(-1, 5, 2)
    embeddings = vectors_of(faces["embedding"], faces.schema.field("embedding").type.list_size)
    return Extracted(boxes_of(faces), landmarks, faces["confidence"].to_numpy(), embeddings)


def embeddings_of_boxes(chain: FacepipeChain, detected: Mapping[Path, Extracted]) -> dict[Path, FloatArray]:
    """facepipe's embeddings [n, d] of another detector's faces: of their boxes or, if the embedder takes upright crops,
    of their landmarks."""
    embeddings: dict[Path, FloatArray] = {}
    decoder = Decoder(chain.settings.decode)
    for file, faces in detected.items():
        columns = (*faces.boxes.T, fixed_lists(faces.landmarks.reshape(-1, 10)), faces.scores)
        known = pa.table(dict(zip(PLACE_COLUMNS, columns, strict=True)))
        (table,) = chain.extractor.extract([decoder(file.read_bytes())], known=[known])
        embeddings[file] = _extracted(table).embeddings
    return embeddings
