"""A shard is decided without a lock; what comes in meanwhile must not be overlooked when it is committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from coded_faces import CodedExtractor, Shown, photo
from coded_store import extracted_run, make_store

import pipeline.people.shards
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.commits.shard import PreparedShard
from pipeline.store.local import LocalStore
from pipeline.store.records import RunRow, ShardCommit
from tests.asking import ask_for
from tests.serve.coded import SIZE, service_of

FACES = (Shown(1), Shown(2), Shown(3), Shown(4))
ONLY_INSERT = PostRequest(update=False)


@dataclass
class Enrolment:
    """A service, and a run of one shard that shows FACES. Each time the shard is decided and its files are written, the
    next of `between` happens."""

    client: LocalStore
    service: IdentityService
    run: RunRow
    between: list[Callable[[], object]] = field(default_factory=list)
    decided: int = 0

    @property
    def account(self) -> int:
        return self.run.account_id

    def post(self, shown: Shown) -> str:
        (face,) = self.service.post(self.account, "main", photo(shown), ONLY_INSERT).faces
        assert face.person is not None
        return face.person.record.person_id

    def enrol(self, *between: Callable[[], object]) -> None:
        self.between = list(between)
        self.service.enrol_shard(self.run.run_id, 0)

    def occurrences(self) -> dict[int, int]:
        """Of each known person."""
        counts = {}
        for person in range(10):
            request = PostRequest(insert=False, update=False)
            (face,) = self.service.post(self.account, "main", photo(Shown(person, 99)), request).faces
            if face.person is not None:
                counts[person] = face.person.occurrence
        assert len([*self.service.records(self.account, "main")]) == len(counts)
        return counts


@pytest.fixture
def enrolment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Enrolment]:
    client = make_store(tmp_path / "store", SIZE)
    made = Enrolment(
        client, service_of(client), extracted_run(client, "photos", FACES, CodedExtractor(SIZE), len(FACES))
    )
    prepare = client.prepare_shard

    def prepare_then_meet(shard: ShardCommit) -> PreparedShard:
        prepared = prepare(shard)
        made.decided += 1
        if made.between:
            made.between.pop(0)()
        return prepared

    monkeypatch.setattr(client, "prepare_shard", prepare_then_meet)
    yield made
    made.service.close()
    client.close()
    with LocalStore.open(tmp_path / "store", command="test") as again:
        assert check_store(again).problems == []


def test_without_a_conflict_a_shard_is_decided_once(enrolment: Enrolment) -> None:
    enrolment.enrol(lambda: enrolment.post(Shown(7)))  # somebody who is not in the shard
    assert enrolment.decided == 1
    assert enrolment.occurrences() == {1: 1, 2: 1, 3: 1, 4: 1, 7: 1}


def test_somebody_of_the_shard_comes_in_meanwhile(enrolment: Enrolment) -> None:
    enrolment.enrol(lambda: enrolment.post(Shown(2, 5)))
    assert enrolment.decided == 2
    assert enrolment.occurrences() == {1: 1, 2: 2, 3: 1, 4: 1}


def test_the_matched_person_is_deleted_meanwhile(enrolment: Enrolment) -> None:
    person_id = enrolment.post(Shown(3, 5))
    enrolment.enrol(lambda: ask_for(enrolment.service, "delete", enrolment.account, "main", [person_id]))
    assert enrolment.decided == 2
    assert enrolment.occurrences() == {1: 1, 2: 1, 3: 1, 4: 1}
    assert person_id not in {record.person_id for record in enrolment.service.records(enrolment.account, "main")}


def test_the_matched_reference_is_replaced_meanwhile(enrolment: Enrolment) -> None:
    enrolment.post(Shown(3, 5))
    update = PostRequest(update=True)
    enrolment.enrol(lambda: enrolment.service.post(enrolment.account, "main", photo(Shown(3, 6)), update))
    assert enrolment.decided == 2
    assert enrolment.occurrences() == {1: 1, 2: 1, 3: 3, 4: 1}


def test_after_conflict_upon_conflict_a_shard_is_decided_under_the_lock(enrolment: Enrolment) -> None:
    """A post then waits, and finds the shard's identity."""
    tries = pipeline.people.shards._FREE_TRIES
    assert tries < len(FACES)
    posted: list[str] = []
    late = threading.Thread(target=lambda: posted.append(enrolment.post(Shown(len(FACES), 5))))
    conflicts = (partial(enrolment.post, Shown(k, 5)) for k in range(1, 1 + tries))
    enrolment.enrol(*conflicts, late.start)
    late.join()
    assert enrolment.decided == tries + 1
    assert enrolment.occurrences() == {1: 2, 2: 2, 3: 2, 4: 2}
