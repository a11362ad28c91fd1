"""Regrouping by a laxer gate with rejected faces decoded again: as if the runs had had that gate. Undone, no vector of
a rejected face is left."""

from __future__ import annotations

import base64
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coded_faces import Shown, coded_identity, photo

import pipeline
from pipeline.config import MatchSettings, Settings
from pipeline.errors import Interrupted, StoreDamaged
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.decode_rejected import decode_rejected
from pipeline.jobs.store_identity import make_identity
from pipeline.people.types import PostRequest
from pipeline.run.run import RunRequest, run
from pipeline.store import erasure
from pipeline.store.catalog import corrections
from pipeline.store.checks.check import check_store
from pipeline.store.files.durable import Folder
from pipeline.store.files.encryption import MasterKey
from pipeline.store.files.shards import HANDOVER, handed_over, read_handed_over
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest
from pipeline.types import SilentProgress
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import (
    SETTINGS,
    SIZE,
    ArchiveExtractor,
    make_store,
    problems,
    run_over,
    serving,
    write_photo,
)
from tests.people.correcting import People
from tests.people.test_regroup import tables
from tests.store.store_samples import flip
from tests.stored import stored_people

LAX = {"min_cpq": 0.4}
POOR = 0.5  # of a quality between the two gates
# The stricter gate rejects all of 4, 5 and 6, and the faces that found 2 and 3 by the laxer one; both reject 7.
PHOTOS = {
    "00": [Shown(1)],
    "01": [Shown(2, 0, POOR), Shown(1, 1)],
    "02": [Shown(2, 1)],
    "03": [Shown(3, 0, POOR), Shown(4, 0, POOR)],
    "04": [Shown(3, 1), Shown(1, 2, POOR)],
    "05": [Shown(4, 1, POOR), Shown(7, 0, 0.1)],
    "06": [Shown(5, 0, POOR)],
    "08": [Shown(6, 0, POOR)],
}


