"""One rule for merges, names and undos, whoever asks: users, requests to the server, labels."""

from __future__ import annotations

import errno
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from pipeline.config import MatchSettings
from pipeline.errors import (
    CorrectionImpossible,
    PersonUnknown,
    RequestError,
    StatedTwoPeople,
    StoreError,
    UndoBlocked,
)
from pipeline.people.types import FaceResult, PostRequest
from pipeline.people.undo import _lost_vectors
from pipeline.store.catalog.corrections import history
from pipeline.store.local import LocalStore
from pipeline.store.records import NO_ROWS, Correction, CorrectionAnswer, PersonChange, Rows
from tests.asking import ask_for
from tests.identities.planted import listed
from tests.people.broken_disk import broken_at
from tests.people.coded_archive import fill
from tests.people.correcting import People
from tests.store.store_samples import at_fault_points


def log(people: People) -> list[dict[str, Any]]:
    """All corrections that are kept, the oldest first."""
    columns = "correction_id, kind, origin, undoes, undone_at IS NOT NULL AS undone"
    return people.client.read(f"SELECT {columns} FROM core.corrections ORDER BY correction_id").to_pylist()


def together(people: People) -> set[frozenset[str]]:
    """The merged sets."""
    views = listed(people.service, people.account, "main")
    roots = {view.root.person_id for view in views}
    return {frozenset(people.service.merged_set(people.account, "main", root)) for root in roots} - {
        frozenset([root]) for root in roots
    }


def post_merging(people: People, face: Shown, person: str) -> FaceResult:
    request = PostRequest(merge_with=person, update=False)
    (found,) = people.service.post(people.account, "main", photo(face), request).faces
    return found


class TestConstraints:
    def test_they_bind_a_request(self, people: People) -> None:
        people.correct("not_same", people.one, people.two)
        before = people.state()
        with pytest.raises(StatedTwoPeople, match=f"({people.one}|{people.two}).*({people.one}|{people.two})"):
            ask_for(people.service, "merge", people.account, "main", [people.two, people.one], PersonChange(name="Ann"))
        assert people.state() == before
        ask_for(
            people.service,
            "merge",
            people.account,
            "main",
            [people.two, people.one],
            PersonChange(name="Ann"),
            anyway=True,
        )
        assert together(people) == {frozenset([people.one, people.two])}
        assert people.facts() == set()
        assert [(each["kind"], each["origin"]) for each in log(people)] == [("not_same", "user"), ("merge", "api")]
        people.correct("undo", undo_origin="api")
        assert people.state() == before

    def test_they_bind_those_who_are_merged_with_others(self, people: People) -> None:
        people.correct("not_same", people.one, people.two)
        ask_for(people.service, "merge", people.account, "main", [people.two, people.three])
        with pytest.raises(StatedTwoPeople):
            ask_for(people.service, "merge", people.account, "main", [people.one, people.three])

    def test_they_bind_a_post_that_merges(self, people: People) -> None:
        people.correct("not_same", people.one, people.two)
        found = post_merging(people, Shown(1), people.two)
        assert (found.conflict, found.inserted) == ("stated-two-people", False)
        assert together(people) == set()
        assert people.who(Shown(1)) == people.one
        new = post_merging(people, Shown(9), people.two)  # of a new person nothing is stated
        assert (new.conflict, new.inserted) == (None, True)
        assert together(people) == {frozenset([people.two, str(new.new_id)])}

    def test_a_user_who_takes_people_apart_states_that_they_are_two(self, people: People) -> None:
        ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
        people.correct("unmerge", people.one)
        assert people.facts() == {("not_same", *sorted((people.one, people.two)))}
        with pytest.raises(StatedTwoPeople):
            ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
        assert post_merging(people, Shown(2), people.one).conflict == "stated-two-people"
        with pytest.raises(StatedTwoPeople):
            people.correct("merge", people.one, people.two)
        people.correct("merge", people.one, people.two, anyway=True)
        assert people.facts() == set()

    def test_all_who_are_taken_apart_are_two(self, people: People) -> None:
        """Also two who were merged with each other before they were with the root."""
        ask_for(people.service, "merge", people.account, "main", [people.two, people.three])
        ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
        people.correct("unmerge", people.two, people.three)
        assert len(people.facts()) == 3 or people.facts() >= {("not_same", *sorted((people.two, people.three)))}
        with pytest.raises(StatedTwoPeople):
            ask_for(people.service, "merge", people.account, "main", [people.two, people.three])

    def test_a_request_that_takes_people_apart_binds_a_regroup_and_no_request(self, people: People) -> None:
        strict = MatchSettings(threshold=3.9)
        people.correct("regroup", gate=strict)
        assert together(people)
        ask_for(people.service, "unmerge", people.account, "main", [people.one])
        apart = together(people)
        assert frozenset([people.one, people.two]) not in {pair for pair in apart if people.one in pair}
        people.correct("regroup", gate=strict)
        assert not any({people.one, people.two} <= each for each in together(people))
        ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
        assert any({people.one, people.two} <= each for each in together(people))

    def test_they_bind_an_undo(self, people: People) -> None:
        ask_for(people.service, "merge", people.account, "main", [people.one, people.two])
        ask_for(people.service, "unmerge", people.account, "main", [people.one])
        people.correct("not_same", people.one, people.two)
        with pytest.raises(UndoBlocked, match="were stated to be two people") as refused:
            people.correct("undo", correction_id=2)
        assert people.one in str(refused.value)
        assert people.two in str(refused.value)
        people.correct("undo")
        people.correct("undo", correction_id=2)
        assert together(people) == {frozenset([people.one, people.two])}


