"""What one step found. It is written after each entry, so that a step that is killed leaves what it had."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TRACE_LINES = 14


class Skipped(Exception):
    """The step makes no sense here; the message says why."""


class Findings:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.figures: dict[str, Any] = {}
        self.problems: list[str] = []  # any makes the step FAILED
        self.skipped: str | None = None
        self.headline = ""  # for the verdict line

    def put(self, key: str, value: object) -> None:
        self.figures[key] = value
        print(f"{key}: {json.dumps(value, default=str)}", flush=True)
        self.write()

    def expect(self, true: bool, otherwise: str) -> None:
        """Notes `otherwise` as a problem, and goes on."""
        if not true:
            self.problems.append(otherwise)
            self.write()

    @contextmanager
    def part(self, key: str) -> Iterator[None]:
        """A part that fails is a problem of the step, and not its end."""
        try:
            yield
        except Skipped:
            raise
        except (Exception, SystemExit) as exc:  # noqa: BLE001  a benchmark may fail in any way, and so may a driver
            self.figures[f"{key}: trace"] = traceback.format_exc().splitlines()[-_TRACE_LINES:]
            traceback.print_exc()
            self.expect(False, f"{key}: {type(exc).__name__}: {exc}"[:400])

    def write(self) -> None:
        held = {name: value for name, value in vars(self).items() if name != "_file"}
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(held, default=str), "utf-8")
        part.rename(self._file)
