"""Who is twice on a photo: the list of them, and photos where that is allowed."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_faces import CodedExtractor, Shown, photo

import pipeline
from pipeline.config import AVERAGE_LINK, SEQUENTIAL, MatchSettings, RegroupSettings
from pipeline.errors import UndoBlocked
from pipeline.extraction.images.decode import Decoder
from pipeline.matching.once_per_photo import faces_that_count
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store import overview
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import (
    SETTINGS,
    SIZE,
    index_otherwise,
    make_store,
    problems,
    run_over,
    serving,
    write_photo,
)
from tests.store.store_samples import execute

ONCE = replace(SETTINGS, match=replace(SETTINGS.match, once_per_photo=True))
GATE = MatchSettings()
A, B, COLLAGE, MIRROR = range(1, 5)  # media
COLLAGED, MIRRORED = [Shown(1, 1), Shown(1, 2), Shown(2, 1)], [Shown(2, 2), Shown(2, 3)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ and store/. Face 1 is Ann's, 2 Ben's; the collage has her 3 and 4 and his 5, the mirror his 6 and 7."""
    folder = tmp_path_factory.mktemp("twice")
    write_photo(folder / "photos", "a.png", Shown(1))
    write_photo(folder / "photos", "b.png", Shown(2))
    write_photo(folder / "photos", "collage.png", *COLLAGED)
    write_photo(folder / "photos", "mirror.png", *MIRRORED)
    run_over(folder / "photos", make_store(folder / "store"))
    with pipeline.open_store(folder / "store") as store:
        for row, name in zip(store.people.all(), ("Ann", "Ben"), strict=True):
            store.people.name(row.person_id, name)
    return folder


