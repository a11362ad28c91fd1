"""Grouping stored faces anew: what it changes is what a sequential grouping of its own predicts; corrections stay."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coded_faces import Shown, photo, vector

import pipeline
from pipeline.config import AVERAGE_LINK, MatchSettings, RegroupSettings
from pipeline.errors import CorrectionImpossible, UndoBlocked
from pipeline.people import corrections, regroup
from pipeline.people.correction_plan import Plan
from pipeline.people.types import PostRequest
from pipeline.people.undo import undo
from pipeline.store.catalog import accounts
from pipeline.store.files.objects import FOLDER_DIGITS
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest, PersonChange, Regrouping
from pipeline.store.schema import TABLES
from tests.asking import ask_for
from tests.cli.report import facepipe
from tests.people.coded_archive import SETTINGS, SIZE, make_store, problems, run_over, serving, write_photo
from tests.people.correcting import People
from tests.stored import stored_people

RUN_T = SETTINGS.match.threshold
STRICT, LAX, LAXER = 0.04, 1.75, 2.1  # of squared distances: 0.02 to 0.06 within a person, about 2 between two
SHOWN = [
    [Shown(person, variant) for person in persons]
    for variant, *persons in [
        (0, 1, 2), (0, 3), (1, 2), (2, 1), (3, 3, 1), (0, 4), (4, 4, 2, 5), (5, 5), (6, 6), (7, 1, 6), (8, 2), (9, 3),
        (10, 7), (11, 7, 8), (12, 8), (13, 9, 1), (14, 9), (15, 2),
    ]
]  # fmt: skip
MOST = 3  # people on one photo: nobody is on one twice, however lax the threshold is
POSTED = [Shown(10), Shown(11)]
POOR = Shown(1, 30, 0.2)  # matches nobody at STRICT, and is too poor to be a person


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ and store/: two posted references between two runs, a copy, and faces that are too poor."""
    folder = tmp_path_factory.mktemp("crowd")
    photos, store = folder / "photos", make_store(folder / "store")
    for number, faces in enumerate(SHOWN[:9]):
        write_photo(photos, f"{number:02}.png", *faces)
    run_over(photos, store)
    with LocalStore.open(store, command="test") as client:
        people = People(client)
        for face in POSTED:
            people.service.post(people.account, "main", photo(face), PostRequest())
        people.close()
    for number, faces in enumerate(SHOWN[9:], 9):
        write_photo(photos, f"{number:02}.png", *faces)
    write_photo(photos, "x-posted.png", Shown(10, 1))
    shutil.copy(photos / "03.png", photos / "y-copy.png")
    write_photo(photos, "z-poor.png", POOR, Shown(12, 0, 0.2))
    run_over(photos, store)
    return folder


@pytest.fixture
def store(crowd: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(crowd / "store", tmp_path / "store"))


class Regrouped(People):
    """People of the crowd, and what they show."""

    def photos(self) -> dict[int, int]:
        rows = self.client.read("SELECT face_id, media_id FROM core.faces").to_pylist()
        return {row["face_id"]: row["media_id"] for row in rows}

    def regroup(
        self, threshold: float = RUN_T, *, dry_run: bool = False, cut: float | None = None, **gate: float
    ) -> Regrouping:
        """Sequential, or with a `cut` by average link."""
        settings = replace(SETTINGS.match, threshold=threshold, **gate)
        method = None if cut is None else RegroupSettings(AVERAGE_LINK, cut=cut)
        found = self.correct("regroup", gate=settings, dry_run=dry_run, method=method).regrouping
        assert found is not None
        return found

    def roots(self) -> dict[str, str]:
        rows = self.client.people(self.account, "main").to_pylist()
        return {row["person_id"]: row["root_person_id"] for row in rows}

    def shown(self) -> dict[int, Shown]:
        """What every face shows, in the order of the store."""
        order = [
            *SHOWN[:9],
            *([face] for face in POSTED),
            *SHOWN[9:],
            [Shown(10, 1)],
            SHOWN[3],
            [POOR, Shown(12, 0, 0.2)],
        ]
        ids = self.client.read("SELECT face_id FROM core.faces ORDER BY media_id, ordinal")["face_id"].to_pylist()
        return dict(zip(ids, [face for faces in order for face in faces], strict=True))

    def partition(self) -> set[frozenset[int]]:
        """The faces of each person, with all who are merged."""
        sets: dict[str, set[int]] = {}
        roots = self.roots()
        for face_id, person_id in self.owners().items():
            if person_id is not None:
                sets.setdefault(roots[person_id], set()).add(face_id)
        return {frozenset(faces) for faces in sets.values()}

    def person_of(self, person: int) -> str:
        """Whose the first face of a shown person is."""
        face_id = next(face_id for face_id, face in self.shown().items() if face.person == person)
        return str(self.owners()[face_id])

    def face(self, shown: Shown) -> int:
        return next(face_id for face_id, face in self.shown().items() if face == shown)


