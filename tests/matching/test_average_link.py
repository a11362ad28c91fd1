"""Average link: equal to SciPy's, and to a plain grouping that compares all pairs of all clusters, with constraints."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

from pipeline.errors import UsageError
from pipeline.matching.average_link import GROUP_FACES, FacesToLink, Linkage, average_link
from pipeline.matching.calibration import Calibration, cut_for
from pipeline.types import FloatArray, IntArray
from tests.matching.vectors import unit, unit_rows

PLAIN = Calibration()  # T is a squared L2 distance: a dot product of 1 - T / 2


def crowd(seed: int, faces: int, people: int, size: int = 16, noise: float = 0.6) -> FloatArray:
    """Faces [faces, size] of people, in any order."""
    random = np.random.default_rng(seed)
    people_of = random.integers(0, people, faces)
    return unit(unit_rows(seed + 1, people, size)[people_of] + noise * unit_rows(seed + 2, faces, size))


def partition(clusters: IntArray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(clusters == cluster).tolist()) for cluster in set(clusters.tolist())}


def plain(faces: FacesToLink, tight: float, cut: float, most: int) -> set[frozenset[int]]:
    """By all pairs of all clusters, as one would write it first."""
    dots = faces.embeddings.astype(np.float64) @ faces.embeddings.astype(np.float64).T
    clusters: list[list[int]] = [[] for _ in range(int(faces.linked.max(initial=-1)) + 1)]
    groups: list[list[int]] = []
    for face, linked in enumerate(faces.linked.tolist()):
        if linked >= 0:
            clusters[linked].append(face)
            continue
        for group in groups:
            strangers = all(faces.photos[face] < 0 or faces.photos[face] != faces.photos[other] for other in group)
            if len(group) < most and strangers and all(dots[face, other] >= 1 - tight / 2 for other in group):
                group.append(face)
                break
        else:
            groups.append([face])
    clusters += groups

    def allowed(a: list[int], b: list[int]) -> bool:
        photos = [{int(faces.photos[face]) for face in each} - {-1} for each in (a, b)]
        one, two = ({int(faces.linked[face]) for face in each} - {-1} for each in (a, b))
        labels = [{tuple(faces.labels[each]) for each in sets} for sets in (one, two)]
        differ = any(
            x >= 0 and y >= 0 and x != y for p in labels[0] for q in labels[1] for x, y in zip(p, q, strict=True)
        )
        apart = any(
            {int(x), int(y)} <= one | two and {int(x), int(y)} & one and {int(x), int(y)} & two for x, y in faces.apart
        )
        return not (photos[0] & photos[1] or differ or apart)

    while True:
        similar = [
            (float(dots[np.ix_(a, b)].mean()), i, j)
            for (i, a), (j, b) in combinations(enumerate(clusters), 2)
            if allowed(a, b)
        ]
        best = max(similar, default=(-2.0, 0, 0))
        if best[0] < 1 - cut / 2:
            return {frozenset(cluster) for cluster in clusters}
        clusters[best[1]] += clusters.pop(best[2])


@pytest.mark.parametrize("count", [2, 700, 5000])
def test_all_links_are_those_of_scipy(count: int, full: bool) -> None:
    if count == 5000 and not full:
        pytest.skip("all pairs of 5,000 faces take minutes: with --full")
    vectors = crowd(1, count, max(1, count // 8), size=64)
    found = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=4, group_faces=1, neighbours=count)
    expected = linkage(vectors.astype(np.float64), "average", "sqeuclidean")
    assert len(found.joins) == count - 1
    np.testing.assert_allclose(2 - 2 * found.similarities, expected[:, 2], atol=1e-6)


@st.composite
def constrained(draw: st.DrawFn) -> FacesToLink:
    count = draw(st.integers(1, 24))
    vectors = crowd(draw(st.integers(0, 1000)), count, 1 + count // 5, size=8)
    sets = draw(st.integers(0, 5))
    linked = np.full(count, -1)
    chosen = draw(st.permutations(range(count)))[: max(sets, draw(st.integers(0, count)))] if sets <= count else []
    sets = min(sets, len(chosen))
    for place, face in enumerate(chosen if sets else []):
        linked[face] = place % sets
    photos = np.array(draw(st.lists(st.integers(-1, count // 2), min_size=count, max_size=count)))
    labels = np.array(draw(st.lists(st.integers(-1, 1), min_size=2 * sets, max_size=2 * sets)), np.int64).reshape(-1, 2)
    pairs = [pair for pair in combinations(range(sets), 2) if draw(st.booleans())]
    return FacesToLink(vectors, photos, linked, labels, np.array(pairs, np.int64).reshape(-1, 2))


@given(faces=constrained(), cut=st.sampled_from([0.3, 0.9, 1.4, 3.0, 4.0]), tight=st.sampled_from([0.0, 0.4, 0.9]))
def test_constraints_bind_as_in_a_plain_grouping(faces: FacesToLink, cut: float, tight: float) -> None:
    tight = min(tight, cut)
    found = average_link(faces, PLAIN, cut=cut, tight=tight, group_faces=3, neighbours=len(faces.embeddings))
    assert partition(found.clusters()) == plain(faces, tight, cut, 3)


def test_every_device_and_block_gives_the_same(device: str) -> None:
    vectors = crowd(3, 2500, 300, size=32)
    found = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=0.9, tight=0.5, device=device)
    host = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=0.9, tight=0.5)
    assert np.array_equal(found.first, host.first)
    assert np.array_equal(found.joins, host.joins)
    assert np.array_equal(found.similarities, host.similarities)
    assert len(host.joins) > 100
    sizes = np.bincount(host.first)
    assert 1 < sizes.max() <= GROUP_FACES


def test_without_numba_the_same_is_found() -> None:
    script = (
        "import numpy as np; from tests.matching.test_average_link import *;"
        "found = average_link(FacesToLink.without_constraints(crowd(4, 300, 40)), PLAIN, cut=0.9, tight=0.5);"
        "np.save(sys.argv[1], found.similarities); print(found.clusters().tolist())"
    )
    found = average_link(FacesToLink.without_constraints(crowd(4, 300, 40)), PLAIN, cut=0.9, tight=0.5)
    environ = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, os.devnull], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stdout.strip() == str(found.clusters().tolist())


def test_a_higher_cut_only_joins_more() -> None:
    vectors = crowd(5, 400, 60)
    wide = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=1.6, tight=0.4, neighbours=400)
    for cut in (0.5, 0.8, 1.1, 1.6):
        narrow = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=cut, tight=0.4, neighbours=400)
        assert np.array_equal(wide.clusters(1 - cut / 2), narrow.clusters())
    counts = [len(set(wide.clusters(1 - cut / 2).tolist())) for cut in (0.5, 0.8, 1.1, 1.6)]
    assert all(more > fewer for more, fewer in pairwise(counts))


@pytest.mark.parametrize("calibration", [PLAIN, Calibration(thresholds=((1e-6, 0.2), (1e-3, 0.4)))])
@pytest.mark.parametrize("copies", [20_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_copies_of_one_face_are_one_cluster_and_cost_little(copies: int, calibration: Calibration) -> None:
    vectors = np.repeat(unit_rows(6, 1, 32), copies, axis=0)
    found = average_link(FacesToLink.without_constraints(vectors), calibration, cut=0.5)
    assert len(set(found.first.tolist())) == -(-len(vectors) // GROUP_FACES)
    assert not found.clusters().any()


def test_nobody_is_twice_on_a_photo() -> None:
    """500 copies of a face on one photo, and one face of each of 500 photos that resembles all."""
    vectors = np.repeat(unit_rows(7, 1, 32), 1000, axis=0)
    photos = np.concatenate([np.zeros(500, np.int64), np.arange(1, 501)])
    clusters = average_link(
        replace(FacesToLink.without_constraints(vectors), photos=photos), PLAIN, cut=0.5, tight=0.2
    ).clusters()
    assert len(set(clusters[:500].tolist())) == 500
    assert len(set(clusters.tolist())) == 500


def test_few_neighbours_find_what_is_near() -> None:
    vectors = crowd(8, 3000, 300, size=32, noise=0.5)
    few = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=0.9, tight=0.3, neighbours=10)
    many = average_link(FacesToLink.without_constraints(vectors), PLAIN, cut=0.9, tight=0.3, neighbours=3000)
    assert partition(few.clusters()) == partition(many.clusters())


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_faces(count: int) -> None:
    found = average_link(FacesToLink.without_constraints(unit_rows(9, count, 8)), PLAIN, cut=1.0)
    assert found.clusters().tolist() == list(range(count))


def test_equal_similarities_go_to_the_lowest_numbers() -> None:
    """A square: each corner is as similar to both its neighbours."""
    corners = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
    found = average_link(FacesToLink.without_constraints(corners), PLAIN, cut=2.0, tight=0.0)
    assert found.joins.tolist() == [[0, 1], [2, 3]]


def test_bad_numbers_are_refused() -> None:
    for bad in ({"neighbours": 0}, {"group_faces": 0}):
        with pytest.raises(UsageError, match="at least 1"):
            average_link(FacesToLink.without_constraints(unit_rows(1, 3, 8)), PLAIN, cut=1.0, **bad)


def test_a_cut_follows_from_precision_and_people() -> None:
    cuts = [(0.4, 1e-3), (0.6, 1e-2), (0.7, 1e-1)]
    wrong = lambda precision, people: (1 - precision) / precision * 1000 / people  # noqa: E731
    assert cut_for(cuts, 1 / 1.01, 1000) == pytest.approx(0.6)
    assert cut_for(cuts, 1 / 1.01, 10_000) == pytest.approx(0.4)
    assert wrong(1 / 1.01, 1000) == pytest.approx(1e-2)
    assert 0.4 < cut_for(cuts, 0.99, 3000) < 0.6
    assert cut_for(cuts, 1 / 1.01, 100_000) == pytest.approx(0.4 - 0.3 / 2)  # a tenth again, at two tenths in 0.3
    assert cut_for(cuts, 0.99, 10**12) == 0.0
    assert Linkage(np.arange(0), np.empty((0, 2), np.int64), np.empty(0)).clusters().tolist() == []
