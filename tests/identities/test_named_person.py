"""Posts that name a person: update-person-id, merge-with, and the conditions under which a reference is replaced."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from pipeline.errors import ExternalIdTaken, PersonUnknown
from pipeline.store.catalog.connection import Catalog
from pipeline.store.local import LocalStore
from tests.asking import ask_for
from tests.identities.planted import Face, PostHandler, near, person_of, somebody

NOBODY = str(uuid.UUID(int=1))
POOR = (0.1, 0.9, 0.9)


@pytest.fixture
def ids(post_handler: PostHandler) -> Sequence[str]:
    """The ids of Ann, Bob and Cleo, who look like persons 0, 1 and 2."""
    return [
        person_of(post_handler.one(somebody(k), name=name, external_id=name[0])).record.person_id
        for k, name in enumerate(("Ann", "Bob", "Cleo"))
    ]


def picture(post_handler: PostHandler, person_id: str) -> bytes:
    return post_handler.people.face_image(post_handler.account, "main", person_id).data


# update-person-id


def test_only_the_named_person_is_updated(post_handler: PostHandler, ids: Sequence[str]) -> None:
    """By force (T = 4) with a face that is Ann's at any distance; no name is a conflict."""
    ann, bob, cleo = post_handler.records()
    result = post_handler.post(
        Face(near(0, 0.1)), update_person_id=ids[1], threshold=4.0, name="Bobby", external_id="B2"
    )
    (face,) = result.faces
    assert result.account_updated
    assert (person_of(face).record.person_id, face.conflict, face.inserted) == (ids[1], None, False)
    after = post_handler.records()
    assert [after[0], after[2]] == [ann, cleo]
    assert (after[1].name, after[1].external_id, after[1].occurrence) == ("Bobby", "B2", 2)
    assert after[1].image_guid != bob.image_guid
    assert picture(post_handler, ids[1]).endswith(near(0, 0.1).tobytes())


def test_the_named_person_must_match(post_handler: PostHandler, ids: Sequence[str]) -> None:
    before = post_handler.all()
    for threshold, vector in ((None, somebody(0)), (0.54, somebody(7)), (0.0, somebody(1))):
        result = post_handler.post(Face(vector), update_person_id=ids[1], threshold=threshold)
        (face,) = result.faces
        assert (face.person, face.conflict, face.rejected) == (None, "person", ())
        assert not result.account_updated
    assert post_handler.all() == before
    assert post_handler.post(Face(near(1, 0.3)), update_person_id=ids[1]).account_updated


def test_a_poor_face_is_rejected_as_for_an_insertion(post_handler: PostHandler, ids: Sequence[str]) -> None:
    before = post_handler.all()
    for insert in (True, False):
        (face,) = post_handler.post(Face(near(1, 0.1), quality=POOR), update_person_id=ids[1], insert=insert).faces
        assert (face.person, face.conflict, face.rejected) == (None, None, ("center-pose",))
    (small,) = post_handler.post(Face(near(1, 0.1)), update_person_id=ids[1], min_size_px=41.0).faces
    assert (small.person, small.conflict, small.rejected) == (None, None, ())
    assert post_handler.all() == before
    assert post_handler.post(Face(near(1, 0.1), quality=POOR), update_person_id=ids[1], min_cpq=0.0).account_updated


def test_the_identical_image_is_the_named_persons_own(post_handler: PostHandler, ids: Sequence[str]) -> None:
    """Also where somebody older has the very same image: d = 0 at any T, and nothing changes."""
    photo = post_handler.extractor.photo(Face(somebody(5)))
    for person_id in ids[:2]:
        assert post_handler.send(photo, update_person_id=person_id, threshold=4.0).account_updated
    again = post_handler.send(photo, update_person_id=ids[1], threshold=0.0)
    assert person_of(again.faces[0]).record.person_id == ids[1]
    assert not again.account_updated
    assert person_of(post_handler.send(photo, insert=False, update=False).faces[0]).record.person_id == ids[0]


def test_a_named_child_is_updated_and_its_root_answered(post_handler: PostHandler, ids: Sequence[str]) -> None:
    ask_for(post_handler.people, "merge", post_handler.account, "main", ids[:2])
    (face,) = post_handler.post(Face(near(1, 0.2)), update_person_id=ids[1], name="Ann with glasses").faces
    assert person_of(face).record.person_id == ids[0]
    assert [record.name for record in post_handler.records()] == ["Ann", "Ann with glasses", "Cleo"]


@pytest.mark.parametrize("about", ["update_person_id", "merge_with"])
@pytest.mark.parametrize("faces", [(), (Face(somebody(7)),)], ids=["no face", "one face"])
def test_an_unknown_id_is_refused_and_nothing_stored(
    post_handler: PostHandler, ids: Sequence[str], about: str, faces: Sequence[Face]
) -> None:
    before = post_handler.all()
    with pytest.raises(PersonUnknown):
        post_handler.post(*faces, **{about: NOBODY})
    assert post_handler.all() == before


@pytest.mark.parametrize("people", [{"unique_external_ids": True}], indirect=True)
def test_an_external_id_in_use_is_refused_there_too(post_handler: PostHandler, ids: Sequence[str]) -> None:
    with pytest.raises(ExternalIdTaken):
        post_handler.post(Face(near(1, 0.2)), update_person_id=ids[1], external_id="A")