def with_gate(settings: Settings, **gate: float) -> Settings:
    return replace(settings, match=replace(settings.match, **gate))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, with a copy of 03 as 07; store/ of a run with the stricter gate, and the state of one with the laxer."""
    folder = tmp_path_factory.mktemp("decode")
    for name, faces in PHOTOS.items():
        write_photo(folder / "photos", f"{name}.png", *faces)
    shutil.copy(folder / "photos" / "03.png", folder / "photos" / "07.png")
    run_over(folder / "photos", make_store(folder / "store"))
    run_over(folder / "photos", make_store(folder / "lax"), settings=with_gate(SETTINGS, **LAX))
    return folder


@pytest.fixture
def store(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(archive / "store", tmp_path / "store"))


@pytest.fixture(autouse=True)
def _coded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.jobs.decode_rejected.load_extractor", lambda *_: ArchiveExtractor(SIZE))


def state(store: Path) -> dict[str, Any]:
    """Whose the faces are, but for ids; a face is named by its photo and its place. And what the files hold."""
    with LocalStore.open(store, command="test") as client:
        faces = client.read(
            "SELECT face_id, parse_filename(path) || '/' || ordinal AS face, person_id::VARCHAR AS person, outcome"
            " FROM core.faces JOIN core.media USING (media_id)"
        ).to_pylist()
        names = {row["face_id"]: row["face"] for row in faces}
        stored = client.read_table("embeddings").read_all().to_pylist()
        persons: dict[str, set[str]] = {}
        for row in faces:
            persons.setdefault(str(row["person"]), set()).add(row["face"])
        persons.pop("None", None)
        references = stored_people(client, 1, "main")
        assert {p.person_id for p in references.persons} == persons.keys()
    files = [pq.read_table(file)["face_id"].to_pylist() for file in (store / "embeddings").rglob("*.parquet")]
    assert sorted(face for ids in files for face in ids) == sorted(row["face_id"] for row in stored)
    assert problems(store) == []
    assert not list(store.glob(f"{HANDOVER}/*"))
    return {
        "persons": {frozenset(members) for members in persons.values()},
        "rejected": {row["face"] for row in faces if row["outcome"] == "rejected"},
        "vectors": {names[row["face_id"]]: tuple(row["embedding"]) for row in stored},
    }


def regroup(store: Path, *words: object) -> dict[str, Any]:
    report = answer("regroup", "--store", store, "--decode", "--min-cpq", LAX["min_cpq"], "--yes", *words)
    found = report["regrouping"]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("held", ["alone", "served"])
def test_it_gives_what_the_laxer_gate_gives_and_can_be_undone(archive: Path, store: Path, held: str) -> None:
    strict, lax = state(store), state(archive / "lax")
    assert lax["rejected"] == {"05.png/1"}
    before = tables(store)
    for _ in range(2):  # a face that was admitted before is admitted again
        with serving(store) if held == "served" else nullcontext():
            shown = regroup(store, "--dry-run")
            assert len(shown["admitted"]) == 7
            assert len(shown["new"]) == 3
        assert tables(store) == before
        with serving(store) if held == "served" else nullcontext() as service:
            found = regroup(store)
            assert (len(found["moves"]), found["not_decoded"]) == (7, [])
            if service is not None:
                (who,) = service.post(1, "main", photo(Shown(6, 3)), PostRequest(insert=False, update=False)).faces
                assert who.person is not None
        assert state(store) == lax
        with serving(store) if held == "served" else nullcontext():
            assert answer("people", "undo", "--store", store)["kind"] == "regroup"
        assert state(store) == strict
        before = tables(store)


@pytest.mark.slow
def test_a_photo_that_is_gone_or_another_one_leaves_its_faces_rejected(store: Path, archive: Path) -> None:
    whole = state(store)
    photos = {name: (archive / "photos" / name).read_bytes() for name in ("03.png", "05.png", "06.png", "08.png")}
    try:
        for name in photos:
            (archive / "photos" / name).unlink()
        write_photo(archive / "photos", "06.png", Shown(5, 9))
        text = facepipe("regroup", "--store", store, "--decode", "--min-cpq", 0.4, stdin="n\n")
        assert text.exit_code == 130
        assert "06.png: it is another file now" in text.output
        found = regroup(store)
        reasons = {Path(row["path"]).name: row["reason"] for row in found["not_decoded"]}
        assert reasons == {
            "05.png": "no such file",
            "06.png": "it is another file now",
            "08.png": "no such file",
        }  # the photo 07 is what 03 was
        after = state(store)
        assert whole["rejected"] - after["rejected"] == {"01.png/0", "03.png/0", "03.png/1", "07.png/1"}
    finally:
        for name, data in photos.items():
            (archive / "photos" / name).write_bytes(data)


class StopAtAnAdvance(SilentProgress):
    """The user presses Ctrl-C once the first photos are done."""

    def __init__(self) -> None:
        self.stop = Event()

    def advance(self, count: int = 1) -> None:
        self.stop.set()


def test_who_is_stated_to_be_nobody_stays_out_and_a_stop_changes_nothing(store: Path) -> None:
    before = tables(store)
    with pipeline.open_store(store) as opened:
        gate = MatchSettings(**LAX)
        early, late = Event(), StopAtAnAdvance()
        early.set()
        with pytest.raises(Interrupted, match="the models were being loaded"):
            opened.people.decode_rejected(gate, SilentProgress(), early)
        with pytest.raises(Interrupted, match="nothing was changed"):
            opened.people.decode_rejected(gate, late, late.stop)
    assert tables(store) == before
    with pipeline.open_store(store) as opened:
        admitted = opened.people.regroup(gate, dry_run=True).regrouping.admitted  # type: ignore[union-attr]
        opened.people.move(admitted[-1], None)
        found = opened.people.regroup(gate, decode=True).regrouping
        assert found is not None
        assert found.admitted == admitted[:-1]
        assert found.decoded
    assert state(store)["rejected"] == {"05.png/1", "08.png/0"}


@pytest.mark.slow
def test_a_directory_of_rejected_faces_gets_its_first_people(tmp_path: Path) -> None:
    write_photo(tmp_path / "photos", "a.png", Shown(1, 0, POOR))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store)
    nobody = state(store)
    with pipeline.open_store(store) as opened:
        assert len(opened.people.regroup(MatchSettings(**LAX), decode=True).persons) == 1
        assert len(opened.people.all()) == 1
        opened.people.undo()
    assert state(store) == nobody


@pytest.mark.slow
@pytest.mark.faces
def test_it_does_so_with_real_photos(
    faces_dir: Path, extractor: BatchExtractor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("run.stages", "jobs.decode_rejected"):
        monkeypatch.setattr(f"pipeline.{module}.load_extractor", lambda *_: extractor)
    people = sorted(path for path in (faces_dir / "lfw-view1" / "images").iterdir() if len(list(path.iterdir())) > 1)
    (tmp_path / "photos").mkdir()
    for photo_file in [file for folder in people[:6] for file in sorted(folder.iterdir())[:2]]:
        shutil.copy(photo_file, tmp_path / "photos")
    stores = []
    for name, least in (("strict", 0.95), ("lax", 0.3)):
        stores.append(tmp_path / name)
        settings = with_gate(extractor.settings, min_cpq=least)
        with LocalStore.open_or_create(stores[-1], lambda: make_identity(extractor.settings), command="test"):
            pass
        run(RunRequest(tmp_path / "photos", stores[-1], settings))
    strict, lax = map(state, stores)
    assert len(strict["rejected"]) > len(lax["rejected"]) + 4
    with pipeline.open_store(stores[0]) as opened:
        opened.people.regroup(replace(extractor.settings.match, min_cpq=0.3), decode=True)
    decoded = state(stores[0])
    assert (decoded["persons"], decoded["rejected"]) == (lax["persons"], lax["rejected"])
    assert decoded["vectors"].keys() == lax["vectors"].keys()
    for face, vector in lax["vectors"].items():
        np.testing.assert_allclose(decoded["vectors"][face], vector, atol=1e-5)


@pytest.mark.slow
def test_vectors_that_share_a_file_with_others_go_and_come_again(store: Path) -> None:
    """A file that a fold made and rewrote keeps what else is in it, though the lowest face comes again."""
    settings = with_gate(SETTINGS, **LAX)
    with LocalStore.open(store, command="test") as client:
        people = People(client)
        for person in (20, 21, 22):
            people.service.post(1, "main", photo(Shown(person)), PostRequest())
            decoded = decode_rejected(
                client, settings, client.ask(corrections.rejected_faces, 1, "main"), SilentProgress(), Event()
            )
            people.service.correct(CorrectionRequest(1, "main", "regroup", gate=settings.match), decoded)
            assert check_store(client).problems == []
            client.fold()
            people.correct("undo")
            client.fold()
            assert check_store(client).problems == []
        people.service.close()
        people = People(client)
        assert all(people.who(Shown(person)) for person in (20, 21, 22))
        assert len(client.read("SELECT DISTINCT file FROM core.embedding_shards WHERE run_id IS NULL")) == 3
        people.service.close()


@pytest.mark.slow
def test_vectors_that_come_again_before_a_fold_are_no_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first ones are still in a file, first beside pending ones, then beside those in another file."""
    settings = with_gate(SETTINGS, **LAX)
    with LocalStore.open(store, command="test") as client:
        people = People(client)
        for again in (False, True):
            decoded = decode_rejected(
                client, settings, client.ask(corrections.rejected_faces, 1, "main"), SilentProgress(), Event()
            )
            people.service.correct(CorrectionRequest(1, "main", "regroup", gate=settings.match), decoded)
            assert check_store(client).problems == []
            with monkeypatch.context() as patched:
                patched.setattr(erasure, "_stale_shards", lambda _: [])
                client.fold()
            assert check_store(client).problems == []
            if not again:
                people.correct("undo")
        lost = "DELETE FROM core.embeddings WHERE face_id = (SELECT max(face_id) FROM core.embeddings)"
        client.submit(lambda catalog: catalog.execute(lost))
        details = [problem.detail for problem in check_store(client).problems]
        assert details.count("its face ids are not those of the catalog") == 2
        people.service.close()


