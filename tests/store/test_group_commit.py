"""Changes that wait for the catalog's thread share its next transaction, and each succeeds or fails by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pipeline.errors import StoreError, StoreUnwritable, TooManyDirectories
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import Committed
from pipeline.store.schema import MAX_DIRECTORIES
from tests.store.store_samples import Asked, at_fault_points, commit, insertion, person, replacement
from tests.stored import stored_people
from tests.waiting import until


@pytest.fixture
def begun() -> Iterator[Callable[[], int]]:
    """How many transactions of requests have begun."""
    seen: list[str] = []
    with at_fault_points(seen.append):
        yield lambda: seen.count("change.begin")


@contextmanager
def writer_busy(client: LocalStore) -> Iterator[None]:
    """Keeps the catalog's thread busy for the block."""
    entered, leave = threading.Event(), threading.Event()
    holder = threading.Thread(target=client.submit, args=[lambda _: (entered.set(), leave.wait(30))])
    holder.start()
    entered.wait(30)
    try:
        yield
    finally:
        leave.set()
        holder.join()


def commit_together(client: LocalStore, changes: Sequence[Asked]) -> list[Future[Committed]]:
    """Commits from one thread each, queued in this order before the catalog's thread takes any."""
    with ThreadPoolExecutor(len(changes)) as pool:
        ready = [asked.change(client) for asked in changes]
        with writer_busy(client):
            waiting = client._group._waiting
            answers = []
            for change in ready:
                answers.append(pool.submit(client.commit, change))
                until(lambda: len(waiting) == len(answers))
        return answers


def names(client: LocalStore, account: int, directory: str = "main") -> list[str | None]:
    return [person.name for person in stored_people(client, account, directory).persons]


def test_changes_that_wait_together_share_a_transaction(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    changes = [insertion(account, f"d{number % 2}", number, f"P{number}") for number in range(1, 7)]
    answers = commit_together(client, changes)
    assert begun() == 1
    assert [seq for answer in answers for seq in answer.result().seqs.values()] == [1, 2, 3, 4, 5, 6], (
        "in the order of coming"
    )
    assert names(client, account, "d1") == ["P1", "P3", "P5"]
    assert names(client, account, "d0") == ["P2", "P4", "P6"]
    for change in changes:
        (reference,) = change.references
        assert client.read_image(account, reference.image_guid)[0] == reference.image
    assert check_store(client).problems == []


def test_a_refused_change_fails_alone(client: LocalStore, account: int, begun: Callable[[], int]) -> None:
    for number in range(MAX_DIRECTORIES):
        commit(client, insertion(account, f"d{number}", 10 + number, f"D{number}"))
    before = begun()
    stranger = stored_people(client, account, "d0").persons[0]
    first, eleventh, unknown, last = commit_together(
        client,
        [
            insertion(account, "d1", 30, "A"),
            insertion(account, "eleven", 31, "B"),
            Asked(account, "d2", updated=[stranger]),
            insertion(account, "d3", 32, "C"),
        ],
    )
    assert begun() - before == 7, "together, in halves, and then each for itself"
    assert isinstance(eleventh.exception(), TooManyDirectories)
    assert isinstance(unknown.exception(), StoreError)
    assert first.result().seqs.keys() | last.result().seqs.keys() == {person("A").person_id, person("C").person_id}
    assert (names(client, account, "d1"), names(client, account, "d3")) == (["D1", "A"], ["D3", "C"])
    assert len(list(client.path.glob("objects/*/*/*"))) == MAX_DIRECTORIES + 2, "the refused picture went"
    assert check_store(client).problems == []


def test_changes_of_one_person_go_into_separate_transactions(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    (known,) = commit(client, insertion(account, "main", 1, "A"))
    before = begun()
    first = replacement(account, "main", 2, known)
    second = replacement(account, "main", 3, known)
    other = insertion(account, "main", 4, "B")
    commit_together(client, [first, second, other])
    assert begun() - before == 2
    found = stored_people(client, account, "main").persons
    assert [p.image_guid for p in found] == [second.references[0].image_guid, other.references[0].image_guid]
    assert check_store(client).problems == []


def test_a_transaction_that_may_be_in_is_not_repeated(client: LocalStore, account: int) -> None:
    reached: list[str] = []

    def fail(name: str) -> None:
        if name == "change.committed":
            reached.append(name)
            raise StoreUnwritable(path="disk", detail="planted")

    with at_fault_points(fail):
        answers = commit_together(client, [insertion(account, "main", n, f"P{n}") for n in (1, 2)])
    assert reached == ["change.committed"]
    assert all(isinstance(answer.exception(), StoreUnwritable) for answer in answers)
    assert names(client, account) == ["P1", "P2"], "both are in, once"
    assert check_store(client).problems == []


def test_inserting_updating_and_deleting_go_together(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    a, b = commit(client, insertion(account, "main", 1, "A", "B"))
    before = begun()
    commit_together(
        client,
        [
            Asked(account, "main", deleted=[a.person_id]),
            Asked(account, "main", updated=[replace(b, name="Bea", occurrence=7)]),
            insertion(account, "main", 5, "C"),
        ],
    )
    assert begun() - before == 1
    found = stored_people(client, account, "main").persons
    assert [(p.name, p.occurrence) for p in found] == [("Bea", 7), ("C", 1)]
    assert check_store(client).problems == []


def test_a_change_that_comes_as_the_store_closes_is_not_stored(client: LocalStore, account: int) -> None:
    """It is refused after it was queued; an earlier change must not take it into its transaction."""
    first_change, second_change = (
        insertion(account, "main", n, name).change(client) for n, name in ((1, "A"), (2, "B"))
    )
    with ThreadPoolExecutor(1) as pool, writer_busy(client):
        first = pool.submit(client.commit, first_change)
        until(lambda: len(client._group._waiting) == 1)
        client._closed.set()
        with pytest.raises(StoreError, match="closed"):
            client.commit(second_change)
        client._closed.clear()
    assert list(first.result().seqs) == [person("A").person_id]
    assert names(client, account) == ["A"]