@pytest.fixture
def people(store: Path) -> Iterator[Regrouped]:
    with LocalStore.open(store, command="test") as client:
        made = Regrouped(client)
        yield made
        made.close()


def sequential(faces: dict[int, Shown], photo_of: dict[int, int], threshold: float) -> set[frozenset[int]]:
    """Each photo in turn: pairs of a face and a founder within the threshold, the nearest first, each once; the other
    faces are founders, if good enough."""
    founders: list[tuple[np.ndarray, list[int]]] = []
    vectors = {face_id: vector(face, SIZE).astype(np.float64) for face_id, face in faces.items()}
    for photo_id in dict.fromkeys(photo_of[face_id] for face_id in faces):
        own = [face_id for face_id in faces if photo_of[face_id] == photo_id]
        pairs = [
            (float(((vectors[face_id] - other) ** 2).sum()), order, place)
            for order, face_id in enumerate(own)
            for place, (other, _) in enumerate(founders)
        ]
        placed: dict[int, int] = {}
        for distance, order, place in sorted(pairs):
            if distance <= threshold and order not in placed and place not in placed.values():
                placed[order] = place
        for order, face_id in enumerate(own):
            if order in placed:
                founders[placed[order]][1].append(face_id)
            elif faces[face_id].quality > 0.5:
                founders.append((vectors[face_id], [face_id]))
    return {frozenset(members) for _, members in founders}


def tables(store: Path) -> dict[str, str]:
    with LocalStore.open(store, command="test") as client:
        return {name: repr(client.read(f"SELECT * FROM core.{name} ORDER BY ALL").to_pylist()) for name in TABLES}


def ask(store: Path, *words: object, exit_code: int = 0, stdin: str | None = None) -> dict[str, Any]:
    result = facepipe("regroup", *words, "--store", store, "--json", stdin=stdin)
    assert result.exit_code == exit_code, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.slow
def test_the_threshold_of_the_runs_changes_nothing(store: Path) -> None:
    before = tables(store)
    answer = ask(store, "--yes")
    assert answer["correction_id"] is None
    assert answer["regrouping"]["faces"] == 30
    assert not any(answer["regrouping"][key] for key in ("joins", "moves", "new", "gone", "parted", "kept_apart"))
    assert tables(store) == before
    text = facepipe("regroup", "--store", store, "--threshold", RUN_T, stdin="y\n").output  # it is the directory's now
    assert f"keep   T {RUN_T}" in text
    changed = {name for name, rows in tables(store).items() if rows != before[name]}
    assert changed == {"store", "directories", "corrections"}


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.0, 0.03, STRICT, 1.5, LAX, LAXER, 3.0])
def test_the_partition_is_that_of_a_sequential_grouping(people: Regrouped, threshold: float) -> None:
    before, first = people.state(), people.partition()
    faces = {
        f: shown for f, shown in people.shown().items() if f in people.client.face_vectors(list(people.shown())[:-1])
    }
    photo_of = people.photos()
    assert first == sequential(faces, photo_of, RUN_T)
    expected = sequential(faces, photo_of, threshold)
    assert expected != first
    old = people.roots()
    found = people.regroup(threshold)
    assert people.partition() == expected
    for cluster in expected:
        assert len({photo_of[face_id] for face_id in cluster}) == len(cluster)
    assert set(old) - set(found.gone) <= set(people.roots())  # all ids go on answering
    assert people.regroup(threshold).moves == []
    assert people.partition() == expected
    people.correct("undo")
    assert people.state() == before


