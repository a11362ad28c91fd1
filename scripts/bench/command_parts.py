"""One command of facepipe with the processor time of its parts: `python command_parts.py PARTS_FILE WORDS...`.

A part is the import of a library, or a step of a command. Parts nest; what a part takes is its own. The rest is Python,
the command line and facepipe's own modules. All threads count, while the main thread waits for them as well.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_LIBRARIES: Final = frozenset(
    ("cv2", "duckdb", "facenet_pytorch", "numba", "numpy", "openvino", "pyarrow", "starlette", "torch", "torchvision")
)
# module -> attribute -> part
_STEPS: Final = {
    "pipeline.store.local": {
        "LocalStore.open": "open",
        "LocalStore.open_or_create": "open",
        "LocalStore.close": "close",
    },
    "pipeline.people.records": {"StoredDirectory.references": "open the index"},
    "pipeline.people.directory": {"Directory.load": "read merges"},
    "pipeline.matching.match": {"Matcher.nearest": "search"},
    "pipeline.jobs.models": {"load_extractor": "load models"},
    "pipeline.extraction.extractor": {"BatchExtractor.extract": "extract"},
    "pipeline.people.corrections": {"Corrections.make": "correct"},
    "pipeline.report.page_data": {"page_data": "page"},
    "pipeline.report.contents": {"page_bytes": "page"},
}
REST: Final = "rest"


class Parts:
    """Processor seconds of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [REST]
        self._since = 0.0  # all of the process, its start included
        self._thread = threading.get_ident()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        if threading.get_ident() != self._thread:
            yield
            return
        self.count()
        self._inside.append(name)
        try:
            yield
        finally:
            self.count()
            self._inside.pop()

    def count(self) -> None:
        """Gives the time since the last call to the part in progress."""
        now, part = time.process_time(), self._inside[-1]
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now


class _Measured(importlib.abc.Loader):
    """Another loader, timed; then the steps of its module are timed."""

    def __init__(self, loader: importlib.abc.Loader, parts: Parts) -> None:
        self._loader, self._parts = loader, parts

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        with self._parts.part(_part_of(spec.name)):
            return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self._parts.part(_part_of(module.__name__)):
            self._loader.exec_module(module)
        for path, part in _STEPS.get(module.__name__, {}).items():
            *outer, name = path.split(".")
            holder: Any = getattr(module, outer[0]) if outer else module
            found = vars(holder)[name]
            timed = self._timed(getattr(found, "__func__", found), part)
            setattr(holder, name, classmethod(timed) if isinstance(found, classmethod) else timed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self._parts.part(part):
                return function(*args, **kwargs)

        return timed


def _part_of(module: str) -> str:
    library = module.partition(".")[0]
    return f"import {library}" if library in _LIBRARIES else REST


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _LIBRARIES and name not in _STEPS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Measured(spec.loader, self._parts)
        return spec


def main() -> None:
    file, *words = sys.argv[1:]
    parts = Parts()
    sys.meta_path.insert(0, _Finder(parts))
    sys.argv = ["facepipe", *words]
    try:
        from pipeline.cli import main as command

        command.main()
    finally:
        parts.count()
        Path(file).write_text(json.dumps(parts.seconds))


if __name__ == "__main__":
    main()
