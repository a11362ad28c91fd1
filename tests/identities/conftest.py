"""An open store, a service over it, and an account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.identities.service import IdentityService
from pipeline.store.checks.check import check_store
from pipeline.store.client import StoreClient
from tests.identities.planted import PlantedExtractor, identity, service


@pytest.fixture
def extractor() -> PlantedExtractor:
    return PlantedExtractor()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[StoreClient]:
    """Whatever a test does, the store must be whole afterwards."""
    with StoreClient.open_or_create(tmp_path / "store", identity, command="test") as made:
        yield made
        assert check_store(made).problems == []


@pytest.fixture
def account(client: StoreClient) -> int:
    return client.create_account("ann", None)


@pytest.fixture
def people(client: StoreClient, extractor: PlantedExtractor, account: int) -> Iterator[IdentityService]:
    """The service; named people where a test is about names, `person_headers` being optional."""
    made = service(client, extractor)
    yield made
    made.close()
