"""Posts into one directory that cannot affect each other commit together, all others one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipeline.errors import ExternalIdTaken, StoreUnwritable
from pipeline.people import changes
from pipeline.people.types import FaceResult, PostRequest, PostResult
from pipeline.store import Catalog, LocalStore, ReferenceOrigin
from pipeline.store.files import faults
from tests.asking import ask_for
from tests.identities.planted import SIZE, Face, PostHandler, near, person_of, somebody
from tests.waiting import until

WAIT_S = 20.0
UNNAMED = PostRequest(update=False)


@dataclass
class HeldUpPosts(PostHandler):
    """Posts from several threads, whose transactions can be held up."""

    pool: ThreadPoolExecutor
    transactions: int = 0
    failing: int = 0  # the number of the transaction that fails after its COMMIT
    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def __call__(self, name: str) -> None:
        """The hook of the fault points."""
        if name == "change.begin":
            self.transactions += 1
            self.reached.set()
            assert self.open.wait(WAIT_S)
        if name == "change.committed" and self.transactions == self.failing:
            raise StoreUnwritable(path="disk", detail="planted")

    def photo(self, vector: Any) -> bytes:
        return self.extractor.photo(Face(vector))

    def begin(self, photo: bytes, request: PostRequest = UNNAMED) -> Future[PostResult]:
        return self.pool.submit(self.people.post, self.account, "main", photo, request)

    @contextmanager
    def held_up(self, photo: bytes, request: PostRequest = UNNAMED) -> Iterator[Future[PostResult]]:
        """For the block this post is in its transaction."""
        self.open.clear()
        self.reached.clear()
        answer = self.begin(photo, request)
        assert self.reached.wait(WAIT_S)
        try:
            yield answer
        finally:
            self.open.set()

    def occurrences(self) -> list[int]:
        return [record.occurrence for record in self.records()]

    def waits(self, answer: Future[PostResult]) -> None:
        """The post waits for the one that is held up, not for the writer thread."""
        lock = self.people.directories.all()[0].lock
        until(lambda: lock.waiting_alone > 0 or answer.done())
        assert not answer.done()


@pytest.fixture
def posts(post_handler: PostHandler) -> Iterator[HeldUpPosts]:
    with ThreadPoolExecutor(SIZE) as pool:
        made = HeldUpPosts(**vars(post_handler), pool=pool)
        made.open.set()
        faults.install(made)
        yield made
        faults.install(None)


def face_of(answer: Future[PostResult]) -> FaceResult:
    (face,) = answer.result(WAIT_S).faces
    return face


def id_of(answer: Future[PostResult]) -> str:
    return person_of(face_of(answer)).record.person_id


def test_strangers_share_a_transaction(posts: HeldUpPosts) -> None:
    same_id = PostRequest(update=False, external_id="the same")
    with posts.held_up(posts.photo(somebody(0))) as first:
        others = [posts.begin(posts.photo(somebody(k)), same_id) for k in range(1, 7)]
        until(lambda: len(posts.client._group._waiting) == 6)
    assert all(face_of(answer).inserted for answer in [first, *others])
    assert posts.transactions == 2
    assert len(posts.stored()) == 7


def test_who_would_match_a_face_under_way_waits_and_matches(posts: HeldUpPosts) -> None:
    with posts.held_up(posts.photo(somebody(0))) as first:
        second = posts.begin(posts.photo(near(0, 0.5)))
        posts.waits(second)
    assert (face_of(first).inserted, face_of(second).inserted) == (True, False)
    assert id_of(first) == id_of(second)
    assert posts.occurrences() == [2]


def test_the_same_image_waits_at_threshold_0(posts: HeldUpPosts) -> None:
    one, copy = posts.extractor.copies(2, Face(somebody(0)))
    request = PostRequest(update=False, threshold=0)
    with posts.held_up(one, request) as first:
        second = posts.begin(copy, request)
        posts.waits(second)
    assert (face_of(first).inserted, face_of(second).inserted) == (True, False)


def test_who_would_match_the_new_reference_of_an_update_waits_and_matches(posts: HeldUpPosts) -> None:
    person = id_of(posts.begin(posts.photo(somebody(0))))
    with posts.held_up(posts.photo(near(0, 0.7, towards=1)), PostRequest()):
        # At more than the threshold's distance of the old reference, and less of the new one.
        second = posts.begin(posts.photo(near(0, 1.1, towards=1)))
        posts.waits(second)
    assert not face_of(second).inserted
    assert id_of(second) == person


def test_what_a_condition_needs_is_not_asked_again_under_the_lock(
    posts: HeldUpPosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others would wait there for whatever the catalog's thread is doing."""
    asked, stranger = [], posts.photo(somebody(9))
    images_ahead, origins = LocalStore.images_ahead, changes.reference_origins

    def ask(catalog: Catalog, person_ids: Sequence[str]) -> Mapping[str, ReferenceOrigin]:
        asked.append(list(person_ids))
        return origins(catalog, person_ids)

    posts.begin(posts.photo(somebody(1))).result(WAIT_S)
    monkeypatch.setattr(changes, "reference_origins", ask)

    @contextmanager
    def after_another(self: LocalStore, *given: Any) -> Iterator[Any]:
        with images_ahead(self, *given) as ahead:
            monkeypatch.setattr(LocalStore, "images_ahead", images_ahead)
            posts.begin(stranger).result(WAIT_S)
            yield ahead

    monkeypatch.setattr(LocalStore, "images_ahead", after_another)
    older = PostRequest(insert=False, update_if_older_days=1)
    answer = posts.begin(posts.photo(near(1, 0.3)), older)
    assert asked == [[id_of(answer)]]