@pytest.fixture
def photos(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "photos", tmp_path / "photos"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    """It is whole afterwards. Its photos are those of `made`."""
    yield Path(shutil.copytree(made / "store", tmp_path / "store"))
    assert problems(tmp_path / "store") == []


@pytest.fixture(params=["alone", "served"])
def opened(request: pytest.FixtureRequest, store: Path) -> Iterator[Path]:
    """A store that nobody holds, or that a server holds."""
    with serving(store) if request.param == "served" else nullcontext():
        yield store


@pytest.fixture
def own(photos: Path, tmp_path: Path) -> Iterator[Path]:
    """A store of `photos`, which a test changes."""
    run_over(photos, make_store(tmp_path / "own"))
    yield tmp_path / "own"
    assert problems(tmp_path / "own") == []


def twice(store: Path) -> list[tuple[str, str | None, list[int], str | None]]:
    """Photo, person, faces, and why a user said so."""
    found = answer("people", "twice", "--store", store)["twice"]
    return [(Path(row["path"]).name, row["name"], row["faces"], row["said"]) for row in found]


def allow(store: Path, photo: object, *words: str) -> dict[str, Any]:
    return answer("people", "allow-twice", photo, "--store", store, *words)


def owners(store: Path) -> dict[int, str]:
    """The root of each face."""
    with LocalStore.open(store, command="test") as client:
        sql = "SELECT face_id, root_person_id FROM main.faces f JOIN main.persons p ON p.person_id = f.person_id"
        return dict(tuple(row.values()) for row in client.read(sql).to_pylist())


def people_on(store: Path, *faces: int) -> int:
    found = owners(store)
    return len({found[face] for face in faces})


ANN = ("collage.png", "Ann", [3, 4], None)
BEN = ("mirror.png", "Ben", [6, 7], None)


def test_the_list(opened: Path, made: Path) -> None:
    rows = answer("people", "twice", "--store", opened)["twice"]
    assert rows[0] == {
        "media_id": COLLAGE,
        "path": str(made / "photos" / "collage.png"),
        "person_id": rows[0]["person_id"],
        "name": "Ann",
        "faces": [3, 4],
        "said": None,
    }
    assert twice(opened) == [ANN, BEN]
    told = facepipe("people", "twice", "--store", opened).stdout.splitlines()
    assert told[1] == f"4  {made / 'photos' / 'mirror.png'}  Ben  faces 6, 7"
    text = facepipe("people", "twice", "--store", opened, "--csv").stdout
    assert [row["name"] for row in csv.DictReader(io.StringIO(text))] == ["Ann", "Ben"]
    with pipeline.open_store(opened) as store:
        assert [entry.faces for entry in store.people.twice()] == [[3, 4], [6, 7]]
    assert answer("people", "twice", "--store", opened, "--directory", "other") == {"twice": []}


def test_boxes_that_overlap_by_half_are_one_face(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        execute(client, "UPDATE core.detections SET x1 = 0, x2 = 40 WHERE face_id = 4")  # as face 3
        execute(client, "UPDATE core.detections SET x1 = 10, x2 = 49 WHERE face_id = 7")  # near face 6
    assert twice(store) == []
    with LocalStore.open(store, command="test") as client:
        execute(client, "UPDATE core.detections SET x1 = 20, x2 = 59 WHERE face_id = 7")
    assert twice(store) == [BEN]


def test_the_list_has_the_boxes_that_the_rule_has(made: Path, tmp_path: Path) -> None:
    """Of one person's faces the rule counts several if one does not overlap the largest."""
    place = "UPDATE core.detections SET x1 = ?, y1 = ?, x2 = ?, y2 = ? WHERE face_id = ?"
    random, found = np.random.default_rng(5), set()
    with LocalStore.open(Path(shutil.copytree(made / "store", tmp_path / "store")), command="test") as client:
        execute(client, "UPDATE core.faces SET person_id = (SELECT min(person_id) FROM core.faces WHERE face_id = 3)")
        for _ in range(60):
            corners = np.sort(random.integers(0, 9, (3, 2, 2)), axis=1) + np.array([[0.0], [1.0]])
            boxes = corners.reshape(3, 4).tolist()
            for face_id, box in enumerate(boxes, 3):
                execute(client, place, [*box, face_id])
            rows = client.twice_on_photos(1, "main").to_pylist()
            listed = [row["face_id"] for row in rows if row["media_id"] == COLLAGE]
            assert bool(listed) == (sum(faces_that_count(boxes)) > 1), boxes
            assert not listed or listed == [3, *(3 + n for n in (1, 2) if faces_that_count([boxes[0], boxes[n]])[1])]
            found.add(len(listed))
    assert found == {0, 2, 3}


def test_what_a_user_said_comes_last_with_the_reason(opened: Path) -> None:
    answer("people", "move", 3, "Ann", "--store", opened)
    assert twice(opened) == [ANN, BEN]  # only of one of them
    answer("people", "move", 4, "Ann", "--store", opened)
    assert twice(opened) == [BEN, (*ANN[:3], "you said so of these faces")]
    split = answer("people", "split", "Ben", 7, "--store", opened)["persons"][0]
    assert twice(opened) == [(*ANN[:3], "you said so of these faces")]
    answer("people", "merge", "Ben", split, "--anyway", "--store", opened)
    assert twice(opened)[1:] == [(*BEN[:3], "by a merge")]
    assert facepipe("people", "twice", "--store", opened).stdout.endswith("Ben  faces 6, 7  by a merge\n")


def test_a_regroup_is_not_a_user(tmp_path: Path) -> None:
    """It puts a person on a photo twice where that is allowed; here only meanwhile."""
    write_photo(tmp_path / "photos", "a.png", Shown(1), Shown(1, 1))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store, settings=ONCE)
    assert (people_on(store, 1, 2), twice(store)) == (2, [])
    allow(store, 1)
    with pipeline.open_store(store) as opened:
        assert len(opened.people.regroup(GATE).regrouping.joins) == 1
    assert (people_on(store, 1, 2), twice(store)) == (1, [])
    allow(store, 1, "--no")
    assert twice(store) == [("a.png", None, [1, 2], None)]


def test_a_photo_is_allowed_and_not_allowed_again(opened: Path, made: Path) -> None:
    collage = made / "photos" / "collage.png"
    found = allow(opened, collage)
    assert (found["kind"], found["faces"], found["persons"]) == ("allow_twice", [3, 4, 5], [])
    assert twice(opened) == [BEN]
    assert allow(opened, COLLAGE)["correction_id"] is None
    assert facepipe("people", "allow-twice", collage, "--store", opened).stdout == "nothing changed\n"
    with pipeline.open_store(opened) as store:
        assert [row.kind for row in store.people.log(1)] == ["allow_twice"]
        assert store.people.undo().kind == "allow_twice"
    assert twice(opened) == [ANN, BEN]
    with pipeline.open_store(opened) as store:
        store.people.undo(found["correction_id"] + 1)  # the undo
    assert twice(opened) == [BEN]
    back = allow(opened, COLLAGE, "--no")
    assert (back["kind"], back["faces"], back["replaced"]) == ("disallow_twice", [3, 4, 5], [])
    assert twice(opened) == [ANN, BEN]
    assert allow(opened, COLLAGE, "--no")["correction_id"] is None
    assert facepipe("people", "log", "--limit", 1, "--store", opened).stdout.split()[-1] == "disallow-twice"
    answer("people", "undo", "--store", opened)
    assert twice(opened) == [BEN]


def test_what_is_no_photo_for_it(store: Path, made: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(ONCE.decode), ONCE)  # type: ignore[arg-type]
        service.post(1, "main", photo(Shown(7), Shown(8)), PostRequest(insert_all=True))
        service.close()
        assert client.read("SELECT count(*) AS faces FROM core.faces WHERE media_id = 5")["faces"].to_pylist() == [2]
    with pipeline.open_store(store) as opened:
        opened.people.forget_photos([MIRROR])
    refused = {
        "/no/such.png": (2, "has no photo of a run at /no/such.png"),
        "collage.png": (2, "has no photo of a run at collage.png"),
        "": (2, "has no photo of a run at "),
        "9" * 30: (2, "has no photo of a run at 999"),
        "²": (2, "has no photo of a run at"),
        "99": (60, "no such photo of a run in this directory: media 99. Nothing was changed."),
        made / "photos" / "a.png": (61, "The photo 1 has fewer than two faces: nobody is on it twice."),
        5: (60, "media 5"),  # posted
        MIRROR: (60, f"media {MIRROR}"),  # forgotten
    }
    for name, (exit_code, text) in refused.items():
        for more in ((), ("--directory", "other")) if exit_code == 2 else ((),):
            result = facepipe("people", "allow-twice", name, "--store", store, *more)
            assert (result.exit_code, text in result.stderr) == (exit_code, True), (name, result.stderr)
    assert facepipe("people", "allow-twice", COLLAGE, "--directory", "other", "--store", store).exit_code != 0
    assert twice(store) == [ANN]


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("method", [SEQUENTIAL, AVERAGE_LINK])
def test_a_regroup_leaves_it_together(store: Path, allowed: bool, method: str) -> None:
    if allowed:
        allow(store, COLLAGE)
    with pipeline.open_store(store) as opened:
        found = opened.people.regroup(GATE, method=RegroupSettings(method=method, cut=0.5)).regrouping
    assert found is not None
    assert {move.path.rpartition("/")[2] for move in found.moves} == {
        "mirror.png",
        *([] if allowed else ["collage.png"]),
    }
    assert twice(store) == []
    assert people_on(store, 3, 4) == (1 if allowed else 2)


@pytest.mark.slow
def test_a_newer_index_does_so_too(store: Path) -> None:
    allow(store, COLLAGE)
    index_otherwise(store)
    with pipeline.open_store(store) as opened:
        opened.people.swap_and_regroup()
    assert people_on(store, 6, 7) == 2
    with LocalStore.open(store, command="test") as client:
        assert len(client.twice_allowed(1, "main")) == 1


@pytest.mark.parametrize("allowed", [False, True])
def test_runs_and_posts_of_the_same_bytes(own: Path, photos: Path, allowed: bool) -> None:
    if allowed:
        allow(own, COLLAGE)
    write_photo(photos, "copy.png", *COLLAGED)
    run_over(photos, own, settings=ONCE)
    assert people_on(own, 8, 9) == (1 if allowed else 2)
    assert [name for name, *_ in twice(own)] == ([] if allowed else ["collage.png"]) + ["mirror.png"]
    with LocalStore.open(own, command="test") as client:
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(ONCE.decode), ONCE)  # type: ignore[arg-type]
        found = service.post(1, "main", photo(*COLLAGED), PostRequest(update=False, insert_all=True)).faces
        assert len({face.person.root.person_id for face in found if face.person is not None}) == (2 if allowed else 3)
        service.close()
    if allowed:
        assert allow(own, photos / "copy.png", "--no")["faces"] == [3, 4, 5]
        assert [name for name, *_ in twice(own)] == ["collage.png", "mirror.png", "copy.png"]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [False, True])