@pytest.mark.slow
def test_beside_the_server_of_an_encrypted_store_what_is_handed_over_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, store, seen = MasterKey(b"k" * 32, "test"), tmp_path / "store", []
    security = replace(SETTINGS.security, master_key=base64.b64encode(key.data).decode())
    identity = replace(coded_identity(SIZE), encrypted=True, master_key_id=key.key_id)
    with LocalStore.open_or_create(store, lambda: identity, command="make") as client:
        client.unlock(key)
        client.create_account("ann", None)
    write_photo(tmp_path / "photos", "a.png", Shown(1))
    write_photo(tmp_path / "photos", "b.png", Shown(2, 0, POOR))
    run_over(tmp_path / "photos", store, settings=replace(SETTINGS, security=security))

    def watched(folder: Folder, sha256: str, own: bytes | None) -> pa.Table:
        seen.extend(file.read_bytes() for file in store.glob(f"{HANDOVER}/*"))
        return read_handed_over(folder, sha256, own)

    monkeypatch.setattr("pipeline.jobs.store.read_handed_over", watched)
    with serving(store) as service:
        service._client.unlock(key)
        assert len(regroup(store)["new"]) == 1
    assert [data.find(b"PAR1") for data in seen] == [-1]
    assert state(store)["rejected"] == set()


def test_what_is_handed_over_is_encrypted_checked_and_removed(store: Path) -> None:
    folder, table, key = Folder(store), pa.table({"face": [b"face" * 99]}), b"k" * 32
    with handed_over(folder, table, key) as sha256:
        (file,) = store.glob(f"{HANDOVER}/*")
        assert b"PAR1" not in file.read_bytes()
        assert read_handed_over(folder, sha256, key) == table
        for other in ("0" * 64, "../CURRENT"):
            with pytest.raises(StoreDamaged):
                read_handed_over(folder, other, key)
        flip(file, 20)
        with pytest.raises(StoreDamaged):
            read_handed_over(folder, sha256, key)
    assert not list(store.glob(f"{HANDOVER}/*"))
    file.write_bytes(b"of a command that was killed")
    LocalStore.open(store, command="test").close()
    assert not file.exists()