def test_two_sightings_of_one_person_both_count(posts: HeldUpPosts) -> None:
    posts.begin(posts.photo(somebody(0))).result(WAIT_S)
    with posts.held_up(posts.photo(near(0, 0.3))):
        second = posts.begin(posts.photo(near(0, 0.4)))
        posts.waits(second)
    second.result(WAIT_S)
    assert posts.occurrences() == [3]


@pytest.mark.parametrize("people", [{"unique_external_ids": True}], indirect=True)
def test_an_external_id_under_way_is_taken(posts: HeldUpPosts) -> None:
    request = PostRequest(update=False, external_id="id")
    with posts.held_up(posts.photo(somebody(0)), request) as first:
        second = posts.begin(posts.photo(somebody(1)), request)
        posts.waits(second)
    assert face_of(first).inserted
    assert isinstance(second.exception(WAIT_S), ExternalIdTaken)


def test_a_deletion_waits_for_posts_under_way(posts: HeldUpPosts) -> None:
    person_id = id_of(posts.begin(posts.photo(somebody(0))))
    with posts.held_up(posts.photo(somebody(1))) as under_way:
        deletion = posts.pool.submit(ask_for, posts.people, "delete", posts.account, "main", [person_id])
        until(lambda: posts.people.directories.all()[0].lock.waiting_alone == 1)
        assert not deletion.done()
    deletion.result(WAIT_S)
    assert face_of(under_way).inserted
    assert [record.seq for record in posts.records()] == [2]


def test_all_who_shared_a_transaction_in_doubt_get_the_error_and_are_read_again(posts: HeldUpPosts) -> None:
    """A failure after the COMMIT: what is in is known afterwards, and is not inserted again."""
    with posts.held_up(posts.photo(somebody(0))) as first:
        others = [posts.begin(posts.photo(somebody(k))) for k in (1, 2, 3)]
        until(lambda: len(posts.client._group._waiting) == 3)
        late = [posts.begin(posts.photo(near(k, 0.3))) for k in range(4)]
        posts.waits(late[0])
        posts.failing = 2
    assert face_of(first).inserted
    assert [type(answer.exception(WAIT_S)) for answer in others] == [StoreUnwritable] * 3
    assert not any(face_of(answer).inserted for answer in late), "decided on what the store holds"
    assert posts.records() == posts.stored()
    assert posts.occurrences() == [2, 2, 2, 2]