def test_parallel_forced_updates_each_change_their_person(post_handler: PostHandler, ids: Sequence[str]) -> None:
    vectors = [near(9 + k % 3, 0.02 * k) for k in range(18)]
    photos = [post_handler.extractor.photo(Face(vector)) for vector in vectors]
    with ThreadPoolExecutor(6) as pool:
        forced = [
            pool.submit(post_handler.send, photo, update_person_id=ids[k % 3], threshold=4.0)
            for k, photo in enumerate(photos)
        ]
        assert all(each.result().account_updated for each in forced)
    assert [record.occurrence for record in post_handler.records()] == [7, 7, 7]
    for k, person_id in enumerate(ids):
        assert any(picture(post_handler, person_id).endswith(vector.tobytes()) for vector in vectors[k::3])


# merge-with


def test_a_new_person_is_merged_at_once(post_handler: PostHandler, ids: Sequence[str]) -> None:
    result = post_handler.post(Face(somebody(7)), merge_with=ids[0], name="Ann as a child")
    (face,) = result.faces
    assert (face.inserted, person_of(face).record.person_id, person_of(face).occurrence) == (True, ids[0], 2)
    new = post_handler.records()[-1]
    assert (new.name, new.parent_id) == ("Ann as a child", ids[0])
    assert post_handler.stored() == post_handler.records()
    ask_for(post_handler.people, "unmerge", post_handler.account, "main", [ids[0]])
    assert post_handler.records()[-1].parent_id is None


def test_a_matched_person_is_merged(post_handler: PostHandler, ids: Sequence[str]) -> None:
    """The one that is a root with children already is the root, else the older one, as by `PUT /merge`."""
    assert post_handler.post(Face(near(1, 0.2)), merge_with=ids[2], update=False).account_updated
    assert [record.parent_id for record in post_handler.records()] == [None, None, ids[1]]
    assert post_handler.post(Face(near(0, 0.2)), merge_with=ids[2], insert=False).account_updated
    parents = [record.parent_id for record in post_handler.records()]
    merged = post_handler.all()
    ask_for(post_handler.people, "unmerge", post_handler.account, "main", [ids[1]])
    ask_for(post_handler.people, "merge", post_handler.account, "main", ids[1:])
    ask_for(post_handler.people, "merge", post_handler.account, "main", [ids[2], ids[0]])
    assert [record.parent_id for record in post_handler.records()] == parents
    assert len({view.root.person_id for view in merged}) == 1
    assert not post_handler.post(Face(somebody(2)), merge_with=ids[0], update=False).account_updated


def test_a_rejected_or_conflicting_face_is_not_merged(post_handler: PostHandler, ids: Sequence[str]) -> None:
    post_handler.post(Face(somebody(7), quality=POOR), merge_with=ids[0])
    post_handler.post(Face(somebody(7)), merge_with=ids[0], insert=False)
    assert post_handler.post(Face(near(1, 0.1)), merge_with=ids[0], name="Ann").faces[0].conflict == "name"
    assert [record.parent_id for record in post_handler.records()] == [None, None, None]


def test_parallel_merges_make_one_person(post_handler: PostHandler, ids: Sequence[str]) -> None:
    """Each of three merges the next one; together they could close a circle."""
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            photos = [post_handler.extractor.photo(Face(near(k, 0.05))) for k in range(3)]
            posts = [
                pool.submit(post_handler.send, photo, merge_with=ids[(k + 1) % 3], update=False)
                for k, photo in enumerate(photos)
            ]
            updated = [each.result().account_updated for each in posts]
            assert any(updated)
            assert len({view.root.person_id for view in post_handler.all()}) == 1
            ask_for(post_handler.people, "unmerge", post_handler.account, "main", ids)


# Conditions


@pytest.mark.parametrize(
    ("quality", "replaced"), [((0.91, 0.91, 0.91), True), ((0.9, 0.95, 0.95), False), ((0.95, 0.95, 0.8), False)]
)
def test_only_a_reference_lower_in_all_qualities_is_replaced(
    post_handler: PostHandler, ids: Sequence[str], quality: tuple[float, float, float], replaced: bool
) -> None:
    guid = post_handler.records()[0].image_guid
    face = Face(near(0, 0.2), quality=quality)
    assert post_handler.post(face, update_if_lower_quality=True).account_updated is replaced
    assert (post_handler.records()[0].image_guid != guid) is replaced
    assert post_handler.records()[0].occurrence == 2
    assert post_handler.post(face, name="Annie", external_id="A", update_if_lower_quality=True).account_updated
    assert post_handler.records()[0].name == "Annie", "the condition is about the reference"


def test_only_an_older_reference_is_replaced(post_handler: PostHandler, ids: Sequence[str], client: LocalStore) -> None:
    def posted(days: float) -> bool:
        return post_handler.post(Face(near(0, 0.2)), update_if_older_days=days).account_updated

    def age(catalog: Catalog) -> None:
        catalog.execute("UPDATE core.media SET added_at = added_at - ?", [timedelta(days=10)])

    assert not posted(1)
    client.submit(age)
    assert not posted(10.5)
    assert posted(9.5)
    assert not posted(9.5), "the new reference is of today"
    assert posted(0)
