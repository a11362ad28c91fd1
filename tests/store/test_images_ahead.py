"""Pictures written before the commit that speaks of them: taken by it, or gone."""

from __future__ import annotations

import uuid

import pytest

from pipeline.errors import StoreError
from pipeline.store.client import StoreClient
from tests.store.store_samples import JPEG


def files(client: StoreClient) -> list[str]:
    return sorted(path.name for path in (client.path / "objects").rglob("*") if path.is_file())


def test_what_no_commit_takes_is_removed(client: StoreClient) -> None:
    guids = sorted(str(uuid.uuid4()) for _ in range(3))
    with client.images_ahead(1, [(guid, JPEG + guid.encode(), "image/jpeg") for guid in guids]) as ahead:
        assert files(client) == guids == sorted(ahead)
    assert files(client) == []


def test_a_failure_leaves_none_of_them(client: StoreClient) -> None:
    guid = str(uuid.uuid4())
    with pytest.raises(StoreError, match="cannot name an object"), client.images_ahead(1, [(guid, JPEG, "image/jpeg")]):
        client.read_object("no guid")
    assert files(client) == []
