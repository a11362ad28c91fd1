"""What a post does: contract 4.2 and 4.3, and the decisions on identity semantics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from pipeline.errors import ExternalIdTaken, ImageRejected, PersonHeadersRequired, PersonUnknown, TooManyDirectories
from pipeline.matching.score import similarity_score
from pipeline.people.types import PersonView, PostRequest
from pipeline.store.local import LocalStore
from tests.asking import ask_for
from tests.identities.planted import Face, PostHandler, listed, near, person_of, service, somebody

RECOGNISE = {"insert": False, "update": False}
NEW = similarity_score(0.0, 0.54)


def ids(views: Sequence[PersonView]) -> list[str]:
    return [view.record.person_id for view in views]


def test_an_unknown_face_becomes_an_identity(post_handler: PostHandler) -> None:
    result = post_handler.post(Face(somebody(0)), name="Ann", external_id="e-1")
    (face,) = result.faces
    assert face.inserted
    assert result.account_updated
    assert face.score == NEW
    person = person_of(face)
    assert (person.record.name, person.record.external_id, person.occurrence) == ("Ann", "e-1", 1)
    assert post_handler.all() == [person]


def test_a_known_face_is_recognised_and_counted(post_handler: PostHandler) -> None:
    first = person_of(post_handler.one(somebody(0), name="Ann"))
    result = post_handler.post(Face(near(0, 0.5)), name="Somebody else", update=False)
    (again,) = result.faces
    assert not again.inserted
    assert (person_of(again).record.person_id, person_of(again).record.name) == (first.record.person_id, "Ann")
    assert person_of(again).occurrence == 2
    assert not result.account_updated, "a counter alone is no update"
    assert again.score == pytest.approx((2 - 0.5) / (2 - math.sqrt(0.54)), abs=1e-6)
    assert len(post_handler.all()) == 1


def test_recognition_changes_nothing(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0))
    before = post_handler.all()
    result = post_handler.post(Face(near(0, 0.3)), **RECOGNISE)
    assert result.faces[0].person is not None
    assert not result.account_updated
    assert post_handler.one(somebody(1), **RECOGNISE).person is None
    assert post_handler.all() == before


def test_the_threshold_of_the_optionsdecides(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0))
    assert post_handler.one(near(0, 0.8), **RECOGNISE).person is None
    assert post_handler.one(near(0, 0.8), threshold=0.81 * 0.81, **RECOGNISE).person is not None
    assert post_handler.one(somebody(5), threshold=4.0, **RECOGNISE).person is not None


def test_threshold_0_inserts_all_but_the_identical_image(post_handler: PostHandler) -> None:
    photo, again = post_handler.extractor.copies(2, Face(somebody(0)))
    first = post_handler.send(photo, threshold=0.0).faces[0]
    assert post_handler.one(somebody(0), threshold=0.0).inserted, "the same vector, from another image"
    for same in (photo, again):  # the same bytes; other bytes of the same pixels
        face = post_handler.send(same, threshold=0.0).faces[0]
        assert not face.inserted
        assert person_of(face).record.person_id == person_of(first).record.person_id
        assert face.score == similarity_score(0.0, 0.0)


@pytest.mark.parametrize(
    ("quality", "limits", "reasons"),
    [
        ((0.58, 0.9, 0.9), {}, ("center-pose",)),
        ((0.9, 0.39, 0.44), {}, ("sharpness", "contrast")),
        ((0.6, 0.41, 0.46), {}, ()),
        ((0.0, 0.0, 0.0), {"min_cpq": 0.0, "min_fsq": 0.0, "min_fcq": 0.0}, ()),  # 0 switches a check off
    ],
)
def test_the_quality_gate(
    post_handler: PostHandler, quality: tuple[float, float, float], limits: dict[str, float], reasons: tuple[str, ...]
) -> None:
    result = post_handler.post(Face(somebody(0), quality=quality), **limits)
    (face,) = result.faces
    assert face.rejected == reasons
    assert (face.person is None) == bool(reasons)
    assert result.account_updated == (not reasons)
    assert len(post_handler.all()) == (not reasons)


def test_reasons_are_given_only_where_the_face_would_have_been_inserted(post_handler: PostHandler) -> None:
    poor = (0.1, 0.1, 0.1)
    post_handler.one(somebody(0))
    assert post_handler.one(near(0, 0.2), update=False).rejected == ()
    assert post_handler.post(Face(near(0, 0.2), quality=poor)).faces[0].rejected == ()
    assert post_handler.post(Face(somebody(3), quality=poor), **RECOGNISE).faces[0].rejected == ()
    largest, other = post_handler.post(Face(somebody(4), side=90), Face(somebody(5), x=100, quality=poor)).faces
    assert (largest.inserted, other.inserted, other.rejected) == (True, False, ())


def test_only_the_largest_face_is_inserted_and_there_is_no_fallback(post_handler: PostHandler) -> None:
    big, small = post_handler.post(Face(somebody(0), side=90), Face(somebody(1), x=100), name="Ann").faces
    assert (big.inserted, small.inserted, small.person) == (True, False, None)
    big, small = post_handler.post(Face(near(0, 0.1), side=90), Face(somebody(1), x=100), name="Ann").faces
    assert (big.inserted, small.inserted, small.person) == (False, False, None)
    assert len(post_handler.all()) == 1


def test_insert_all_inserts_each_and_a_later_face_may_match_an_earlier(post_handler: PostHandler) -> None:
    faces = post_handler.post(
        Face(somebody(0), side=90),
        Face(somebody(1), side=50, x=100),
        Face(near(0, 0.3), side=40, x=200),
        insert_all=True,
        name="Ann",
    ).faces
    assert [face.inserted for face in faces] == [True, True, False]
    assert person_of(faces[2]).record.person_id == person_of(faces[0]).record.person_id
    assert [(view.record.name, view.occurrence) for view in post_handler.all()] == [("Ann", 1), (None, 1)]


@pytest.mark.parametrize("people", [{"person_headers": "required"}], indirect=True)
def test_an_insertion_without_its_headers_is_refused_as_a_whole(post_handler: PostHandler, client: LocalStore) -> None:
    for headers in ({}, {"name": "Ann"}, {"external_id": "e"}):
        with pytest.raises(PersonHeadersRequired):
            post_handler.post(Face(somebody(0)), **headers)
    assert post_handler.all() == []
    assert client.directories() == []
    assert post_handler.post(Face(somebody(0), quality=(0.1, 0.9, 0.9))).faces[0].rejected == ("center-pose",)
    assert post_handler.one(somebody(0), **RECOGNISE).person is None
    assert post_handler.one(somebody(0), name="Ann", external_id="e").inserted
    assert not post_handler.one(near(0, 0.1)).inserted
    assert (
        post_handler.post(Face(somebody(0), side=90), Face(somebody(1), side=50, x=100), insert_all=True)
        .faces[1]
        .inserted
    )


@pytest.mark.parametrize("people", [{"update_conflicts": "apply"}], indirect=True)
def test_update_replaces_the_reference_and_takes_the_headers(post_handler: PostHandler, client: LocalStore) -> None:
    first = person_of(post_handler.one(somebody(0), name="Ann", external_id="e")).record
    assert post_handler.post(Face(near(0, 0.6)), name="Anna").account_updated
    (view,) = post_handler.all()
    assert view.record.person_id == first.person_id
    assert (view.record.name, view.record.external_id, view.occurrence) == ("Anna", "e", 2)
    assert view.record.image_guid != first.image_guid
    assert post_handler.one(near(0, 0.6), **RECOGNISE).score == pytest.approx(NEW, abs=1e-3)
    assert post_handler.people.face_image(post_handler.account, "main", view.record.person_id).data.endswith(
        near(0, 0.6).tobytes()
    )
    assert not list(client.path.glob(f"objects/*/*/{first.image_guid}"))


@pytest.mark.parametrize(
    ("face", "options"), [(Face(near(0, 0.6)), {"update": False}), (Face(near(0, 0.2), quality=(0.1, 0.9, 0.9)), {})]
)
def test_update_false_or_a_poor_face_updates_nothing(
    post_handler: PostHandler, face: Face, options: dict[str, bool]
) -> None:
    first = person_of(post_handler.one(somebody(0), name="Ann")).record
    result = post_handler.post(face, name="Anna", **options)
    assert person_of(result.faces[0]).record.person_id == first.person_id
    assert not result.account_updated
    (record,) = post_handler.records()
    assert (record.name, record.image_guid) == ("Ann", first.image_guid)


@pytest.mark.parametrize("people", [{"update_conflicts": "apply"}], indirect=True)
def test_the_identical_image_changes_only_what_its_headers_change(post_handler: PostHandler) -> None:
    photo = post_handler.extractor.photo(Face(somebody(0)))
    first = post_handler.send(photo, name="Ann", external_id="e")
    assert not post_handler.send(photo, name="Ann", external_id="e").account_updated
    assert not post_handler.send(photo).account_updated
    assert post_handler.send(photo, name="Anna").account_updated
    (view,) = post_handler.all()
    assert view.record.image_guid == person_of(first.faces[0]).record.image_guid
    assert (view.record.name, view.record.external_id, view.occurrence) == ("Anna", "e", 4)


@pytest.mark.parametrize(
    ("stored", "sent", "conflict"),
    [
        (("Ann", "e"), ("Ann", "e"), None),
        (("Ann", "e"), ("Anna", "e"), None),  # the same id: a new name for the same person
        (("Ann", "e"), ("Ann", "f"), "external-id"),
        (("Ann", "e"), (None, "f"), "external-id"),
        (("Ann", "e"), ("Anna", None), "name"),
        (("Ann", None), ("Anna", "f"), "name"),
        (("Ann", None), ("Ann", "f"), None),
        ((None, "e"), ("Anna", None), None),
        (("Ann", "e"), (None, None), None),
    ],
)
def test_update_refuses_whom_the_headers_call_somebody_else(
    post_handler: PostHandler,
    stored: tuple[str | None, str | None],
    sent: tuple[str | None, str | None],
    conflict: str | None,
) -> None:
    before = person_of(post_handler.one(somebody(0), name=stored[0], external_id=stored[1])).record
    result = post_handler.post(Face(near(0, 0.4)), name=sent[0], external_id=sent[1])
    (face,), (after,) = result.faces, post_handler.records()
    assert face.conflict == conflict
    assert person_of(face).record == after
    assert (person_of(face).occurrence, result.account_updated) == (2, conflict is None)
    names = (sent[0] or stored[0], sent[1] or stored[1]) if conflict is None else stored
    assert (after.name, after.external_id) == names
    unchanged = (after.image_guid, after.modified_at) == (before.image_guid, before.modified_at)
    assert unchanged is (conflict is not None)


def test_without_update_nothing_is_a_conflict(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0), name="Ann")
    assert post_handler.one(near(0, 0.4), name="Bob", update=False).conflict is None
    assert post_handler.one(near(0, 0.4), name="Bob", **RECOGNISE).conflict is None


def test_a_conflict_keeps_another_face_of_the_photo_from_the_person_too(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0), name="Ann")
    post_handler.one(somebody(1), name="Bob")
    ann, bob = post_handler.records()
    faces = Face(near(0, 0.5), side=90), Face(near(0, 0.2), x=100), Face(near(1, 0.2), x=200)
    result = post_handler.post(*faces, name="Cleo")
    assert [face.conflict for face in result.faces] == ["name", None, None]
    after = post_handler.records()
    assert after[0].image_guid == ann.image_guid
    assert after[1].image_guid != bob.image_guid, "the headers say nothing of the third face"


def test_a_conflict_is_about_the_record_that_matched(post_handler: PostHandler) -> None:
    for vector, name in ((somebody(0), "Ann"), (somebody(1), "Ann with glasses")):
        post_handler.one(vector, name=name)
    ask_for(post_handler.people, "merge", post_handler.account, "main", ids(post_handler.all()))
    assert post_handler.one(near(1, 0.4), name="Ann with glasses").conflict is None
    assert post_handler.one(near(1, 0.4), name="Ann").conflict == "name"


def test_of_two_faces_of_one_person_the_better_one_updates(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0))
    post_handler.post(Face(near(0, 0.5), side=90), Face(near(0, 0.2), x=100), name="not of the better one")
    (view,) = post_handler.all()
    assert post_handler.people.face_image(post_handler.account, "main", view.record.person_id).data.endswith(
        near(0, 0.2).tobytes()
    )
    assert view.record.name is None, "the headers describe the largest face, which did not update"
    assert view.occurrence == 2, "one more, though two faces showed the person"


@pytest.mark.parametrize("people", [{"unique_external_ids": True, "update_conflicts": "apply"}], indirect=True)
def test_an_external_id_may_be_kept_unique(post_handler: PostHandler) -> None:
    post_handler.one(somebody(0), external_id="e")
    with pytest.raises(ExternalIdTaken):
        post_handler.one(somebody(1), external_id="e")
    post_handler.one(somebody(1), external_id="f")
    with pytest.raises(ExternalIdTaken):
        post_handler.one(near(1, 0.1), external_id="e")
    assert [view.record.external_id for view in post_handler.all()] == ["e", "f"]
    assert not post_handler.one(near(0, 0.1), external_id="e", update=True).inserted


def test_similar_is_what_was_there_before_one_entry_per_root(post_handler: PostHandler) -> None:
    vectors = [somebody(0), near(0, 0.9, towards=3), somebody(1), somebody(2)]
    assert post_handler.post(Face(vectors[0]), similar_limit=5).faces[0].similar == []
    for vector in vectors[1:]:
        post_handler.one(vector)
    all_ids = ids(post_handler.all())
    asked = post_handler.one(near(0, 0.1, towards=3), similar_limit=3, **RECOGNISE).similar
    assert asked is not None
    assert [similar.person.record.person_id for similar in asked[:2]] == all_ids[:2]
    assert len(asked) == 3
    assert [similar.score for similar in asked] == sorted((similar.score for similar in asked), reverse=True)
    assert post_handler.one(somebody(0), **RECOGNISE).similar is None
    ask_for(post_handler.people, "merge", post_handler.account, "main", all_ids[:2])
    merged = post_handler.one(near(0, 0.1, towards=3), similar_limit=3, **RECOGNISE).similar
    assert merged is not None
    assert [similar.person.record.person_id for similar in merged] == [all_ids[0], *all_ids[2:]]
    assert merged[0].person.occurrence == 2


def test_the_identical_image_stands_first_among_the_similar(post_handler: PostHandler) -> None:
    """Two identities have the same vector; the later one is of the very image that is posted."""
    post_handler.one(somebody(0))
    photo = post_handler.extractor.photo(Face(somebody(0)))
    later = post_handler.send(photo, threshold=0.0).faces[0]
    (face,) = post_handler.send(photo, similar_limit=5, **RECOGNISE).faces
    assert face.similar is not None
    assert person_of(face).record.person_id == person_of(later).record.person_id
    assert face.similar[0].person.record.person_id == person_of(later).record.person_id
    assert len(face.similar) == 2


@pytest.mark.parametrize("people", [{"update_conflicts": "apply"}], indirect=True)
def test_a_merged_person_answers_as_its_root(post_handler: PostHandler) -> None:
    for vector, name in ((somebody(0), "Ann"), (somebody(1), "Ann with glasses")):
        post_handler.one(vector, name=name)
    root, child = post_handler.all()
    ask_for(post_handler.people, "merge", post_handler.account, "main", [child.record.person_id, root.record.person_id])
    person = person_of(post_handler.one(near(1, 0.4), name="Ann in 2026"))
    assert (person.record.person_id, person.record.name) == (root.record.person_id, "Ann")
    assert person.occurrence == 3
    root, child = post_handler.all()
    assert (root.record.occurrence, child.record.occurrence) == (1, 2)
    assert child.record.name == "Ann in 2026", "what changes stays with the record that matched"
    assert root.children_images == (child.record.image_guid,)


def test_two_records_of_a_merged_person_in_one_photo_count_once(post_handler: PostHandler) -> None:
    for vector in (somebody(0), somebody(1)):
        post_handler.one(vector)
    ask_for(post_handler.people, "merge", post_handler.account, "main", ids(post_handler.all()))
    result = post_handler.post(Face(near(0, 0.1), side=90), Face(near(1, 0.1), x=100), update=False)
    assert [face.person.occurrence for face in result.faces if face.person] == [3, 3]


def test_largest_only_and_min_size(post_handler: PostHandler) -> None:
    faces = (Face(somebody(0), side=90), Face(somebody(1), x=100, side=40))
    assert len(post_handler.post(*faces, largest_only=True, **RECOGNISE).faces) == 1
    assert not post_handler.post(*faces, min_size_px=91.0).account_updated
    both = post_handler.post(*faces, min_size_px=41.0, insert_all=True).faces
    assert [face.inserted for face in both] == [True, False]


def test_a_photo_without_faces_is_no_error(post_handler: PostHandler) -> None:
    result = post_handler.post()
    assert (list(result.faces), result.account_updated, result.width, result.height) == ([], False, 400, 100)


def test_what_is_no_image_is_refused(post_handler: PostHandler) -> None:
    with pytest.raises(ImageRejected):
        post_handler.send(b"no image")


def test_an_eleventh_directory_is_refused_and_leaves_nothing(post_handler: PostHandler, client: LocalStore) -> None:
    for k in range(10):
        post_handler.people.post(
            post_handler.account, f"d{k}", post_handler.extractor.photo(Face(somebody(k))), PostRequest()
        )
    with pytest.raises(TooManyDirectories):
        post_handler.one(somebody(0))
    assert len(client.directories()) == 10
    assert len(list((client.path / "objects").glob("*/*/*"))) == 10
    post_handler.people.delete_directory(post_handler.account, "d3")
    assert post_handler.one(somebody(0)).inserted


def test_directories_and_accounts_share_nothing(post_handler: PostHandler, client: LocalStore) -> None:
    photo = post_handler.extractor.photo(Face(somebody(0)))
    other = client.create_account("bob", None)
    mine = person_of(post_handler.send(photo).faces[0]).record.person_id
    assert post_handler.people.post(other, "main", photo, PostRequest()).faces[0].inserted
    assert post_handler.people.post(post_handler.account, "second", photo, PostRequest()).faces[0].inserted
    assert ids(post_handler.all()) == [mine]
    for account, directory in ((other, "main"), (post_handler.account, "second"), (post_handler.account, "none")):
        assert mine not in ids(listed(post_handler.people, account, directory))


def test_parallel_posts_of_new_faces_make_one_identity_each(post_handler: PostHandler, full: bool) -> None:
    count = 8 if full else 4
    photos = [post_handler.extractor.photo(Face(near(k % 8, 0.05 * (k // 8), towards=15))) for k in range(8 * count)]
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(post_handler.send, photos))
    assert sum(result.faces[0].inserted for result in results) == 8
    assert [view.occurrence for view in post_handler.all()] == [count] * 8
    assert max(post_handler.extractor.batches) > 1, "images of several requests went through the models together"


@pytest.mark.slow
def test_parallel_updates_and_deletes_end_in_a_whole_store(post_handler: PostHandler, full: bool) -> None:
    def work(k: int) -> None:
        person = person_of(post_handler.one(near(k % 4, 0.02 * (k % 7), towards=14)))
        if k % 5 == 0:
            with suppress(PersonUnknown):  # another thread was faster
                ask_for(post_handler.people, "delete", post_handler.account, "main", [person.record.person_id])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(60 if full else 25)))
    assert len(post_handler.all()) <= 4


def test_a_restarted_service_answers_the_same(post_handler: PostHandler, client: LocalStore) -> None:
    for k in range(6):
        post_handler.one(somebody(k), name=f"Person {k}", external_id=f"e{k}")
    everyone = ids(post_handler.all())
    ask_for(post_handler.people, "merge", post_handler.account, "main", everyone[1:3])
    ask_for(post_handler.people, "delete", post_handler.account, "main", [everyone[4]])
    post_handler.one(near(0, 0.3), name="Zoe")
    before = post_handler.all()
    again = PostHandler(client, service(client, post_handler.extractor), post_handler.extractor, post_handler.account)
    assert again.all() == before
    for vector in (near(0, 0.3), somebody(2), somebody(4), somebody(5)):
        photo = post_handler.extractor.photo(Face(vector))
        here, there = (one.send(photo, similar_limit=9, **RECOGNISE).faces[0] for one in (post_handler, again))
        assert (here.person, here.score, here.similar) == (there.person, there.score, there.similar)
    again.people.close()
