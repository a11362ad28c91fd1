"""The page's own files. They are few, and read once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import RouteUnknown
from pipeline.serve.responses import tagged_response

# By the end of the name; a file of another kind is not served.
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpg": "image/jpeg",
    "webp": "image/webp",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "md": "text/plain; charset=utf-8",
}
_ASK_EACH_TIME: Final = "no-cache"  # modules name each other without a version, so that each must be the newest


@dataclass(frozen=True)
class _File:
    data: bytes
    media_type: str
    tag: str


class StaticFiles:
    """Answers /ui and /ui/static/*."""

    def __init__(self) -> None:
        self._files = _read(Path(__file__).parent / "static")

    async def page(self, request: Request) -> Response:
        return self._answer(request, "index.html")

    async def file(self, request: Request) -> Response:
        """Raises RouteUnknown."""
        return self._answer(request, request.path_params["path"])

    def _answer(self, request: Request, path: str) -> Response:
        file = self._files.get(path)
        if file is None:
            raise RouteUnknown()
        return tagged_response(request, file.data, file.media_type, file.tag, _ASK_EACH_TIME)


def _read(folder: Path) -> dict[str, _File]:
    """Path below the folder -> the file."""
    found = {}
    for path in sorted(folder.rglob("*")):
        media_type = _TYPES.get(path.suffix.removeprefix("."))
        if media_type is not None:
            data = path.read_bytes()
            tag = hashlib.sha256(data).hexdigest()[:32]
            found[path.relative_to(folder).as_posix()] = _File(data, media_type, tag)
    return found
