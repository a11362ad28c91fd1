"""A store that a real run filled from photos of coded faces."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.people.coded_archive import make_store, run_over, write_photo


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ and store/. Person 1 has the faces 1, 2 and 3 (known by 1; then 3 is the best), person 2 the faces 4 and
    5, person 3 the face 6; the face 7 was too poor. Face 3 and 4 are in one photo."""
    folder = tmp_path_factory.mktemp("people")
    photos = folder / "photos"
    write_photo(photos, "a1.png", Shown(1))
    write_photo(photos, "a2.png", Shown(1, 1, 0.8))
    write_photo(photos, "b-both.png", Shown(1, 2), Shown(2))
    write_photo(photos, "c2.png", Shown(2, 1))
    write_photo(photos, "d3.png", Shown(3))
    write_photo(photos, "e-poor.png", Shown(8, 0, 0.1))
    make_store(folder / "store")
    run_over(photos, folder / "store")
    return folder


@pytest.fixture
def archive(filled: Path) -> Path:
    """The photos. Tests add some, and change none."""
    return filled / "photos"


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    """A store of the test's own."""
    return Path(shutil.copytree(filled / "store", tmp_path / "store"))
