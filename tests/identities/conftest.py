"""An open store, a service over it, an account, and a directory in memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.people.service import IdentityService
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from tests.identities.planted import PlantedDirectory, PlantedExtractor, PostHandler, identity, put, service, somebody


@pytest.fixture
def extractor() -> PlantedExtractor:
    return PlantedExtractor()


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the account ann, made once and copied for each test."""
    path = tmp_path_factory.mktemp("new") / "store"
    with LocalStore.open_or_create(path, identity, command="test") as made:
        made.create_account("ann", None)
    return path


@pytest.fixture
def client(new_store: Path, tmp_path: Path) -> Iterator[LocalStore]:
    """An open store, which must be whole after the test."""
    with LocalStore.open(Path(shutil.copytree(new_store, tmp_path / "store")), command="test") as opened:
        yield opened
        assert check_store(opened).problems == []


@pytest.fixture
def account(client: LocalStore) -> int:
    return client.account_id("ann")


@pytest.fixture
def people(
    request: pytest.FixtureRequest, client: LocalStore, extractor: PlantedExtractor, account: int
) -> Iterator[IdentityService]:
    """The service. Its settings may be parameters; `person_headers` is optional, for tests that are not about names."""
    made = service(client, extractor, **getattr(request, "param", {}))
    yield made
    made.close()


@pytest.fixture
def directory() -> PlantedDirectory:
    """Persons p0, p1 and p2."""
    made = PlantedDirectory()
    for number in range(3):
        put(made, number, somebody(number), f"hash-{number}")
    return made


@pytest.fixture
def post_handler(client: LocalStore, people: IdentityService, extractor: PlantedExtractor, account: int) -> PostHandler:
    return PostHandler(client, people, extractor, account)
