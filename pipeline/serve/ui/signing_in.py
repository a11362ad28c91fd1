"""Signing in and out."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, TypeGuard

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import BodyInvalid, SignInRefused, SignInRequired, Unauthorized
from pipeline.serve.connections import peer_of
from pipeline.serve.context import Json
from pipeline.serve.ui.answers import directories_json, gate_json
from pipeline.serve.ui.context import COOKIE, PageContext
from pipeline.serve.ui.same_site import PREFIX, check_same_site
from pipeline.serve.ui.sessions import Session
from pipeline.texts import is_unicode

_MAX_BYTES: Final = 16 * 1024  # of a sign-in
_NOBODY: Final = -1  # the account of a body with an unknown sender


async def sign_in(context: PageContext, request: Request) -> Response:
    """Signs in, ending the session of the request's cookie, if any. Raises SignInRefused, TooManyAttempts."""
    check_same_site(request)
    body = await context.bodies.object(request, _NOBODY, _MAX_BYTES)
    user, password = body.get("user"), body.get("password")
    if not _is_text(user) or not _is_text(password):
        raise BodyInvalid(detail="user and password must be texts")
    drops = context.sessions.drops
    try:
        account_id = await context.auth.verified(user, password, peer_of(request))
    except Unauthorized:
        raise SignInRefused() from None
    token, session = context.sessions.start(user, account_id, drops)
    context.sessions.end(request.cookies.get(COOKIE))
    answer = await context.answer(lambda: _told(context, session))
    answer.set_cookie(
        COOKIE,
        token,
        max_age=int(context.sessions.session_s),
        path=PREFIX,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


async def tell(context: PageContext, request: Request) -> Response:
    """Who is signed in, and what the web UI needs to know of the server."""
    session = context.session(request)
    return await context.answer(lambda: _told(context, session))


async def sign_out(context: PageContext, request: Request) -> Response:
    """Raises OtherAccount."""
    with suppress(SignInRequired):  # an ended session is signed out
        context.session(request)
    context.sessions.end(request.cookies.get(COOKIE))
    answer = Response(status_code=204, headers={"Clear-Site-Data": '"cache"'})
    answer.delete_cookie(COOKIE, path=PREFIX, httponly=True, samesite="strict")
    return answer


def _told(context: PageContext, session: Session) -> Json:
    settings, match = context.settings, context.settings.match
    return {
        "user": session.user,
        "directories": directories_json(context, session),
        "idleSeconds": context.sessions.idle_s,
        "endsInSeconds": round(context.sessions.seconds_left(session), 3),
        "photos": settings.ui.photo_roots is not None,
        "labelSpaces": settings.ui.label_spaces,
        "personHeaders": settings.serve.person_headers,
        "threshold": match.threshold,
        "gate": gate_json(match.min_cpq, match.min_fsq, match.min_fcq),
        "maxBodyBytes": settings.serve.max_body_bytes,
    }


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it is an encodable text: JSON can contain lone surrogates."""
    return isinstance(value, str) and is_unicode(value)
