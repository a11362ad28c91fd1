"""The reference matrix serves only when it is the catalog's, and is made anew otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from store_samples import SHARD_ROWS, SHARDS, SIZE, shard_commit

from pipeline.store.client import StoreClient
from pipeline.store.records import RunRow

STEM = "references/g0001/1"


def seq_file(client: StoreClient) -> Path:
    return client.path / (STEM + ".seq")


def test_commits_append_to_it(client: StoreClient, run: RunRow) -> None:
    for shard in range(2):
        client.commit_shard(shard_commit(client, run, shard))
        inode = seq_file(client).stat().st_ino
        assert seq_file(client).stat().st_size == (shard + 1) * SHARD_ROWS * 8
    found = client.references(run.account_id, "main")
    assert isinstance(found.vectors, np.memmap)
    assert not found.vectors.flags.writeable
    assert seq_file(client).stat().st_ino == inode  # it was used as it is
    earlier = np.array(found.vectors)
    client.commit_shard(shard_commit(client, run, 2))
    np.testing.assert_array_equal(found.vectors, earlier)  # a commit leaves the rows that a reader holds


def _cut(file: Path, end: int) -> None:
    file.write_bytes(file.read_bytes()[:end])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "no seq": lambda root: (root / (STEM + ".seq")).unlink(),
    "no vectors": lambda root: (root / (STEM + ".f32")).unlink(),
    "torn seq": lambda root: _cut(root / (STEM + ".seq"), -3),
    "missed append": lambda root: (_cut(root / (STEM + ".seq"), -8), _cut(root / (STEM + ".f32"), -4 * SIZE))[0],
    "torn vectors": lambda root: _cut(root / (STEM + ".f32"), -5),
    "extra vectors": lambda root: (
        (root / (STEM + ".f32")).open("ab").close()
        or (root / (STEM + ".f32")).write_bytes((root / (STEM + ".f32")).read_bytes() + bytes(4 * SIZE))
    ),
    "other rows": lambda root: (root / (STEM + ".seq")).write_bytes(np.arange(SHARDS * SHARD_ROWS, dtype="<i8")),
    "empty": lambda root: (root / (STEM + ".seq")).write_bytes(b""),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_one_that_does_not_fit_is_made_anew(store: Path, damage: str) -> None:
    with StoreClient.open(store, command="test") as client:
        expected = np.array(client.references(1, "main").vectors)
        vectors, seq = (store / (STEM + ".f32")).read_bytes(), seq_file(client).read_bytes()
    DAMAGE[damage](store)
    with StoreClient.open(store, command="test") as client:
        np.testing.assert_array_equal(client.references(1, "main").vectors, expected)
    assert (store / (STEM + ".f32")).read_bytes() == vectors
    assert (store / (STEM + ".seq")).read_bytes() == seq


def test_a_replaced_reference_is_noticed(store: Path) -> None:
    """Other faces stand for two persons: the numbers of their references change, the order does not."""
    with StoreClient.open(store, command="test") as client:
        before = client.references(1, "main")
        for seq, face in ((1, 15), (8, 1)):
            sql = f"UPDATE core.reference_faces SET face_id = {face}, seq = {seq + 100} WHERE seq = {seq}"
            client.submit(lambda catalog, sql=sql: catalog.execute(sql))
        after = client.references(1, "main")
        np.testing.assert_array_equal(after.vectors, before.vectors[[7, 1, 2, 3, 4, 5, 6, 0]])
        assert after.seq.tolist() == before.seq.tolist()
