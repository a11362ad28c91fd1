"""Faces that users draw where the detector found none: with a vector or as a tag, and what becomes of them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from coded_faces import Shown, photo

from pipeline.config import MatchSettings
from pipeline.errors import CorrectionImpossible, PersonUnknown, PhotoUnknown, UndoBlocked
from pipeline.jobs.people import People as Commands
from pipeline.jobs.store import Store
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from pipeline.store.records import ADD_FACE, CorrectionAnswer, StoredFace
from pipeline.types import DRAWN
from tests.cli.report import answer, facepipe
from tests.people.changes import held
from tests.people.coded_archive import (
    SETTINGS,
    ArchiveExtractor,
    make_store,
    problems,
    reindex,
    run_over,
    serving,
    write_photo,
)
from tests.people.correcting import LOOK, People
from tests.store.store_samples import small_segments

PAINTED = (10.0, 10.0, 50.0, 50.0)  # around a missed face
BLANK = (44.0, 44.0, 64.0, 64.0)
# Media: 1 is Ann's, 2 shows a missed face of hers, 3 one of somebody unknown, 4 Berta and a missed one.
PHOTOS = {
    "a1.png": [Shown(1)],
    "a2.png": [Shown(1, 1, missed=True)],
    "c3.png": [Shown(3, missed=True)],
    "d-two.png": [Shown(2), Shown(4, missed=True)],
    "e-poor.png": [Shown(5, 0, 0.1, missed=True)],
}
ANN, MISSED, NEW, TWO, POOR = range(1, 6)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    for name, faces in PHOTOS.items():
        write_photo(folder / "photos", name, *faces)
    run_over(folder / "photos", make_store(folder / "store"))
    return folder


@pytest.fixture
def photos(imported: Path, tmp_path: Path) -> Path:
    """A store of the test's own, beside photos at the place where they were imported."""
    source = imported / "photos"
    shutil.copytree(source, tmp_path / "kept")
    shutil.copytree(imported / "store", tmp_path / "store")
    yield source
    shutil.rmtree(source)
    shutil.copytree(tmp_path / "kept", source, copy_function=shutil.copy2)


