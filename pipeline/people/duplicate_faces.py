"""Files with identical bytes take the original's faces, without decoding or models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from pipeline.errors import ImageChanged
from pipeline.extraction.rows import IMAGE_COLUMNS, REUSE_MEDIA, REUSE_ROW, ExtractedRow, faces_of_table, read_rows
from pipeline.store import LocalStore, RunRow
from pipeline.types import DUPLICATE, NO_FACE, OK, IntArray


def mark_changed(row: ExtractedRow) -> None:
    """Marks a row whose file changed since the scan. Without a hash, the next run processes it."""
    changed = ImageChanged()
    row.status, row.reason, row.sha256 = changed.status, changed.reason, None
    row.faces, row.duplicate_of, row.image = (), None, dict.fromkeys(IMAGE_COLUMNS)


class DuplicateResolver:
    """Resolves the duplicate rows of a run; knows which run shards are still needed."""

    def __init__(self, client: LocalStore, run: RunRow) -> None:
        self._client = client
        self._run = run
        self._starts = client.shard_starts(run)
        self._last_use = self._find_last_use()
        self._earlier = lru_cache(4)(self._read_shard)

    def finished_by(self, shard: int) -> list[int]:
        """The shards whose extraction `shard` is the last to need."""
        return [int(k) for k in np.flatnonzero(self._last_use == shard)]

    def resolve(self, rows: Sequence[ExtractedRow], first_media_id: int) -> None:
        """Gives duplicates their original's faces. `rows`: all of a shard; `first_media_id`: of the first."""
        if not rows:
            return
        first_row = int(rows[0].manifest["row"])
        media_ids = self._client.media_of_rows(
            self._run.run_id, [r.manifest["source_row"] for r in rows if r.manifest["action"] == REUSE_ROW]
        )
        for row in rows:
            if row.manifest["action"] == REUSE_ROW:
                number = int(row.manifest["source_row"])
                if number >= first_row:
                    _copy(row, rows[number - first_row], first_media_id + number - first_row)
                else:
                    shard = int(self._shards_of(number))
                    _copy(row, self._earlier(shard)[number - int(self._starts[shard])], media_ids[number])
        self._resolve_stored([r for r in rows if r.manifest["action"] == REUSE_MEDIA])

    def _resolve_stored(self, rows: Sequence[ExtractedRow]) -> None:
        if not rows:
            return
        media_ids = sorted({int(r.manifest["source_media"]) for r in rows})
        table = self._client.faces_of_media(media_ids)
        images = self._client.whole_images(media_ids)  # after the faces: a server may delete a person meanwhile
        owners = table["media_id"].to_numpy()
        faces = faces_of_table(table)
        for row in rows:
            media_id = int(row.manifest["source_media"])
            if media_id not in images:
                mark_changed(row)
                continue
            own = np.flatnonzero(owners == media_id).tolist()
            row.status, row.duplicate_of, row.faces = DUPLICATE, media_id, [faces[k] for k in own]
            row.image = images[media_id]

    def _find_last_use(self) -> IntArray:
        """[shards] the last shard that needs each shard's extraction."""
        last = np.arange(int(self._run.shards or 0), dtype=np.int64)
        table = self._client.read_manifest_columns(self._run.run_id, ["row", "source_row"])
        table = table.filter(table["source_row"].is_valid())
        used_by, uses = (self._shards_of(table[c].to_numpy()) for c in ("row", "source_row"))
        np.maximum.at(last, uses, used_by)
        return last

    def _shards_of(self, rows: npt.ArrayLike) -> IntArray:
        """The shard of each manifest row."""
        found: IntArray = np.searchsorted(self._starts, rows, side="right") - 1
        return found

    def _read_shard(self, shard: int) -> list[ExtractedRow]:
        manifest = self._client.read_manifest(self._run, shard)
        return read_rows(manifest, self._client.read_run_shard(self._run.run_id, shard))


def _copy(row: ExtractedRow, original: ExtractedRow, media_id: int) -> None:
    if original.status in (OK, NO_FACE):
        row.status, row.duplicate_of, row.faces = DUPLICATE, media_id, original.faces
        row.image = dict(original.image)
    elif original.status == ImageChanged.status:
        mark_changed(row)
    else:  # without the original's hash, the next run processes both
        row.status, row.reason, row.sha256 = original.status, original.reason, original.sha256
