"""A second generation of a store: built, completed, kept by every change, made the current one, dropped."""

from __future__ import annotations

import dataclasses
import errno
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ReindexMissing, ReindexUnderWay, StoreError
from pipeline.store import MEASURED_SCHEMA, USER, Change, Rows, StoreIdentity, vector_bytes
from pipeline.store.files import faults
from pipeline.store.local import LocalStore
from pipeline.types import QUALITIES, Measured
from tests.people.broken_disk import broken_at
from tests.store.store_samples import (
    SOURCE,
    Asked,
    commit,
    commit_shard,
    copied_at_points,
    identity,
    insertion,
    replacement,
    shard_commit,
    unit_vectors,
)
from tests.stored import stored_people

SIZE = 4


def other_model() -> StoreIdentity:
    return dataclasses.replace(identity(), weights="other", weights_sha256="ab" * 32, embedding_size=SIZE)


def vector(face_id: int) -> np.ndarray:
    return unit_vectors(1, 1000 + face_id, SIZE)[0]


def measured(table: pa.Table, without: Sequence[int] = ()) -> pa.Table:
    """What the other model makes of these faces, of which some get no vector."""
    rows = [
        {name: row[name] for name in MEASURED_SCHEMA.names if name in row}
        | {"sharpness_quality": 0.25}
        | {
            "embedding": None
            if row["outcome"] == "rejected" or row["face_id"] in without
            else vector_bytes(vector(row["face_id"]))
        }
        for row in table.to_pylist()
    ]
    return pa.Table.from_pylist(rows, MEASURED_SCHEMA)


def build(client: LocalStore, without: Sequence[int] = ()) -> int:
    """Builds the generation, two photos at a time; the number of shards."""
    after = shards = 0
    while len(table := client.unmeasured_faces(after, 2)):
        client.commit_measured(measured(table, without), {"faces": len(table)})
        after = table["media_id"][-1].as_py()
        shards += 1
    return shards


@pytest.fixture
def client(tmp_path: Path) -> LocalStore:
    """A run of two shards with three photos each, of two faces; and A and B, who were posted."""
    opened = LocalStore.open_or_create(tmp_path / "store", identity, command="test")
    account = opened.create_account("ann", None)
    run = opened.begin_run(SOURCE, "folder", account, "main", {})
    opened.plan_run(run.run_id, 6, 2)
    for shard in range(2):
        commit_shard(opened, shard_commit(opened, run, shard, rows=3))
    opened.finish_run(run.run_id, {})
    commit(opened, insertion(account, "main", 100, "A", "B"))
    opened.fold()
    return opened


def references(client: LocalStore, generation: int) -> dict[str, int]:
    rows = client.read(
        "SELECT p.name || ' ' || p.seq AS who, r.face_id FROM core.reference_faces r JOIN core.persons p USING"
        f" (person_id) WHERE generation = {generation} ORDER BY p.seq"
    ).to_pylist()
    return {row["who"]: row["face_id"] for row in rows}


def everybody(client: LocalStore) -> list[dict[str, object]]:
    return client.read("SELECT * EXCLUDE (modified_at) FROM core.persons ORDER BY seq").to_pylist()


def sound(client: LocalStore) -> bool:
    report = client.check()
    assert report.problems == []
    return True


