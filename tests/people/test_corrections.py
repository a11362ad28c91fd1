"""What each correction changes, states and leaves alone; undone, all is as it was."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo

from pipeline.errors import (
    CorrectionImpossible,
    FaceUnknown,
    PersonUnknown,
    PictureMissing,
    StatedTwoPeople,
    UndoBlocked,
)
from pipeline.people import merging
from pipeline.people.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.files.objects import object_file
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest, PersonChange
from tests.asking import ask_for
from tests.people.coded_archive import run_over, write_photo
from tests.people.correcting import People
from tests.store.store_samples import execute
from tests.stored import stored_people


def test_a_moved_reference_leaves_the_best_of_the_others(people: People) -> None:
    people.correct("move", people.two, faces=(1,))
    assert people.owners()[1] == people.two
    assert people.reference(people.one) == 3  # of better quality than 2
    assert people.reference(people.two) == 4
    (moved,) = (face for face in people.faces() if face.face_id == 1)
    assert (moved.outcome, moved.similarity_score) == ("matched", None)
    assert people.facts() == {("is", 1, people.two), ("is_not", 1, people.one)}
    assert people.who(Shown(1, 2)) == people.one  # by the picture cut from the photo


def test_a_move_to_nobody_and_of_a_rejected_face(people: People) -> None:
    people.correct("move", faces=(5,))
    people.correct("move", people.two, faces=(7,))
    faces = {face.face_id: face for face in people.faces()}
    assert (faces[5].outcome, faces[5].person_id) == ("recognised", None)
    assert (faces[7].outcome, faces[7].person_id, faces[7].rejection_reasons) == ("matched", people.two, None)
    assert people.facts() == {("nobody", 5), ("is_not", 5, people.two), ("is", 7, people.two)}
    answer = people.correct("move", people.two, faces=(5,))
    assert {(fact.kind, fact.face_id) for fact in answer.replaced} == {("nobody", 5), ("is_not", 5)}
    assert people.facts() == {("is", 5, people.two), ("is", 7, people.two)}
    # Without a vector it can stand for nobody.
    with pytest.raises(CorrectionImpossible, match="too low a quality"):
        people.correct("split", people.two, faces=(7,))


@pytest.mark.slow
def test_without_faces_the_named_stay_and_others_go(people: People) -> None:
    people.correct("name", people.three, name="Cid")
    before = people.state()
    people.correct("move", people.one, faces=(6,))
    assert people.reference(people.three) is None
    assert people.who(Shown(3)) is None
    update = PostRequest(update_person_id=people.three)
    (told,) = people.service.post(people.account, "main", photo(Shown(3)), update).faces
    assert (told.person, told.conflict) == (None, "person")
    people.correct("move", people.three, faces=(6,))  # its first face again
    assert people.reference(people.three) == 6
    assert people.who(Shown(3)) == people.three
    people.correct("undo")
    people.correct("undo")
    assert people.state() == before
    people.correct("undo")
    answer = people.correct("move", people.one, faces=(6,))
    assert answer.gone == [people.three]
    with pytest.raises(PersonUnknown):
        people.correct("name", people.three, name="Cid")
    assert people.facts() == {("is", 6, people.one)}


def test_a_split_makes_a_person_who_is_not_the_first(people: People) -> None:
    answer = people.correct("split", people.one, faces=(1, 2))
    new = answer.persons[0]
    assert people.owners() == {1: new, 2: new, 3: people.one, 4: people.two, 5: people.two, 6: people.three, 7: None}
    assert (people.reference(new), people.reference(people.one)) == (1, 3)
    assert people.facts() == {("is", 1, new), ("is", 2, new), ("not_same", *sorted((new, people.one)))}
    with pytest.raises(StatedTwoPeople):
        people.correct("merge", people.one, new)
    answer = people.correct("merge", people.one, new, anyway=True)
    assert [fact.kind for fact in answer.replaced] == ["not_same"]
    assert people.who(Shown(1)) == people.who(Shown(1, 2)) == people.one
    people.correct("undo")
    assert ("not_same", *sorted((new, people.one))) in people.facts()


def test_who_takes_the_place_of_a_person_is_not_whom_it_was_not(people: People) -> None:
    people.correct("not_same", people.one, people.three)
    people.correct("merge", people.one, people.two)
    before = people.state()
    answer = people.correct("split", people.one, faces=(1, 2, 3))
    new = answer.persons[0]
    assert answer.gone == [people.one]
    apart = {tuple(sorted(pair)) for pair in ((people.two, new), (people.two, people.three))}
    assert {fact[1:] for fact in people.facts() if fact[0] == "not_same"} == apart
    with pytest.raises(StatedTwoPeople):
        people.correct("merge", new, people.two)
    people.correct("undo")
    assert people.state() == before


def test_two_of_a_merged_set_go_at_once(people: People) -> None:
    people.correct("merge", people.one, people.two, people.three)
    before = people.state()
    answer = people.correct("split", people.one, faces=(1, 2, 3, 4, 5))
    assert sorted(answer.gone) == sorted([people.one, people.two])
    records = {record.person_id: record.parent_id for record in people.state()["records"]}
    assert records == {people.three: None, answer.persons[0]: None}
    assert ("not_same", *sorted((people.three, answer.persons[0]))) in people.facts()
    people.correct("undo")
    assert people.state() == before


def test_a_move_leaves_somebody(people: People) -> None:
    before = people.state()
    with pytest.raises(CorrectionImpossible, match="would have nobody"):
        people.correct("move", faces=(1, 2, 3, 4, 5, 6))
    assert people.state() == before
    people.correct("move", faces=(1, 2, 3, 4, 5))
    with pytest.raises(CorrectionImpossible, match="would have nobody"):
        people.correct("move", faces=(6,))


def test_a_picture_that_is_damaged_is_cut_again(people: People) -> None:
    (three,) = (record for record in stored_people(people.client, people.account, "main").persons if record.seq == 3)
    assert three.person_id == people.three
    people.correct("name", people.two, name="Bea")
    people.correct("move", faces=(4, 5))
    people.client.folder.path(object_file(str(three.image_guid))).unlink()
    people.correct("move", people.two, faces=(6,))
    assert people.reference(people.two) == 6
    assert people.who(Shown(3)) == people.two


STEPS = {
    "name": lambda p: p.correct("name", p.one, name="Ann"),
    "hide": lambda p: p.correct("hide", p.two),
    "merge": lambda p: p.correct("merge", p.one, p.two),
    "merge with a name": lambda p: p.correct("merge", p.one, p.two, name="Ann"),
    "not-same": lambda p: p.correct("not_same", p.one, p.two),
    "move of the reference": lambda p: p.correct("move", p.two, faces=(1,)),
    "move of the last face": lambda p: p.correct("move", p.one, faces=(6,)),
    "move to nobody": lambda p: p.correct("move", faces=(4,)),
    "move of a rejected face": lambda p: p.correct("move", p.three, faces=(7,)),
    "split": lambda p: p.correct("split", p.one, faces=(1, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_undone_all_is_as_it_was(people: People, kind: str) -> None:
    before = people.state()
    made = STEPS[kind](people)
    assert people.state() != before
    undone = people.correct("undo")
    assert (undone.correction_id, undone.kind) == (made.correction_id, made.kind)
    assert people.state() == before
    with pytest.raises(CorrectionImpossible, match="no correction to undo"):
        people.correct("undo")


@pytest.mark.slow
def test_all_steps_are_undone_one_after_another(people: People) -> None:
    """An unmerge and an unhide, too, which need something to undo."""
    more = {
        "unmerge": lambda p: p.correct("unmerge", p.one),
        "unhide": lambda p: p.correct("unhide", p.two),
    }
    kinds = ["name", "hide", "merge", "unmerge", "unhide", "not-same", "move of the reference", "split"]
    people.correct("move", people.one, faces=(2,))  # says what is so already
    states = []
    for kind in kinds[:-1]:
        states.append(people.state())
        assert {**STEPS, **more}[kind](people).correction_id is not None
    states.append(people.state())
    people.correct("split", people.one, faces=(3,))
    for state in reversed(states):
        people.correct("undo")
        assert people.state() == state


def _renamed(people: People) -> None:
    people.correct("name", people.one, name="Ann")
    ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Anna"))


def _tagged(people: People) -> None:
    new = people.correct("split", people.one, faces=(1,)).persons[0]
    ask_for(people.service, "update", people.account, "main", [new], PersonChange(tags=("family",)))


def _merged(people: People) -> None:
    new = people.correct("split", people.one, faces=(1,)).persons[0]
    ask_for(people.service, "merge", people.account, "main", [new, people.two])


def _merged_and_renamed(people: People) -> None:
    people.correct("merge", people.one, people.two, name="Ann")
    ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Anna"))


def _came(people: People) -> None:
    new = people.correct("split", people.one, faces=(1,)).persons[0]
    execute(people.client, "UPDATE core.faces SET person_id = ?, outcome = 'matched' WHERE face_id = 7", [new])


def _replaced(people: People) -> None:
    people.correct("move", people.two, faces=(1,))
    people.service.post(people.account, "main", photo(Shown(1, 7)), PostRequest())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_renamed, "the name of"),
        (_tagged, "the tags of"),
        (_merged, "the parent_id of"),
        (_merged_and_renamed, "the name of"),
        (_came, "the faces 7 came to"),
        (_replaced, "got another reference"),
    ],
)
def test_a_later_change_stands_in_the_way(people: People, change: Any, message: str) -> None:
    change(people)
    before = people.state()
    with pytest.raises(UndoBlocked, match=message):
        people.correct("undo")
    assert people.state() == before


def test_no_undo_merges_persons_in_a_circle(people: People) -> None:
    people.correct("merge", people.one, people.two)
    ask_for(people.service, "unmerge", people.account, "main", [people.one])  # undone, two would be below one again
    ask_for(people.service, "merge", people.account, "main", [people.two, people.three])
    ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
    before = people.state()
    with pytest.raises(UndoBlocked, match="was merged with the person"):
        people.correct("undo", correction_id=2)
    assert people.state() == before


def test_no_correction_merges_persons_in_a_circle(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    people.correct("merge", people.one, people.two)
    before = people.state()
    above = replace(before["records"][0], parent_id=people.two)
    monkeypatch.setattr(merging, "merged_parents", lambda *_: {above.person_id: above.parent_id})
    with pytest.raises(CorrectionImpossible, match="which is above it"):
        people.correct("merge", people.one, people.three)
    assert people.state() == before


def test_what_cannot_be_is_said_and_nothing_is_done(people: People) -> None:
    before = people.state()
    posted = people.service.post(people.account, "main", photo(Shown(9)), PostRequest()).faces[0].person
    assert posted is not None
    other = people.client.create_account("bob", None)
    for error, kind, persons, faces in [
        (CorrectionImpossible, "merge", [people.one, people.one], ()),
        (CorrectionImpossible, "not_same", [people.one, people.one], ()),
        (CorrectionImpossible, "split", [people.one], (1, 2, 3)),
        (CorrectionImpossible, "split", [people.one], ()),
        (CorrectionImpossible, "split", [people.one], (4,)),
        (CorrectionImpossible, "move", [people.one], (8,)),  # posted
        (FaceUnknown, "move", [people.one], (99,)),
        (PersonUnknown, "move", ["00000000-0000-0000-0000-000000000000"], (1,)),
    ]:
        with pytest.raises(error):
            people.correct(kind, *persons, faces=faces)
    for place in ((other, "main"), (people.account, "other")):
        with pytest.raises(FaceUnknown):
            people.service.correct(CorrectionRequest(*place, "move", [], [1]))
        with pytest.raises(PersonUnknown):
            people.service.correct(CorrectionRequest(*place, "name", [people.one], change=PersonChange(name="x")))
    people.correct("forget", posted.root.person_id)
    assert people.state() == before
    people.correct("merge", people.one, people.two)
    with pytest.raises(CorrectionImpossible, match="one person already"):
        people.correct("merge", people.two, people.one)


@pytest.mark.slow
def test_a_posted_face_stays_with_its_person_through_every_verb(people: People) -> None:
    """One person has no other face, another one is known by one since a post replaced the reference."""
    posted = people.service.post(people.account, "main", photo(Shown(9)), PostRequest()).faces[0].person
    assert posted is not None
    nine = posted.root.person_id
    people.service.post(people.account, "main", photo(Shown(1, 7)), PostRequest())
    own, replaced = people.reference(nine), people.reference(people.one)
    assert own is not None
    assert replaced is not None
    states = [people.state()]

    def refused(kind: str, *persons: str, faces: tuple[int, ...]) -> None:
        before = people.state()
        with pytest.raises(CorrectionImpossible, match="was posted"):
            people.correct(kind, *persons, faces=faces)
        assert people.state() == before

    refused("split", nine, faces=(own,))
    refused("move", people.one, faces=(own,))
    refused("move", faces=(replaced, 1))
    refused("split", people.one, faces=(1, replaced))
    for kind, persons, faces in [
        ("split", [people.one], (1, 2, 3)),  # the posted one is left
        ("move", [nine], (6,)),
        ("merge", [people.two, nine], ()),
        ("split", [people.two], (6,)),
        ("unmerge", [people.two], ()),
        ("not_same", [people.two, nine], ()),
        ("hide", [nine], ()),
        ("name", [nine], ()),
    ]:
        people.correct(kind, *persons, faces=faces, name="Nina" if kind == "name" else None)
        assert (people.reference(nine), people.reference(people.one)) == (own, replaced)
        assert people.who(Shown(1, 7)) == people.one
        states.append(people.state())
    assert people.who(Shown(9)) == nine
    for state in reversed(states[:-1]):
        people.correct("undo")
        assert people.state() == state
    people.correct("merge", people.three, nine)
    people.correct("forget", people.three)
    assert people.who(Shown(9)) is None


def test_where_no_picture_is_to_be_had_nothing_is_done(people: People, archive: Path, tmp_path: Path) -> None:
    """Person 1 would be known by face 3, or else 2: the photos are another one, and gone."""
    aside, other = tmp_path / "a2.png", archive / "b-both.png"
    whole = other.read_bytes()
    (archive / "a2.png").rename(aside)
    try:
        other.write_bytes(photo(Shown(11)))
        before = people.state()
        with pytest.raises(PictureMissing, match=r"b-both\.png"):
            people.correct("move", people.two, faces=(1,))
        assert people.state() == before
        aside.rename(archive / "a2.png")
        people.correct("move", people.two, faces=(1,))
        assert people.reference(people.one) == 2
    finally:
        other.write_bytes(whole)
        if aside.exists():
            aside.rename(archive / "a2.png")


@pytest.mark.slow
def test_copies_of_a_pinned_face_are_who_it_is(people: People, store: Path, tmp_path: Path) -> None:
    people.correct("move", people.two, faces=(1,))
    people.correct("move", faces=(6,))
    owners = people.owners()
    people.close()
    for name, shown in (("copy.png", Shown(1)), ("nobody.png", Shown(3)), ("new.png", Shown(1, 5))):
        write_photo(tmp_path / "more", name, shown)
    run_over(tmp_path / "more", store)
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        later = client.stored_faces(1, "main", range(8, 99), [])
        found = {
            Path(str(face.path)).name: (face.person_id, face.outcome, face.similarity_score is None) for face in later
        }
        assert found["copy.png"] == (people.two, "matched", True)
        assert found["nobody.png"] == (None, "recognised", True)
        assert found["new.png"] == (people.one, "matched", False)
        assert {face.face_id: face.person_id for face in client.stored_faces(1, "main", range(1, 8), [])} == owners
        (two,) = (p for p in stored_people(client, 1, "main").persons if p.person_id == people.two)
        assert two.occurrence == 3  # the copy counts, the move does not


@pytest.mark.slow
def test_who_was_forgotten_is_not_taken_up_again(people: People, store: Path, tmp_path: Path) -> None:
    people.correct("name", people.one, name="Ann")
    people.correct("move", people.one, faces=(6,))
    assert people.correct("forget", people.one).gone == [people.one]
    assert people.who(Shown(1, 1)) is None
    assert people.facts() == set()
    with pytest.raises(CorrectionImpossible):
        people.correct("undo")  # what would name her is gone
    people.close()
    write_photo(tmp_path / "more", "again.png", Shown(1, 2), Shown(2))  # the bytes of the photo of both
    write_photo(tmp_path / "more", "manifest.png", Shown(1, 2), Shown(2))
    manifest = tmp_path / "manifest.csv"
    manifest.write_text(
        f"path,name\n{tmp_path / 'more' / 'again.png'},\n{tmp_path / 'more' / 'manifest.png'},Ann\n", "utf-8"
    )
    run_over(manifest, store)
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        names = client.read("SELECT name FROM core.media WHERE name IS NOT NULL")
        assert names.num_rows == 0
        rows = client.read(
            "SELECT f.ordinal, f.outcome, f.person_id::VARCHAR AS person FROM core.faces f JOIN core.media m"
            " USING (media_id) WHERE m.path LIKE '%/more/%' ORDER BY m.media_id, f.ordinal"
        ).to_pylist()
        assert [(row["ordinal"], row["outcome"], row["person"]) for row in rows] == [
            (0, "removed", None),
            (1, "matched", people.two),
            (0, "removed", None),
            (1, "matched", people.two),
        ]
        digests = client.read("SELECT kind, digest FROM core.forgotten").to_pylist()
        assert sorted(row["kind"] for row in digests) == ["face"] * 4 + ["path"] * 3 + ["sha256"] * 3
        bare = hashlib.sha256(f"path:{tmp_path}".encode()).hexdigest()
        assert bare not in [row["digest"] for row in digests]


@pytest.mark.slow
def test_a_photo_of_forgotten_people_alone_stays_out_wherever_it_comes_again(
    people: People, store: Path, tmp_path: Path
) -> None:
    """Under another path, or with other bytes at its own: nothing of it is written down."""
    source = tmp_path / "photos"
    write_photo(source, "d.png", Shown(5))
    write_photo(source, "e.png", Shown(6))
    people.close()
    run_over(source, store)
    with LocalStore.open(store, command="test") as client:
        people = People(client)
        five = people.who(Shown(5))
        assert five is not None
        people.correct("forget", five)
        people.close()
    write_photo(source, "d.png", Shown(5, 1))
    write_photo(source, "copy.png", Shown(5))
    write_photo(source, "f.png", Shown(7))
    report = run_over(source, store)
    assert (report.new, report.changed, report.forgotten) == (1, 0, 2)
    assert "2 left out" in "\n".join(report.lines())
    with LocalStore.open(store, command="test") as client:
        again = People(client)
        assert again.who(Shown(5)) is None
        assert again.who(Shown(7)) is not None
        assert client.read("SELECT 1 FROM core.media WHERE path LIKE '%copy.png'").num_rows == 0
        again.close()


def test_of_a_posted_photo_nobody_else_is_forgotten(people: People, store: Path, tmp_path: Path) -> None:
    """The post was about the smaller face alone, so its place among all faces is not known."""
    picture = photo(Shown(5), Shown(6))
    request = PostRequest(insert=True, update=False, closest_x=0.9)
    (posted,) = people.service.post(people.account, "main", picture, request).faces
    assert posted.person is not None
    people.correct("forget", posted.person.root.person_id)
    people.close()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "both.png").write_bytes(picture)
    run_over(tmp_path / "more", store)
    with LocalStore.open(store, command="test") as client:
        again = People(client)
        assert again.who(Shown(5)) is not None
        again.close()


def test_nobody_is_known_by_a_copy_of_a_face_that_is_too_poor(people: People, store: Path, tmp_path: Path) -> None:
    people.correct("move", people.two, faces=(7,))
    people.close()
    write_photo(tmp_path / "more", "copy.png", Shown(8, 0, 0.1))
    run_over(tmp_path / "more", store)
    with LocalStore.open(store, command="test") as client:
        (copy,) = client.stored_faces(1, "main", [8], [])
        assert (copy.person_id, copy.outcome, copy.has_embedding) == (people.two, "matched", False)
        assert check_store(client).problems == []


@pytest.mark.slow
def test_no_photo_names_who_was_forgotten(people: People, store: Path, tmp_path: Path) -> None:
    """Nor one whose face was moved away before."""
    people.close()
    photos = [write_photo(tmp_path, f"{code}.png", Shown(11, code)) for code in range(5)]
    photos.append(write_photo(tmp_path, "other.png", Shown(12)))
    lines = [f"{path},{'Hal' if path.stem == 'other' else 'Grace'}" for path in photos]
    (tmp_path / "named.csv").write_text("\n".join(["path,name", *lines]), "utf-8")
    run_over(tmp_path / "named.csv", store)
    with LocalStore.open(store, command="test") as client:
        again = People(client)
        grace, hal = again.owners()[8], again.owners()[13]
        assert grace is not None
        assert hal is not None
        again.correct("move", hal, faces=(9,))
        again.correct("move", faces=(5, 8))
        again.correct("forget", again.two)  # and with it the correction that took face 8 from Grace
        again.correct("split", grace, faces=(10,))  # of which no fact tells
        again.correct("forget", grace)
        query = "SELECT m.name FROM core.media m JOIN core.files f USING (media_id)"
        named = client.read(f"{query} WHERE m.name IS NOT NULL OR f.label <> ''")
        assert named["name"].to_pylist() == ["Hal"]
        again.close()
