"""What the handlers of the page share: the service, the store, and who asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final
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


@dataclass(frozen=True)
class Visitor:
    """Who asks, and about which directory."""

    session: Session
    directory: str

    @property
    def place(self) -> tuple[int, str]:
        """The account and the directory, as the service wants them."""
        return self.session.account_id, self.directory


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

    def visitor(self, request: Request) -> Visitor:
        """Raises as `session`, and ParameterInvalid."""
        session = self.session(request)
        try:
            return Visitor(session, directory_name(Query(request).text("directory") or "main"))
        except ValueError:
            raise ParameterInvalid(name="directory", expected=DIRECTORY_RULE.removeprefix("must be ")) from None

    def people(self, visitor: Visitor) -> People:
        """The operations of `facepipe people`, made by the service."""
        store = Store(self.store, self.settings, self.service)
        return People(store, visitor.session.user, visitor.directory)

    def listed(self, visitor: Visitor) -> PeopleList:
        return self.lists.of(*visitor.place, self.people(visitor))

    async def answer(self, work: Callable[[], Mapping[str, Any]], headers: Mapping[str, str] | None = None) -> Response:
        """What `work` returns as JSON; both are made on a thread."""
        return encoded_response(await self.calls.run(lambda: json_bytes(work())), headers=headers)


def count_of(query: Query, default: int) -> int:
    """How many things a page has. Raises ParameterInvalid."""
    return query.whole("count", default, 1, MAX_COUNT)


def choice_of(query: Query, name: str, choices: tuple[str, ...]) -> str:
    """One of several words, by default the first. Raises ParameterInvalid."""
    word = query.text(name) or choices[0]
    if word not in choices:
        raise ParameterInvalid(name=name, expected=f"one of {', '.join(choices)}")
    return word


def stamp(moment: datetime) -> str:
    """A naive time in UTC as JSON has it."""
    return f"{moment.isoformat(timespec='microseconds')}Z"
