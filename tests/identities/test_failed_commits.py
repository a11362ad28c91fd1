"""A change that fails after its transaction, or in memory: what is answered must be what the store holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from coded_faces import Shown, photo
from coded_store import extracted_run, make_store

from pipeline.errors import FacepipeError, PersonUnknown, StoreError, StoreFull, StoreUnwritable
from pipeline.identities.service import IdentityService
from pipeline.identities.types import PostRequest
from pipeline.matching.references import ReferenceIndex
from pipeline.store.catalog import deletes
from pipeline.store.client import StoreClient
from pipeline.store.files import faults
from pipeline.store.records import PersonRecord, References
from tests.identities.planted import Face, PlantedExtractor, near, somebody
from tests.serve.coded import SIZE, service_of


@pytest.fixture
def fail_once() -> Iterator[Callable[[str, FacepipeError], None]]:
    """Raises at the next call of a fault point."""

    def arrange(name: str, error: FacepipeError) -> None:
        def hook(reached: str) -> None:
            if reached == name:
                faults.install(None)
                raise error

        faults.install(hook)

    yield arrange
    faults.install(None)


def records(people: IdentityService, account: int) -> list[PersonRecord]:
    return [view.record for view in people.people(account, "main")]


def stored(client: StoreClient, account: int) -> list[PersonRecord]:
    return list(client.references(account, "main").persons)


LATE = ("catalog.fsync_folder", "directory_commit.committed")  # after the transaction


@pytest.mark.parametrize("where", LATE)
def test_a_post_that_failed_after_its_transaction_is_known(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    fail_once: Callable[[str, FacepipeError], None],
    where: str,
) -> None:
    people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest(name="Ann"))
    fail_once(where, StoreUnwritable(path="disk", detail="planted"))
    replacing = extractor.photo(Face(near(0, 0.6)))
    with pytest.raises(StoreUnwritable):
        people.post(account, "main", replacing, PostRequest(name="Anna"))
    assert records(people, account) == stored(client, account)
    (record,) = records(people, account)
    assert record.name == "Anna", "it is in"
    assert people.face_image(account, "main", record.person_id).data
    assert not people.post(account, "main", replacing, PostRequest()).account_updated, "the identical image"
    client.submit(deletes.replay)


def test_a_deletion_that_failed_after_its_transaction_is_known(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    fail_once: Callable[[str, FacepipeError], None],
) -> None:
    for number in range(2):
        people.post(account, "main", extractor.photo(Face(somebody(number))), PostRequest())
    first, second = records(people, account)
    fail_once("directory_commit.committed", StoreUnwritable(path="disk", detail="planted"))
    with pytest.raises(StoreUnwritable):
        people.delete_person(account, "main", first.person_id)
    assert records(people, account) == stored(client, account) == [second]
    with pytest.raises(PersonUnknown):
        people.face_image(account, "main", first.person_id)
    fail_once("directory_commit.committed", StoreUnwritable(path="disk", detail="planted"))
    with pytest.raises(StoreUnwritable):
        people.delete_directory(account, "main")
    assert records(people, account) == []
    assert people.post(account, "main", extractor.photo(Face(somebody(1))), PostRequest()).faces[0].inserted
    client.submit(deletes.replay)


def test_memory_that_could_not_follow_a_commit_is_read_anew(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest())
    replace = ReferenceIndex.replace

    def too_large(self: ReferenceIndex, *args: object) -> None:
        if len(self) == 0:  # not the directory's
            return replace(self, *args)  # type: ignore[arg-type]
        monkeypatch.setattr(ReferenceIndex, "replace", replace)
        raise MemoryError

    photos = [extractor.photo(Face(somebody(number))) for number in (1, 2)]
    monkeypatch.setattr(ReferenceIndex, "replace", too_large)
    with pytest.raises(MemoryError):
        people.post(account, "main", photos[0], PostRequest())
    assert records(people, account) == stored(client, account)
    assert [people.post(account, "main", each, PostRequest(update=False)).faces[0].inserted for each in photos] == [
        False,
        True,
    ]
    assert records(people, account) == stored(client, account)


def test_while_the_store_cannot_be_read_nothing_is_decided_on_what_is_in_doubt(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    monkeypatch: pytest.MonkeyPatch,
    fail_once: Callable[[str, FacepipeError], None],
) -> None:
    people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest())
    before = records(people, account)
    new = extractor.photo(Face(somebody(1)))

    def unreadable(*_: object) -> References:
        raise StoreError(message="planted")

    with monkeypatch.context() as patch:
        patch.setattr(client, "references", unreadable)
        fail_once("directory_commit.committed", StoreFull(path="disk", detail="planted"))
        with pytest.raises(StoreFull):
            people.post(account, "main", new, PostRequest())
        with pytest.raises(StoreError, match="planted"):
            people.post(account, "main", new, PostRequest())
        recognise = PostRequest(insert=False, update=False)
        assert people.post(account, "main", new, recognise).faces[0].person is None
        assert records(people, account) == before, "until then it answers what it held"
    assert not people.post(account, "main", new, PostRequest()).faces[0].inserted
    assert records(people, account) == stored(client, account)
    assert len(stored(client, account)) == 2


def test_a_refused_request_reads_nothing_anew(
    people: IdentityService, client: StoreClient, account: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.people(account, "main")
    with people._directories.using(account, "main"):  # so that it is not forgotten
        monkeypatch.setattr(client, "references", None)
        with pytest.raises(PersonUnknown):
            people.delete_person(account, "main", "00000000-0000-0000-0000-000000000000")


def test_a_shard_that_failed_after_its_transaction_is_known(
    tmp_path: Path, fail_once: Callable[[str, FacepipeError], None]
) -> None:
    with make_store(tmp_path / "store", SIZE) as client:
        service = service_of(client)
        faces = (Shown(1), Shown(2), Shown(1, 5))
        run = extracted_run(client, "photos", faces, 300, len(faces))
        fail_once("commit_shard.committed", StoreUnwritable(path="disk", detail="planted"))
        with pytest.raises(StoreUnwritable):
            service.enrol_shard(run.run_id, 0)
        assert records(service, run.account_id) == stored(client, run.account_id)
        assert client.committed_shards(run.run_id) == {0}
        again = service.post(run.account_id, "main", photo(Shown(2, 7)), PostRequest(update=False)).faces[0]
        assert not again.inserted
        service.enrol_shard(run.run_id, 0)  # whoever handed it over heard of a failure, and does so again
        assert records(service, run.account_id) == stored(client, run.account_id)
        assert [record.occurrence for record in records(service, run.account_id)] == [2, 2]
        service.close()


def test_a_directory_that_is_being_read_holds_up_no_other(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    person = people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest()).faces[0].person
    begun, go_on = threading.Event(), threading.Event()
    references = client.references

    def slow(account_id: int, directory: str) -> References:
        begun.set()
        assert go_on.wait(20)
        return references(account_id, directory)

    monkeypatch.setattr(client, "references", slow)
    other = threading.Thread(target=people.people, args=(account, "absent"))
    other.start()
    assert begun.wait(10)
    found: list[object] = []
    mine = threading.Thread(target=lambda: found.extend(people.people(account, "main")))
    mine.start()
    mine.join(5)
    go_on.set()
    other.join()
    mine.join()
    assert person is not None
    assert not mine.is_alive()
    assert len(found) == 1


def test_a_picture_that_is_replaced_while_it_is_fetched_is_not_missing(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the transaction, which removes the old picture, and the moment when memory follows."""
    found = people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest()).faces[0].person
    assert found is not None
    fetched: list[object] = []

    def fetch() -> None:
        try:
            fetched.append(people.face_image(account, "main", found.record.person_id).data)
        except FacepipeError as exc:
            fetched.append(exc)

    reader = threading.Thread(target=fetch)
    commit = client.commit_directory

    def commit_then_read(*args: object) -> list[PersonRecord]:
        committed = commit(*args)  # type: ignore[arg-type]
        reader.start()
        reader.join(0.5)
        return committed

    monkeypatch.setattr(client, "commit_directory", commit_then_read)
    vector: np.ndarray = near(0, 0.5)
    people.post(account, "main", extractor.photo(Face(vector)), PostRequest())
    reader.join(10)
    (data,) = fetched
    assert isinstance(data, bytes), data
    assert data.endswith(vector.tobytes())
