"""Posts into one directory that cannot affect each other are committed together, and all others as if alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from pipeline import faults
from pipeline.errors import StoreUnwritable
from pipeline.service.service import IdentityService
from pipeline.service.types import PostRequest, PostResult
from pipeline.store.client import StoreClient
from tests.service.planted import SIZE, Face, PlantedExtractor, near, somebody

WAIT_S = 20.0


class Transactions:
    """The requests' transactions, of which each can be held up before it begins."""

    def __init__(self) -> None:
        self.count = 0
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.fail_next = False

    def __call__(self, name: str) -> None:
        if name == "directory_commit.begin":
            self.count += 1
            self.reached.set()
            self.open.wait(WAIT_S)
        if name == "directory_commit.committed" and self.fail_next:
            self.fail_next = False
            raise StoreUnwritable(path="disk", detail="planted")


@pytest.fixture
def transactions() -> Iterator[Transactions]:
    made = Transactions()
    faults.install(made)
    yield made
    faults.install(None)


@pytest.fixture
def post(
    people: IdentityService, extractor: PlantedExtractor, account: int
) -> Iterator[Callable[[np.ndarray], Future[PostResult]]]:
    """Posts one face on a thread of its own."""
    with ThreadPoolExecutor(SIZE) as pool:

        def begin(vector: np.ndarray) -> Future[PostResult]:
            return pool.submit(people.post, account, "main", extractor.photo(Face(vector)), PostRequest(update=False))

        yield begin


def waiting(client: StoreClient, count: int) -> None:
    """Until so many changes wait for the writer thread."""
    while len(client._group._waiting) < count:
        threading.Event().wait(0.001)


def test_strangers_share_a_transaction(
    transactions: Transactions, post: Callable[[np.ndarray], Future[PostResult]], client: StoreClient, account: int
) -> None:
    transactions.open.clear()
    first = post(somebody(0))
    assert transactions.reached.wait(WAIT_S)
    others = [post(somebody(k)) for k in range(1, 7)]
    waiting(client, 6)
    transactions.open.set()
    assert all(answer.result(WAIT_S).faces[0].inserted for answer in [first, *others])
    assert transactions.count == 2
    assert len(client.references(account, "main").persons) == 7


def test_who_would_match_a_face_under_way_waits_and_matches(
    transactions: Transactions, post: Callable[[np.ndarray], Future[PostResult]], people: IdentityService, account: int
) -> None:
    transactions.open.clear()
    first = post(somebody(0))
    assert transactions.reached.wait(WAIT_S)
    second = post(near(0, 0.5))
    threading.Event().wait(0.1)
    assert not second.done()
    transactions.open.set()
    inserted, matched = first.result(WAIT_S).faces[0], second.result(WAIT_S).faces[0]
    assert (inserted.inserted, matched.inserted) == (True, False)
    assert inserted.person is not None
    assert matched.person is not None
    assert matched.person.record.person_id == inserted.person.record.person_id
    (view,) = people.people(account, "main")
    assert view.record.occurrence == 2


def test_a_deletion_waits_for_posts_under_way(
    transactions: Transactions, post: Callable[[np.ndarray], Future[PostResult]], people: IdentityService, account: int
) -> None:
    known = post(somebody(0)).result(WAIT_S).faces[0].person
    assert known is not None
    transactions.reached.clear()
    transactions.open.clear()
    under_way = post(somebody(1))
    assert transactions.reached.wait(WAIT_S)
    deletion = threading.Thread(target=people.delete_person, args=(account, "main", known.record.person_id))
    deletion.start()
    deletion.join(0.1)
    assert deletion.is_alive()
    transactions.open.set()
    deletion.join(WAIT_S)
    assert under_way.result(WAIT_S).faces[0].inserted
    assert [view.record.seq for view in people.people(account, "main")] == [2]


def test_those_who_shared_a_transaction_in_doubt_are_all_read_anew(
    transactions: Transactions, post: Callable[[np.ndarray], Future[PostResult]], people: IdentityService, account: int
) -> None:
    """A failure after the COMMIT: everybody gets the error, and what is in is known and is not inserted again."""
    transactions.open.clear()
    first = post(somebody(0))
    assert transactions.reached.wait(WAIT_S)
    others = [post(somebody(k)) for k in (1, 2)]
    same_again = post(near(0, 0.5))  # waits for the first
    threading.Event().wait(0.1)
    transactions.fail_next = True
    transactions.open.set()
    assert isinstance(first.exception(WAIT_S), StoreUnwritable)
    assert not same_again.result(WAIT_S).faces[0].inserted, "decided on what the store holds"
    assert all(answer.result(WAIT_S).faces[0].inserted for answer in others)
    assert len(people.people(account, "main")) == 3
    assert not any(post(somebody(k)).result(WAIT_S).faces[0].inserted for k in range(3))