def test_the_people_of_a_precision_are_those_after_earlier_regroups(
    people: Regrouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regroup, "cut_of", lambda *_: LAX)
    before = len(set(people.roots().values()))
    found = [
        people.correct("regroup", gate=SETTINGS.match, method=RegroupSettings(AVERAGE_LINK)).regrouping for _ in "12"
    ]
    assert found[0] is not None
    assert found[1] is not None
    assert len(found[0].joins) > 0
    assert (found[0].people, found[1].people) == (before, before - len(found[0].joins))


@pytest.mark.slow
def test_recognition_follows_at_once(people: Regrouped) -> None:
    shown = people.shown()
    new = people.regroup(STRICT).new
    assert len(new) == 2
    for person_id in new:
        reference = people.reference(person_id)
        assert reference is not None
        assert people.who(shown[reference]) == person_id
    people.regroup(3.0)
    assert len({people.who(face) for face in shown.values() if face.person != 12}) == MOST


def correct_all(people: Regrouped) -> None:
    """Twelve corrections, of every kind that states something."""
    of = {person: people.person_of(person) for person in (*range(1, 10), 10, 11)}
    people.correct("name", of[1], name="Ann")
    people.correct("name", of[2], name="Berta")
    people.correct("name", of[3], name="Cid")
    people.correct("hide", of[7])
    people.correct("move", of[2], faces=(people.face(Shown(1, 7)),))  # to another
    people.correct("move", of[1], faces=(people.face(Shown(2)),))  # the face that Berta was known by
    people.correct("move", faces=(people.face(Shown(3, 9)),))  # to nobody
    people.correct("move", of[4], faces=(people.face(Shown(12, 0, 0.2)),))  # one without a vector
    people.correct("split", of[1], faces=(people.face(Shown(1, 2)), people.face(Shown(1, 13))))
    people.correct("not_same", of[5], of[6])
    people.correct("merge", of[8], of[10])
    people.correct("merge", of[9], of[11])
    people.correct("unmerge", of[9])


def assert_kept(people: Regrouped, facts: set[tuple[Any, ...]], records: dict[str, Any]) -> None:
    """That all of `correct_all` holds, facts and records, whatever else changed. New people inherit facts."""
    assert people.facts() >= facts
    assert all(fact[0] == "not_same" and {*fact[1:]} - records.keys() for fact in people.facts() - facts)
    owners, roots = people.owners(), people.roots()
    for kind, one, *other in facts:
        owner = owners.get(one)
        if kind == "is":
            assert owner == other[0]
        elif kind == "is_not":
            assert owner is None or roots[owner] != roots[other[0]]
        elif kind == "nobody":
            assert owner is None
        else:
            assert roots[one] != roots[other[0]]
    now = {row["person_id"]: row for row in people.client.people(people.account, "main").to_pylist()}
    for person_id, row in records.items():
        if row["name"] or row["hidden"]:
            assert (now[person_id]["name"], now[person_id]["hidden"]) == (row["name"], row["hidden"])
        if row["root_person_id"] != person_id:
            assert roots[person_id] == roots[row["root_person_id"]]
    named = [roots[person_id] for person_id, row in now.items() if row["name"]]
    assert len(named) == len(set(named)) == 3
    assert sorted(now[root]["name"] for root in named) == ["Ann", "Berta", "Cid"]  # they stand for their sets
    assert roots[people.person_of(9)] != roots[people.person_of(11)]  # unmerged


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [STRICT, RUN_T, LAXER, 3.9])
def test_corrections_stay(people: Regrouped, threshold: float) -> None:
    correct_all(people)
    facts = people.facts()
    assert {fact[0] for fact in facts} == {"is", "is_not", "nobody", "not_same"}
    records = {row["person_id"]: row for row in people.client.people(people.account, "main").to_pylist()}
    before = people.state()
    assert len(before["facts"]) >= 10
    found = people.regroup(threshold)
    assert_kept(people, facts, records)
    assert bool(found.moves or found.joins) == (threshold != RUN_T)
    again = people.regroup(threshold)
    assert (again.moves, again.joins, again.parted) == ([], [], [])
    if threshold != RUN_T:
        people.correct("undo")
        assert people.state() == before