class TestRequests:
    @pytest.mark.slow
    def test_each_is_logged_and_can_be_undone(self, people: People) -> None:
        account = people.account
        states = [people.state()]
        change = PersonChange(
            name="Ann Ä", first_name="Ann", external_id="7", tags=("a", "b"), ignored=True, metadata={"age": [3]}
        )
        ask_for(people.service, "update", account, "main", [people.one], change)
        states.append(people.state())
        ask_for(people.service, "update", account, "main", [people.one], change)  # as it is
        ask_for(people.service, "merge", account, "main", [people.one, people.two], PersonChange(last_name="B"))
        states.append(people.state())
        ask_for(people.service, "merge", account, "main", [people.one, people.two])  # as it is
        ask_for(people.service, "unmerge", account, "main", [people.one])
        states.append(people.state())
        ask_for(people.service, "unmerge", account, "main", [people.one])  # as it is
        post_merging(people, Shown(2), people.three)
        assert [(each["kind"], each["origin"]) for each in log(people)] == [
            ("update", "api"),
            ("merge", "api"),
            ("unmerge", "api"),
            ("merge", "api"),
        ]
        with pytest.raises(CorrectionImpossible, match="no correction to undo"):
            people.correct("undo")  # of a user
        merged = people.correct("undo", undo_origin="api")
        assert (merged.kind, together(people)) == ("merge", set())
        for number, state in zip((3, 2, 1), reversed(states[:-1]), strict=True):
            people.correct("undo", correction_id=number)
            now = people.state()
            assert {**now, "records": counted(now)} == {**state, "records": counted(state)}

    def test_one_puts_no_other_change_out_of_reach(self, people: People) -> None:
        people.correct("hide", people.two)
        people.correct("name", people.one, name="Ann")
        ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Anna"))
        with pytest.raises(UndoBlocked, match="the name of the person"):
            people.correct("undo")
        assert people.correct("undo", correction_id=1).kind == "hide"
        assert not people.service.person(people.account, "main", people.two).record.ignored
        people.correct("undo", undo_origin="api")
        assert people.correct("undo").kind == "name"

    def test_hiding_or_tagging_somebody_with_poor_faces_alone(self, people: People) -> None:
        people.correct("move", people.three, faces=(7,))
        people.correct("forget_photos", media_ids=[next(f.media_id for f in people.faces() if f.face_id == 6)])
        ask_for(people.service, "update", people.account, "main", [people.three], PersonChange(tags=["a"]))
        assert people.correct("hide", people.three).correction_id is not None

    def test_a_person_without_a_face_keeps_a_name(self, people: People) -> None:
        people.correct("name", people.three, name="Cid")
        people.correct("move", people.one, faces=(6,))
        with pytest.raises(CorrectionImpossible, match="no face and would have no name"):
            ask_for(people.service, "update", people.account, "main", [people.three], PersonChange(name=""))

    def test_a_merged_newcomer_is_taken_out_again(self, people: People) -> None:
        new = post_merging(people, Shown(9), people.one)
        assert together(people) == {frozenset([people.one, str(new.new_id)])}
        people.correct("undo", undo_origin="api")
        assert together(people) == set()
        assert people.who(Shown(9)) == new.new_id

    def test_a_merging_post_is_stored_and_logged_or_neither(self, people: People) -> None:
        points: list[str] = []
        with at_fault_points(points.append):
            post_merging(people, Shown(9), people.one)
        before, logged = people.state(), log(people)
        committing = points.index("change.commit")
        for number, point in enumerate(dict.fromkeys(points[: committing + 1]), 20):
            with broken_at(point, errno.EIO), pytest.raises(StoreError):
                post_merging(people, Shown(number), people.one)
            assert (people.state(), log(people)) == (before, logged), point
        with broken_at("commits.write", errno.EIO), pytest.raises(StoreError):
            post_merging(people, Shown(19), people.one)
        directories = people.service.directories
        with directories.using(people.account, "main") as opened, directories.writing(opened):
            pass  # what is possibly inconsistent is read again
        assert [len(each) for each in together(people)] == [3]
        assert len(log(people)) == len(logged) + 1

    def test_who_is_deleted_leaves_no_trace_in_the_log(self, people: People) -> None:
        ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Ann"))
        people.correct("undo", undo_origin="api")
        people.correct("merge", people.two, people.three, people.one)
        people.correct("undo")
        ask_for(people.service, "delete", people.account, "main", [people.one])
        *others, deletion = log(people)
        assert [each["kind"] for each in (*others, deletion)] == ["merge", "undo", "delete"]
        shown = people.client.read("SELECT * EXCLUDE (gone) FROM core.corrections").to_pylist()
        assert people.one not in str(shown)
        assert "Ann" not in str(people.client.read("SELECT * FROM core.corrections").to_pylist())
        with pytest.raises(CorrectionImpossible, match="can't be undone"):
            people.correct("undo", correction_id=deletion["correction_id"])


