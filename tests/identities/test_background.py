"""Posted embeddings find their way into shards, and removed ones out of them, without anybody asking."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pipeline.errors import StoreError
from pipeline.identities.background import Housekeeper
from pipeline.identities.service import IdentityService
from pipeline.identities.types import PostRequest
from pipeline.store.client import StoreClient
from tests.identities.planted import Face, PlantedExtractor, service, somebody


def _soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def test_a_quiet_store_is_folded(
    people: IdentityService, extractor: PlantedExtractor, client: StoreClient, account: int
) -> None:
    people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest())
    assert client.pending_embeddings() == 1
    keeper = Housekeeper(client, 0.05)
    keeper.note_change()
    assert _soon(lambda: client.pending_embeddings() == 0)
    person_id = people.people(account, "main")[0].record.person_id
    people.delete_person(account, "main", person_id)
    keeper.note_change()
    assert _soon(lambda: not list(client.path.glob("embeddings/*/*.parquet")))
    keeper.close()


def test_a_fold_that_fails_is_tried_again(
    people: IdentityService,
    extractor: PlantedExtractor,
    client: StoreClient,
    account: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    people.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest())
    failures: list[BaseException] = [MemoryError(), StoreError(message="planted")]
    fold = client.fold

    def failing(least: int) -> int:
        if failures:
            raise failures.pop()
        return fold(least)

    monkeypatch.setattr(client, "fold", failing)
    keeper = Housekeeper(client, 0.05)
    keeper.note_change()
    assert _soon(lambda: client.pending_embeddings() == 0)
    keeper.close()


def test_closing_a_service_folds(extractor: PlantedExtractor, client: StoreClient, account: int) -> None:
    made = service(client, extractor)
    made.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest())
    made.close()
    assert client.pending_embeddings() == 0
    assert service_answers(client, extractor, account)


def service_answers(client: StoreClient, extractor: PlantedExtractor, account: int) -> bool:
    made = service(client, extractor)
    found = made.post(account, "main", extractor.photo(Face(somebody(0))), PostRequest()).faces[0]
    made.close()
    return not found.inserted
