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
from tests.identities.planted import Face, PlantedExtractor, PostHandler, near, somebody
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
def test_a_post_that_failed_after_its_transaction_is_known(
    post_handler: PostHandler, fail_once: FailOnce, where: str
) -> None:
    post_handler.post(Face(somebody(0)))
    fail_once(where)
    replacing = post_handler.extractor.photo(Face(near(0, 0.6)))
    with pytest.raises(LATE[where]):
        post_handler.send(replacing, name="Anna")
    assert post_handler.records() == post_handler.stored()
    (record,) = post_handler.records()
    assert record.name == "Anna", "it is in"
    assert post_handler.people.face_image(post_handler.account, "main", record.person_id).data
    assert not post_handler.send(replacing).account_updated, "the identical image"
    cleanup.unlink_pending(post_handler.client)


def test_a_deletion_that_failed_after_its_transaction_is_known(post_handler: PostHandler, fail_once: FailOnce) -> None:
    for number in range(2):
        post_handler.post(Face(somebody(number)))
    first, second = post_handler.records()
    fail_once("change.committed")
    with pytest.raises(StoreUnwritable):
        ask_for(post_handler.people, "delete", post_handler.account, "main", [first.person_id])
    assert post_handler.records() == post_handler.stored() == [second]
    with pytest.raises(PersonUnknown):
        post_handler.people.face_image(post_handler.account, "main", first.person_id)
    fail_once("change.committed")
    with pytest.raises(StoreUnwritable):
        post_handler.people.delete_directory(post_handler.account, "main")
    assert post_handler.records() == []
    assert post_handler.post(Face(somebody(1))).faces[0].inserted
    cleanup.unlink_pending(post_handler.client)


def test_memory_that_could_not_follow_a_commit_is_read_again(
    post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    post_handler.post(Face(somebody(0)))
    append = ReferenceIndex.append

    def too_large(self: ReferenceIndex, *args: object) -> None:
        if len(self) == 0:  # not the directory's
            return append(self, *args)  # type: ignore[arg-type]
        monkeypatch.setattr(ReferenceIndex, "append", append)
        raise MemoryError

    photos = [post_handler.extractor.photo(Face(somebody(number))) for number in (1, 2)]
    monkeypatch.setattr(ReferenceIndex, "append", too_large)
    with pytest.raises(MemoryError):
        post_handler.send(photos[0])
    assert post_handler.records() == post_handler.stored()
    assert [post_handler.send(data, update=False).faces[0].inserted for data in photos] == [False, True]
    assert post_handler.records() == post_handler.stored()


def test_while_the_store_cannot_be_read_nothing_is_decided_on_what_is_in_doubt(
    post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch, fail_once: FailOnce
) -> None:
    post_handler.post(Face(somebody(0)))
    before = post_handler.records()
    new = post_handler.extractor.photo(Face(somebody(1)))

    def unreadable(*_: object) -> References:
        raise StoreError(message="planted")

    with monkeypatch.context() as patch:
        patch.setattr(post_handler.client, "references", unreadable)
        fail_once("change.committed", StoreFull)
        with pytest.raises(StoreFull):
            post_handler.send(new)
        with pytest.raises(StoreError, match="planted"):
            post_handler.send(new)
        assert post_handler.send(new, insert=False, update=False).faces[0].person is None
        assert post_handler.records() == before, "until then it answers what it held"
    assert not post_handler.send(new).faces[0].inserted
    assert post_handler.records() == post_handler.stored()
    assert len(post_handler.stored()) == 2


def test_a_refused_request_reads_nothing_again(post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch) -> None:
    [*post_handler.people.records(post_handler.account, "main")]
    with post_handler.people.directories.using(post_handler.account, "main"):  # so that it is not forgotten
        monkeypatch.setattr(StoredDirectory, "merges", None)
        with pytest.raises(PersonUnknown):
            ask_for(
                post_handler.people, "delete", post_handler.account, "main", ["00000000-0000-0000-0000-000000000000"]
            )


def test_a_shard_that_failed_after_its_transaction_is_known(tmp_path: Path, fail_once: FailOnce) -> None:
    with make_store(tmp_path / "store", SIZE) as client:
        service = service_of(client)
        faces = (Shown(1), Shown(2), Shown(1, 5))
        run = extracted_run(client, "photos", faces, CodedExtractor(SIZE), len(faces))
        post_handler = PostHandler(client, service, PlantedExtractor(), run.account_id)
        fail_once("commit_shard.committed")
        with pytest.raises(StoreUnwritable):
            service.enrol_shard(run.run_id, 0)
        assert post_handler.records() == post_handler.stored()
        assert client.committed_shards(run.run_id) == {0}
        assert not post_handler.send(photo(Shown(2, 7)), update=False).faces[0].inserted
        service.enrol_shard(run.run_id, 0)  # the run heard of a failure, and hands it over again
        assert post_handler.records() == post_handler.stored()
        assert [record.occurrence for record in post_handler.records()] == [2, 2]
        service.close()


def test_a_directory_that_is_being_read_holds_up_no_other(
    post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post_handler.one(somebody(0)).person is not None
    begun, go_on = threading.Event(), threading.Event()
    merges = StoredDirectory.merges

    def slow(self: StoredDirectory) -> Merges:
        begun.set()
        assert go_on.wait(60)
        return merges(self)

    monkeypatch.setattr(StoredDirectory, "merges", slow)
    other = threading.Thread(target=post_handler.people.people, args=(post_handler.account, "absent", []))
    other.start()
    assert begun.wait(60)
    people: list[object] = []
    mine = threading.Thread(target=lambda: people.extend(post_handler.all()))
    mine.start()
    mine.join(30)
    had = len(people)
    go_on.set()
    other.join()
    mine.join()
    assert had == len(people) == 1


def test_a_picture_that_is_replaced_while_it_is_fetched_is_not_missing(
    post_handler: PostHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the transaction, which removes the old picture, and the moment when memory follows."""
    post_handler.one(somebody(0))
    (record,) = post_handler.records()
    fetched: list[object] = []

    def fetch() -> None:
        try:
            fetched.append(post_handler.people.face_image(post_handler.account, "main", record.person_id).data)
        except FacepipeError as exc:
            fetched.append(exc)

    reader = threading.Thread(target=fetch)
    commit = post_handler.client.commit

    def commit_then_read(*args: object) -> Committed:
        committed = commit(*args)  # type: ignore[arg-type]
        reader.start()
        reader.join(0.5)
        return committed

    monkeypatch.setattr(post_handler.client, "commit", commit_then_read)
    vector: np.ndarray = near(0, 0.5)
    post_handler.post(Face(vector))
    reader.join(60)
    (data,) = fetched
    assert isinstance(data, bytes), data
    assert data.endswith(vector.tobytes())
