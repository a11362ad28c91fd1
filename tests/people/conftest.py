"""A store that a real run filled from photos of coded faces."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.store.local import LocalStore
from tests.people.coded_archive import fill, make_store, run_over
from tests.people.correcting import People


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("people"))


@pytest.fixture
def archive(filled: Path) -> Path:
    """The photos. Tests add some, and change none."""
    return filled / "photos"


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A store of the test's own."""
    return Path(shutil.copytree(filled / "store", tmp_path / "store"))


@pytest.fixture
def people(store: Path) -> Iterator[People]:
    with LocalStore.open(store, command="test") as client:
        made = People(client)
        yield made
        made.close()


@pytest.fixture
def photos(archive: Path, tmp_path: Path) -> Path:
    """A copy of the archive, for a test to change."""
    return Path(shutil.copytree(archive, tmp_path / "photos"))


@pytest.fixture
def night(photos: Path, tmp_path: Path) -> Path:
    """A store that a run filled from `photos`."""
    run_over(photos, made := make_store(tmp_path / "store"))
    return made
