"""When two posts into one directory may be committed at the same time: when neither could change what the other
decided, in either order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.matching.match import Matcher
from pipeline.types import FloatArray


@dataclass(frozen=True, eq=False)
class Claim:
    """What a post rests on and what it changes. Errs on the side of conflict."""

    persons: frozenset[str]  # whom a face matched, or whose record changes
    external_ids: frozenset[str]  # that a record has or gets, where two must not have the same
    hashes: frozenset[str]  # of the image
    faces: FloatArray  # [n, d] all faces of the image
    becoming: Sequence[int]  # which of them become references
    matcher: Matcher  # the request's threshold

    def conflicts(self, other: Claim) -> bool:
        """Whether one of the two posts might have been decided otherwise after the other, or both change the same."""
        return bool(
            self.persons & other.persons
            or self.external_ids & other.external_ids
            or self._sees(other)
            or other._sees(self)
        )

    def _sees(self, other: Claim) -> bool:
        """A face of this image might match a new reference of the other's."""
        if not other.becoming:
            return False
        if self.hashes & other.hashes:
            return True
        new = other.faces[list(other.becoming)]
        rows, columns = np.divmod(np.arange(len(self.faces) * len(new)), len(new))
        return bool(self.matcher.matches(self.matcher.distances(self.faces[rows], new[columns])).any())
