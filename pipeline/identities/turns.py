"""Who may change a directory: one caller alone, or at the same time several who cannot affect each other.

Whoever is alone holds the lock from his decision until his commit is applied. Of the others each holds it to decide,
leaves a claim that says on what the decision rests and what it changes, commits without the lock, and holds it again
to apply the commit. So commits of one directory can share a transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pipeline.identities.claims import Claim


class Turns:
    """The lock of one directory."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self.under_way: list[Claim] = []
        self.waiting_alone = 0

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The lock for the block, with nothing under way."""
        with self.changed:
            self.wait_alone()
            yield

    @contextmanager
    def together(self, refresh: Callable[[], None]) -> Iterator[Turn]:
        """The lock for the block, but for the parts where the turn gives it up. Whoever wants to be alone goes first,
        or many who don't could keep him waiting for ever.

        `refresh` is called with the lock before each decision: where somebody failed meanwhile it sees to what he left.
        """
        with self.changed:
            self.changed.wait_for(lambda: not self.waiting_alone)
            turn = Turn(self, refresh)
            try:
                refresh()
                yield turn
            finally:
                turn.end()

    def wait_alone(self) -> None:
        """Until nothing is under way. The caller holds the lock."""
        self.waiting_alone += 1
        try:
            self.changed.wait_for(lambda: not self.under_way)
        finally:
            self.waiting_alone -= 1
            self.changed.notify_all()  # the newcomers, who go on when the caller gives the lock up


class Turn:
    """The turn of one of several. Its thread holds the lock between the calls of its methods."""

    def __init__(self, turns: Turns, refresh: Callable[[], None]) -> None:
        self._turns = turns
        self._refresh = refresh
        self._claim: Claim | None = None

    def claim(self, claim: Claim) -> bool:
        """Registers the claim, until the turn ends. False: it conflicted with one that was under way; now nothing is,
        and the decision must be looked at again, once. Until then newcomers wait, or a claim on many persons might
        never get in."""
        turns = self._turns
        if any(claim.conflicts(other) for other in turns.under_way):
            turns.wait_alone()
            self._refresh()
            return False
        self._claim = claim
        turns.under_way.append(claim)
        return True

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """The block is done without the lock."""
        self._turns.changed.release()
        try:
            yield
        finally:
            self._turns.changed.acquire()

    def end(self) -> None:
        """Takes the claim back. The turn may go on without one."""
        if self._claim is not None:
            self._turns.under_way = [each for each in self._turns.under_way if each is not self._claim]
            self._claim = None
        self._turns.changed.notify_all()
