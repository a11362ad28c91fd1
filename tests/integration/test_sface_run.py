"""Runs, searches and answers over HTTP with the second embedder: a store of its own, which no other writes to."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from PIL import Image

from pipeline.config import Settings
from pipeline.errors import StoreMismatch
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.store.local import LocalStore
from tests.integration.conftest import Runner
from tests.integration.snapshot import snapshot
from tests.searching import search
from tests.serve.live import live_server


@pytest.fixture
def settings(settings: Settings, sface_cache: Path) -> Settings:
    model = dataclasses.replace(settings.model, cache=str(sface_cache))
    return with_weights(dataclasses.replace(settings, model=model), "sface")


def with_weights(settings: Settings, name: str) -> Settings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, weights=name))


@pytest.mark.slow
def test_the_two_people_are_told_apart_in_a_store_of_128_dimensions(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    report = runner(photos)
    assert (report.images, report.persons) == (10, 2)
    with LocalStore.open(tmp_path / "store", command="test") as client:
        identity = client.identity
    assert (identity.embedder, identity.weights, identity.embedding_size) == ("sface", "sface", 128)
    (face,) = search(
        (photos / "b2.jpg").read_bytes(), tmp_path / "store", with_weights(settings, "auto"), None, "main", 5
    )
    assert face.identity is not None
    assert face.similar[0].person_id == face.identity.person_id
    assert face.similar[1].similarity_score < 1 <= face.identity.similarity_score
    again = runner(photos)
    assert again.work.embedder_calls == 0
    assert len(snapshot(tmp_path / "store")["persons"]) == 2


@pytest.mark.slow
def test_the_other_embedder_never_writes_to_it(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    runner(photos)
    other = with_weights(settings, "casia-webface")
    with pytest.raises(StoreMismatch, match="sface"):
        runner(photos, settings=other)
    with pytest.raises(StoreMismatch, match="sface"):
        search((photos / "b2.jpg").read_bytes(), tmp_path / "store", other, None, "main", 5)
    # The store's own.
    assert runner(photos, settings=with_weights(settings, "auto")).work.embedder_calls == 0


def test_a_server_answers_with_it(settings: Settings, tmp_path: Path, hopper_path: Path, astronaut_path: Path) -> None:
    loaded = load_extractor(settings, make_identity(settings), tmp_path)
    flags = {"model__weights": "sface", "model__cache": settings.model.cache}
    with live_server(tmp_path / "store", loaded, **flags) as server, server.http() as http:
        headers = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "e"}
        inserted = http.post("/people", content=hopper_path.read_bytes(), headers=headers)
        assert inserted.status_code == 201, inserted.text
        (face,) = inserted.json()["identifiedFaces"]
        smaller = io.BytesIO()
        Image.open(hopper_path).resize((256, 300)).save(smaller, "JPEG")
        params = {"insert": "false", "update": "false", "similar_limit": 1}
        (again,) = http.post("/people", params=params, content=smaller.getvalue()).json()["identifiedFaces"]
        assert (again["personId"], again["similarityScore"] >= 1) == (face["personId"], True)
        (other,) = http.post("/people", params=params, content=astronaut_path.read_bytes()).json()["identifiedFaces"]
        assert "personId" not in other
