"""Which stored rows of a source have another label than they had: a name or an external id, in a manifest or by the
folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store import ERASED, Label

Digests = Callable[[Sequence[Label]], Sequence[str | None]]
_BATCH: Final = 8192  # labels whose digests are asked for at once


class ChangedLabels:
    """Compares labels with the stored ones by their digests, many at a time. Of rows of the source that are one stored
    row the first counts, as when it was planned."""

    def __init__(self, stored: pa.Array, digests: Digests) -> None:
        """`stored`: the digest of each stored row, as `known_files` has them; `digests` makes those of labels."""
        self._stored = stored
        self._digests = digests
        self._has_none = stored.is_null().to_numpy(zero_copy_only=False).tobytes()
        self._left_out = bytearray(pc.equal(stored, ERASED).fill_null(False).to_numpy(zero_copy_only=False))
        self._waiting: dict[int, tuple[Label, bool]] = {}
        self._changes: dict[int, tuple[Label, bool]] = {}

    def see(self, number: int, label: Label, *, same_bytes: bool = True) -> None:
        """The source has this stored row, with this label now; and with the same bytes or others."""
        if self._left_out[number]:
            return
        self._left_out[number] = True
        if not self._has_none[number] or label != (None, None):
            self._waiting[number] = label, same_bytes
            if len(self._waiting) >= _BATCH:
                self._compare()

    def changes(self) -> Mapping[int, tuple[Label, bool]]:
        """Number of the stored row -> its label now, and whether its bytes are the same."""
        self._compare()
        return self._changes

    def same_before(self, one: int, other: int) -> bool:
        """Whether two stored rows had the same label."""
        return bool(self._stored[one].as_py() == self._stored[other].as_py())

    def _compare(self) -> None:
        if not self._waiting:
            return
        labels = list(dict.fromkeys(label for label, _ in self._waiting.values()))
        digests = dict(zip(labels, self._digests(labels), strict=True))
        before = self._stored.take(pa.array(self._waiting, pa.int64())).to_pylist()
        for (number, seen), old in zip(self._waiting.items(), before, strict=True):
            if digests[seen[0]] != old:
                self._changes[number] = seen
        self._waiting.clear()