def linked(faces: dict[int, Shown], photo_of: dict[int, int], cut: float) -> set[frozenset[int]]:
    """Joins the nearest two clusters in turn, by the mean squared distance of all pairs; never two faces of a photo."""
    vectors = {face_id: vector(face, SIZE).astype(np.float64) for face_id, face in faces.items()}
    clusters = [[face_id] for face_id in faces]
    while True:
        best = (cut, 0, 0)
        for (i, one), (j, two) in combinations(enumerate(clusters), 2):
            if not {photo_of[face_id] for face_id in one} & {photo_of[face_id] for face_id in two}:
                distance = float(np.mean([((vectors[a] - vectors[b]) ** 2).sum() for a in one for b in two]))
                best = min(best, (distance, i, j)) if distance <= cut else best
        if best[1] == best[2]:
            return {frozenset(c) for c in clusters if any(faces[face_id].quality > 0.5 for face_id in c)}
        clusters[best[1]] += clusters.pop(best[2])


@pytest.mark.parametrize("cut", [0.03, RUN_T, pytest.param(LAX, marks=pytest.mark.slow), LAXER])
def test_average_link_groups_by_all_pairs_and_nobody_twice_on_a_photo(people: Regrouped, cut: float) -> None:
    before = people.state()
    shown = people.shown()
    with_vectors = people.client.face_vectors(list(shown)[:-1])
    photo_of = people.photos()
    expected = linked({f: face for f, face in shown.items() if f in with_vectors}, photo_of, cut)
    found = people.regroup(cut=cut)
    assert (found.method, found.cut, found.precision) == (AVERAGE_LINK, cut, None)
    assert people.partition() == expected
    for cluster in people.partition():
        assert len({photo_of[face_id] for face_id in cluster}) == len(cluster)
    again = people.regroup(cut=cut)
    assert (again.moves, again.joins, again.parted) == ([], [], [])
    assert bool(found.moves or found.joins) == (cut != RUN_T)
    if cut != RUN_T:
        people.correct("undo")
    assert people.state() == before


@pytest.mark.parametrize("cut", [STRICT, LAXER, pytest.param(3.9, marks=pytest.mark.slow)])
def test_corrections_stay_by_average_link(people: Regrouped, cut: float) -> None:
    correct_all(people)
    facts = people.facts()
    records = {row["person_id"]: row for row in people.client.people(people.account, "main").to_pylist()}
    before = people.state()
    found = people.regroup(cut=cut)
    assert found.moves or found.joins
    assert_kept(people, facts, records)
    again = people.regroup(cut=cut)
    assert (again.moves, again.joins, again.parted) == ([], [], [])
    people.correct("undo")
    assert people.state() == before


@pytest.mark.parametrize("cut", [None, RUN_T])
def test_two_faces_of_a_photo_that_a_user_gave_to_one_person_stay(people: Regrouped, cut: float | None) -> None:
    two, faces = people.person_of(2), [people.face(Shown(person, 4)) for person in (2, 5)]
    assert len({people.photos()[face_id] for face_id in faces}) == 1
    people.correct("move", two, faces=(faces[1],))
    moved = [move.face_id for move in people.regroup(cut=cut).moves]
    assert faces[0] in moved  # which a run gave to the same person
    assert cut is not None or moved == faces[:1]
    assert people.owners()[faces[1]] == two
    people.correct("undo")
    people.correct("move", two, faces=(faces[0],))
    assert not {move.face_id for move in people.regroup(cut=cut).moves}.intersection(faces)
    assert {people.owners()[face_id] for face_id in faces} == {two}


@pytest.mark.parametrize("cut", [None, RUN_T])
@pytest.mark.parametrize("named", [False, True])
def test_a_face_that_a_user_gave_to_another_takes_nobody_along(
    people: Regrouped, cut: float | None, named: bool
) -> None:
    """Neither does its new person lose the faces that are unlike it, nor its former one those that are like it."""
    two = people.person_of(2)
    if named:
        people.correct("name", two, name="Berta")
    people.correct("move", two, faces=(people.face(Shown(9, 13)),))
    before = people.partition()
    assert people.regroup(cut=cut).moves == []
    assert people.partition() == before


