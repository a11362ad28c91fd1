"""A server folds posted embeddings into shards, and removed ones out of them."""

from __future__ import annotations

import pytest

from pipeline.errors import StoreError, StoreUnwritable
from pipeline.people.background import Housekeeper
from pipeline.store import segments
from tests.asking import ask_for
from tests.identities.planted import Poster, near, person_of, service, somebody
from tests.store.store_samples import failing_at
from tests.waiting import until


def test_a_quiet_store_is_folded(poster: Poster) -> None:
    client = poster.client
    poster.one(somebody(0))
    assert client.pending_embeddings() == 1
    keeper = Housekeeper(client, poster.people.directories, 0.05)
    keeper.note_change()
    until(lambda: client.pending_embeddings() == 0)
    ask_for(poster.people, "delete", poster.account, "main", [poster.records()[0].person_id])
    keeper.note_change()
    until(lambda: not list(client.path.glob("embeddings/*/*.parquet")))
    keeper.close()


def test_a_fold_that_fails_is_tried_again(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    client = poster.client
    poster.one(somebody(0))
    failures: list[BaseException] = [MemoryError(), StoreError(message="planted")]
    fold = client.fold

    def failing(least: int) -> int:
        if failures:
            raise failures.pop()
        return fold(least)

    monkeypatch.setattr(client, "fold", failing)
    keeper = Housekeeper(client, poster.people.directories, 0.05)
    keeper.note_change()
    until(lambda: client.pending_embeddings() == 0)
    keeper.close()


def test_a_picture_that_could_not_be_deleted_is_deleted_later(poster: Poster) -> None:
    """The request does not fail: its commit is done."""
    client = poster.client
    poster.one(somebody(0))
    with failing_at("unlink", StoreUnwritable(path=client.path, detail="planted")):
        ask_for(poster.people, "delete", poster.account, "main", [poster.records()[0].person_id])
    assert list(client.path.glob("objects/*/*/*"))
    keeper = Housekeeper(client, poster.people.directories, 0.05)
    until(lambda: not list(client.path.glob("objects/*/*/*")))
    keeper.close()


def test_closing_a_service_folds(poster: Poster) -> None:
    poster.one(somebody(0))
    poster.people.close()
    assert poster.client.pending_embeddings() == 0
    poster.people = service(poster.client, poster.extractor)
    assert not poster.one(somebody(0)).inserted
    poster.people.close()


def test_what_is_in_segments_is_mapped(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's memory does not grow with all that came since its start."""
    monkeypatch.setattr(segments, "FOLD_ROWS", 1)
    first = [person_of(poster.one(somebody(number))).record.person_id for number in range(4)]
    with poster.people.directories.using(poster.account, "main") as directory:
        before = directory.view()
        assert directory.tail == 4
        poster.client.fold()
        poster.people.directories.map_again(5)
        assert directory.view() is before
        poster.people.directories.map_again(4)
        assert (directory.tail, len(directory.view().index)) == (0, 4)
        poster.one(somebody(4))
        ask_for(poster.people, "delete", poster.account, "main", first[:1])
        assert [
            person_of(poster.one(near(number, 0.3), update=False)).record.person_id for number in (1, 2, 3)
        ] == first[1:]
        assert poster.one(somebody(0), insert=False).person is None
        assert directory.tail == 1
        assert [before.person_ids[place] for place in range(4)] == first
        changed = directory.changed
        poster.people.directories.map_again(1)
        assert directory.changed == changed
    assert poster.records() == poster.stored()
