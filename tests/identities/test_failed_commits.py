"""A change that fails after its transaction, or in memory: answers must show what the store holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from coded_faces import CodedExtractor, Shown, photo
from coded_store import extracted_run, make_store

from pipeline.errors import CleanUpLeft, FacepipeError, PersonUnknown, StoreError, StoreFull, StoreUnwritable
from pipeline.matching.references import ReferenceIndex
from pipeline.people.records import StoredDirectory
from pipeline.store import cleanup
from pipeline.store.files import faults
from pipeline.store.records import Committed, Merges, References
from tests.asking import ask_for
from tests.identities.planted import Face, PlantedExtractor, Poster, near, somebody
from tests.serve.coded import SIZE, service_of

FailOnce = Callable[..., None]


@pytest.fixture
def fail_once() -> Iterator[FailOnce]:
    """Raises at the next call of a fault point."""

    def arrange(name: str, error: type[FacepipeError] = StoreUnwritable) -> None:
        def hook(reached: str) -> None:
            if reached == name:
                faults.install(None)
                raise error(path="disk", detail="planted")

        faults.install(hook)

    yield arrange
    faults.install(None)


LATE = {  # after the transaction
    "commits.write": CleanUpLeft,
    "commits.fsync": CleanUpLeft,
    "change.committed": StoreUnwritable,
}


@pytest.mark.parametrize("where", LATE)
def test_a_post_that_failed_after_its_transaction_is_known(poster: Poster, fail_once: FailOnce, where: str) -> None:
    poster.post(Face(somebody(0)))
    fail_once(where)
    replacing = poster.extractor.photo(Face(near(0, 0.6)))
    with pytest.raises(LATE[where]):
        poster.send(replacing, name="Anna")
    assert poster.records() == poster.stored()
    (record,) = poster.records()
    assert record.name == "Anna", "it is in"
    assert poster.people.face_image(poster.account, "main", record.person_id).data
    assert not poster.send(replacing).account_updated, "the identical image"
    cleanup.unlink_pending(poster.client)


def test_a_deletion_that_failed_after_its_transaction_is_known(poster: Poster, fail_once: FailOnce) -> None:
    for number in range(2):
        poster.post(Face(somebody(number)))
    first, second = poster.records()
    fail_once("change.committed")
    with pytest.raises(StoreUnwritable):
        ask_for(poster.people, "delete", poster.account, "main", [first.person_id])
    assert poster.records() == poster.stored() == [second]
    with pytest.raises(PersonUnknown):
        poster.people.face_image(poster.account, "main", first.person_id)
    fail_once("change.committed")
    with pytest.raises(StoreUnwritable):
        poster.people.delete_directory(poster.account, "main")
    assert poster.records() == []
    assert poster.post(Face(somebody(1))).faces[0].inserted
    cleanup.unlink_pending(poster.client)


def test_memory_that_could_not_follow_a_commit_is_read_again(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    poster.post(Face(somebody(0)))
    append = ReferenceIndex.append

    def too_large(self: ReferenceIndex, *args: object) -> None:
        if len(self) == 0:  # not the directory's
            return append(self, *args)  # type: ignore[arg-type]
        monkeypatch.setattr(ReferenceIndex, "append", append)
        raise MemoryError

    photos = [poster.extractor.photo(Face(somebody(number))) for number in (1, 2)]
    monkeypatch.setattr(ReferenceIndex, "append", too_large)
    with pytest.raises(MemoryError):
        poster.send(photos[0])
    assert poster.records() == poster.stored()
    assert [poster.send(data, update=False).faces[0].inserted for data in photos] == [False, True]
    assert poster.records() == poster.stored()


def test_while_the_store_cannot_be_read_nothing_is_decided_on_what_is_in_doubt(
    poster: Poster, monkeypatch: pytest.MonkeyPatch, fail_once: FailOnce
) -> None:
    poster.post(Face(somebody(0)))
    before = poster.records()
    new = poster.extractor.photo(Face(somebody(1)))

    def unreadable(*_: object) -> References:
        raise StoreError(message="planted")

    with monkeypatch.context() as patch:
        patch.setattr(poster.client, "references", unreadable)
        fail_once("change.committed", StoreFull)
        with pytest.raises(StoreFull):
            poster.send(new)
        with pytest.raises(StoreError, match="planted"):
            poster.send(new)
        assert poster.send(new, insert=False, update=False).faces[0].person is None
        assert poster.records() == before, "until then it answers what it held"
    assert not poster.send(new).faces[0].inserted
    assert poster.records() == poster.stored()
    assert len(poster.stored()) == 2


def test_a_refused_request_reads_nothing_again(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    [*poster.people.records(poster.account, "main")]
    with poster.people.directories.using(poster.account, "main"):  # so that it is not forgotten
        monkeypatch.setattr(StoredDirectory, "merges", None)
        with pytest.raises(PersonUnknown):
            ask_for(poster.people, "delete", poster.account, "main", ["00000000-0000-0000-0000-000000000000"])


def test_a_shard_that_failed_after_its_transaction_is_known(tmp_path: Path, fail_once: FailOnce) -> None:
    with make_store(tmp_path / "store", SIZE) as client:
        service = service_of(client)
        faces = (Shown(1), Shown(2), Shown(1, 5))
        run = extracted_run(client, "photos", faces, CodedExtractor(SIZE), len(faces))
        poster = Poster(client, service, PlantedExtractor(), run.account_id)
        fail_once("commit_shard.committed")
        with pytest.raises(StoreUnwritable):
            service.enrol_shard(run.run_id, 0)
        assert poster.records() == poster.stored()
        assert client.committed_shards(run.run_id) == {0}
        assert not poster.send(photo(Shown(2, 7)), update=False).faces[0].inserted
        service.enrol_shard(run.run_id, 0)  # the run heard of a failure, and hands it over again
        assert poster.records() == poster.stored()
        assert [record.occurrence for record in poster.records()] == [2, 2]
        service.close()


def test_a_directory_that_is_being_read_holds_up_no_other(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert poster.one(somebody(0)).person is not None
    begun, go_on = threading.Event(), threading.Event()
    merges = StoredDirectory.merges

    def slow(self: StoredDirectory) -> Merges:
        begun.set()
        assert go_on.wait(20)
        return merges(self)

    monkeypatch.setattr(StoredDirectory, "merges", slow)
    other = threading.Thread(target=poster.people.people, args=(poster.account, "absent", []))
    other.start()
    assert begun.wait(10)
    people: list[object] = []
    mine = threading.Thread(target=lambda: people.extend(poster.all()))
    mine.start()
    mine.join(5)
    go_on.set()
    other.join()
    mine.join()
    assert not mine.is_alive()
    assert len(people) == 1


def test_a_picture_that_is_replaced_while_it_is_fetched_is_not_missing(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the transaction, which removes the old picture, and the moment when memory follows."""
    poster.one(somebody(0))
    (record,) = poster.records()
    fetched: list[object] = []

    def fetch() -> None:
        try:
            fetched.append(poster.people.face_image(poster.account, "main", record.person_id).data)
        except FacepipeError as exc:
            fetched.append(exc)

    reader = threading.Thread(target=fetch)
    commit = poster.client.commit

    def commit_then_read(*args: object) -> Committed:
        committed = commit(*args)  # type: ignore[arg-type]
        reader.start()
        reader.join(0.5)
        return committed

    monkeypatch.setattr(poster.client, "commit", commit_then_read)
    vector: np.ndarray = near(0, 0.5)
    poster.post(Face(vector))
    reader.join(10)
    (data,) = fetched
    assert isinstance(data, bytes), data
    assert data.endswith(vector.tobytes())
