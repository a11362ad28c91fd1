"""Links in a store, which may come from somebody else: what they lead to stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import StoreUnwritable
from pipeline.store import cleanup
from pipeline.store.checks.check import check_store
from pipeline.store.files.durable import Folder
from pipeline.store.local import LocalStore
from tests.store.store_samples import commit, insertion, small_segments
from tests.stored import stored_people

KEPT = b"not of this store"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("kept.txt", "kept.parquet", "CURRENT.tmp"):
        (folder / name).write_bytes(KEPT)
    return folder


def assert_kept(elsewhere: Path) -> None:
    assert {file.name: file.read_bytes() for file in elsewhere.iterdir()} == dict.fromkeys(
        ("kept.txt", "kept.parquet", "CURRENT.tmp"), KEPT
    )


@pytest.mark.parametrize("name", ["LOCK", "INTENTS"])
def test_a_file_that_is_a_link_is_not_written(store: Path, elsewhere: Path, name: str) -> None:
    (store / name).unlink(missing_ok=True)
    (store / name).symlink_to(elsewhere / "kept.txt")
    if name == "LOCK":
        with pytest.raises(StoreUnwritable, match="symbolic links"):
            LocalStore.open(store, command="test")
    else:
        with LocalStore.open(store, command="test") as client:
            commit(client, insertion(1, "main", 1, "P"))
    assert_kept(elsewhere)


def test_a_temporary_name_that_is_a_link_is_not_written(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "CURRENT.tmp").symlink_to(elsewhere / "kept.txt")
    with pytest.raises(StoreUnwritable, match="symbolic links"):
        Folder(tmp_path).write("CURRENT", b"new", "current")
    assert_kept(elsewhere)


def test_a_segment_that_is_a_link_is_not_read(
    store: Path, elsewhere: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Even if it leads to the segment: what is behind a link may be changed by somebody else."""
    with LocalStore.open(store, command="test") as client:
        expected = np.array(stored_people(client, 1, "main").vectors)
    (file,) = store.glob("references/*/*")
    content = file.read_bytes()
    for target, what in ((elsewhere / "kept.txt", KEPT), (tmp_path / "segment", content)):
        target.write_bytes(what)
        file.unlink()
        file.symlink_to(target)
        caplog.clear()
        with small_segments(), LocalStore.open(store, command="test") as client:
            np.testing.assert_array_equal(stored_people(client, 1, "main").vectors, expected)
            assert "not a plain file" in caplog.text
        assert target.read_bytes() == what
        with LocalStore.open(store, command="test") as client:
            assert check_store(client).problems == []
        assert not file.is_symlink()
        (file,) = store.glob("references/*/*")
    assert_kept(elsewhere)


@pytest.mark.parametrize("link", ["embeddings/g0009", "quarantine", "references/g0009", "runs/x"])
def test_nothing_is_cleared_away_behind_a_link(
    store: Path, elsewhere: Path, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "_QUARANTINE_S", -1.0)
    (store / link).symlink_to(elsewhere)
    LocalStore.open(store, command="test").close()
    assert_kept(elsewhere)