@pytest.mark.slow
def test_a_generation_is_built_beside_the_current_one(client: LocalStore) -> None:
    before = stored_people(client, 1, "main")
    assert client.begin_generation(other_model()) == 2
    with pytest.raises(ReindexUnderWay):
        client.begin_generation(other_model())
    assert client.count_unmeasured() == 14
    assert not client.complete_generation()
    with pytest.raises(ReindexMissing):
        client.switch_generation()
    assert build(client) == 4
    assert client.count_unmeasured() == 0
    assert sound(client)
    assert references(client, 2) == {}
    assert client.complete_generation()
    assert references(client, 2) == references(client, 1)
    summary = client.generation_summary()
    assert all(size > 0 for size in summary.pop("bytes"))
    assert summary == {"faces": 14, "vectors": 8, "left": 0, "stand_ins": 0, "without_reference": 0}
    assert sound(client)
    after = stored_people(client, 1, "main")
    assert np.array_equal(before.vectors, after.vectors)
    people = everybody(client)
    client.switch_generation()
    assert (client.generation, client.identity.weights) == (2, "other")
    assert everybody(client) == people
    now = stored_people(client, 1, "main")
    assert np.array_equal(now.vectors, [vector(face) for face in references(client, 2).values()])
    scores = client.read("SELECT similarity_score, sharpness_quality FROM main.faces WHERE outcome = 'inserted'")
    assert scores["similarity_score"].null_count == 8
    assert set(scores["sharpness_quality"].to_pylist()) == {0.25}
    assert sound(client)
    with pytest.raises(ReindexMissing, match="rollback"):
        client.switch_generation()
    client.switch_generation(back=True)
    assert np.array_equal(stored_people(client, 1, "main").vectors, before.vectors)
    assert everybody(client) == people
    client.close()


@pytest.mark.slow
def test_a_person_whose_face_has_no_vector_is_known_by_the_best_other_one(client: LocalStore) -> None:
    (a,) = (r for r in stored_people(client, 1, "main").persons if r.name == "A")
    chosen = references(client, 1)
    client.begin_generation(other_model())
    first = next(face for who, face in chosen.items() if who.startswith("Person 0"))
    build(client, without=[first, *(face for who, face in chosen.items() if who.startswith("B"))])
    client.complete_generation()
    missing = {who for who in chosen if who not in references(client, 2)}
    assert {who.split()[0] for who in missing} == {"Person", "B"}  # nobody has a second face
    assert client.generation_summary()["without_reference"] == 2
    assert client.check().counts["faces_in_one_index_only"] == 2
    assert sound(client)
    client.switch_generation()
    assert {r.name for r in stored_people(client, 1, "main").faceless} == {"Person 0", "B"}
    assert a.person_id in {r.person_id for r in stored_people(client, 1, "main").persons}
    client.close()


def posted(client: LocalStore, asked: Asked, model: str | None = None) -> None:
    """Commits a post that both models have seen, or instead of the second one `model`."""
    change = asked.change(client)
    own = change.vectors
    if client.generation == 2:
        vectors = {face: dataclasses.replace(each, embedding=vector(face)) for face, each in own.items()}
        change = dataclasses.replace(change, vectors=vectors)
    model = model or (other_model() if client.generation == 1 else identity()).model
    seen = {face: own[face].embedding if client.generation == 2 else vector(face) for face in own}
    both = {face: Measured(model, [0.25] * len(QUALITIES), vector) for face, vector in seen.items()}
    client.commit(dataclasses.replace(change, measured=both))


@pytest.mark.slow
@pytest.mark.parametrize("folded", [False, True])
def test_changes_keep_both_generations(client: LocalStore, folded: bool) -> None:
    client.begin_generation(other_model())
    posted(client, insertion(1, "main", 200, "C"))
    build(client)
    client.complete_generation()
    posted(client, insertion(1, "main", 300, "D", "E"))
    if folded:
        client.fold()
    records = {record.name: record for record in stored_people(client, 1, "main").persons}
    posted(client, replacement(1, "main", 400, records["A"]))
    posted(client, replacement(1, "main", 500, records["D"]))
    commit(client, Asked(1, "main", deleted=[records["E"].person_id, records["B"].person_id]))
    assert references(client, 2) == references(client, 1)
    assert client.read("SELECT count(*) AS n FROM core.pending_embeddings WHERE generation = 2")["n"][0].as_py() > 0
    assert sound(client)
    client.fold()
    assert sound(client)
    client.switch_generation()
    assert sound(client)
    now = stored_people(client, 1, "main")
    assert np.array_equal(now.vectors, [vector(face) for face in references(client, 2).values()])
    records = {record.name: record for record in now.persons}
    posted(client, replacement(1, "main", 600, records["C"]))
    assert references(client, 1) == references(client, 2)
    posted(client, replacement(1, "main", 700, records["A"]), model="another")
    (missing,) = {*references(client, 2)} - {*references(client, 1)}
    assert missing.startswith("A")
    with pytest.raises(ReindexMissing, match="lacks faces"):
        client.switch_generation(back=True)
    assert client.count_unmeasured() == 1
    sizes = client.unmeasured_faces(0, 9)
    old = {"embedding": vector_bytes(unit_vectors(1, 7)[0]), "rejection_reasons": None}
    rows = [{**{name: row.get(name) for name in MEASURED_SCHEMA.names}, **old} for row in sizes.to_pylist()]
    client.commit_measured(pa.Table.from_pylist(rows, MEASURED_SCHEMA), {})
    assert client.complete_generation()
    assert references(client, 1) == references(client, 2)
    client.fold()
    assert sound(client)
    client.switch_generation(back=True)
    assert len(stored_people(client, 1, "main").vectors) == len(references(client, 1))
    client.close()


