"""Measures faces from stored pictures of references, for missing photos."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from pipeline.errors import ImageRejected, StoreDamaged
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import PLACES_SCHEMA, ExtractedFace, faces_of_table
from pipeline.extraction.stored_picture import origins_of_cuts
from pipeline.jobs.store import Store
from pipeline.store import open_image, read_object

LEAST_SHARE: Final = 0.8  # least side of the box in a stored picture, as a share of the network's input side
COMPARED: Final = 500  # faces embedded from both stored picture and photo
Face: TypeAlias = dict[str, Any]  # a row of `Store.unmeasured_faces`


def places(faces: Sequence[Face]) -> pa.Table:
    """The faces' places in an image (PLACES_SCHEMA)."""
    return pa.Table.from_pylist(list(faces), PLACES_SCHEMA)


class StoredPictures:
    """The stored pictures of a store's references."""

    def __init__(self, store: Store, decoder: Decoder) -> None:
        self._store = store
        self._decoder = decoder
        self._keys: dict[int, bytes | None] = {}  # of accounts
        self._compared = 0

    def measured(self, extractor: BatchExtractor, face: Face) -> ExtractedFace | None:
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
        (table,) = extractor.extract([image], known=[places([place])])
        return next(iter(faces_of_table(table)), None)

    def cosines(
        self, extractor: BatchExtractor, photo: Sequence[Face], faces: Sequence[ExtractedFace]
    ) -> Iterator[float]:
        """For some faces, the cosine between photo and stored picture."""
        for face, found in zip(photo, faces, strict=True):
            if self._compared < COMPARED and face["image_guid"] is not None:
                picture = self.measured(extractor, face)
                self._compared += picture is not None
                if picture is not None:
                    yield float(picture.embedding @ found.embedding)