def counted(state: dict[str, Any]) -> list[Any]:
    """The records without how often they were seen, which no correction changes."""
    return [replace(record, occurrence=0, last_occurrence_at=record.added_at) for record in state["records"]]


class TestUndo:
    @pytest.mark.slow
    def test_an_undo_can_be_undone(self, people: People) -> None:
        before = people.state()
        made = people.correct("split", people.one, faces=(1,))
        after = people.state()
        undone = people.correct("undo")
        assert (undone.correction_id, undone.undone_by, undone.kind) == (made.correction_id, 2, "split")
        assert people.state() == before
        again = people.correct("undo", correction_id=2)
        assert (again.correction_id, again.undone_by, again.kind) == (2, 3, "undo")
        now = people.state()
        new, old = (sorted(each["records"], key=lambda r: r.person_id) for each in (now, after))
        assert [replace(r, seq=0) for r in new] == [replace(r, seq=0) for r in old]  # whom a split makes is the last
        assert {**now, "records": []} == {**after, "records": []}
        assert [(each["kind"], each["undoes"], each["undone"]) for each in log(people)] == [
            ("split", None, False),
            ("undo", 1, True),
            ("redo", 1, False),
        ]
        rows = people.client.read("SELECT before, after FROM core.corrections ORDER BY correction_id").to_pylist()
        assert NO_ROWS not in rows[0].values()
        assert [{*row.values()} for row in rows[1:]] == [{NO_ROWS}] * 2  # theirs are those of the split
        shown = people.client.ask(history, people.account, "main", 99, 9).to_pylist()
        assert [each["faces"] for each in shown] == [1, 1, 1]
        assert people.correct("undo", correction_id=3).kind == "redo"  # as the split itself
        assert people.state() == before
        assert [each["undone"] for each in log(people)] == [True, True, True, False]
        people.correct("undo", correction_id=4)
        assert people.correct("undo").correction_id == 1
        assert [each["undone"] for each in log(people)] == [True] * 5 + [False]
        assert people.state() == before

    def test_it_is_the_user_s_whoever_made_what_it_undoes(self, people: People) -> None:
        ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Ann"))
        people.correct("undo", undo_origin="api")
        assert [each["origin"] for each in log(people)] == ["api", "user"]

    @pytest.mark.slow
    def test_no_constraint_comes_back_that_contradicts_another(self, people: People) -> None:
        people.correct("move", people.two, faces=(1,))
        people.correct("undo")
        people.correct("move", people.one, faces=(1,))  # states whose it is
        with pytest.raises(UndoBlocked, match="was stated"):
            people.correct("undo", correction_id=2)
        people.correct("not_same", people.one, people.two)
        again = people.correct("undo").undone_by
        people.correct("merge", people.one, people.two)
        with pytest.raises(UndoBlocked, match="were stated to be two people"):
            people.correct("undo", correction_id=again)
        people.correct("undo")
        people.correct("not_same", people.one, people.two)
        with pytest.raises(UndoBlocked, match="was stated"):
            people.correct("undo", correction_id=again)

    def test_nobody_is_left_without_face_and_name(self, people: People) -> None:
        named = people.correct("name", people.three, name="Cid").correction_id
        people.correct("move", people.one, faces=(6,))
        with pytest.raises(UndoBlocked, match="no face and would have no name"):
            people.correct("undo", correction_id=named)

    def test_a_regroup_is_not_made_again_without_vectors(self) -> None:
        admitted = Rows(faces={1: {"outcome": "inserted"}, 2: {"outcome": "matched"}})
        rejected = Rows(faces={1: {"outcome": "rejected"}, 2: {"outcome": "recognised"}})
        undo = Correction(2, "undo", 1, "regroup", datetime(2026, 1, 2), admitted, rejected, None, False, False)
        assert _lost_vectors(undo) == ["the vectors of 1 faces were deleted: run `regroup --decode` again"]
        assert _lost_vectors(replace(undo, kind="regroup", undoes=None, before=rejected, after=admitted)) == []

    def test_one_in_the_middle(self, people: People) -> None:
        people.correct("move", people.two, faces=(1,))
        people.correct("name", people.two, name="Berta")
        people.correct("not_same", people.one, people.three)
        assert people.correct("undo", correction_id=1).kind == "move"
        assert people.owners()[1] == people.one
        assert people.correct("undo").kind == "not_same"

    def test_nobody_is_left_without_the_reference(self, people: People) -> None:
        """A face that came by the first change is what the second one left its person with."""
        people.correct("name", people.three, name="Cid")
        moved = people.correct("move", people.three, faces=(1,))
        people.correct("move", people.two, faces=(6,))
        assert people.reference(people.three) == 1
        with pytest.raises(UndoBlocked, match="became the reference"):
            people.correct("undo", correction_id=moved.correction_id)

    def test_nobody_gets_the_face_of_another_as_reference(self, people: People) -> None:
        """A move left its person with another of its faces as the reference; made again, it needs that one."""
        reference = people.reference(people.two)
        (other,) = {4, 5} - {reference}
        people.correct("move", people.one, faces=(reference,))
        undone = people.correct("undo").undone_by
        people.correct("split", people.two, faces=(other,))
        with pytest.raises(UndoBlocked, match=f"the face {other} was moved"):
            people.correct("undo", correction_id=undone)

    def test_nobody_gets_a_face_back_who_is_gone_or_faceless(self, people: People) -> None:
        first = people.correct("move", people.one, faces=(4,)).correction_id
        people.correct("move", people.one, faces=(5,))
        with pytest.raises(UndoBlocked, match=f"the person {people.two} was deleted"):
            people.correct("undo", correction_id=first)
        people.correct("undo")
        people.correct("name", people.two, name="Berta")
        people.correct("move", people.one, faces=(5,))
        with pytest.raises(UndoBlocked, match="reference"):
            people.correct("undo", correction_id=first)

    def test_what_cannot_be_undone_is_said(self, people: People) -> None:
        for number, message in ((1, "There is no correction 1"), (None, "There is no correction to undo.")):
            with pytest.raises(CorrectionImpossible, match=message):
                people.correct("undo", correction_id=number)
        people.correct("merge", people.one, people.two, people.three)
        ask_for(people.service, "delete", people.account, "main", [people.three])
        with pytest.raises(CorrectionImpossible, match="was deleted since"):
            people.correct("undo", correction_id=1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("undo")) / "store"


