"""Evaluations take the embeddings of a store that a server holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pipeline.jobs.shard_stages
from pipeline.evaluation.photos.subjects import from_store
from pipeline.extraction.extractor import FaceExtractor
from pipeline.jobs.run import RunRequest, run
from pipeline.store.client import StoreClient
from pipeline.store.connect import open_store
from pipeline.store.remote import RemoteStore
from tests.integration.conftest import write_photos
from tests.serve.served import SETTINGS, serving


def test_through_the_server_they_are_the_same(
    tmp_path: Path, hopper_path: Path, astronaut_path: Path, extractor: FaceExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline.jobs.shard_stages, "load_extractor", lambda *_: extractor)
    write_photos(tmp_path / "photos", hopper_path, astronaut_path)
    run(RunRequest(tmp_path / "photos", tmp_path / "store", SETTINGS))
    paths = [str(file) for file in sorted((tmp_path / "photos").iterdir())]
    with StoreClient.open(tmp_path / "store", command="test") as client:
        direct = from_store(client, paths)
    with serving(tmp_path / "store", extractor), open_store(tmp_path / "store", command="test") as remote:
        assert isinstance(remote, RemoteStore)
        through = from_store(remote, paths)
    assert (through.paths, through.skipped) == (direct.paths, direct.skipped)
    assert len(direct.paths) > 5
    np.testing.assert_array_equal(through.embeddings, direct.embeddings)
    np.testing.assert_array_equal(through.quality, direct.quality)
