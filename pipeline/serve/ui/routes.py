"""The routes of the web UI, and its few static files, read once."""

from __future__ import annotations

import gzip
from functools import cache, partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipeline.errors import RouteUnknown
from pipeline.serve.middleware import Handler
from pipeline.serve.responses import tagged_response
from pipeline.serve.ui import browsing, correcting, recognising, reviewing, signing_in, store_page
from pipeline.serve.ui.context import PageContext
from pipeline.serve.ui.same_site import PREFIX

_API: Final = f"{PREFIX}/api"
_FOLDER: Final = Path(__file__).parent / "static"
# By file extension; other kinds are not served.
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_ASK_EACH_TIME: Final = "no-cache"  # modules import each other without a version, so each must be the newest


def ui_routes(context: PageContext) -> list[tuple[str, str, Handler]]:
    """Method, path and handler of each."""
    route, originals = partial(context.route, context.visit), context.originals
    return [
        ("GET", "/", _to_page),
        ("GET", PREFIX, _page),
        ("GET", f"{PREFIX}/static/{{path:path}}", _file),
        ("POST", f"{_API}/session", partial(signing_in.sign_in, context)),
        ("GET", f"{_API}/session", partial(signing_in.tell, context)),
        ("DELETE", f"{_API}/session", partial(signing_in.sign_out, context)),
        ("GET", f"{_API}/people", route(browsing.people)),
        ("GET", f"{_API}/people/{{person_id}}", route(browsing.person)),
        ("GET", f"{_API}/people/{{person_id}}/faces", route(browsing.faces)),
        ("GET", f"{_API}/people/{{person_id}}/around", route(browsing.around)),
        ("GET", f"{_API}/unassigned", route(browsing.unassigned)),
        ("GET", f"{_API}/twice", route(browsing.twice)),
        ("POST", f"{_API}/corrections", route(correcting.correct)),
        ("GET", f"{_API}/corrections", route(correcting.log)),
        ("GET", f"{_API}/corrections/last", route(correcting.last)),
        ("POST", f"{_API}/corrections/undo", route(correcting.undo)),
        ("GET", f"{_API}/review", route(reviewing.pairs)),
        ("GET", f"{_API}/review/newer", route(reviewing.newer, context.deciding)),
        ("GET", f"{_API}/review/regroup", route(reviewing.regroup, context.deciding)),
        ("GET", f"{_API}/store", route(store_page.store)),
        ("POST", f"{_API}/regroup", route(store_page.regroup, context.deciding)),
        ("GET", f"{_API}/runs", route(store_page.runs)),
        ("GET", f"{_API}/runs/{{run_id}}/report", route(store_page.report)),
        ("POST", f"{_API}/recognise", partial(recognising.recognise, context)),
        ("POST", f"{_API}/enrol", partial(recognising.enrol, context)),
        ("GET", f"{_API}/pictures/{{guid}}", route(browsing.picture)),
        ("GET", f"{_API}/faces/{{number}}/picture", route(browsing.face_picture, originals)),
        ("GET", f"{_API}/photos/{{number}}/picture", route(browsing.photo_picture, originals)),
        ("GET", f"{_API}/photos/{{number}}/faces", route(browsing.photo_faces)),
        ("POST", f"{_API}/photos/{{number}}/faces", route(correcting.add_face, originals)),
    ]


async def _to_page(request: Request) -> Response:
    """Redirects browsers to the web UI. Programs find nothing here."""
    if "text/html" not in request.headers.get("accept", ""):
        raise RouteUnknown()
    return RedirectResponse(PREFIX, 303, {"Vary": "Accept"})


async def _page(request: Request) -> Response:
    return _static(request, "index.html")


async def _file(request: Request) -> Response:
    """Raises RouteUnknown."""
    return _static(request, request.path_params["path"])


def _static(request: Request, path: str) -> Response:
    files = _files().get(path)
    if files is None:
        raise RouteUnknown()
    is_zipped = "gzip" in request.headers.get("accept-encoding", "")
    answer = tagged_response(request, files[is_zipped], _TYPES[Path(path).suffix], _ASK_EACH_TIME)
    answer.headers["Vary"] = "Accept-Encoding"
    if is_zipped and answer.body:
        answer.headers["Content-Encoding"] = "gzip"
    return answer


@cache
def _files() -> dict[str, tuple[bytes, bytes]]:
    """Path below the folder -> the file, as it is and compressed by gzip."""
    paths = [path for path in _FOLDER.rglob("*") if path.suffix in _TYPES]
    read = ((path.relative_to(_FOLDER).as_posix(), path.read_bytes()) for path in paths)
    return {name: (data, gzip.compress(data, mtime=0)) for name, data in read}