@pytest.mark.parametrize("cut", [None, RUN_T])
def test_merged_people_who_look_unlike_keep_their_faces(people: Regrouped, cut: float | None) -> None:
    people.correct("merge", people.person_of(3), people.person_of(7))  # on no photo together
    before = people.partition()
    assert people.regroup(cut=cut).moves == []
    assert people.partition() == before


def test_without_a_measured_precision_a_cut_must_be_given(store: Path) -> None:
    answer = ask(store, "--method", "average-link", "--yes", exit_code=CorrectionImpossible.exit_code)
    assert "--cut" in answer["message"]
    answer = ask(store, "--method", "average-link", "--cut", LAXER, "--yes")
    assert answer["correction_id"] is not None
    assert answer["regrouping"]["cut"] == LAXER


@pytest.mark.slow
def test_corrections_stay_through_one_threshold_after_another(people: Regrouped) -> None:
    correct_all(people)
    facts = people.facts()
    records = {row["person_id"]: row for row in people.client.people(people.account, "main").to_pylist()}
    for threshold in (LAXER, STRICT, RUN_T, 3.9, 0.0):
        people.regroup(threshold)
        assert_kept(people, facts, records)


def test_what_a_regroup_joined_another_one_parts(people: Regrouped) -> None:
    first = people.partition()
    people.correct("merge", people.person_of(8), people.person_of(9))
    merged = people.partition()
    assert merged != first
    found = people.regroup(3.0)
    assert MOST <= len(people.partition()) < len(merged)
    assert found.joins
    found = people.regroup(RUN_T)
    assert found.parted
    assert people.partition() == merged  # by a user: it stays


def test_names_and_external_ids_are_never_joined(people: Regrouped) -> None:
    ann, berta = people.person_of(4), people.person_of(6)
    people.correct("name", ann, name="Ann")
    people.correct("name", berta, name="Berta")
    for shown, external_id in ((2, "2"), (3, "3")):
        change = PersonChange(external_id=external_id)
        ask_for(people.service, "update", people.account, "main", [people.person_of(shown)], change)
    found = people.regroup(3.9)
    roots = people.roots()
    assert roots[ann] == ann  # though an older person has no name
    assert roots[berta] == berta
    assert roots[people.person_of(2)] != roots[people.person_of(3)]
    assert {pair.reason for pair in found.kept_apart} == {"name", "external id"}
    assert set(found.names.values()) == {"Ann", "Berta"}


def test_one_name_in_two_forms_of_unicode_keeps_nobody_apart(people: Regrouped) -> None:
    one, two = people.person_of(4), people.person_of(6)
    people.correct("name", one, name="Zo\u00eb")
    people.correct("name", two, name="Zoe\u0308")
    assert "name" not in {pair.reason for pair in people.regroup(3.9).kept_apart}
    assert people.roots()[one] == people.roots()[two]


def test_the_gate_decides_who_is_a_person(people: Regrouped) -> None:
    named = people.person_of(8)
    people.correct("name", named, name="Ann")
    before = people.state()
    found = people.regroup(min_fsq=0.95)
    assert set(people.owners().values()) == {named, people.person_of(10), people.person_of(11), None}
    assert people.owners()[people.face(Shown(10, 1))] == people.person_of(10)  # like a posted one
    assert len(found.gone) == 8
    assert {face.outcome for face in people.faces() if face.person_id is None} == {"recognised", "rejected"}
    people.correct("undo")
    assert people.state() == before
    laxer = people.regroup(min_cpq=0, min_fsq=0.1, min_fcq=0.1)
    assert laxer.admitted == [people.face(Shown(12, 0, 0.2))]
    assert people.regroup(min_cpq=0, min_fsq=0.1).admitted == []


def test_somebody_must_be_left(filled: Path, tmp_path: Path) -> None:
    with LocalStore.open(shutil.copytree(filled / "store", tmp_path / "store"), command="test") as client:
        people = Regrouped(client)
        before = people.state()
        with pytest.raises(CorrectionImpossible, match="nobody would be left"):
            people.regroup(min_cpq=0.95)
        assert people.state() == before
        people.close()


