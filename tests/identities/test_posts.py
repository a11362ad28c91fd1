"""What a post does: contract 4.2 and 4.3, and the decisions on identity semantics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ExternalIdTaken, ImageRejected, PersonHeadersRequired, PersonUnknown, TooManyDirectories
from pipeline.identities.service import IdentityService
from pipeline.identities.types import FaceResult, PersonView, PostRequest, PostResult
from pipeline.matching.score import similarity_score
from pipeline.store.client import StoreClient
from tests.identities.planted import Face, PlantedExtractor, near, service, somebody

RECOGNISE = {"insert": False, "update": False}
NEW = similarity_score(0.0, 0.54)


class Door:
    """Posts photos of planted faces into one directory."""

    def __init__(self, people: IdentityService, extractor: PlantedExtractor, account: int) -> None:
        self.people, self.extractor, self.account = people, extractor, account

    def send(self, data: bytes, **request: object) -> PostResult:
        return self.people.post(self.account, "main", data, PostRequest(**request))  # type: ignore[arg-type]

    def post(self, *faces: Face, **request: object) -> PostResult:
        return self.send(self.extractor.photo(*faces), **request)

    def one(self, vector: np.ndarray, **request: object) -> FaceResult:
        (face,) = self.post(Face(vector), **request).faces
        return face

    def all(self) -> list[PersonView]:
        return self.people.people(self.account, "main")


@pytest.fixture
def door(people: IdentityService, extractor: PlantedExtractor, account: int) -> Door:
    return Door(people, extractor, account)


def ids(views: Sequence[PersonView]) -> list[str]:
    return [view.record.person_id for view in views]


def test_an_unknown_face_becomes_an_identity(door: Door) -> None:
    result = door.post(Face(somebody(0)), name="Ann", external_id="e-1")
    (face,) = result.faces
    assert face.inserted
    assert result.account_updated
    assert face.score == NEW
    assert face.person is not None
    assert (face.person.record.name, face.person.record.external_id, face.person.occurrence) == ("Ann", "e-1", 1)
    assert ids(door.all()) == [face.person.record.person_id]


def test_a_known_face_is_recognised_and_counted(door: Door) -> None:
    first = door.one(somebody(0), name="Ann")
    again = door.one(near(0, 0.5), name="Somebody else", update=False)
    assert not again.inserted
    assert again.person is not None
    assert first.person is not None
    assert again.person.record.person_id == first.person.record.person_id
    assert again.person.record.name == "Ann"
    assert again.person.occurrence == 2
    assert again.score == pytest.approx((2 - 0.5) / (2 - math.sqrt(0.54)), abs=1e-6)
    assert len(door.all()) == 1


def test_counters_alone_do_not_make_the_account_updated(door: Door) -> None:
    door.post(Face(somebody(0)))
    assert not door.post(Face(near(0, 0.5)), update=False).account_updated


def test_recognition_changes_nothing(door: Door) -> None:
    door.one(somebody(0))
    before = door.all()
    result = door.post(Face(near(0, 0.3)), **RECOGNISE)
    assert result.faces[0].person is not None
    assert not result.account_updated
    assert door.one(somebody(1), **RECOGNISE).person is None
    assert door.all() == before


def test_the_threshold_of_the_request_decides(door: Door) -> None:
    door.one(somebody(0))
    assert door.one(near(0, 0.8), **RECOGNISE).person is None
    assert door.one(near(0, 0.8), threshold=0.81 * 0.81, **RECOGNISE).person is not None
    assert door.one(somebody(5), threshold=4.0, **RECOGNISE).person is not None


def test_threshold_0_inserts_all_but_the_identical_image(door: Door) -> None:
    photo, again = door.extractor.copies(2, Face(somebody(0)))
    first = door.send(photo, threshold=0.0).faces[0]
    assert door.one(somebody(0), threshold=0.0).inserted, "the same vector, from another image"
    for same in (photo, again):  # the same bytes; other bytes of the same pixels
        found = door.send(same, threshold=0.0).faces[0]
        assert not found.inserted
        assert found.person is not None
        assert first.person is not None
        assert found.person.record.person_id == first.person.record.person_id
        assert found.score == similarity_score(0.0, 0.0)


@pytest.mark.parametrize(
    ("quality", "reasons"),
    [
        ((0.58, 0.9, 0.9), ("center-pose",)),
        ((0.9, 0.39, 0.44), ("sharpness", "contrast")),
        ((0.6, 0.41, 0.46), ()),
    ],
)
def test_the_quality_gate(door: Door, quality: tuple[float, float, float], reasons: tuple[str, ...]) -> None:
    result = door.post(Face(somebody(0), quality=quality))
    (face,) = result.faces
    assert face.rejected == reasons
    assert (face.person is None) == bool(reasons)
    assert result.account_updated == (not reasons)
    assert len(door.all()) == (not reasons)


def test_reasons_are_given_only_where_the_face_would_have_been_inserted(door: Door) -> None:
    poor = (0.1, 0.1, 0.1)
    door.one(somebody(0))
    assert door.one(near(0, 0.2), update=False).rejected == ()
    assert door.post(Face(near(0, 0.2), quality=poor)).faces[0].rejected == ()
    assert door.post(Face(somebody(3), quality=poor), **RECOGNISE).faces[0].rejected == ()
    largest, other = door.post(Face(somebody(4), side=90), Face(somebody(5), x=100, quality=poor)).faces
    assert (largest.inserted, other.inserted, other.rejected) == (True, False, ())


def test_0_switches_a_measure_off(door: Door) -> None:
    assert door.post(Face(somebody(0), quality=(0.0, 0.0, 0.0)), min_cpq=0.0, min_fsq=0.0, min_fcq=0.0).account_updated


def test_only_the_largest_face_is_inserted_and_there_is_no_fallback(door: Door) -> None:
    big, small = door.post(Face(somebody(0), side=90), Face(somebody(1), x=100), name="Ann").faces
    assert (big.inserted, small.inserted, small.person) == (True, False, None)
    big, small = door.post(Face(near(0, 0.1), side=90), Face(somebody(1), x=100), name="Ann").faces
    assert (big.inserted, small.inserted, small.person) == (False, False, None)
    assert len(door.all()) == 1


def test_insert_all_inserts_each_and_a_later_face_may_match_an_earlier(door: Door) -> None:
    faces = door.post(
        Face(somebody(0), side=90),
        Face(somebody(1), side=50, x=100),
        Face(near(0, 0.3), side=40, x=200),
        insert_all=True,
        name="Ann",
    ).faces
    assert [face.inserted for face in faces] == [True, True, False]
    assert faces[2].person is not None
    assert faces[0].person is not None
    assert faces[2].person.record.person_id == faces[0].person.record.person_id
    assert [(view.record.name, view.occurrence) for view in door.all()] == [("Ann", 1), (None, 1)]


def test_an_insertion_without_its_headers_is_refused_as_a_whole(
    client: StoreClient, extractor: PlantedExtractor, account: int
) -> None:
    door = Door(service(client, extractor, person_headers="required"), extractor, account)
    for headers in ({}, {"name": "Ann"}, {"external_id": "e"}):
        with pytest.raises(PersonHeadersRequired):
            door.post(Face(somebody(0)), **headers)
    assert door.all() == []
    assert client.directories() == []
    assert door.post(Face(somebody(0), quality=(0.1, 0.9, 0.9))).faces[0].rejected == ("center-pose",)
    assert door.one(somebody(0), **RECOGNISE).person is None
    assert door.one(somebody(0), name="Ann", external_id="e").inserted
    assert not door.one(near(0, 0.1)).inserted
    door.people.close()


def test_update_replaces_the_reference_and_takes_the_headers(door: Door, client: StoreClient) -> None:
    first = door.one(somebody(0), name="Ann", external_id="e")
    result = door.post(Face(near(0, 0.6)), name="Anna")
    assert result.account_updated
    (view,) = door.all()
    assert first.person is not None
    assert view.record.person_id == first.person.record.person_id
    assert (view.record.name, view.record.external_id, view.occurrence) == ("Anna", "e", 2)
    assert view.record.image_guid != first.person.record.image_guid
    assert door.one(near(0, 0.6), **RECOGNISE).score == pytest.approx(NEW, abs=1e-3)
    assert door.people.face_image(door.account, "main", view.record.person_id).data.endswith(near(0, 0.6).tobytes())
    assert not list(client.path.glob(f"objects/*/*/{first.person.record.image_guid}"))


def test_update_false_replaces_nothing(door: Door) -> None:
    first = door.one(somebody(0), name="Ann")
    door.one(near(0, 0.6), name="Anna", update=False)
    (view,) = door.all()
    assert first.person is not None
    assert (view.record.name, view.record.image_guid) == ("Ann", first.person.record.image_guid)


def test_a_poor_face_is_recognised_and_updates_nothing(door: Door) -> None:
    first = door.one(somebody(0), name="Ann")
    result = door.post(Face(near(0, 0.2), quality=(0.1, 0.9, 0.9)), name="Anna")
    assert result.faces[0].person is not None
    assert not result.account_updated
    assert first.person is not None
    assert door.all()[0].record.image_guid == first.person.record.image_guid
    assert door.all()[0].record.name == "Ann"


def test_the_identical_image_changes_only_what_its_headers_change(door: Door) -> None:
    photo = door.extractor.photo(Face(somebody(0)))
    first = door.send(photo, name="Ann", external_id="e")
    assert not door.send(photo, name="Ann", external_id="e").account_updated
    assert not door.send(photo).account_updated
    assert door.send(photo, name="Anna").account_updated
    (view,) = door.all()
    assert first.faces[0].person is not None
    assert view.record.image_guid == first.faces[0].person.record.image_guid
    assert (view.record.name, view.record.external_id, view.occurrence) == ("Anna", "e", 4)


def test_of_two_faces_of_one_person_the_better_one_updates(door: Door) -> None:
    door.one(somebody(0))
    door.post(Face(near(0, 0.5), side=90), Face(near(0, 0.2), x=100), name="not of the better one")
    (view,) = door.all()
    assert door.people.face_image(door.account, "main", view.record.person_id).data.endswith(near(0, 0.2).tobytes())
    assert view.record.name is None, "the headers describe the largest face, which did not update"
    assert view.occurrence == 2, "one more, though two faces showed the person"


def test_an_external_id_may_be_kept_unique(client: StoreClient, extractor: PlantedExtractor, account: int) -> None:
    door = Door(service(client, extractor, unique_external_ids=True), extractor, account)
    door.one(somebody(0), external_id="e")
    with pytest.raises(ExternalIdTaken):
        door.one(somebody(1), external_id="e")
    door.one(somebody(1), external_id="f")
    with pytest.raises(ExternalIdTaken):
        door.one(near(1, 0.1), external_id="e")
    assert [view.record.external_id for view in door.all()] == ["e", "f"]
    assert not door.one(near(0, 0.1), external_id="e", update=True).inserted
    door.people.close()


def test_similar_is_what_was_there_before_one_entry_per_root(door: Door) -> None:
    vectors = [somebody(0), near(0, 0.9, towards=3), somebody(1), somebody(2)]
    assert door.post(Face(vectors[0]), similar_limit=5).faces[0].similar == []
    for vector in vectors[1:]:
        door.one(vector)
    all_ids = ids(door.all())
    asked = door.one(near(0, 0.1, towards=3), similar_limit=3, **RECOGNISE).similar
    assert asked is not None
    assert [each.person.record.person_id for each in asked[:2]] == all_ids[:2]
    assert len(asked) == 3
    assert [each.score for each in asked] == sorted((each.score for each in asked), reverse=True)
    assert door.one(somebody(0), **RECOGNISE).similar is None
    door.people.merge(door.account, "main", all_ids[:2])
    merged = door.one(near(0, 0.1, towards=3), similar_limit=3, **RECOGNISE).similar
    assert merged is not None
    assert [each.person.record.person_id for each in merged] == [all_ids[0], *all_ids[2:]]
    assert merged[0].person.occurrence == 2


def test_the_identical_image_stands_first_among_the_similar(door: Door) -> None:
    """Two identities have the same vector; the later one is of the very image that is posted."""
    door.one(somebody(0))
    photo = door.extractor.photo(Face(somebody(0)))
    later = door.send(photo, threshold=0.0).faces[0]
    (found,) = door.send(photo, similar_limit=5, **RECOGNISE).faces
    assert later.person is not None
    assert found.person is not None
    assert found.similar is not None
    assert found.person.record.person_id == later.person.record.person_id
    assert found.similar[0].person.record.person_id == later.person.record.person_id
    assert len(found.similar) == 2


def test_a_merged_person_answers_as_its_root(door: Door) -> None:
    for vector, name in ((somebody(0), "Ann"), (somebody(1), "Ann with glasses")):
        door.one(vector, name=name)
    root, child = door.all()
    door.people.merge(door.account, "main", [child.record.person_id, root.record.person_id])
    found = door.one(near(1, 0.4), name="Ann in 2026")
    assert found.person is not None
    assert found.person.record.person_id == root.record.person_id
    assert found.person.record.name == "Ann"
    assert found.person.occurrence == 3
    root, child = door.all()
    assert (root.record.occurrence, child.record.occurrence) == (1, 2)
    assert child.record.name == "Ann in 2026", "what changes stays with the record that matched"
    assert root.children_images == (child.record.image_guid,)


def test_two_records_of_a_merged_person_in_one_photo_count_once(door: Door) -> None:
    for vector in (somebody(0), somebody(1)):
        door.one(vector)
    door.people.merge(door.account, "main", ids(door.all()))
    result = door.post(Face(near(0, 0.1), side=90), Face(near(1, 0.1), x=100), update=False)
    assert [face.person.occurrence for face in result.faces if face.person] == [3, 3]


def test_largest_only_and_min_size(door: Door) -> None:
    faces = (Face(somebody(0), side=90), Face(somebody(1), x=100, side=40))
    assert len(door.post(*faces, largest_only=True, **RECOGNISE).faces) == 1
    assert not door.post(*faces, min_size_px=91.0).account_updated
    both = door.post(*faces, min_size_px=41.0, insert_all=True).faces
    assert [face.inserted for face in both] == [True, False]


def test_a_photo_without_faces_is_no_error(door: Door) -> None:
    result = door.post()
    assert (list(result.faces), result.account_updated, result.width, result.height) == ([], False, 400, 100)


def test_what_is_no_image_is_refused(door: Door) -> None:
    with pytest.raises(ImageRejected):
        door.send(b"no image")


def test_an_eleventh_directory_is_refused_and_leaves_nothing(door: Door, client: StoreClient) -> None:
    for k in range(10):
        door.people.post(door.account, f"d{k}", door.extractor.photo(Face(somebody(k))), PostRequest())
    with pytest.raises(TooManyDirectories):
        door.one(somebody(0))
    assert len(client.directories()) == 10
    assert len(list((client.path / "objects").glob("*/*/*"))) == 10
    door.people.delete_directory(door.account, "d3")
    assert door.one(somebody(0)).inserted


def test_directories_and_accounts_share_nothing(door: Door, client: StoreClient) -> None:
    photo = door.extractor.photo(Face(somebody(0)))
    other = client.create_account("bob", None)
    mine = door.send(photo).faces[0]
    assert door.people.post(other, "main", photo, PostRequest()).faces[0].inserted
    assert door.people.post(door.account, "second", photo, PostRequest()).faces[0].inserted
    assert mine.person is not None
    assert ids(door.all()) == [mine.person.record.person_id]
    for account, directory in ((other, "main"), (door.account, "second"), (door.account, "none")):
        assert mine.person.record.person_id not in ids(door.people.people(account, directory))


def test_parallel_posts_of_new_faces_make_one_identity_each(door: Door) -> None:
    photos = [door.extractor.photo(Face(near(k % 8, 0.05 * (k // 8), towards=15))) for k in range(64)]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(door.send, photos))
    assert sum(result.faces[0].inserted for result in results) == 8
    assert [view.occurrence for view in door.all()] == [8] * 8
    assert max(door.extractor.batches) > 1, "images of several requests went through the models together"


def test_parallel_updates_and_deletes_end_in_a_whole_store(door: Door) -> None:
    def work(k: int) -> None:
        person = door.one(near(k % 4, 0.02 * (k % 7), towards=14)).person
        assert person is not None
        if k % 5 == 0:
            with suppress(PersonUnknown):  # another thread was faster
                door.people.delete_person(door.account, "main", person.record.person_id)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(60)))
    assert len(door.all()) <= 4


def test_a_restarted_service_answers_the_same(door: Door, client: StoreClient, tmp_path: Path) -> None:
    for k in range(6):
        door.one(somebody(k), name=f"Person {k}", external_id=f"e{k}")
    everyone = ids(door.all())
    door.people.merge(door.account, "main", everyone[1:3])
    door.people.delete_person(door.account, "main", everyone[4])
    door.one(near(0, 0.3), name="Zoe")
    before = door.all()
    again = Door(service(client, door.extractor), door.extractor, door.account)
    assert again.all() == before
    for vector in (near(0, 0.3), somebody(2), somebody(4), somebody(5)):
        photo = door.extractor.photo(Face(vector))
        here, there = (each.send(photo, similar_limit=9, **RECOGNISE).faces[0] for each in (door, again))
        assert (here.person, here.score, here.similar) == (there.person, there.score, there.similar)
    again.people.close()
