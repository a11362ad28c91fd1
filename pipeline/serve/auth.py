"""Finds the account of a request by its X-RPC-AUTHORIZATION.

Checking a password is slow on purpose, so verified credentials are remembered for a minute, as a keyed hash in memory,
and only for the peer that sent them. Peers verified before have check threads of their own, so that a flood of new
credentials does not delay them; new peers take turns. An unknown user costs the same work as a wrong password.

Failed checks are counted per user id and peer (behind a trusted proxy, the address that it names). After too many,
requests are refused before any check, so that a refusal reveals nothing about the password. The right password from
elsewhere always works.
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
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from pipeline.errors import TooManyAttempts, Unauthorized
from pipeline.serve.connections import peer_of
from pipeline.serve.request_parsing import header_text
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.store import Credentials, accounts

HEADER: Final = "X-RPC-AUTHORIZATION"
VERIFIED_S: Final = 60.0  # how long verified credentials are trusted
MAX_FAILURES: Final = 10  # failed attempts with one user id from one peer in a window
WINDOW_S: Final = 60.0
REFUSAL_S = 0.5  # delay of a refusal, so that many guessing clients cost the others little
_QUEUE: Final = 128  # of one peer; more than most clients behind one address start at once
_MAX_REMEMBERED: Final = 10_000  # verified credentials
_MAX_OF_PEER: Final = 1_000  # users with failed checks of one peer in a window


class FailedChecks:
    """Counts the failed checks of each user and peer in windows of WINDOW_S. Thread-safe.

    No count is dropped before its window ends. Only executed checks are counted, which bounds the memory: scrypt allows
    a few thousand per window, of at most _MAX_OF_PEER users per peer.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: OrderedDict[tuple[str, bytes], _Window] = OrderedDict()  # ordered by end
        self._users: Counter[str] = Counter()  # of each peer
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._windows)

    def refuse(self, peer: str, user: bytes) -> None:
        """Raises TooManyAttempts if no attempt is left."""
        with self._lock:
            now = self._clock()
            while self._windows and now >= next(iter(self._windows.values())).end:
                self._drop(*next(iter(self._windows)))
            window = self._windows.get((peer, user))
            if window is None and self._users[peer] >= _MAX_OF_PEER:
                raise TooManyAttempts(retry_after_s=round(WINDOW_S))
            if window is not None and window.failures >= MAX_FAILURES:
                raise TooManyAttempts(retry_after_s=max(1, round(window.end - now)))

    def begin(self, peer: str, user: bytes) -> None:
        """Counts a starting check as failed, for concurrent checks. Raises as `refuse`."""
        with self._lock:
            self.refuse(peer, user)
            if (peer, user) not in self._windows:
                self._windows[peer, user] = _Window(self._clock() + WINDOW_S)
                self._users[peer] += 1
            self._windows[peer, user].failures += 1

    def forgive(self, peer: str, user: bytes) -> None:
        """Uncounts a check that succeeded."""
        with self._lock:
            window = self._windows.get((peer, user))
            if window is not None:  # otherwise its window has ended
                window.failures -= 1
                if not window.failures:
                    self._drop(peer, user)

    def _drop(self, peer: str, user: bytes) -> None:
        del self._windows[peer, user]
        self._users[peer] -= 1
        if not self._users[peer]:
            del self._users[peer]


@dataclass
class _Window:
    end: float
    failures: int = 0


class Authenticator:
    """Verifies credentials on threads. `lookup` reads an account's credentials from the store; `clock` gives seconds.

    Call `account` from one event loop only; `drop` from any thread.
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
        self._known_checks = BoundedThreadPool("auth-known", threads=threads, queue=queue)
        self._new_checks = BoundedThreadPool("auth", threads=threads, queue=queue)
        self._secret = os.urandom(32)
        self._verified: OrderedDict[bytes, tuple[str, int, float]] = OrderedDict()
        self._failures = FailedChecks(clock)
        self._running: dict[bytes, asyncio.Task[int | None]] = {}
        self._lock = threading.Lock()
        self._drops = 0
        self.on_drop: list[Callable[[str], None]] = []

    async def account(self, request: Request) -> int:
        """Returns the account of the request's credentials. Raises Unauthorized, TooManyAttempts, Overloaded."""
        user_id, colon, password = (header_text(request, HEADER) or "").partition(":")
        if not colon:
            raise Unauthorized()
        return await self.verified(user_id, password, peer_of(request))

    async def verified(self, user_id: str, password: str, peer: str) -> int:
        """Returns the account of these credentials, sent by `peer`. Raises as `account`."""
        user = self._digest(user_id)
        try:
            self._failures.refuse(peer, user)
        except TooManyAttempts:
            await asyncio.sleep(REFUSAL_S)
            raise
        digest = self._digest(user_id, password, peer)
        remembered = self._remembered(digest)
        if remembered is not None:
            return remembered
        # Concurrent requests with the same credentials share one check.
        task = self._running.get(digest)
        if task is None:
            with self._lock:
                checks = self._known_checks if digest in self._verified else self._new_checks
            check = functools.partial(self._check, user_id, password, peer, user, digest)
            task = asyncio.create_task(checks.run(check, peer))
            self._running[digest] = task
            task.add_done_callback(lambda _: self._running.pop(digest))
        # A client that disconnects must not cancel the check that others wait for.
        account = await asyncio.shield(task)
        if account is None:
            raise Unauthorized()
        return account

    def drop(self, user_id: str) -> None:
        """Drops a user's credentials after a password change, and calls `on_drop`."""
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

    def _check(self, user_id: str, password: str, peer: str, user: bytes, digest: bytes) -> int | None:
        """Runs on a thread. Raises TooManyAttempts if other checks failed while it waited."""
        self._failures.begin(peer, user)
        account, finished, drops = None, False, self._drops
        try:
            account, finished = self._verify(user_id, password), True
        finally:
            if account is not None or not finished:
                self._failures.forgive(peer, user)
        with self._lock:
            if account is None:
                self._verified.pop(digest, None)
            elif drops == self._drops:  # otherwise the check may have used the old password
                self._verified[digest] = (user_id, account, self._clock() + VERIFIED_S)
                while len(self._verified) > _MAX_REMEMBERED:
                    self._verified.popitem(last=False)
        return account

    def _verify(self, user_id: str, password: str) -> int | None:
        """Tries both forms of the password even for unknown users, so that timing reveals nothing."""
        credentials = self._lookup(user_id)
        hashed = credentials.password_hash if credentials else None
        for candidate in _passwords(password):
            if accounts.verify_password(candidate, hashed) and credentials is not None:
                return credentials.account_id
        return None

    def _digest(self, *texts: str) -> bytes:
        # Lengths distinguish "a" + "b:c" from "a:b" + "c".
        text = "".join(f"{len(text)}:{text}" for text in texts)
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)


def _passwords(password: str) -> list[str]:
    """The password as sent, and decoded from base64 if possible."""
    try:
        decoded = base64.b64decode(password, validate=True).decode()
    except ValueError:  # binascii.Error is one
        return [password]
    return [password, decoded] if decoded else [password]
