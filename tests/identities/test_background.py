"""A server folds posted embeddings into shards, and removed ones out of them."""

from __future__ import annotations

import pytest

from pipeline.errors import StoreError, StoreUnwritable
from pipeline.people.background import Housekeeper
from pipeline.store import segments
from tests.asking import ask_for
from tests.identities.planted import PostHandler, near, person_of, service, somebody
from tests.store.store_samples import failing_at
from tests.waiting import until


def test_a_quiet_store_is_folded(post_handler: PostHandler) -> None:
    client = post_handler.client
    post_handler.one(somebody(0))
    assert client.pending_embeddings() == 1
    keeper = Housekeeper(client, post_handler.people.directories, 0.05)
    keeper.note_change()
    until(lambda: client.pending_embeddings() == 0)
    ask_for(post_handler.people, "delete", post_handler.account, "main", [post_handler.records()[0].person_id])
    keeper.note_change()
    until(lambda: not list(client.path.glob("embeddings/*/*.parquet")))
    keeper.close()


def test_a_fold_that_fails_is_tried_again(post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    client = post_handler.client
    post_handler.one(somebody(0))
    failures: list[BaseException] = [MemoryError(), StoreError(message="planted")]
    fold = client.fold

    def failing(least: int) -> int:
        if failures:
            raise failures.pop()
        return fold(least)

    monkeypatch.setattr(client, "fold", failing)
    keeper = Housekeeper(client, post_handler.people.directories, 0.05)
    keeper.note_change()
    until(lambda: client.pending_embeddings() == 0)
    keeper.close()


def test_a_picture_that_could_not_be_deleted_is_deleted_later(post_handler: PostHandler) -> None:
    """The request does not fail: its commit is done."""
    client = post_handler.client
    post_handler.one(somebody(0))
    with failing_at("unlink", StoreUnwritable(path=client.path, detail="planted")):
        ask_for(post_handler.people, "delete", post_handler.account, "main", [post_handler.records()[0].person_id])
    assert list(client.path.glob("objects/*/*/*"))
    keeper = Housekeeper(client, post_handler.people.directories, 0.05)
    until(lambda: not list(client.path.glob("objects/*/*/*")))
    keeper.close()


def test_closing_a_service_folds(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0))
    post_handler.people.close()
    assert post_handler.client.pending_embeddings() == 0
    post_handler.people = service(post_handler.client, post_handler.extractor)
    assert not post_handler.one(somebody(0)).inserted
    post_handler.people.close()


def test_what_is_in_segments_is_mapped(post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's memory does not grow with all that came since its start."""
    monkeypatch.setattr(segments, "FOLD_ROWS", 1)
    first = [person_of(post_handler.one(somebody(number))).record.person_id for number in range(4)]
    with post_handler.people.directories.using(post_handler.account, "main") as directory:
        before = directory.view()
        assert directory.tail == 4
        post_handler.client.fold()
        post_handler.people.directories.map_again(5)
        assert directory.view() is before
        post_handler.people.directories.map_again(4)
        assert (directory.tail, len(directory.view().index)) == (0, 4)
        post_handler.one(somebody(4))
        ask_for(post_handler.people, "delete", post_handler.account, "main", first[:1])
        assert [
            person_of(post_handler.one(near(number, 0.3), update=False)).record.person_id for number in (1, 2, 3)
        ] == first[1:]
        assert post_handler.one(somebody(0), insert=False).person is None
        assert directory.tail == 1
        assert [before.person_ids[place] for place in range(4)] == first
        changed = directory.changed
        post_handler.people.directories.map_again(1)
        assert directory.changed == changed
    assert post_handler.records() == post_handler.stored()
