"""Group commit: changes that come in while the catalog's thread is busy share its next transaction.

DeWitt et al. 1984, "Implementation Techniques for Main Memory Database Systems". The cost of a transaction, mostly of
its statements and of the log's fsync, hardly depends on how many changes it holds, so a burst of requests costs little
more than one of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from pipeline.store.catalog.connection import Catalog
from pipeline.store.catalog.ids import PromisedIds
from pipeline.store.commits.directory import Change, RolledBack, commit_changes
from pipeline.store.records import PersonRecord

_MOST: Final = 32  # changes in one transaction; more would delay the first


@dataclass(frozen=True, eq=False)
class _Waiting:
    change: Change
    answer: Future[list[PersonRecord]] = field(default_factory=Future)


class GroupCommit:
    """Changes that wait for the catalog's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()

    def commit(self, change: Change, begin: Callable[[], object]) -> list[PersonRecord]:
        """What `commit_changes` returns for this change. `begin` makes the catalog's thread call `commit_next` once. If
        that raises, nothing is stored."""
        waiting = _Waiting(change)
        with self._lock:
            self._waiting.append(waiting)
        try:
            begin()
        except BaseException:
            with self._lock:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                    raise
            # An earlier call of `commit_next` has taken it, and sets its answer.
        return waiting.answer.result()

    def commit_next(self, catalog: Catalog, ids: PromisedIds) -> None:
        """On the catalog's thread: commits the changes that wait, if an earlier call has not done it."""
        group = self._take()
        if group:
            _commit(catalog, group, ids)

    def _take(self) -> list[_Waiting]:
        """The oldest change and those after it, up to the first that touches a person whom one of them touches."""
        group: list[_Waiting] = []
        touched: set[str] = set()
        with self._lock:
            while self._waiting and len(group) < _MOST and not touched & self._waiting[0].change.persons:
                group.append(self._waiting.popleft())
                touched |= group[-1].change.persons
        return group


def _commit(catalog: Catalog, group: Sequence[_Waiting], ids: PromisedIds) -> None:
    """A change that is refused must not fail the others: then each half gets a transaction of its own."""
    try:
        answers = commit_changes(catalog, [waiting.change for waiting in group], ids)
    except RolledBack as exc:
        if len(group) == 1:
            group[0].answer.set_exception(exc.__cause__)
            return
        middle = len(group) // 2
        _commit(catalog, group[:middle], ids)
        _commit(catalog, group[middle:], ids)
    except BaseException as exc:  # noqa: BLE001  raised in the threads that wait
        for waiting in group:
            waiting.answer.set_exception(exc)
    else:
        for waiting, answer in zip(group, answers, strict=True):
            waiting.answer.set_result(answer)