def drop_a_photo_of(client: LocalStore, face_id: int) -> Change:
    (face,) = client.stored_faces(1, "main", [face_id], [])
    return Change(1, "main", "forget_photos", USER, leaving=[face.media_id])


@pytest.mark.slow
def test_a_stand_in_is_the_best_other_face(client: LocalStore) -> None:
    """And another one when that is gone; with a picture only if it is the reference's."""
    people = [r for r in stored_people(client, 1, "main").persons if r.seq <= 3]
    faces = [references(client, 1)[f"{r.name} {r.seq}"] for r in people]
    one = people[0].person_id
    for other, face_id in zip(people[1:], faces[1:], strict=True):  # all are one person's
        was = {"person_id": other.person_id, "outcome": "inserted", "similarity_score": 1.5, "rejection_reasons": None}
        before = Rows({other.person_id: {}}, {face_id: was}, {other.person_id: face_id})
        after = Rows({other.person_id: {"name": "Gone"}}, {face_id: {**was, "person_id": one}}, {other.person_id: None})
        seqs = {r.person_id: r.seq for r in people}
        client.commit(Change(1, "main", "move", USER, before=before, after=after, seqs=seqs))
    client.begin_generation(other_model())
    build(client, without=[faces[0]])
    client.complete_generation()
    client.fold()
    who = f"{people[0].name} {people[0].seq}"
    assert references(client, 2)[who] == faces[1]
    assert client.generation_summary()["stand_ins"] == 1
    client.commit(drop_a_photo_of(client, faces[1]))
    assert references(client, 2)[who] == faces[2]
    assert references(client, 1)[who] == faces[0]
    assert sound(client)
    client.fold()
    assert sound(client)
    client.switch_generation()
    (shown,) = (r for r in stored_people(client, 1, "main").persons if r.person_id == one)
    assert shown.image_guid == people[0].image_guid
    assert client.picture_of_face(faces[2]) is None
    client.drop_generation(older=True)
    assert sound(client)
    client.close()


def test_what_another_model_measured_is_left_out(client: LocalStore) -> None:
    client.begin_generation(other_model())
    posted(client, insertion(1, "main", 200, "C"), model="another")
    assert client.count_unmeasured() == 15
    client.close()


def test_a_change_that_the_newer_generation_decided_comes_with_the_switch(client: LocalStore) -> None:
    client.begin_generation(other_model())
    with pytest.raises(ReindexMissing):
        client.after_switch()
    build(client)
    client.complete_generation()
    later = client.after_switch()
    assert (client.generation, later.generation, later.identity.weights) == (1, 2, "other")
    assert np.array_equal(stored_people(later, 1, "main").vectors, [vector(f) for f in references(client, 2).values()])
    refused = dataclasses.replace(insertion(1, "main", 900, "Z").change(client), vectors={})
    with pytest.raises(StoreError):
        later.commit(refused)
    assert client.generation == 1
    posted(later, insertion(1, "main", 900, "Z"))
    assert (client.generation, client.identity.weights) == (2, "other")
    assert references(client, 1) == references(client, 2)
    assert "Z" in {who.split()[0] for who in references(client, 2)}
    assert sound(client)
    client.close()


