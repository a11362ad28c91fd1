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
from pipeline.store.records import DirectoryCommit, PersonRecord
from pipeline.store.schema import MAX_DIRECTORIES
from tests.store.store_samples import at_fault_points, insertion, replacement
from tests.waiting import until


@pytest.fixture
def begun() -> Iterator[Callable[[], int]]:
    """How many transactions of requests have begun."""
    seen: list[str] = []
    with at_fault_points(seen.append):
        yield lambda: seen.count("directory_commit.begin")


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


def commit_together(client: LocalStore, changes: Sequence[DirectoryCommit]) -> list[Future[list[PersonRecord]]]:
    """Commits from one thread each, queued in this order before the catalog's thread takes any."""
    with ThreadPoolExecutor(len(changes)) as pool:
        with writer_busy(client):
            waiting = client._group._waiting
            answers = []
            for change in changes:
                answers.append(pool.submit(client.commit_directory, change))
                until(lambda: len(waiting) == len(answers))
        return answers


def names(client: LocalStore, account: int, directory: str = "main") -> list[str | None]:
    return [person.name for person in client.references(account, directory).persons]


def test_changes_that_wait_together_share_a_transaction(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    changes = [insertion(account, f"d{number % 2}", number, f"P{number}") for number in range(1, 7)]
    answers = commit_together(client, changes)
    assert begun() == 1
    assert [answer.result()[0].seq for answer in answers] == [1, 2, 3, 4, 5, 6], "in the order of coming"
    assert names(client, account, "d1") == ["P1", "P3", "P5"]
    assert names(client, account, "d0") == ["P2", "P4", "P6"]
    for change in changes:
        (reference,) = change.references
        assert client.read_image(account, reference.image_guid)[0] == reference.image
    assert check_store(client).problems == []


def test_a_refused_change_fails_alone(client: LocalStore, account: int, begun: Callable[[], int]) -> None:
    for number in range(MAX_DIRECTORIES):
        client.commit_directory(insertion(account, f"d{number}", 10 + number, f"D{number}"))
    before = begun()
    stranger = client.references(account, "d0").persons[0]
    first, eleventh, unknown, last = commit_together(
        client,
        [
            insertion(account, "d1", 30, "A"),
            insertion(account, "eleven", 31, "B"),
            DirectoryCommit(account, "d2", updated=[stranger]),
            insertion(account, "d3", 32, "C"),
        ],
    )
    assert begun() - before == 7, "together, in halves, and then each for itself"
    assert isinstance(eleventh.exception(), TooManyDirectories)
    assert isinstance(unknown.exception(), StoreError)
    assert [first.result()[0].name, last.result()[0].name] == ["A", "C"]
    assert (names(client, account, "d1"), names(client, account, "d3")) == (["D1", "A"], ["D3", "C"])
    assert len(list(client.path.glob("objects/*/*/*"))) == MAX_DIRECTORIES + 2, "the refused picture went"
    assert check_store(client).problems == []


def test_changes_of_one_person_go_into_separate_transactions(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    (person,) = client.commit_directory(insertion(account, "main", 1, "A"))
    before = begun()
    first = replacement(account, "main", 2, person)
    second = replacement(account, "main", 3, person)
    other = insertion(account, "main", 4, "B")
    commit_together(client, [first, second, other])
    assert begun() - before == 2
    found = client.references(account, "main").persons
    assert [p.image_guid for p in found] == [second.references[0].image_guid, other.references[0].image_guid]
    assert check_store(client).problems == []


def test_a_transaction_that_may_be_in_is_not_repeated(client: LocalStore, account: int) -> None:
    reached: list[str] = []

    def fail(name: str) -> None:
        if name == "directory_commit.committed":
            reached.append(name)
            raise StoreUnwritable(path="disk", detail="planted")

    with at_fault_points(fail):
        answers = commit_together(client, [insertion(account, "main", n, f"P{n}") for n in (1, 2)])
    assert reached == ["directory_commit.committed"]
    assert all(isinstance(answer.exception(), StoreUnwritable) for answer in answers)
    assert names(client, account) == ["P1", "P2"], "both are in, once"
    assert check_store(client).problems == []


def test_inserting_updating_and_deleting_go_together(
    client: LocalStore, account: int, begun: Callable[[], int]
) -> None:
    a, b = client.commit_directory(insertion(account, "main", 1, "A", "B"))
    before = begun()
    commit_together(
        client,
        [
            DirectoryCommit(account, "main", deleted=[a.person_id]),
            DirectoryCommit(account, "main", updated=[replace(b, name="Bea", occurrence=7)]),
            insertion(account, "main", 5, "C"),
        ],
    )
    assert begun() - before == 1
    found = client.references(account, "main").persons
    assert [(p.name, p.occurrence) for p in found] == [("Bea", 7), ("C", 1)]
    assert check_store(client).problems == []


def test_a_change_that_comes_as_the_store_closes_is_not_stored(client: LocalStore, account: int) -> None:
    """It is refused after it was queued; an earlier change must not take it into its transaction."""
    with ThreadPoolExecutor(1) as pool, writer_busy(client):
        first = pool.submit(client.commit_directory, insertion(account, "main", 1, "A"))
        until(lambda: len(client._group._waiting) == 1)
        client._closed = True
        with pytest.raises(StoreError, match="closed"):
            client.commit_directory(insertion(account, "main", 2, "B"))
        client._closed = False
    assert first.result()[0].name == "A"
    assert names(client, account) == ["A"]