@pytest.mark.slow
def test_undone_in_any_order_the_store_is_whole(template: Path, tmp_path: Path) -> None:
    """Random corrections, by users and requests, and random undos of them: memory and store stay one, and whole."""
    numbers = iter(range(10**6))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            number = next(numbers)
            self.store = LocalStore.open(shutil.copytree(template, tmp_path / str(number)), command="test")
            self.people = People(self.store, kept=number % 2 == 0)
            self.made: list[int] = []

        def _ids(self) -> list[str]:
            return [view.record.person_id for view in listed(self.people.service, self.people.account, "main")]

        def _try(self, work: Any) -> None:
            try:
                answer = work()
            except RequestError:
                return
            if isinstance(answer, CorrectionAnswer):
                self.made += [n for n in (answer.undone_by or answer.correction_id,) if n is not None]

        @rule(kind=st.sampled_from(["merge", "not_same", "hide", "unmerge"]), picks=st.permutations(range(5)))
        def of_people(self, kind: str, picks: list[int]) -> None:
            ids = self._ids()
            count = {"hide": 1, "unmerge": 1}.get(kind, 2)
            persons = [ids[pick % len(ids)] for pick in picks[:count]]
            self._try(lambda: self.people.correct(kind, *persons, anyway=picks[0] == 0))

        @rule(name=st.sampled_from(["", "Ann", "Berta"]), pick=st.integers(0, 5))
        def name(self, name: str, pick: int) -> None:
            ids = self._ids()
            self._try(lambda: self.people.correct("name", ids[pick % len(ids)], name=name))

        @rule(face=st.integers(1, 6), pick=st.integers(0, 6))
        def move(self, face: int, pick: int) -> None:
            ids = self._ids()
            persons = [ids[pick]] if pick < len(ids) else []
            self._try(lambda: self.people.correct("move", *persons, faces=(face,)))

        @rule(face=st.integers(1, 6))
        def split(self, face: int) -> None:
            owner = self.people.owners()[face]
            if owner is not None:
                self._try(lambda: self.people.correct("split", owner, faces=(face,)))

        @rule(picks=st.permutations(range(5)), apart=st.booleans())
        def request(self, picks: list[int], apart: bool) -> None:
            ids = self._ids()
            persons = [ids[pick % len(ids)] for pick in picks[:2]]
            service, account = self.people.service, self.people.account
            before = len(log(self.people))
            self._try(lambda: ask_for(service, "unmerge" if apart else "merge", account, "main", persons))
            self.made += [row["correction_id"] for row in log(self.people)[before:]]

        @rule(name=st.sampled_from(["", "Ann"]), pick=st.integers(0, 5))
        def change(self, name: str, pick: int) -> None:
            ids, before = self._ids(), len(log(self.people))
            change = PersonChange(name=name, tags=["a"] if pick % 2 else [])
            self._try(lambda: ask_for(self.people.service, "update", 1, "main", [ids[pick % len(ids)]], change))
            self.made += [row["correction_id"] for row in log(self.people)[before:]]

        @rule()
        def undo_the_last(self) -> None:
            if self.made:
                self._try(lambda: self.people.correct("undo", correction_id=self.made[-1]))

        @invariant()
        def nobody_is_two_and_one(self) -> None:
            for fact in self.people.facts():
                if fact[0] == "not_same":
                    sets = [self.people.service.merged_set(self.people.account, "main", one)[0] for one in fact[1:]]
                    assert sets[0] != sets[1]
            rows = log(self.people)
            for row in rows:
                about = [each for each in rows if each["undoes"] == row["correction_id"]]
                assert row["undone"] == (bool(about) and about[-1]["kind"] == "undo") or row["undoes"] is not None

        @rule(pick=st.integers(0, 30))
        def undo(self, pick: int) -> None:
            if self.made:
                self._try(lambda: self.people.correct("undo", correction_id=self.made[pick % len(self.made)]))

        def teardown(self) -> None:
            self.people.state()  # compares memory and store
            self.people.close()
            shutil.rmtree(self.store.path)

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_an_unknown_person_is_nobody(people: People) -> None:
    with pytest.raises(PersonUnknown):
        ask_for(people.service, "merge", people.account, "main", [people.one, "00000000-0000-0000-0000-000000000000"])
