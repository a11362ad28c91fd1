"""What the handlers of all routes share."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from pipeline.identities.service import IdentityService
from pipeline.serve.answers import Answers
from pipeline.serve.auth import Authenticator
from pipeline.serve.bodies import BodyReader
from pipeline.serve.metrics import Metrics
from pipeline.serve.requests import Caller, directory
from pipeline.serve.work_pool import WorkPool


@dataclass(frozen=True)
class Context:
    service: IdentityService
    auth: Authenticator
    bodies: BodyReader
    posts: WorkPool  # for images: their threads wait for the models
    calls: WorkPool  # for all else, so that nothing quick waits behind an image
    answers: Answers
    metrics: Metrics

    async def caller(self, request: Request) -> Caller:
        """Raises Unauthorized, TooManyAttempts, and only then DirectoryRequired, DirectoryInvalid."""
        account_id = await self.auth.account(request)
        return Caller(account_id, directory(request))