def test_a_changed_photo_with_a_face_of_before(own: Path, photos: Path, allowed: bool) -> None:
    """A new face may be of somebody who is on it; a face that nobody had becomes somebody's as without."""
    write_photo(photos, "poor.png", *MIRRORED, Shown(9, 0, 0.1))
    run_over(photos, own)
    if allowed:
        allow(own, COLLAGE)
        allow(own, photos / "poor.png")
    write_photo(photos, "collage.png", Shown(1, 1), Shown(1, 5), Shown(1, 6))
    write_photo(photos, "poor.png", *MIRRORED, Shown(9))
    run_over(photos, own, settings=ONCE)
    with LocalStore.open(own, command="test") as client:
        sql = "SELECT face_id, path, outcome FROM main.faces ORDER BY face_id"
        faces = client.read(sql).to_pylist()
    collage = [face["face_id"] for face in faces if face["path"].endswith("collage.png")]
    assert people_on(own, *collage) == (1 if allowed else 2)
    assert faces[-1]["outcome"] == "inserted"
    assert ("collage.png" in {name for name, *_ in twice(own)}) is not allowed


@pytest.mark.slow
def test_a_photo_that_shows_others_now_is_not_allowed(own: Path, photos: Path) -> None:
    allow(own, COLLAGE)
    write_photo(photos, "collage.png", Shown(3), Shown(3, 1))
    run_over(photos, own, settings=ONCE)
    with LocalStore.open(own, command="test") as client:
        assert client.twice_allowed(1, "main") == set()
    assert people_on(own, 8, 9) == 2


