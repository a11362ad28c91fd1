"""The memory that the bodies of all requests may take together, shared fairly by account and peer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.errors import Overloaded
from pipeline.people.batcher import RETRY_AFTER_S


class BodyBudget:
    """At most `total` bytes. A byte counts when it arrives, so a body that was only announced takes nothing."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._owners: Counter[tuple[int, str | None]] = Counter()  # bytes by account and peer; peer None: of all peers
        self._arriving: set[Body] = set()
        self._numbers = itertools.count()

    def body(self, account_id: int, peer: str) -> Body:
        """A new body, which counts until it is released."""
        body = Body(account_id, peer, next(self._numbers))
        self._arriving.add(body)
        return body

    def add(self, body: Body, chunk: bytes) -> None:
        """Adds a chunk to a body. If the budget is spent, an arriving body is dropped first: of the account with the
        most bytes, there of the peer with the most, and there the one that began last, so that the others get through.
        Raises Overloaded if that is `body` itself, or was already: a reader that is cancelled as its chunk comes may
        still add it (asyncio.wait_for of Python before 3.12)."""
        if body.refused:
            raise Overloaded(retry_after_s=RETRY_AFTER_S)
        while self.taken + len(chunk) > self.total:
            last = max((other for other in self._arriving if other.size or other is body), key=self._claim)
            if last is body:
                raise Overloaded(retry_after_s=RETRY_AFTER_S)
            self.release(last)
            last.refused = True
            last.give_way()
        self._count(body, len(chunk))
        body.chunks.append(chunk)

    def arrived(self, body: Body) -> None:
        """The body is whole, and is not dropped any more."""
        self._arriving.discard(body)

    def release(self, body: Body) -> None:
        """Frees what the body takes; a second call does nothing."""
        self._arriving.discard(body)
        body.chunks.clear()
        self._count(body, -body.size)

    def _count(self, body: Body, size: int) -> None:
        body.size += size
        self.taken += size
        for owner in ((body.account_id, None), (body.account_id, body.peer)):
            self._owners[owner] += size
            if not self._owners[owner]:
                del self._owners[owner]

    def _claim(self, body: Body) -> tuple[int, int, int]:
        return self._owners[body.account_id, None], self._owners[body.account_id, body.peer], body.number


@dataclass(eq=False)
class Body:
    """What has arrived of a body: `size` bytes."""

    account_id: int
    peer: str
    number: int  # in the order in which they began
    size: int = 0
    chunks: list[bytes] = field(default_factory=list)
    refused: bool = False  # it was dropped for another
    give_way: Callable[[], object] = lambda: None  # called then, to end its reading
