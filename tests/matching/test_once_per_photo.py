"""Nobody twice on a photo: `group_faces` against the definition, photo by photo, by plain Python arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, event, given, seed, settings
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.once_per_photo import OncePerPhoto, faces_that_count
from pipeline.matching.references import ReferenceIndex
from pipeline.types import FaceBatch
from tests.matching.test_group import MATCHER, at_angles, batch
from tests.matching.test_group_property import Case, cases, distance, grouped, iou, naive

Person = str | int


@dataclass(frozen=True)
class Known:
    """A reference of the index, or a face that founded a person."""

    order: int
    position: int
    vector: int
    person: Person


@dataclass(frozen=True)
class Decided:
    position: int = -1
    inserted: bool = False
    score: float = math.nan
    person: Person | None = None
    claim: tuple[float, bool] = (math.nan, False)  # the lower keeps the person


def person_of(position: int) -> str:
    """Each third reference is merged with the one before."""
    return str(position - (position % 3 == 2))


def decide(case: Case, face: int, known: list[Known], barred: set[Person]) -> Decided:
    """Decides a face; `barred` people do not exist."""
    denominator = 2.0 - math.sqrt(min(case.threshold, 3.99))
    ranked = []
    for each in known:
        if each.person in barred:
            continue
        d = distance(case.vectors[face], case.vectors[each.vector], case.exponent)
        if (
            set(case.hashes[face]) & set(case.hashes[each.vector])
            and iou(case.boxes[face], case.boxes[each.vector]) >= 0.5
        ):
            ranked.append((-math.inf, each.order, 0.0, 2.0 / denominator, each))
        elif case.threshold == 4:
            ranked.append((d, each.order, d, max(1.0, (2.0 - d) / denominator), each))
        else:
            ranked.append((-(2.0 - d) / denominator, each.order, d, (2.0 - d) / denominator, each))
    if ranked:
        rank, _, d, score, best = min(ranked, key=lambda one: one[:2])
        if rank == -math.inf or (score >= 1.0 and case.threshold > 0):
            return Decided(best.position, False, score, best.person, (d, rank != -math.inf))
    if not case.insertable[face]:
        return Decided()
    position = max((each.position + 1 for each in known if isinstance(each.person, int)), default=case.stored)
    return Decided(position, True, 2.0 / denominator, face, (0.0, False))


def decide_photo(case: Case, faces: list[int], known: list[Known], barred: dict[int, set[Person]]) -> list[Decided]:
    """Decides faces in order and adds those that found a person to `known`."""
    decided = []
    for face in faces:
        decided.append(decide(case, face, known, barred[face]))
        if decided[-1].inserted:
            known.append(Known(max(case.order, default=0) + face + 1, decided[-1].position, face, face))
    return decided


def word(case: Case, once: OncePerPhoto, face: int, decided: Decided) -> int:
    said = dict(enumerate(once.said, case.stored))
    if said.get(face) is None:
        return 1
    owner = said[decided.person] if isinstance(decided.person, int) else decided.person
    return 0 if owner == said[face] else 2


def photo_by_photo(case: Case, once: OncePerPhoto) -> tuple[list[Decided], set[str]]:
    """While a person is on a photo twice, all of its faces but one are barred from it."""
    s, photos, happened = case.stored, once.photos.tolist(), set()
    known = [Known(case.order[p], p, p, person_of(p)) for p in range(s) if p not in case.dead]
    everything: list[Decided] = []
    while len(everything) < len(photos):
        first = len(everything)
        last = max(k for k in range(len(photos)) if k == first or photos[k] == photos[first] >= 0)
        faces = [s + k for k in range(first, last + 1)]
        bound = [k for k, face in enumerate(faces) if photos[face - s] >= 0]
        said = [once.said[face - s] if once.said else None for face in faces]
        barred: dict[int, set[Person]] = {face: set() for face in faces}
        for k in bound:
            barred[faces[k]] |= once.taken.get(photos[first], set())
        while True:
            references = list(known)
            decided = decide_photo(case, faces, references, barred)
            for one in {decided[k].person for k in bound} - {None}:
                rivals = [k for k in bound if decided[k].person == one]
                keeper = min(
                    rivals,
                    key=lambda k: (
                        not decided[k].inserted,
                        word(case, once, faces[k], decided[k]),
                        decided[k].claim,
                        k,
                    ),
                )
                for k in rivals:
                    if k != keeper and (said[keeper] is None or said[k] != said[keeper]):
                        barred[faces[k]].add(one)
                        happened.add("barred")
            if not any(decided[k].person in barred[faces[k]] for k in bound):
                break
        for k in bound:
            if barred[faces[k]]:
                happened.add(
                    "new instead" if decided[k].inserted else "nobody" if decided[k].person is None else "next"
                )
        known = references
        everything += decided
    return everything, happened


@st.composite
def photos_of(draw: st.DrawFn, case: Case) -> OncePerPhoto:
    count = len(case.vectors) - case.stored
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    photos = np.cumsum(rng.random(count) < draw(st.sampled_from([0.1, 0.5, 0.9])))
    taken = {int(photo): {str(p) for p in rng.integers(8, size=2)} for photo in set(photos[rng.random(count) < 0.1])}
    said = [str(who) if who < 2 else None for who in rng.integers(10, size=count)] if rng.random() < 0.3 else ()
    photos[rng.random(count) < draw(st.sampled_from([0, 0.2]))] = -1
    return OncePerPhoto(photos, person_of, taken, said)


cases_with_photos = cases().flatmap(lambda case: st.tuples(st.just(case), photos_of(case)))


def test_blocks_decide_what_photo_by_photo_decides(full: bool) -> None:
    @settings(max_examples=500 if full else 150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(cases_with_photos)
    def check(drawn: tuple[Case, OncePerPhoto]) -> None:
        case, once = drawn
        expected, happened = photo_by_photo(case, once)
        for what in happened:
            event(what)
        for cuts in ([], case.cuts):
            got = grouped(case, cuts, once)
            assert got.position.tolist() == [each.position for each in expected]
            assert got.inserted.tolist() == [each.inserted for each in expected]
            np.testing.assert_array_equal(got.score, [each.score for each in expected])  # bits, not tolerance

    check()


def test_photos_of_one_face_change_nothing() -> None:
    @settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    @given(cases())
    def check(case: Case) -> None:
        once = OncePerPhoto(np.arange(len(case.vectors) - case.stored), person_of)
        assert [(d.position, d.inserted) for d in photo_by_photo(case, once)[0]] == [
            each[:2] for each in naive(case)[0]
        ]
        assert grouped(case, [], once).position.tolist() == grouped(case, []).position.tolist()

    check()


def test_the_cases_have_what_they_are_for() -> None:
    seen: Counter[str] = Counter()

    @seed(20250101)
    @settings(
        max_examples=150, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck], deadline=None
    )
    @given(cases_with_photos)
    def count(drawn: tuple[Case, OncePerPhoto]) -> None:
        seen.update(photo_by_photo(*drawn)[1] | {"cases"})

    count()
    share = {what: times / seen["cases"] for what, times in seen.items()}
    assert share["barred"] >= 0.3, share
    assert share["next"] >= 0.2, share
    assert share["new instead"] >= 0.2, share
    assert share["nobody"] >= 0.1, share


def positions(faces: FaceBatch, photos: list[int], stored: np.ndarray, **options: object) -> list[int]:
    index = ReferenceIndex(2)
    for number, vector in enumerate(stored):
        index.append(vector[None], np.array([number]), [()], np.zeros((1, 4), np.float32))
    return group_faces(faces, index, MATCHER, once=OncePerPhoto(np.array(photos), **options)).position.tolist()


def test_the_nearer_of_two_faces_has_a_person_and_the_other_its_next_match() -> None:
    stored = at_angles(0, 30)
    assert positions(batch(at_angles(10, 1)), [0, 0], stored) == [1, 0]
    assert positions(batch(at_angles(10, 1)), [0, 1], stored) == [0, 0]  # two photos
    assert positions(batch(at_angles(10, 1)), [0, 0], stored[:1]) == [1, 0]  # new
    assert positions(batch(at_angles(10, 1), [False, True]), [0, 0], stored[:1]) == [-1, 0]  # may found nobody
    assert positions(batch(at_angles(10, 1)), [-1, 0], stored) == [0, 0]  # a box of the same face


def test_merged_records_are_one_person_and_taken_people_are_on_the_photo_already() -> None:
    stored = at_angles(0, 5)
    assert positions(batch(at_angles(1, 4)), [0, 0], stored) == [0, 1]
    assert positions(batch(at_angles(1, 4.5)), [0, 0], stored, person_of=lambda _: "one") == [2, 1]
    assert positions(batch(at_angles(1)), [0], stored, taken={0: {"0"}}) == [1]
    assert positions(batch(at_angles(1)), [0], stored, taken={1: {"0"}}) == [0]


def test_what_a_user_said_wins() -> None:
    stored, faces = at_angles(0, 30), batch(at_angles(1, 10))  # of the people "0" and "1"
    assert positions(faces, [0, 0], stored, said=[None, "0"]) == [1, 0]
    assert positions(faces, [0, 0], stored, said=["0", "0"]) == [0, 0]
    assert positions(faces, [0, 0], stored, said=["Ann", None]) == [1, 0]
    assert positions(batch(at_angles(0, 90, 1, 10)), [0, 1, 2, 2], stored[:0], said=["Ann", None, None, "Ann"]) == [
        0,
        1,
        2,
        0,
    ]


def test_the_search_for_a_next_match_goes_on_until_it_has_one() -> None:
    stored = at_angles(*np.linspace(0, 1, 40), 20)
    merged = [str(max(0, position - 39)) for position in range(41)]
    assert positions(batch(at_angles(2, 1)), [0, 0], stored, person_of=merged.__getitem__) == [40, 39]
    index = ReferenceIndex(2)
    many = batch(np.concatenate([at_angles(90), at_angles(*np.zeros(9)), at_angles(2, 1)]))
    found = group_faces(many, index, Matcher(Calibration(), 0.54), 1, OncePerPhoto(np.array([*range(10), 10, 10])))
    assert found.position.tolist() == [0, *[1] * 9, 2, 1]


def test_a_sheet_of_500_faces_that_are_alike() -> None:
    faces, photos = batch(at_angles(*np.zeros(500))), [0] * 500
    for stored in (0, 1, 500):  # posted twice, each face has one of the 500 people
        assert positions(faces, photos, at_angles(*np.zeros(stored)).reshape(-1, 2)) == [*range(500)]
    turned = np.random.default_rng(1).permutation(500)
    angles = at_angles(*np.linspace(0, 20, 500))
    assert positions(batch(angles[turned]), photos, angles) == turned.tolist()


def test_of_boxes_that_overlap_by_half_the_first_counts() -> None:
    assert faces_that_count([[0, 0, 10, 10], [0, 0, 10, 20], [0, 0, 10, 21], [0, 0, 9, 21]]) == [
        True,
        False,
        True,
        False,
    ]


def test_mixed_photos_are_refused() -> None:
    with pytest.raises(UsageError):
        positions(batch(at_angles(0, 90, 1)), [0, 1, 0], at_angles(0))