@pytest.mark.slow
def test_a_dropped_generation_leaves_nothing(client: LocalStore) -> None:
    tables = [*client.read("SELECT table_name FROM duckdb_columns() WHERE column_name = 'generation'")[0].to_pylist()]
    client.begin_generation(other_model())
    build(client)
    client.complete_generation()
    posted(client, insertion(1, "main", 200, "C"))
    client.drop_generation()
    for table in tables:
        assert client.read(f"SELECT DISTINCT generation FROM core.{table}")["generation"].to_pylist() in ([], [1])
    assert not list(client.path.glob("*/g0002/*"))
    assert sound(client)
    with pytest.raises(ReindexMissing):
        client.drop_generation()
    assert client.begin_generation(other_model()) == 2
    assert build(client) == 4
    client.complete_generation()
    client.switch_generation()
    with pytest.raises(ReindexMissing, match="gc"):
        client.drop_generation()
    client.drop_generation(older=True)
    assert not list(client.path.glob("*/g0001/*"))
    assert sound(client)
    client.close()


def reindex(store: Path | str) -> None:
    """Builds the other generation, makes it the current one, drops the first; skips what is done."""
    with LocalStore.open(store, command="test") as client:
        if client.generation == 2 and len(client.generations) == 1:
            return
        if len(client.generations) == 1:
            client.begin_generation(other_model())
        if client.generation == 1:
            build(client)
            client.complete_generation()
            posted(client.after_switch(), insertion(1, "main", 900, "Z"))
        client.drop_generation(older=True)


def points(store: Path) -> list[str]:
    """The fault points that `reindex` passes."""
    passed: dict[str, None] = {}
    faults.install(passed.setdefault)
    try:
        reindex(store)
    finally:
        faults.install(None)
    return list(passed)


def contents(client: LocalStore) -> list[object]:
    tables = ("generations", "detections", "embeddings", "reference_faces", "persons", "faces", "media", "tombstones")
    others = {  # times, and numbers of commits
        "generations": "EXCLUDE (begun_at, completed_at)",
        "media": "EXCLUDE (added_at)",
        "reference_faces": "EXCLUDE (commit_number)",
        "persons": "EXCLUDE (commit_number)",
    }
    rows: list[object] = [
        client.read(f"SELECT * {others.get(name, '')} FROM core.{name} ORDER BY ALL").to_pylist() for name in tables
    ]
    files = client.read("SELECT file FROM core.embedding_shards UNION ALL SELECT file FROM core.segments")
    assert {str(f.relative_to(client.path)) for f in client.path.glob("[er]*/g*/*")} == {*files["file"].to_pylist()}
    return rows


@pytest.mark.slow
def test_a_reindex_that_is_killed_goes_on(client: LocalStore, tmp_path: Path, journeys: bool) -> None:
    client.close()
    copies = copied_at_points(client.path, tmp_path, lambda: reindex(client.path), every=False)
    points = {name.partition("-")[2] for name in copies}
    assert {f"reindex_{step}.commit" for step in ("begin", "shard", "complete", "switch", "drop")} <= points
    with LocalStore.open(client.path, command="test") as twin:
        expected = contents(twin)
    for point, copy in [*copies.items()][:: 1 if journeys else 3]:
        reindex(copy)
        with LocalStore.open(copy, command="test") as after:
            assert contents(after) == expected, point
            assert sound(after)


@pytest.mark.slow
def test_a_reindex_on_a_full_disk_goes_on(client: LocalStore, tmp_path: Path, full: bool) -> None:
    client.close()
    twin = shutil.copytree(client.path, tmp_path / "twin")
    names = points(twin)
    with LocalStore.open(twin, command="test") as store:
        expected = contents(store)
    for name in names if full else names[::5]:
        one = shutil.copytree(client.path, tmp_path / "one")
        with suppress(StoreError), broken_at(name, errno.ENOSPC):
            reindex(one)
        reindex(one)
        with LocalStore.open(one, command="test") as store:
            assert contents(store) == expected, name
            assert sound(store)
        shutil.rmtree(one)