@pytest.fixture
def store(photos: Path, tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def people(store: Path) -> Iterator[People]:
    """Ann is the one, Berta the two."""
    made = opened(store)
    yield made
    made.close()


def opened(store: Path) -> People:
    client = LocalStore.open(store, command="serve")
    owners = client.read(
        "SELECT media_id, person_id::VARCHAR AS p FROM core.faces WHERE outcome = 'inserted'"
    ).to_pylist()
    ann, berta, *_ = (row["p"] for row in sorted(owners, key=lambda row: int(row["media_id"])))
    return People(client, ann, berta, "")


def draw(
    people: People, media: int, box: tuple[float, ...] = PAINTED, *persons: str, name: str | None = None
) -> CorrectionAnswer:
    more = {} if name is None else {"name": name}
    return people.correct(ADD_FACE, *persons, media_ids=[media], box=box, **more)


def face_of(people: People, answer: CorrectionAnswer) -> StoredFace:
    (face_id,) = answer.faces
    (face,) = people.client.stored_faces(people.account, "main", [face_id], [], [])
    return face


def places(people: People) -> list[dict[str, object]]:
    return people.client.read(
        "SELECT generation, landmarks IS NULL AS tag, confidence IS NULL AS unsure, f.person_id::VARCHAR AS person"
        f" FROM core.faces f JOIN core.detections USING (face_id) WHERE outcome = '{DRAWN}' ORDER BY 1, face_id"
    ).to_pylist()


def test_a_missed_face_gets_a_vector_and_is_the_persons(people: People) -> None:
    told = draw(people, MISSED, PAINTED, people.one)
    face = face_of(people, told)
    assert told.tag is None
    assert (face.outcome, face.person_id, face.has_embedding) == (DRAWN, people.one, True)
    assert face.box == pytest.approx((12, 12, 48, 48), abs=1)  # what was detected, not what was drawn
    (fact,) = people.client.facts_about([face.face_id], [])
    assert (fact.kind, fact.person_id) == ("is", people.one)
    assert people.client.reference_faces([people.one]) == {people.one: 1}  # its reference stays


def test_somebody_new_is_recognised_by_it_and_after_the_undo_nobody(people: People) -> None:
    before = people.client.read("SELECT * FROM core.shards").to_pylist()
    told = draw(people, NEW, name="Cid")
    person = told.persons[0]

    def recognised() -> str | None:
        (found,) = people.service.post(people.account, "main", photo(Shown(3, 1)), LOOK).faces
        return found.person.root.name if found.person else None

    assert recognised() == "Cid"
    assert people.record(person).image_guid
    (face_id,) = told.faces
    people.client.fold()
    people.correct("undo")
    assert recognised() is None
    people.client.fold()
    assert people.client.read("SELECT * FROM core.shards").to_pylist() == before
    for table in ("faces", "detections", "embeddings", "pending_embeddings", "facts", "reference_faces"):
        assert people.client.read(f"SELECT * FROM core.{table} WHERE face_id = {face_id}").num_rows == 0
    with pytest.raises(UndoBlocked, match="add it again"):  # its vector is deleted
        people.correct("undo", correction_id=2)
    assert draw(people, NEW, name="Cid").tag is None


@pytest.mark.parametrize(("photo", "box"), [(TWO, BLANK), (POOR, PAINTED)], ids=["nothing", "poor"])
def test_without_a_good_face_it_is_a_tag(people: People, photo: int, box: tuple[float, ...]) -> None:
    told = draw(people, photo, box, people.one)
    assert told.tag == ("no face was detected there" if photo == TWO else told.tag)
    assert told.tag is not None
    face = face_of(people, told)
    assert face.is_tag
    assert face.box == box
    assert places(people) == [{"generation": 1, "tag": True, "unsure": True, "person": people.one}]
    people.correct("undo")
    assert places(people) == []


def test_a_tag_may_be_all_that_a_named_person_has(people: People) -> None:
    with pytest.raises(CorrectionImpossible, match="needs a name"):
        draw(people, TWO, BLANK)
    person = draw(people, TWO, BLANK, name="Dan").persons[0]
    face = draw(people, ANN, BLANK, person).faces[0]
    assert people.record(person).image_guid is None
    people.correct("move", people.two, faces=(face,))
    people.correct("move", faces=(face,))  # nobody's
    assert [row["person"] for row in places(people)] == [person, None]
    people.correct("forget", person)
    assert [row["person"] for row in places(people)] == [None]


@pytest.mark.parametrize(
    ("box", "why"),
    [
        ((0.0, 0.0, 65.5, 40.0), "not inside the photo, which has 64 x 64 px"),
        ((-20.0, 0.0, 20.0, 40.0), "not inside"),
        ((10.0, 10.0, 13.0, 13.0), "at least 16 px"),
        ((50.0, 50.0, 10.0, 10.0), "at least 16 px"),
        ((math.nan, 0.0, 20.0, 40.0), "four finite numbers"),
        ((0.0, 0.0, math.inf, 40.0), "four finite numbers"),
        ((1.0, 1.0, 40.0, 40.0), "The face 1 is there already: .*people move 1 WHO"),
    ],
)
def test_a_wrong_box_is_refused(people: People, box: tuple[float, ...], why: str) -> None:
    with pytest.raises(CorrectionImpossible, match=why):
        draw(people, ANN, box, people.one)
    assert places(people) == []


def test_what_is_not_there_is_refused(people: People, photos: Path) -> None:
    posted = people.service.post(people.account, "main", photo(Shown(8)), PostRequest(name="Gus", external_id="8"))
    assert posted.account_updated
    for media in (0, 99, 6):  # the last one was posted
        with pytest.raises(PhotoUnknown):
            draw(people, media, PAINTED, people.one)
    with pytest.raises(PersonUnknown):
        draw(people, MISSED, PAINTED, "00000000-0000-4000-8000-000000000000")
    with pytest.raises(PersonUnknown):
        draw(people, TWO, BLANK, "00000000-0000-4000-8000-000000000000")
    write_photo(photos, "a2.png", Shown(1, 2, missed=True))
    (photos / "c3.png").unlink()
    for media, name in ((MISSED, "a2.png"), (NEW, "c3.png")):
        with pytest.raises(CorrectionImpossible, match=f"{name} can't be read as it was imported"):
            draw(people, media, PAINTED, people.one)
    draw(people, TWO, BLANK, people.one)
    with pytest.raises(CorrectionImpossible, match="there already"):
        draw(people, TWO, BLANK, people.one)


def test_runs_regroups_and_copies_leave_it(people: People, photos: Path, store: Path) -> None:
    vector, tag = (draw(people, *where, people.two).faces[0] for where in ((MISSED, PAINTED), (TWO, BLANK)))
    before = places(people)
    people.correct("regroup", gate=MatchSettings(threshold=3.9))
    people.correct("regroup", gate=MatchSettings(threshold=0.01, min_cpq=0.95))
    people.close()
    shutil.copy(photos / "a2.png", photos / "z-copy.png")
    shutil.copy(photos / "d-two.png", photos / "z-two.png")
    report = run_over(photos, store)
    assert (report.new, report.faces) == (2, 1)
    again = opened(store)
    assert places(again) == before
    assert {
        face_id: again.client.stored_faces(1, "main", [face_id], [], [])[0].person_id for face_id in (vector, tag)
    } == {
        vector: people.two,
        tag: people.two,
    }
    again.close()


def test_a_changed_photo_takes_it_over_where_it_is_detected_now(people: People, photos: Path, store: Path) -> None:
    draw(people, MISSED, (0.0, 0.0, 40.0, 40.0), people.two)
    draw(people, NEW, PAINTED, people.one)
    people.close()
    write_photo(photos, "a2.png", Shown(1, 1))
    write_photo(photos, "c3.png", Shown(7, 1), Shown(9))
    run_over(photos, store)
    again = opened(store)
    assert places(again) == []
    shown = again.client.read("SELECT path, person_id FROM main.faces").to_pylist()
    assert next(row["person_id"] for row in shown if row["path"].endswith("a2.png")) == people.two
    again.close()


def test_forgetting_the_person_or_the_photo_erases_it(people: People, store: Path) -> None:
    draw(people, MISSED, PAINTED, people.one)
    draw(people, TWO, BLANK, people.one)
    person = draw(people, NEW, name="Cid").persons[0]
    people.client.fold()
    people.correct("forget_photos", media_ids=[MISSED])
    people.correct("forget", person)
    assert [row["tag"] for row in places(people)] == [True]
    people.client.fold()
    assert people.client.read("SELECT count(*) AS n FROM core.embeddings").to_pylist() == [{"n": 2}]


def test_another_model_measures_it_and_leaves_a_tag(people: People, store: Path) -> None:
    draw(people, MISSED, PAINTED, people.two)
    draw(people, TWO, BLANK, people.one)
    people.close()
    with LocalStore.open(store, command="reindex") as client:
        build(Store(client, SETTINGS))
        reindex(Store(client, SETTINGS), "swap")
    assert problems(store) == []
    again = opened(store)
    assert [(row["generation"], row["tag"]) for row in places(again)] == [(1, False), (1, True), (2, False), (2, True)]
    again.correct("undo")
    again.correct("undo")
    assert places(again) == []
    again.close()


def test_the_command_works_through_a_server(photos: Path, store: Path) -> None:
    words = ("--new", "Cid", "--box", "10,10,50,50", "--store", store)
    with serving(store):
        told = answer("people", "add-face", photos / "c3.png", *words)
        assert told["tag"] is None
        again = facepipe("people", "add-face", photos / "c3.png", *words)
        assert (again.exit_code, "is there already" in again.stderr) == (CorrectionImpossible.exit_code, True)
        assert answer("people", "show", "Cid", "--store", store)["faces"] == 1
        assert answer("people", "undo", "--store", store)["kind"] == ADD_FACE
    assert problems(store) == []


def build(stored: Store) -> None:
    with patch("pipeline.jobs.reindex.load_extractor", ArchiveExtractor.load):
        reindex(stored, "build")


@pytest.mark.parametrize("both", [True, False])
def test_drawn_beside_another_model_both_have_it_at_once_or_after_its_build(people: People, both: bool) -> None:
    """A server embeds by both."""
    stored = Store(people.client, SETTINGS, people.service)
    with patch("pipeline.jobs.models.load_other", lambda _, identity, *__: identity):
        build(stored)
    extractor: Any = people.service.extractor
    if both:
        extractor.model = people.client.identity.model
    else:
        extractor.measure_also(None)
    person = draw(people, NEW, name="Cid").persons[0]
    draw(people, TWO, BLANK, people.one)
    assert people.client.count_unmeasured() == (0 if both else 1)
    if not both:
        build(stored)
    people.assert_whole()
    rows = [(row["generation"], row["tag"]) for row in places(people)]
    assert rows == [(1, False), (1, True), (2, False), (2, True)]
    shown = f"SELECT generation FROM core.reference_faces WHERE person_id = '{person}' ORDER BY 1"
    assert [row["generation"] for row in people.client.read(shown).to_pylist()] == [1, 2]
    people.correct("undo")
    people.correct("undo")
    assert places(people) == []
    assert people.client.read(shown).num_rows == 0


def test_an_undo_erases_its_vector_from_the_index(people: People, store: Path) -> None:
    with small_segments():
        draw(people, NEW, name="Cid")
        people.client.fold()
        before = held(store)
        people.correct("undo")
        people.client.fold()
    erased = before - held(store)
    assert {type(item) for item in erased} == {bytes, str}


def test_it_is_exported_and_listed(people: People, tmp_path: Path) -> None:
    draw(people, MISSED, PAINTED, people.two)
    draw(people, TWO, BLANK, people.two)
    commands = Commands(Store(people.client, SETTINGS, people.service))
    assert [face["outcome"] for face in commands.photos(people.two)].count(DRAWN) == 2
    assert commands.show(people.two).photos == 2
    assert people.client.export(tmp_path / "out")["faces"] == 4
    assert [row.kind for row in commands.log()][:2] == [ADD_FACE, ADD_FACE]
