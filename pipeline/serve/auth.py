"""Credentials: X-RPC-AUTHORIZATION to an account.

A password's hash takes long to check on purpose, so what was verified is remembered for a short while, as a keyed
hash that dies with the process. An unknown user costs the same work as a wrong password. Failures are counted per
user id and peer: a guesser is held off, and the right password from elsewhere never is.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request

from pipeline.errors import TooManyAttempts, Unauthorized
from pipeline.serve.requests import header_text
from pipeline.serve.work_pool import WorkPool
from pipeline.store.catalog.accounts import verify_password
from pipeline.store.records import Credentials

HEADER: Final = "X-RPC-AUTHORIZATION"
VERIFIED_S: Final = 60.0  # a verified credential is trusted for so long
MAX_FAILURES: Final = 10  # of a user id from a peer, in one window
WINDOW_S: Final = 60.0
_MAX_REMEMBERED: Final = 10_000  # verified credentials, and counted pairs of user and peer
_IPV6_SITE_BITS: Final = 64  # one host has at least so many addresses of its own


@dataclass
class _Failures:
    count: int
    until: float  # the end of the window


class Authenticator:
    """Verifies credentials, off the event loop. `lookup` is the store's; `clock` gives seconds.

    Used from one event loop; `drop` may be called from any thread.
    """

    def __init__(
        self,
        lookup: Callable[[str], Credentials | None],
        *,
        threads: int,
        queue: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._clock = clock
        self._pool = WorkPool("auth", threads=threads, queue=queue)
        self._secret = os.urandom(32)
        self._verified: OrderedDict[bytes, tuple[str, int, float]] = OrderedDict()
        self._failures: OrderedDict[bytes, _Failures] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[int | None]] = {}
        self._lock = threading.Lock()
        self._drops = 0

    async def account(self, request: Request) -> int:
        """The account of the request's credentials. Raises Unauthorized, TooManyAttempts, Overloaded."""
        user_id, colon, password = (header_text(request, HEADER) or "").partition(":")
        if not colon:
            raise Unauthorized()
        digest = self._digest(user_id, password)
        known = self._remembered(digest)
        if known is not None:
            return known
        peer = self._digest(user_id, _site(request.client.host if request.client else ""))
        account = await self._checked_once(digest, peer, user_id, password)
        if account is None:
            raise Unauthorized()
        return account

    def drop(self, user_id: str) -> None:
        """Forgets what was verified for a user: the password is another one now."""
        with self._lock:
            self._drops += 1
            for digest in [key for key, (user, _, _) in self._verified.items() if user == user_id]:
                del self._verified[digest]

    def close(self) -> None:
        self._pool.close()

    def _remembered(self, digest: bytes) -> int | None:
        with self._lock:
            found = self._verified.get(digest)
        return found[1] if found is not None and self._clock() < found[2] else None

    async def _checked_once(self, digest: bytes, peer: bytes, user_id: str, password: str) -> int | None:
        """Clients that send the same credentials at the same moment share one check."""
        task = self._running.get(digest)
        if task is None:
            self._admit(peer)
            task = asyncio.create_task(self._check(digest, peer, user_id, password))
            self._running[digest] = task
            task.add_done_callback(lambda _: self._running.pop(digest))
        # A client that goes away must not end the check that others wait for.
        return await asyncio.shield(task)

    async def _check(self, digest: bytes, peer: bytes, user_id: str, password: str) -> int | None:
        drops = self._drops
        try:
            account = await self._pool.run(lambda: self._verify(user_id, password))
        except BaseException:
            self._forgive(peer)  # nothing was found out
            raise
        if account is not None:
            self._forgive(peer)
            with self._lock:
                if drops == self._drops:  # else it may have been verified against the old password
                    self._verified[digest] = (user_id, account, self._clock() + VERIFIED_S)
                    _trim(self._verified)
        return account

    def _verify(self, user_id: str, password: str) -> int | None:
        """Both forms of the password are tried whoever the user is, so the work tells nothing."""
        found = self._lookup(user_id)
        hashed = found.password_hash if found else None
        for candidate in _passwords(password):
            if verify_password(candidate, hashed) and found is not None:
                return found.account_id
        return None

    def _admit(self, peer: bytes) -> None:
        """Counts an attempt as failed until it is known not to be: parallel guesses are counted too."""
        now = self._clock()
        failures = self._failures.get(peer)
        if failures is None or now >= failures.until:
            failures = self._failures[peer] = _Failures(0, now + WINDOW_S)
        self._failures.move_to_end(peer)
        _trim(self._failures)
        if failures.count >= MAX_FAILURES:
            raise TooManyAttempts(retry_after_s=max(1, round(failures.until - now)))
        failures.count += 1

    def _forgive(self, peer: bytes) -> None:
        if peer in self._failures:
            self._failures[peer].count -= 1

    def _digest(self, user_id: str, other: str) -> bytes:
        # The length keeps "a" + "b:c" and "a:b" + "c" apart.
        text = f"{len(user_id)}:{user_id}:{other}"
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)


def _passwords(password: str) -> list[str]:
    """As it stands, and what it is the base64 of."""
    try:
        decoded = base64.b64decode(password, validate=True).decode()
    except ValueError:  # binascii.Error is one
        return [password]
    return [password, decoded] if decoded else [password]


def _site(host: str) -> str:
    """What counts as one peer: an IPv4 address, or an IPv6 site."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
    return str(address)


def _trim(table: OrderedDict[bytes, Any]) -> None:
    while len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)
