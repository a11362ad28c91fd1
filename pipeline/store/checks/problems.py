"""What `check` reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

RESTORE: Final = "Restore the store from a backup."
REPAIR: Final = "`facepipe check --repair` removes it."
REBUILD: Final = "`facepipe check --repair` rebuilds it from the embeddings."

# Kinds that `repair_store` repairs: no photo, face or person is touched.
REPAIRABLE: Final = frozenset({"orphan", "matrix", "pending_delete"})


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `kind`: catalog, reference, view, embedding, object, matrix, orphan, pending_delete."""

    kind: str
    where: str
    detail: str
    cure: str


@dataclass(frozen=True)
class CheckReport:
    """All problems, and how much was read (files, rows; by name)."""

    problems: Sequence[Problem]
    counts: Mapping[str, int]

    @property
    def clean(self) -> bool:
        return not self.problems


@dataclass(frozen=True)
class Checked:
    """What is wrong with a store, and what was repaired before."""

    report: CheckReport
    repaired: Sequence[Problem]
