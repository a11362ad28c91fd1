"""The page's own files: /ui and /ui/static/*. They are few, and read once."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import RouteUnknown
from pipeline.serve.responses import tagged_response

_FOLDER: Final = Path(__file__).parent / "static"
# By the end of the name; a file of another kind is not served.
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_ASK_EACH_TIME: Final = "no-cache"  # modules name each other without a version, so that each must be the newest


async def page(request: Request) -> Response:
    return _answer(request, "index.html")


async def file(request: Request) -> Response:
    """Raises RouteUnknown."""
    return _answer(request, request.path_params["path"])


def _answer(request: Request, path: str) -> Response:
    data = _files().get(path)
    if data is None:
        raise RouteUnknown()
    tag = hashlib.sha256(data).hexdigest()[:32]
    return tagged_response(request, data, _TYPES[Path(path).suffix], tag, _ASK_EACH_TIME)


@cache
def _files() -> dict[str, bytes]:
    """Path below the folder -> the file."""
    paths = [path for path in _FOLDER.rglob("*") if path.suffix in _TYPES]
    return {path.relative_to(_FOLDER).as_posix(): path.read_bytes() for path in paths}
