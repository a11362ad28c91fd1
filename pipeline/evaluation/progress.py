"""Where evaluations tell how far they are."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A bar, a line a minute, or nothing: the caller decides."""

    def start(self, phase: str, total: int | None) -> None: ...
    def advance(self, count: int = 1) -> None: ...
