"""What the handlers of the web UI share: its parts of the server, and the visit, a call by a session."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request

from pipeline.config import MatchSettings
from pipeline.errors import OtherAccount, ParameterInvalid
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.matching.calibration import Calibration
from pipeline.people.directory import Changed
from pipeline.serve.context import Call, Context
from pipeline.serve.request_parsing import Query
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.serve.ui.people_list import PeopleList, PeopleLists
from pipeline.serve.ui.photos import Photos
from pipeline.serve.ui.same_site import check_same_site
from pipeline.serve.ui.sessions import Session, Sessions
from pipeline.store import Regrouping
from pipeline.texts import DIRECTORY_RULE, directory_name

COOKIE: Final = "facepipe_page"
# The user the tab was opened for, percent-encoded: tabs share the cookie, and another user may have signed in.
USER_HEADER: Final = "x-facepipe-user"
MAX_COUNT: Final = 500


@dataclass(frozen=True)
class PageContext(Context):
    """The parts of the server that the page uses, of which some are its own."""

    originals: BoundedThreadPool  # for photos of the store, which decode slowly
    deciding: BoundedThreadPool  # for whole directories, which can take minutes
    sessions: Sessions

    @cached_property
    def photos(self) -> Photos:
        return Photos(self.settings)

    @property
    def calibration(self) -> Calibration:
        return Calibration.from_dict(self.store.identity.calibration)

    @cached_property
    def regrouped(self) -> dict[tuple[str, tuple[int, str], int, Changed], Regrouping]:
        """The last dry run of a regroup, by the index of `now` or the `newer`, directory and versions; at most one."""
        return {}

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
        request.state.place.hold()  # until the answer, its connection cannot be evicted
        return session

    async def visit(self, request: Request) -> Visit:
        """Raises as `session`, and ParameterInvalid."""
        session = self.session(request)
        try:
            directory = directory_name(Query(request).text("directory") or "main")
        except ValueError:
            raise ParameterInvalid(name="directory", expected=DIRECTORY_RULE.removeprefix("must be ")) from None
        return Visit(context=self, request=request, account_id=session.account_id, directory=directory, session=session)


@dataclass(frozen=True, kw_only=True)
class Visit(Call):
    """A signed-in user's request about one directory."""

    context: PageContext
    session: Session

    @property
    def store(self) -> Store:
        return Store(self.context.store, self.context.settings, self.context.service)

    @property
    def people(self) -> People:
        """The operations of `facepipe people`, made by the service."""
        return People(self.store, self.session.user, self.directory)

    @cached_property
    def match(self) -> MatchSettings:
        """The quality gate and threshold of the directory."""
        return self.service.match_of(*self.place)

    @cached_property
    def listed(self) -> PeopleList:
        """The people of the directory, in the orders of the grid: one list for the whole request."""
        return self.context.lists.of(self.place, self.people)

    def count(self, default: int) -> int:
        """The size of a page of results. Raises ParameterInvalid."""
        return self.query.whole("count", default, 1, MAX_COUNT)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of several words, by default the first. Raises ParameterInvalid."""
        word = self.query.text(name) or choices[0]
        if word not in choices:
            raise ParameterInvalid(name=name, expected=f"one of {', '.join(choices)}")
        return word


def stamp(moment: datetime) -> str:
    """A naive time in UTC, for JSON."""
    return f"{moment.isoformat(timespec='microseconds')}Z"
