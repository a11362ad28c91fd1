"""A store changes its model, with real ones: it is built, swapped and rolled back, and its people stay."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.config import SecuritySettings, Settings
from pipeline.errors import (
    Interrupted,
    MasterKeyMissing,
    PhotosMissing,
    ReindexMissing,
    ReindexUnderWay,
    StoreLocked,
    UsageError,
)
from pipeline.evaluation.reindexing import report_reindex
from pipeline.jobs import reindex as building
from pipeline.jobs.people import People
from pipeline.jobs.reindex import Estimate, reindex
from pipeline.jobs.store import open_store
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from tests.cli.report import answer
from tests.integration.conftest import RecordedProgress, Runner
from tests.searching import search
from tests.serve.served import SETTINGS, serving

pytestmark = pytest.mark.usefixtures("sface_installed")


def by(settings: Settings, weights: str) -> Settings:
    return dataclasses.replace(settings, model=dataclasses.replace(settings.model, weights=weights))


def secured(settings: Settings, security: SecuritySettings) -> Settings:
    return dataclasses.replace(settings, security=security)


def build(
    store: Path, settings: Settings, *changed: str, stop: threading.Event | None = None, **more: Any
) -> dict[str, Any]:
    return reindex(store, settings, changed, RecordedProgress(), stop or threading.Event(), **more)


def switch(store: Path, *, back: bool = False) -> None:
    with open_store(store, command="test") as opened:
        opened.switch_generation(back=back)


def named(store: Path) -> list[str]:
    """The ids of the two people, who get names."""
    with open_store(store, command="test") as opened:
        people = People(opened)
        ids = [person.person_id for person in people.all()]
        for person_id, name in zip(ids, ("Grace", "Eileen"), strict=True):
            people.name(person_id, name)
    return ids


def people_of(store: Path) -> list[dict[str, Any]]:
    """Who there is, and whose each face is."""
    with LocalStore.open(store, command="test") as client:
        assert client.check().problems == []
        persons = client.read("SELECT * EXCLUDE (commit_number) FROM core.persons ORDER BY seq").to_pylist()
        faces = client.read(
            "SELECT face_id, person_id::VARCHAR AS person, outcome FROM core.faces ORDER BY 1"
        ).to_pylist()
        facts = client.read("SELECT * FROM main.facts ORDER BY ALL").to_pylist()
    return [*persons, *faces, *facts]


def vectors_of(store: Path) -> dict[tuple[str, int], np.ndarray]:
    """Of the current generation, by photo and place in it."""
    with LocalStore.open(store, command="test") as client:
        rows = client.read(
            "SELECT f.face_id, m.path, f.ordinal FROM core.faces f JOIN core.media m USING (media_id)"
            " WHERE f.face_id IN (SELECT face_id FROM core.embeddings WHERE generation ="
            " (SELECT current_generation FROM core.store))"
        ).to_pylist()
        found = client.face_vectors([row["face_id"] for row in rows])
    return {(Path(row["path"]).name, row["ordinal"]): found[row["face_id"]].embedding for row in rows}


@pytest.mark.slow
def test_a_store_changes_its_model_and_keeps_its_people(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    store, sface = tmp_path / "store", by(settings, "sface")
    runner(photos)
    one, two = named(store)
    with open_store(store, command="test") as opened:
        People(opened).not_same(one, two)
    fresh = tmp_path / "fresh"
    runner(photos, store=fresh, settings=sface)
    (photos / "g1.webp").unlink()
    Image.new("RGB", (200, 200)).save(photos / "h1.bmp")  # others faces are gone
    first = (photos / "a1.jpg").rename(tmp_path / "a1.jpg")  # of a reference, whose picture is stored
    (photos / "d-copy.jpg").rename(tmp_path / "d-copy.jpg")
    before = people_of(store)
    told: list[Estimate] = []
    with pytest.raises(PhotosMissing):
        build(store, sface)
    summary = build(store, sface, missing_too=True, say=told.append)
    assert (told[0].weights, told[0].missing, told[0].calibrated) == ("sface", 3, True)
    assert told[0].bytes > 0
    assert told[0].seconds is not None
    assert (summary["weights"], summary["left"], summary["without_reference"]) == ("sface", 0, 0)
    assert summary["from_pictures"] >= 1
    assert summary["without"] >= 2
    assert all(cosine > 0.99 for cosine in summary["cosines"])
    assert people_of(store) == before
    was = vectors_of(store)
    switch(store)
    assert people_of(store) == before
    now, expected = vectors_of(store), vectors_of(fresh)
    known = {place for place in expected if place[0] not in ("a1.jpg", "d-copy.jpg", "g1.webp", "h1.bmp")}
    assert {*now} - {("a1.jpg", 0), ("d-copy.jpg", 0)} == known
    for place in known:
        assert now[place] @ expected[place] > 0.9999, place
    assert now["a1.jpg", 0] @ expected["a1.jpg", 0] > 0.98
    (face,) = search(first.read_bytes(), store, by(settings, "auto"), None, "main", 5)
    assert face.identity is not None
    assert face.identity.name == "Grace"
    shutil.copy(first, photos / "i1.jpg")
    Image.open(first).resize((230, 270)).save(photos / "i2.jpg")
    assert runner(photos, settings=by(settings, "auto")).persons == 2
    assert runner(photos, settings=by(settings, "casia-webface")).work.embedder_calls == 0
    with open_store(store, command="test") as opened:
        assert opened.count_unmeasured() == 0
        People(opened).undo()
        assert [person.name for person in People(opened).all()] == ["Grace", "Eileen"]
    switch(store, back=True)
    after = vectors_of(store)
    moved = {("a1.jpg", 0): ("i1.jpg", 0)}
    assert all(
        np.array_equal(after[moved.get(place, place)], vector) for place, vector in was.items() if place[0] != "h1.bmp"
    )
    assert ("i2.jpg", 0) in after
    (face,) = search(first.read_bytes(), store, by(settings, "auto"), None, "main", 5)
    assert face.identity is not None
    assert face.identity.name == "Grace"


@pytest.mark.slow
@pytest.mark.parametrize("posted", [False, True])
def test_what_the_former_model_corrected_is_undone_by_the_new_one(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, posted: bool
) -> None:
    """Of people who are known by another face than before, or by one that was `posted` since."""
    store = tmp_path / "store"
    runner(photos)
    one, two = named(store)
    before = people_of(store)
    with open_store(store, command="test") as opened:
        people = People(opened)
        faces = {face["face_id"]: face for name in ("Grace", "Eileen") for face in people.photos(name)}
        references = [*opened.local.reference_faces([one, two]).values()]
        graces = [face["face_id"] for face in people.photos("Grace") if face["face_id"] not in references]
        for face in graces:
            people.move(face, "Eileen")
    for face in references:
        Path(faces[face]["path"]).unlink()
    monkeypatch.setattr(building, "LEAST_SHARE", 100.0)
    summary = build(store, by(settings, "sface"), missing_too=True)
    assert summary["without_reference"] == 1  # Grace
    assert summary["stand_ins"] == 1
    switch(store)
    if posted:
        with serving(store, settings=by(SETTINGS, "auto")) as served:
            client = served.service.directories._client
            (stand_in,) = client.reference_faces([two]).values()
            Image.open(faces[stand_in]["path"]).resize((240, 240)).save(tmp_path / "post.jpg")
            post = client.account_id("default"), "main", (tmp_path / "post.jpg").read_bytes()
            assert served.service.post(*post, PostRequest(insert=False)).account_updated
            assert client.reference_faces([two]) != {two: stand_in}
    with open_store(store, command="test") as opened:
        people = People(opened)
        for _ in graces:
            people.undo()
        known = opened.local.reference_faces([one, two])
        assert known[one] in graces
        assert known[two] not in references
        assert known[two] in {face["face_id"] for face in opened.faces_of([two]).to_pylist()}
    kept = ("face_id", "person", "outcome", "person_id", "name", "parent_id")
    owners = [{k: row[k] for k in kept if k in row} for row in people_of(store)]
    assert [row for row in owners if row.get("face_id", 0) in {0, *faces}] == [
        {k: row[k] for k in kept if k in row} for row in before
    ]
    switch(store, back=True)
    with open_store(store, command="test") as opened:
        now = opened.local.reference_faces([one, two])
        assert now[one] in references
        assert now[two] == known[two]
        people = People(opened)
        last = people.log(1)[0]
        assert last.kind == "undo"
        people.undo(last.correction_id)  # the former model answers, and the other one answered when it was undone
        assert graces[0] in {face["face_id"] for face in opened.faces_of([two]).to_pylist()}
    assert people_of(store)


@pytest.mark.slow
def test_other_settings_of_the_same_model(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    store = tmp_path / "store"
    runner(photos)
    narrow = dataclasses.replace(settings, align=dataclasses.replace(settings.align, margin_px=16))
    with pytest.raises(UsageError, match="nothing to do"):
        build(store, settings)
    with pytest.raises(UsageError, match=r"not detect\.min_face_px"):
        build(store, settings, "detect.min_face_px")
    build(store, narrow, "align.margin_px")
    with pytest.raises(ReindexUnderWay, match="casia-webface"):
        build(store, by(settings, "sface"))
    was = vectors_of(store)
    switch(store)
    now = vectors_of(store)
    assert now.keys() == was.keys()
    assert all(0.5 < now[place] @ was[place] < 0.9999 for place in was)
    with open_store(store, command="test") as opened:
        assert opened.identity.output_settings["align"]["margin_px"] == 16
        assert opened.drop_generation(older=True) == "casia-webface"
    assert runner(photos).work.embedder_calls == 0
    assert people_of(store)


@pytest.mark.slow
def test_a_build_that_is_stopped_goes_on(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    runner(photos)
    stop, builds = threading.Event(), 1
    stop.set()
    while True:
        try:
            summary = build(tmp_path / "store", by(settings, "sface"), stop=stop)
            break
        except Interrupted:
            builds += 1
            if builds > 2:
                stop.clear()
    assert builds > 2
    assert (summary["left"], summary["vectors"]) == (0, len(vectors_of(tmp_path / "store")))
    with open_store(tmp_path / "store", command="test") as opened, opened.lock_reindex("another"):
        pass


@pytest.mark.slow
def test_a_server_goes_on_through_build_swap_and_rollback(
    photos: Path, settings: Settings, tmp_path: Path, runner: Runner
) -> None:
    """Posts are answered by one model each, and a run embeds by both."""
    store = tmp_path / "store"
    runner(photos)
    providers, problems, end = list[str](), list[BaseException](), threading.Event()
    with serving(store) as served:
        account = served.service.directories._client.account_id("default")

        def post() -> None:
            files = [photos / name for name in ("a1.jpg", "b1.jpg", "c-both.png")]
            while not end.is_set():
                for file in files:
                    try:
                        result = served.service.post(account, "main", file.read_bytes(), PostRequest())
                        assert all(face.person is not None for face in result.faces)
                        providers.append(result.provider)
                    except BaseException as exc:  # noqa: BLE001
                        problems.append(exc)

        poster = threading.Thread(target=post)
        poster.start()
        try:
            build(store, by(settings, "sface"))
            Image.open(photos / "a1.jpg").resize((210, 250)).save(photos / "new.jpg")
            runner(photos)
            assert served.service.batcher.stage_s["second model"] > 0
            with open_store(store, command="test") as opened, opened.lock_reindex("test"):
                with pytest.raises(StoreLocked):
                    build(store, by(settings, "sface"))
                assert opened.switch_generation().weights == "sface"
                assert opened.identity.weights == "casia-webface"  # as this command knew the store
            Image.open(photos / "b1.jpg").resize((240, 240)).save(photos / "newer.jpg")
            runner(photos, settings=by(settings, "auto"))
            with open_store(store, command="test") as opened:
                opened.switch_generation(back=True)
        finally:
            end.set()
            poster.join()
        with open_store(store, command="test") as opened:
            assert opened.count_unmeasured() == 0
            opened.drop_generation()
        assert served.service.post(account, "main", (photos / "a1.jpg").read_bytes(), PostRequest()).faces
    assert problems == []
    changes = [one for one, before in zip(providers, ["", *providers], strict=False) if one != before]
    assert [one.split("/")[1] for one in changes] == ["casia-webface", "sface", "casia-webface"]
    assert people_of(store)


@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True])
def test_a_swap_decides_all_faces_again(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, served: bool
) -> None:
    store = tmp_path / "store"
    strict = dataclasses.replace(settings, match=dataclasses.replace(settings.match, threshold=0.05))
    runner(photos, settings=strict)
    before = people_of(store)
    with ExitStack() as stack:
        server = stack.enter_context(serving(store)) if served else None
        with open_store(store, command="test") as opened:
            people = People(opened)
            strangers = len(people.all())
            with pytest.raises(ReindexMissing):
                people.swap_and_regroup()
        build(store, by(settings, "sface"))
        with open_store(store, command="test") as opened:
            would = People(opened).swap_and_regroup(dry_run=True)
            assert (would.weights, opened.identity.weights) == ("sface", "casia-webface")
            done = People(opened).swap_and_regroup()
        assert done.weights == "sface"
        assert done.regrouped is not None
        assert would.regrouped is not None
        assert done.regrouped.regrouping == would.regrouped.regrouping
        with open_store(store, command="test") as opened:
            people = People(opened)
            assert (opened.identity.weights, len(people.all()), strangers) == ("sface", 2, strangers)
            assert strangers > 2
            if server is not None:
                account = server.service.directories._client.account_id("default")
                result = server.service.post(
                    account, "main", (photos / "a1.jpg").read_bytes(), PostRequest(insert=False)
                )
                assert "sface" in result.provider
                assert {face.person.root.person_id for face in result.faces if face.person} <= {
                    p.person_id for p in people.all()
                }
            opened.switch_generation(back=True)
        with open_store(store, command="test") as opened:
            people = People(opened)
            assert len(people.all()) == 2
            people.undo(done.regrouped.correction_id)
            assert len(people.all()) == strangers
    after = people_of(store)
    changed = ("modified_at", "occurrence", "last_occurrence_at")  # the post
    same = [[row | dict.fromkeys(changed) for row in rows] for rows in (before, after)]
    assert same[0] == same[1]


@pytest.mark.slow
def test_a_swap_whose_regroup_changes_nothing(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    store = tmp_path / "store"
    runner(photos)
    build(store, by(settings, "sface"))
    swap = ("reindex", "swap", "--store", store)
    answer(*swap, "--dry-run", exit_code=2)
    would = answer(*swap, "--regroup", "--dry-run")
    done = answer(*swap, "--regroup")
    assert (would["weights"], done["weights"], done["regrouped"]["correction_id"]) == ("sface", "sface", None)
    assert would["regrouped"]["regrouping"]["moves"] == []
    assert answer("check", "--store", store)["counts"]["faces_in_one_index_only"] == 0


@pytest.mark.slow
def test_an_encrypted_store(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    """Its stored pictures serve with the key, and no picture lies open in it afterwards."""
    store, key = tmp_path / "store", tmp_path / "keys" / "master.key"
    runner(photos, settings=secured(settings, SecuritySettings(encrypt=True, master_key_file=str(key))))
    (photos / "a1.jpg").unlink()  # of a reference
    keyed = secured(settings, SecuritySettings(master_key_file=str(key)))
    with pytest.raises(MasterKeyMissing):
        build(store, by(settings, "sface"), missing_too=True)
    summary = build(store, by(keyed, "sface"), missing_too=True)
    assert (summary["from_pictures"], summary["without_reference"]) == (1, 0)
    with open_store(store, keyed, command="test") as opened:
        opened.unlock()
        assert People(opened).swap_and_regroup().weights == "sface"
        opened.drop_generation(older=True)
    assert people_of(store)
    assert not [f for f in store.rglob("*") if f.is_file() and b"\xff\xd8\xff\xe0\x00\x10JFIF" in f.read_bytes()]


@pytest.mark.slow
def test_a_comparison_is_of_pairs_that_no_model_joined(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    runner(photos)
    build(store, by(settings, "sface"))
    named(store)
    result = report_reindex(store, settings, RecordedProgress()).result
    assert (result.people, result.genuine_pairs) == (2, 0)
    assert result.otherwise == {"joins": 0, "moves": 0, "new": 0, "gone": 0, "kept_apart": 0}
    assert result.biased_pairs > 10
    assert result.impostor_pairs > 10
    with open_store(store, command="test") as opened:
        people = People(opened)
        face = next(f for f in people.photos("Grace") if Path(f["path"]).name == "g1.webp")
        people.split("Grace", [face["face_id"]])
        people.merge("Grace", people.all()[-1].person_id, anyway=True)
    report = report_reindex(store, settings, RecordedProgress())
    assert report.result.genuine_pairs > 1
    assert report.result.genuine_pairs + report.result.biased_pairs == result.biased_pairs
    assert report.result.new.fnmr_at_threshold == 0
    assert any(line.startswith("at T") for line in report.lines())
