"""What all handlers share: the parts of the server, and the call, an account's request about a directory.

A handler is a function of a call, runs on a thread, and returns JSON or a whole response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from pipeline.config import Settings
from pipeline.people.service import IdentityService
from pipeline.serve.auth import Authenticator
from pipeline.serve.metrics import Metrics
from pipeline.serve.middleware import Handler
from pipeline.serve.request_body import BodyReader
from pipeline.serve.request_parsing import Query, directory_name
from pipeline.serve.responses import encoded_response, json_bytes
from pipeline.serve.serializer import Serializer
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.store import LocalStore

Json: TypeAlias = "dict[str, Any]"
Answer: TypeAlias = "Json | Response"
AnyCall = TypeVar("AnyCall", bound="Call")


@dataclass(frozen=True)
class Context:
    """The parts of the server."""

    service: IdentityService
    store: LocalStore
    settings: Settings
    auth: Authenticator
    bodies: BodyReader
    posts: BoundedThreadPool  # for images: their threads wait for the models
    calls: BoundedThreadPool  # for all else, so that nothing quick waits behind an image
    serializer: Serializer
    metrics: Metrics
    is_ready: Callable[[], bool]  # whether requests can be answered now; may block

    async def call(self, request: Request) -> Call:
        """Raises Unauthorized, TooManyAttempts, and only then DirectoryRequired, DirectoryInvalid."""
        account_id = await self.auth.account(request)
        request.state.place.hold()  # until the answer, its connection cannot be evicted
        return Call(self, request, account_id, directory_name(request))

    def route(
        self,
        call_of: Callable[[Request], Awaitable[AnyCall]],
        handler: Callable[[AnyCall], Answer],
        pool: BoundedThreadPool | None = None,
    ) -> Handler:
        """Makes a route's endpoint, which runs `handler` on a thread of `pool`. Bodies of changes are JSON objects."""

        async def answer(request: Request) -> Response:
            call = await call_of(request)
            if request.method in ("POST", "PUT"):
                call.body.update(await self.bodies.object(request, call.account_id))
            return await self.answer(lambda: handler(call), pool)

        return answer

    async def answer(self, work: Callable[[], Answer], pool: BoundedThreadPool | None = None) -> Response:
        """Runs `work` and encodes its JSON on the same thread: large directories must not delay other requests."""

        def made() -> Response:
            answer = work()
            return answer if isinstance(answer, Response) else encoded_response(json_bytes(answer))

        return await (pool or self.calls).run(made)


@dataclass(frozen=True)
class Call:
    """A request of an account, about one of its directories."""

    context: Context
    request: Request
    account_id: int
    directory: str
    body: Json = field(default_factory=dict)

    @property
    def service(self) -> IdentityService:
        return self.context.service

    @property
    def place(self) -> tuple[int, str]:
        """The account and the directory, as the service expects them."""
        return self.account_id, self.directory

    @cached_property
    def query(self) -> Query:
        return Query(self.request)