@pytest.mark.slow
@pytest.mark.parametrize("before", [False, True])
def test_a_deleted_photo_leaves_it_to_a_copy(own: Path, photos: Path, before: bool) -> None:
    """Whether that came before or later; and so does what was said of whose a face is."""
    write_photo(photos, "copy.png", *COLLAGED)  # faces 8 to 10
    if before:
        run_over(photos, own)
    assert allow(own, COLLAGE)["faces"] == ([3, 4, 5, 8, 9, 10] if before else [3, 4, 5])
    if not before:
        run_over(photos, own)
    with pipeline.open_store(own) as store:
        ann, ben = store.people.all()
        store.people.move(4, ann.person_id)
        store.people.forget_photos([COLLAGE])
        with pytest.raises(UndoBlocked, match="the face 3 is gone"):
            store.people.undo(1)
    assert [name for name, *_ in twice(own)] == ["mirror.png"]
    assert facts(own) == {("twice", 8), ("twice", 9), ("twice", 10), ("is", 9)}
    with pipeline.open_store(own) as store:
        store.people.forget(ben.person_id)
    assert facts(own) == {("twice", 8), ("twice", 9), ("is", 9)}
    assert [name for name, *_ in twice(own)] == []
    with pipeline.open_store(own) as store:
        store.people.forget_photos([5])
    assert facts(own) == set()


def test_photos_that_show_two_people(store: Path) -> None:
    with LocalStore.open(store, command="test") as client:
        ann, ben = (row["person_id"] for row in client.people(1, "main").to_pylist())
        pairs = [ben, ann, ann], [ann, ben, ann]

        def known() -> tuple[list[int], list[tuple[int, int]]]:
            rows = client.ask(overview.photos_of_pairs, *pairs).to_pylist()
            counts = client.ask(overview.known_of_pairs, *pairs)["photos"].to_pylist()
            assert all(row["path"].endswith(".png") for row in rows)
            return counts, [(row["pair"], row["media_id"]) for row in rows]

        assert known() == ([1, 1, 1], [(0, COLLAGE), (1, COLLAGE), (2, COLLAGE)])
        box = "SELECT x1, y1, x2, y2 FROM core.detections WHERE face_id = 3"
        (values,) = (tuple(row.values()) for row in client.read(box).to_pylist())
        for face_id in (4, 5):  # boxes of one face
            execute(client, f"UPDATE core.detections SET (x1, y1, x2, y2) = {values} WHERE face_id = {face_id}")
        assert known() == ([0, 0, 0], [])
        execute(client, "UPDATE core.detections SET x1 = x1 + 64, x2 = x2 + 64 WHERE face_id = 5")
        assert known() == ([1, 1, 0], [(0, COLLAGE), (1, COLLAGE)])
    allow(store, COLLAGE)
    with LocalStore.open(store, command="test") as client:
        assert known() == ([0, 0, 0], [])
        assert client.ask(overview.known_of_pairs, [], []).num_rows == 0


def facts(store: Path) -> set[tuple[str, int]]:
    with LocalStore.open(store, command="test") as client:
        return {(row["kind"], row["face_id"]) for row in client.read_table("facts").read_all().to_pylist()}
