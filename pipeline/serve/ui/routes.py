"""The routes of the page."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pipeline.errors import RouteUnknown
from pipeline.serve.middleware import Handler
from pipeline.serve.ui.browsing import Browsing
from pipeline.serve.ui.context import Context
from pipeline.serve.ui.correcting import Correcting
from pipeline.serve.ui.recognising import Recognising
from pipeline.serve.ui.reviewing import Reviewing
from pipeline.serve.ui.same_site import PREFIX
from pipeline.serve.ui.signing_in import SigningIn
from pipeline.serve.ui.static_files import StaticFiles
from pipeline.serve.ui.store_page import StorePage

_API: Final = f"{PREFIX}/api"


def ui_routes(context: Context) -> list[tuple[str, str, Handler]]:
    """Method, path and handler of each."""
    static, signing_in, store_page = StaticFiles(), SigningIn(context), StorePage(context)
    browsing, correcting, recognising = Browsing(context), Correcting(context), Recognising(context)
    return [
        ("GET", "/", _to_page),
        ("GET", PREFIX, static.page),
        ("GET", f"{PREFIX}/static/{{path:path}}", static.file),
        ("POST", f"{_API}/session", signing_in.sign_in),
        ("GET", f"{_API}/session", signing_in.tell),
        ("DELETE", f"{_API}/session", signing_in.sign_out),
        ("GET", f"{_API}/people", browsing.people),
        ("GET", f"{_API}/people/{{person_id}}", browsing.person),
        ("GET", f"{_API}/people/{{person_id}}/faces", browsing.faces),
        ("POST", f"{_API}/corrections", correcting.correct),
        ("GET", f"{_API}/corrections", correcting.log),
        ("GET", f"{_API}/corrections/last", correcting.last),
        ("POST", f"{_API}/corrections/undo", correcting.undo),
        ("GET", f"{_API}/review", Reviewing(context).pairs),
        ("GET", f"{_API}/store", store_page.store),
        ("GET", f"{_API}/runs", store_page.runs),
        ("GET", f"{_API}/runs/{{run_id}}/report", store_page.report),
        ("POST", f"{_API}/recognise", recognising.recognise),
        ("POST", f"{_API}/enrol", recognising.enrol),
        ("GET", f"{_API}/pictures/{{guid}}", browsing.picture),
        ("GET", f"{_API}/faces/{{number}}/picture", browsing.face_picture),
        ("GET", f"{_API}/photos/{{number}}/picture", browsing.photo_picture),
    ]


async def _to_page(request: Request) -> Response:
    """Sends browsers to the page. Programs find nothing here, as before there was a page."""
    if "text/html" not in request.headers.get("accept", ""):
        raise RouteUnknown()
    return RedirectResponse(PREFIX, 303, {"Vary": "Accept"})
