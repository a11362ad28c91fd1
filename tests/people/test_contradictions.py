"""Constraints that contradict each other are refused with the merges between them, or listed by a regroup with the way
out: it changes nothing of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from coded_faces import Shown

from pipeline.config import AVERAGE_LINK, RegroupSettings
from pipeline.errors import CorrectionImpossible, StatedTwoPeople, UndoBlocked
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from pipeline.store.records import Contradiction, Regrouping
from tests.asking import ask_for
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import SETTINGS, photo, run_over, write_photo
from tests.people.correcting import People

CUTS = [None, SETTINGS.match.threshold]


def regroup(people: People, cut: float | None = None) -> Regrouping:
    method = None if cut is None else RegroupSettings(AVERAGE_LINK, cut=cut)
    found = people.correct("regroup", gate=SETTINGS.match, method=method).regrouping
    assert found is not None
    return found


def listed(people: People, cut: float | None) -> Contradiction:
    """The only contradiction that a regroup finds; it changes nothing."""
    before = people.state()
    found = regroup(people, cut)
    assert (found.moves, found.joins, found.parted, found.new, found.gone) == ([], [], [], [], [])
    assert people.state() == before
    (contradiction,) = found.contradictions
    return contradiction


def test_a_refused_merge_names_the_merges_between_two_who_are_not_the_same(people: People) -> None:
    people.correct("name", people.one, name="Ann")
    people.correct("not_same", people.one, people.three)  # correction 2
    people.correct("merge", people.two, people.three)  # correction 3
    with pytest.raises(StatedTwoPeople) as refused:
        people.correct("merge", people.one, people.two)
    text = str(refused.value)
    assert "correction 2" in text
    assert f"Ann ({people.one})" in text
    assert "by this change" in text
    assert "by correction 3 (merge)" in text
    assert "`people undo 3`" in text
    people.correct("undo", correction_id=3)  # the way out
    people.correct("merge", people.one, people.two)
    with pytest.raises(StatedTwoPeople) as refused:
        people.correct("merge", people.one, people.three)
    assert "one through" not in str(refused.value)  # by nothing but this merge


def test_a_regroup_in_the_chain_is_named_too(people: People) -> None:
    people.correct("not_same", people.one, people.three)
    people.correct("regroup", gate=SETTINGS.match, method=RegroupSettings(AVERAGE_LINK, cut=3.9))
    with pytest.raises(StatedTwoPeople, match=r"by correction 2 \(regroup\)"):
        people.correct("merge", people.one, people.two, people.three)


def test_not_same_of_one_person_names_the_merges(people: People) -> None:
    ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
    ask_for(people.service, "merge", people.account, "main", [people.two, people.three])
    with pytest.raises(CorrectionImpossible) as refused:
        people.correct("not_same", people.two, people.three)
    for word in (
        people.one,
        people.two,
        people.three,
        "correction 1 (merge)",
        "correction 2 (merge)",
        "people unmerge",
    ):
        assert word in str(refused.value)


def test_an_undo_that_would_contradict_names_the_merges(people: People) -> None:
    people.correct("not_same", people.one, people.three)  # 1
    people.correct("undo")  # 2
    people.correct("merge", people.one, people.two)  # 3
    people.correct("merge", people.two, people.three)  # 4
    with pytest.raises(UndoBlocked, match=r"stated to be two people \(correction 1\).*by correction 4 \(merge\)"):
        people.correct("undo", correction_id=2)


def test_a_merge_replaces_what_was_said_against_it_of_a_face(people: People) -> None:
    people.correct("move", people.three, faces=(2,))  # of the first person
    before = people.state()
    assert ("is_not", 2, people.one) in people.facts()
    (replaced,) = people.correct("merge", people.one, people.three).replaced
    assert (replaced.kind, replaced.face_id, replaced.person_id) == ("is_not", 2, people.one)
    assert people.facts() == {("is", 2, people.three)}
    assert regroup(people).contradictions == []
    people.correct("undo")
    assert people.state() == before


@pytest.mark.parametrize("cut", CUTS)
def test_a_post_that_merges_against_it_is_listed(people: People, cut: float | None) -> None:
    people.correct("move", people.three, faces=(2,))  # correction 1
    request = PostRequest(merge_with=people.three, update=False)
    (face,) = people.service.post(people.account, "main", photo(Shown(1)), request).faces  # correction 2
    assert face.conflict is None
    found = listed(people, cut)
    assert (found.corrections, found.face_ids, set(found.person_ids)) == ([1, 2], [2], {people.one, people.three})
    assert "The face 2 was said not to be" in found.detail
    assert "correction 2 (merge)" in found.detail
    people.correct("move", people.one, faces=(2,))  # the way out
    assert regroup(people, cut).contradictions == []


@pytest.fixture
def with_copies(store: Path, archive: Path, tmp_path: Path) -> Path:
    """The store after another run: face 8 is that of d3.png, face 6, on a copy of it."""
    (tmp_path / "more").mkdir()
    shutil.copy(archive / "d3.png", tmp_path / "more" / "copy.png")
    run_over(tmp_path / "more", store)
    return store


@pytest.mark.parametrize("cut", CUTS)
def test_copies_of_a_face_that_are_two_people_are_listed(with_copies: Path, cut: float | None) -> None:
    with LocalStore.open(with_copies, command="test") as client:
        people = People(client)
        people.correct("name", people.three, name="Cid")
        people.correct("move", people.one, faces=(6,))  # correction 2
        assert regroup(people, cut).contradictions == []
        people.correct("move", faces=(8,))
        last = people.client.read("SELECT max(correction_id) AS n FROM core.facts")["n"][0].as_py()
        found = listed(people, cut)
        assert (sorted(found.corrections), sorted(found.face_ids)) == ([2, last], [6, 8])
        assert "nobody's as face 8" in found.detail
        people.correct("move", people.one, faces=(8,))  # the way out
        assert regroup(people, cut).contradictions == []
        people.close()


@pytest.mark.parametrize("cut", CUTS)
def test_a_copy_stays_with_whom_a_run_gave_it_for_a_constraint(
    store: Path, archive: Path, tmp_path: Path, cut: float | None
) -> None:
    """Though its vector is another person's, as its face's is."""
    with LocalStore.open(store, command="test") as client:
        people = People(client)
        persons = people.one, people.two, people.three
        people.correct("move", people.two, faces=(2,))  # the only face of a2.png
        people.close()
    (tmp_path / "more").mkdir()
    shutil.copy(archive / "a2.png", tmp_path / "more" / "copy.png")
    run_over(tmp_path / "more", store)
    with LocalStore.open(store, command="test") as client:
        people = People(client, *persons)
        assert people.owners()[8] == people.two
        found = regroup(people, cut)
        assert (found.moves, found.contradictions) == ([], [])
        assert people.owners()[8] == people.two
        people.close()


@pytest.mark.parametrize("cut", CUTS)
def test_what_an_earlier_version_let_in_is_listed(people: People, cut: float | None) -> None:
    people.correct("name", people.three, name="Cid")
    (posted,) = people.service.post(people.account, "main", photo(Shown(9)), PostRequest()).faces
    people.correct("merge", people.one, people.three)  # correction 2
    people.correct("merge", people.one, str(posted.new_id))  # correction 3
    pair = sorted((people.three, str(posted.new_id)))
    row = f"(1, 'not_same', NULL, '{pair[0]}', '{pair[1]}', 'user', TIMESTAMP '2026-01-01')"
    people.client.submit(lambda catalog: catalog.execute(f"INSERT INTO core.facts VALUES {row}"))
    found = listed(people, cut)
    assert found.corrections[0] == 1
    assert set(found.corrections) == {1, 2, 3}
    assert found.person_ids == pair
    assert f"Cid ({people.three})" in found.detail
    assert "were said to be two people (correction 1), but are one" in found.detail
    assert "`people unmerge" in found.detail
    people.correct("unmerge", people.three)  # the way out
    assert regroup(people, cut).contradictions == []


def test_the_command_lists_them(with_copies: Path) -> None:
    one, two, *_ = (row["person_id"] for row in answer("people", "list", "--store", with_copies)["people"])
    for face, who in ((6, one), (8, two)):
        answer("people", "move", face, who, "--store", with_copies)
    text = facepipe("regroup", "--store", with_copies, "--yes").output
    assert "clash  The same face of identical photos was said to be" in text
    found = answer("regroup", "--store", with_copies, "--yes", "--only", one)["regrouping"]
    assert [each["face_ids"] for each in found["contradictions"]] == [[6, 8]]
    make_nobody_else(with_copies)
    (last,) = (
        row["person_id"] for row in answer("people", "list", "--store", with_copies)["people"] if row["faces"] == 1
    )
    assert answer("regroup", "--store", with_copies, "--yes", "--only", last)["regrouping"]["contradictions"] == []


def make_nobody_else(store: Path) -> None:
    """One more person, whom no contradiction concerns."""
    write_photo(store.parent / "last", "a.png", Shown(6))
    run_over(store.parent / "last", store)


def test_a_photo_on_which_somebody_may_be_twice_contradicts_nothing(people: People) -> None:
    both = next(face.media_id for face in people.faces() if face.face_id == 3)
    people.correct("move", people.two, faces=(3,))
    people.correct("allow_twice", media_ids=[both])
    assert regroup(people).contradictions == []
