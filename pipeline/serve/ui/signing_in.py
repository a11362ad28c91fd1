"""Signing in and out."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import BodyInvalid, SignInRefused, SignInRequired, Unauthorized
from pipeline.serve.peers import peer_of
from pipeline.serve.ui.answers import gate_json
from pipeline.serve.ui.context import COOKIE, Context
from pipeline.serve.ui.same_site import PREFIX, check_same_site
from pipeline.serve.ui.sessions import Session
from pipeline.texts import is_unicode

_MAX_BYTES: Final = 16 * 1024  # of a sign-in
_NOBODY: Final = -1  # whose memory a body takes before it is known who sends it


@dataclass(frozen=True)
class SigningIn:
    context: Context

    async def sign_in(self, request: Request) -> Response:
        """Ends the session whose cookie came with it, if any. Raises SignInRefused, TooManyAttempts."""
        check_same_site(request)
        body = await self.context.bodies.object(request, _NOBODY, _MAX_BYTES)
        user, password = body.get("user"), body.get("password")
        if not _is_text(user) or not _is_text(password):
            raise BodyInvalid(detail="user and password must be texts")
        drops = self.context.sessions.drops
        try:
            account_id = await self.context.auth.verified(user, password, peer_of(request))
        except Unauthorized:
            raise SignInRefused() from None
        token, session = self.context.sessions.start(user, account_id, drops)
        self.context.sessions.end(request.cookies.get(COOKIE))
        answer = await self.context.answer(lambda: self._told(session))
        answer.set_cookie(
            COOKIE,
            token,
            max_age=int(self.context.sessions.session_s),
            path=PREFIX,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def tell(self, request: Request) -> Response:
        """Who is signed in, and what the page needs to know of the server."""
        session = self.context.session(request)
        return await self.context.answer(lambda: self._told(session))

    async def sign_out(self, request: Request) -> Response:
        """Raises OtherAccount."""
        with suppress(SignInRequired):  # whose session has ended is signed out
            self.context.session(request)
        self.context.sessions.end(request.cookies.get(COOKIE))
        answer = Response(status_code=204, headers={"Clear-Site-Data": '"cache"'})
        answer.delete_cookie(COOKIE, path=PREFIX, httponly=True, samesite="strict")
        return answer

    def _told(self, session: Session) -> dict[str, Any]:
        settings, match = self.context.settings, self.context.settings.match
        directories = [row for row in self.context.store.directories() if row.account_id == session.account_id]
        return {
            "user": session.user,
            "directories": [{"name": row.name, "identities": row.identities} for row in directories],
            "idleSeconds": self.context.sessions.idle_s,
            "endsInSeconds": round(self.context.sessions.seconds_left(session), 3),
            "photos": settings.ui.photo_roots is not None,
            "personHeaders": settings.serve.person_headers,
            "threshold": match.threshold,
            "gate": gate_json(match.min_cpq, match.min_fsq, match.min_fcq),
            "maxBodyBytes": settings.serve.max_body_bytes,
        }


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text that can be encoded: JSON can contain halves of surrogate pairs."""
    return isinstance(value, str) and is_unicode(value)
