"""Finds the account of a request by its X-RPC-AUTHORIZATION.

Checking a password is slow on purpose, so verified credentials are remembered for a minute, as a keyed hash that dies
with the process. After that minute they are checked again, but on threads of their own: a flood of new credentials does
not reach those who were verified before, and among new ones the peers take turns. An unknown user costs the same work
as a wrong password. Failures are counted per user id and client address (behind a trusted proxy the one that it names):
that keeps off who guesses, and never locks out the right password from elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from pipeline.errors import TooManyAttempts, Unauthorized
from pipeline.serve.peers import peer_of
from pipeline.serve.request_parsing import header_text
from pipeline.serve.thread_pool import FairThreadPool
from pipeline.store.catalog.accounts import verify_password
from pipeline.store.records import Credentials

HEADER: Final = "X-RPC-AUTHORIZATION"
VERIFIED_S: Final = 60.0  # how long verified credentials are trusted
MAX_FAILURES: Final = 10  # failed attempts with one user id from one peer in a window
WINDOW_S: Final = 60.0
_QUEUE: Final = 128  # checks of one peer that may wait: more than most clients behind one address start at once
_MAX_REMEMBERED: Final = 10_000  # verified credentials, and counted pairs of user and peer


@dataclass
class _Failures:
    count: int
    window_end: float


class Authenticator:
    """Verifies credentials on threads. `lookup` reads an account's credentials from the store; `clock` gives seconds.

    `account` must be called from one event loop; `drop` may be called from any thread.
    """

    def __init__(
        self,
        lookup: Callable[[str], Credentials | None],
        *,
        threads: int,
        queue: int = _QUEUE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        self._known_checks = FairThreadPool("auth-known", threads=threads, queue=queue)
        self._new_checks = FairThreadPool("auth", threads=threads, queue=queue)
        self._secret = os.urandom(32)
        self._verified: OrderedDict[bytes, tuple[str, int, float]] = OrderedDict()
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[int | None]] = {}
        self._lock = threading.Lock()
        self._drops = 0
        self.on_drop: list[Callable[[str], None]] = []

    async def account(self, request: Request) -> int:
        """The account of the request's credentials. Raises Unauthorized, TooManyAttempts, Overloaded."""
        user_id, colon, password = (header_text(request, HEADER) or "").partition(":")
        if not colon:
            raise Unauthorized()
        return await self.verified(user_id, password, peer_of(request))

    async def verified(self, user_id: str, password: str, peer: str) -> int:
        """The account of these credentials, which `peer` sent. Raises as `account`."""
        digest = self._digest(user_id, password)
        remembered = self._remembered(digest)
        if remembered is not None:
            return remembered
        account = await self._checked_once(digest, peer, user_id, password)
        if account is None:
            raise Unauthorized()
        return account

    def drop(self, user_id: str) -> None:
        """Forgets the verified credentials of a user whose password has changed, and tells `on_drop`."""
        with self._lock:
            self._drops += 1
            for digest in [key for key, (user, _, _) in self._verified.items() if user == user_id]:
                del self._verified[digest]
        for dropped in self.on_drop:
            dropped(user_id)

    def close(self) -> None:
        self._known_checks.close()
        self._new_checks.close()

    def _remembered(self, digest: bytes) -> int | None:
        with self._lock:
            _, account_id, expires = self._verified.get(digest, ("", None, 0.0))
        return account_id if self._clock() < expires else None

    async def _checked_once(self, digest: bytes, peer: str, user_id: str, password: str) -> int | None:
        """Requests that send the same credentials at the same moment share one check."""
        task = self._running.get(digest)
        if task is None:
            with self._lock:
                was_right = digest in self._verified
            check = functools.partial(self._check, self._known_checks) if was_right else self._check_new
            task = asyncio.create_task(check(digest, peer, user_id, password))
            self._running[digest] = task
            task.add_done_callback(lambda _: self._running.pop(digest))
        # A client that goes away must not cancel the check that others wait for.
        return await asyncio.shield(task)

    async def _check_new(self, digest: bytes, peer: str, user_id: str, password: str) -> int | None:
        key = self._digest(user_id, peer)
        self._admit(key)
        try:
            account = await self._check(self._new_checks, digest, peer, user_id, password)
        except BaseException:
            self._forgive(key)  # the check did not finish: this was no failure
            raise
        if account is not None:
            self._forgive(key)
        return account

    async def _check(self, checks: FairThreadPool, digest: bytes, peer: str, user_id: str, password: str) -> int | None:
        drops = self._drops
        account = await checks.run(peer, lambda: self._verify(user_id, password))
        with self._lock:
            if account is None:
                self._verified.pop(digest, None)
            elif drops == self._drops:  # otherwise the check may have used the old password
                self._verified[digest] = (user_id, account, self._clock() + VERIFIED_S)
                _trim(self._verified)
        return account

    def _verify(self, user_id: str, password: str) -> int | None:
        """Tries both forms of the password for every user, known or not, so that the time reveals nothing."""
        credentials = self._lookup(user_id)
        hashed = credentials.password_hash if credentials else None
        for candidate in _passwords(password):
            if verify_password(candidate, hashed) and credentials is not None:
                return credentials.account_id
        return None

    def _admit(self, key: bytes) -> None:
        """Counts an attempt as failed until the check says otherwise, so that parallel guesses count too."""
        now = self._clock()
        failures = self._failures.get(key)
        if failures is None or now >= failures.window_end:
            failures = self._failures[key] = _Failures(0, now + WINDOW_S)
        self._failures.move_to_end(key)
        _trim(self._failures)
        if failures.count >= MAX_FAILURES:
            raise TooManyAttempts(retry_after_s=max(1, round(failures.window_end - now)))
        failures.count += 1

    def _forgive(self, key: bytes) -> None:
        if key in self._failures:
            self._failures[key].count -= 1

    def _digest(self, user_id: str, other: str) -> bytes:
        # The length keeps "a" + "b:c" and "a:b" + "c" apart.
        text = f"{len(user_id)}:{user_id}:{other}"
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)


def _passwords(password: str) -> list[str]:
    """The password as sent, and the text it is the base64 of, if any."""
    try:
        decoded = base64.b64decode(password, validate=True).decode()
    except ValueError:  # binascii.Error is one
        return [password]
    return [password, decoded] if decoded else [password]


def _trim(table: OrderedDict[bytes, Any]) -> None:
    while len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)
