"""What the handlers of the page share: the parts of the server, and the visit, which is who asks about which directory.

A handler is a function of a visit, and runs on a thread. It returns JSON, or a whole response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from pipeline.config import Settings
from pipeline.errors import OtherAccount, ParameterInvalid
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.matching.calibration import Calibration
from pipeline.people.service import IdentityService
from pipeline.serve.auth import Authenticator
from pipeline.serve.middleware import Handler
from pipeline.serve.request_body import BodyReader
from pipeline.serve.request_parsing import Query
from pipeline.serve.responses import encoded_response, json_bytes
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.serve.ui.people_list import PeopleList, PeopleLists
from pipeline.serve.ui.photos import Photos
from pipeline.serve.ui.same_site import check_same_site
from pipeline.serve.ui.sessions import Session, Sessions
from pipeline.store import LocalStore
from pipeline.texts import DIRECTORY_RULE, directory_name

COOKIE: Final = "facepipe_page"
# For whom the page asks, percent-encoded: all tabs have one cookie, and somebody else may have signed in in another.
USER_HEADER: Final = "x-facepipe-user"
MAX_COUNT: Final = 500

Json: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Context:
    """The parts of the server that the page uses."""

    service: IdentityService
    store: LocalStore
    settings: Settings
    auth: Authenticator
    bodies: BodyReader
    posts: BoundedThreadPool  # for photos
    calls: BoundedThreadPool  # for everything else
    originals: BoundedThreadPool  # for photos of the store, which take long to decode
    sessions: Sessions

    @cached_property
    def photos(self) -> Photos:
        return Photos(self.settings)

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.from_dict(self.store.identity.calibration)

    @cached_property
    def lists(self) -> PeopleLists:
        return PeopleLists(self.service)

    def session(self, request: Request) -> Session:
        """Raises CrossSite, SignInRequired, OtherAccount."""
        check_same_site(request)
        session = self.sessions.find(request.cookies.get(COOKIE))
        expected = request.headers.get(USER_HEADER)
        if expected is not None and unquote(expected) != session.user:
            raise OtherAccount()
        request.state.place.hold()  # until the answer, its connection gives way to no other
        return session

    def visit(self, request: Request) -> Visit:
        """Raises as `session`, and ParameterInvalid."""
        session, query = self.session(request), Query(request)
        try:
            directory = directory_name(query.text("directory") or "main")
        except ValueError:
            raise ParameterInvalid(name="directory", expected=DIRECTORY_RULE.removeprefix("must be ")) from None
        return Visit(self, request, session, directory, query)

    def route(self, handler: Callable[[Visit], Json | Response], pool: BoundedThreadPool | None = None) -> Handler:
        """The route that a handler answers, on a thread of `pool`. The body of a POST is a JSON object."""

        async def answer(request: Request) -> Response:
            visit = self.visit(request)
            if request.method == "POST":
                visit.body.update(await self.bodies.object(request, visit.session.account_id))
            return await self.answer(lambda: handler(visit), pool)

        return answer

    async def answer(self, work: Callable[[], Json | Response], pool: BoundedThreadPool | None = None) -> Response:
        """What `work` returns, as a response; both are made on a thread."""

        def made() -> Response:
            answer = work()
            return answer if isinstance(answer, Response) else encoded_response(json_bytes(answer))

        return await (pool or self.calls).run(made)


@dataclass(frozen=True)
class Visit:
    """A request of somebody who is signed in, about one directory."""

    context: Context
    request: Request
    session: Session
    directory: str
    query: Query
    body: Json = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, str]:
        """The account and the directory, as the service wants them."""
        return self.session.account_id, self.directory

    @property
    def people(self) -> People:
        """The operations of `facepipe people`, made by the service."""
        store = Store(self.context.store, self.context.settings, self.context.service)
        return People(store, self.session.user, self.directory)

    @property
    def listed(self) -> PeopleList:
        """The people of the directory, in the orders of the grid."""
        return self.context.lists.of(self.place, self.people)

    def count(self, default: int) -> int:
        """How many things a page of results has. Raises ParameterInvalid."""
        return self.query.whole("count", default, 1, MAX_COUNT)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of several words, by default the first. Raises ParameterInvalid."""
        word = self.query.text(name) or choices[0]
        if word not in choices:
            raise ParameterInvalid(name=name, expected=f"one of {', '.join(choices)}")
        return word


def stamp(moment: datetime) -> str:
    """A naive time in UTC as JSON has it."""
    return f"{moment.isoformat(timespec='microseconds')}Z"