def test_without_a_photo_a_part_stays(people: Regrouped, crowd: Path, tmp_path: Path) -> None:
    moved = tmp_path / "photos"
    (crowd / "photos").rename(moved)
    try:
        before = people.state()
        found = people.regroup(STRICT)
        assert found.without_picture
        assert found.new == []
        assert people.state() == before
    finally:
        moved.rename(crowd / "photos")
    assert set(found.without_picture) <= {move.face_id for move in people.regroup(STRICT).moves}


def test_nobody_is_left_with_faces_without_a_vector_alone(people: Regrouped) -> None:
    """By which nobody could be known: the faces that the gate takes from such a person stay, and are listed."""
    seven, poor = people.person_of(7), people.face(Shown(12, 0, 0.2))
    own = sorted(face for face, owner in people.owners().items() if owner == seven)
    people.correct("move", seven, faces=(poor,))
    people.client.submit(lambda catalog: catalog.execute("DELETE FROM core.facts"))
    found = people.regroup(min_fsq=0.95)
    assert sorted(found.without_picture) == own
    assert [face for face, owner in people.owners().items() if owner == seven] == [*own, poor]
    assert len(found.gone) == 8


def test_what_came_in_meanwhile_is_decided_again(people: Regrouped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others name two people between the decision and the lock."""
    ann, berta = people.person_of(4), people.person_of(6)
    calls = []

    def with_names(plan: Plan, *args: Any) -> None:
        regroup.regroup(plan, *args)
        if not calls:
            ask_for(people.service, "update", people.account, "main", [ann], PersonChange(name="Ann"))
            ask_for(people.service, "update", people.account, "main", [berta], PersonChange(name="Berta"))
        calls.append(plan)

    monkeypatch.setattr(corrections, "regroup", with_names)
    people.regroup(3.0)
    assert len(calls) == 2
    assert (people.roots()[ann], people.roots()[berta]) == (ann, berta)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """What is called with it happens once, when the next undo is decided and the directory is not locked yet."""

    def happens(work: Callable[[], object]) -> None:
        waiting = [work]

        def decide(*args: Any) -> None:
            try:
                undo(*args)
            finally:
                if waiting:
                    waiting.pop()()

        monkeypatch.setattr(corrections, "undo", decide)

    return happens


def test_an_undo_is_blocked_by_what_came_in_meanwhile(
    people: Regrouped, between: Callable[[Callable[[], object]], None]
) -> None:
    new = people.regroup(STRICT).new[0]
    between(lambda: ask_for(people.service, "merge", people.account, "main", [people.one, new]))
    with pytest.raises(UndoBlocked, match=f"parent_id of the person {new} was changed"):
        people.correct("undo")
    ask_for(people.service, "unmerge", people.account, "main", [people.one, new])
    between(lambda: ask_for(people.service, "update", people.account, "main", [people.one], PersonChange(name="Ann")))
    assert people.correct("undo").gone
    assert new not in people.roots()


def test_an_undo_is_of_what_was_the_last_when_it_began(
    people: Regrouped, between: Callable[[Callable[[], object]], None]
) -> None:
    people.regroup(STRICT)
    change = PersonChange(name="Ann")
    request = CorrectionRequest(people.account, "main", "name", [people.one], change=change)
    between(lambda: people.service.correct(request))
    assert people.correct("undo").kind == "regroup"
    assert people.correct("undo").kind == "name"


def test_a_refusal_is_looked_at_again_where_a_correction_was_half_in(
    people: Regrouped, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.regroup(STRICT)
    calls = []

    def decide(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            undo(*args)
            return
        people.service.correct(
            CorrectionRequest(people.account, "main", "name", [people.one], change=PersonChange(name="Ann"))
        )
        raise UndoBlocked(correction_id=1, kind="name", detail="memory is not as far as the catalog")

    monkeypatch.setattr(corrections, "undo", decide)
    assert people.correct("undo").kind == "name"
    assert len(calls) == 2


def test_of_many_new_people_nothing_is_asked_for_each(people: Regrouped, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests would wait for each question; and each folder of pictures is made and synced."""
    asked: list[str] = []
    ask = LocalStore.ask

    def count(store: LocalStore, query: Any, *args: Any, **how: Any) -> Any:
        asked.append(query.__name__)
        return ask(store, query, *args, **how)

    monkeypatch.setattr(LocalStore, "ask", count)
    new = people.regroup(0.0).new
    assert len(new) > 2
    assert max(Counter(asked).values()) == 1, asked
    stored = stored_people(people.client, people.account, "main").persons
    assert len({str(person.image_guid)[:FOLDER_DIGITS] for person in stored if person.person_id in new}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("held", ["alone", "served"])
def test_the_command_shows_asks_and_does(store: Path, held: str) -> None:
    before = tables(store)
    with serving(store) if held == "served" else nullcontext():
        shown = ask(store, "--threshold", STRICT, "--dry-run")
        assert shown["correction_id"] is None
        assert shown["regrouping"]["moves"]
        refused = facepipe("regroup", "--store", store, "--threshold", STRICT, stdin="n\n")
        assert refused.exit_code == 130
        assert "Do this?" in refused.output
        unasked = facepipe("regroup", "--store", store, "--threshold", STRICT, stdin="")
        assert "Do this? [y/N]: \nfacepipe: stopped.\n" in unasked.stderr
    assert tables(store) == before
    with serving(store) if held == "served" else nullcontext():
        text = facepipe("regroup", "--store", store, "--threshold", STRICT, stdin="y\n")
        assert text.exit_code == 0, text.output
        assert "done (correction 1); `people undo` takes it back" in text.stdout
        assert f"{len(shown['regrouping']['moves'])} move" in text.stdout
        assert ask(store, "--threshold", STRICT, "--yes")["correction_id"] is None
        assert facepipe("people", "undo", "--yes", "--store", store).exit_code == 0
        assert ask(store, "--yes")["correction_id"] is None
    assert problems(store) == []


def test_the_library_does_the_same(store: Path) -> None:
    with pipeline.open_store(store, settings={"match.threshold": LAXER}) as opened:
        count = len(opened.people.all())
        found = opened.people.regroup(dry_run=True).regrouping
        assert found is not None
        assert found.joins
        assert len(opened.people.all()) == count
        opened.people.regroup(MatchSettings(threshold=3.0))
        assert len(opened.people.all()) == MOST
        opened.people.undo()
        assert len(opened.people.all()) == count


def test_a_set_that_a_regroup_joined_is_counted_as_one(crowd: Path, store: Path) -> None:
    """By a run, `directory list`, `account list` and a server, as by `people list`."""
    assert ask(store, "--threshold", LAXER, "--yes")["regrouping"]["joins"]
    with pipeline.open_store(store) as opened:
        records, count = len(opened._store.people(1, "main", counted=True)), len(opened.people.all())
    assert count < records
    report = run_over(crowd / "photos", store)
    assert (report.persons, report.as_dict()["persons"]) == (count, count)
    assert f"identities  {count} (0 new)" in report.lines()
    with LocalStore.open(store, command="test") as client:
        (directory,), (account,) = client.directories(), client.ask(accounts.summaries)
        assert (directory.identities, directory.records) == (count, records)
        assert account.directories == [directory]
    with serving(store) as service:
        assert [(each.people, len(each)) for each in service.directories.all()] == [(count, records)]


def test_merges_of_others_are_remembered_when_somebody_is_forgotten(people: Regrouped) -> None:
    """Somebody whom the corrections that made them show as well."""
    four, seven, nine = (people.person_of(shown) for shown in (4, 7, 9))
    people.correct("merge", four, seven, nine)
    people.correct("unmerge", four)
    people.correct("forget", nine)
    joins = people.regroup(LAX).joins
    assert len(joins) == 3
    assert people.roots()[seven] == seven  # else it is like 4
    gone, *joined = sorted(joins, key=lambda join: people.person_of(3) in join)
    people.correct("forget", gone[0])
    with pytest.raises(CorrectionImpossible, match="no correction to undo"):
        people.correct("undo")
    assert set(people.regroup(RUN_T).parted) == {person_id for join in joined for person_id in join[1:]}
