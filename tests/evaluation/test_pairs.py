"""Evaluation of pairs, on planted people: what is counted, what is left out, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import EmbeddingInvalid, InputError
from pipeline.evaluation.pair_distances import (
    all_distances,
    closest_impostors,
    score_everybody,
    score_list,
    scored_of_list,
)
from pipeline.evaluation.pair_lists import Pair, PairList
from pipeline.evaluation.pairs import (
    GIVEN,
    OTHER_FOLDS,
    TRAINING_PAIRS,
    PairsResult,
    contract_threshold,
    evaluate_pairs,
    match_cut,
)
from pipeline.evaluation.portraits import Portraits
from pipeline.evaluation.report import Skipped
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from tests.evaluation.planted_people import listed, plant, simple_pairs, unit_rows, without_face

PEOPLE, PHOTOS = 40, 4
CALIBRATION = Calibration(1.3)


def evaluate(
    pair_list: PairList, portraits: Portraits, threshold: float = 0.54, train: PairList | None = None
) -> PairsResult:
    scored = score_list(pair_list, portraits, Skipped())
    training = None if train is None else score_list(train, portraits, Skipped())
    return evaluate_pairs(scored, scored_of_list(scored), CALIBRATION, threshold, training)


class TestAccuracy:
    def test_far_apart_people_are_told_apart(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.2)
        result = evaluate(listed(simple_pairs(names), names), portraits)
        assert (result.accuracy, result.accuracy_interval_95) == (1.0, (1.0, 1.0))
        assert (result.pairs, result.genuine_pairs, result.impostor_pairs) == (2 * PEOPLE, PEOPLE, PEOPLE)
        assert (result.threshold, result.threshold_from, result.resampled) == (0.54, GIVEN, "people")
        assert result.at_threshold.fnmr == 0
        assert result.at_threshold.false_matches == 0
        assert result.at_threshold.fmr_below_95 == 3 / PEOPLE

    def test_a_photo_without_a_face_costs_every_pair_it_is_in(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.2)
        result = evaluate(listed(simple_pairs(names), names), without_face(portraits, "/p000/0.jpg"))
        assert result.pairs_without_face == 2
        assert result.accuracy == 1 - 2 / (2 * PEOPLE)
        assert result.at_threshold.fnmr == 1 / PEOPLE
        assert result.farthest_photos[0].distance is None

    def test_the_threshold_of_other_pairs_is_used(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.2)
        far, far_names = plant(PEOPLE, PHOTOS, spread=1.5, seed=2)
        far = dataclasses.replace(far, paths=[path.replace("/p", "/q") for path in far.paths])
        far_names = {path.replace("/p", "/q"): name.replace("p", "q") for path, name in far_names.items()}
        both = Portraits(
            [*portraits.paths, *far.paths],
            np.concatenate([portraits.embeddings, far.embeddings]),
            {},
        )
        own = evaluate(listed(simple_pairs(names), names), both)
        trained = evaluate(listed(simple_pairs(far_names), far_names), both, train=listed(simple_pairs(names), names))
        assert trained.threshold_from == TRAINING_PAIRS
        assert own.accuracy == 1.0
        assert trained.accuracy < 0.9  # spread that wide, people are not what the training pairs promised

    def test_folds_decide_about_each_other(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.9)
        result = evaluate(listed(simple_pairs(names, folds=10), names), portraits, threshold=4.0)
        assert result.threshold_from == OTHER_FOLDS
        assert len(result.folds) == 10
        accuracies = [accuracy for accuracy, _ in result.folds]
        assert result.accuracy == pytest.approx(np.mean(accuracies))
        assert result.threshold == pytest.approx(np.mean([threshold for _, threshold in result.folds]))
        assert len(set(accuracies)) > 1
        assert result.standard_error == pytest.approx(np.std(accuracies, ddof=1) / np.sqrt(10))
        assert (result.at_threshold.threshold, result.at_threshold.fmr) == (4.0, 1.0)

    def test_a_fold_of_which_nothing_is_left_does_not_count(self) -> None:
        portraits, names = plant(9, 2, spread=0.2)
        gone = {f"/p{k:03d}/{i}.jpg" for k in (1, 2, 4, 5, 7, 8) for i in (0, 1) if k % 3 == 1}
        kept = [row for row, path in enumerate(portraits.paths) if path not in gone]
        rest = Portraits(
            [portraits.paths[row] for row in kept],
            portraits.embeddings[kept],
            dict.fromkeys(gone, "missing: no such file"),
        )
        skipped = Skipped()
        scored = score_list(listed(simple_pairs(names, folds=3), names), rest, skipped)
        assert set(scored.fold.tolist()) == {0, 1}
        assert skipped.counts == {"a photo of the pair: missing: no such file": 18 - len(scored.pairs)}


class TestRates:
    def test_rates_that_the_data_cannot_tell_are_not_told(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.9)
        rated = score_everybody(portraits, names, 1e-2)
        impostors = PEOPLE * (PEOPLE - 1) // 2 * PHOTOS**2
        assert len(rated.impostor) == impostors == 12_480
        scored = score_list(listed(simple_pairs(names), names), portraits, Skipped())
        result = evaluate_pairs(scored, rated, CALIBRATION, 0.54)
        assert result.all_pairs
        assert [rate.fnmr is not None for rate in result.rates] == [True, True, False, False]
        assert result.fnmr_at_fmr.keys() == {"0.01", "0.001", "0.0001", "1e-05"}
        assert result.fnmr_at_fmr["0.0001"] is None
        assert result.rates[2].impostor_pairs_needed == 30_000
        for rate in result.rates[:2]:
            assert rate.squared_l2 is not None
            assert np.mean(rated.impostor < rate.squared_l2) <= rate.fmr
            assert rate.fnmr == np.mean(rated.genuine >= rate.squared_l2)
            assert rate.fnmr_interval_95 is not None
            assert rate.fnmr_interval_95[0] <= rate.fnmr <= rate.fnmr_interval_95[1]

    def test_at_the_threshold_of_a_rate_the_matcher_keeps_it(self) -> None:
        """Also where many pairs are just as far as the first one that must not match."""
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.9)
        vectors = portraits.embeddings.copy()
        vectors[1::PHOTOS] = vectors[0::PHOTOS]  # everybody's second photo is a copy of the first
        copies = Portraits(portraits.paths, vectors, {})
        rated = score_everybody(copies, names, 1e-2)
        scored = score_list(listed(simple_pairs(names), names), copies, Skipped())
        first, second = np.triu_indices(len(vectors), k=1)
        strangers = first // PHOTOS != second // PHOTOS
        for rate in evaluate_pairs(scored, rated, CALIBRATION, 0.54).rates[:2]:
            assert rate.threshold is not None
            matcher = Matcher(CALIBRATION, rate.threshold)
            distances = matcher.distances(vectors[first[strangers]], vectors[second[strangers]])
            assert matcher.matches(distances).mean() == np.mean(rated.impostor < rate.squared_l2) <= rate.fmr

    def test_of_few_people_all_pairs_are_kept_for_the_intervals(self) -> None:
        rated = score_everybody(*plant(5, 20, spread=0.9), 1e-2)
        assert len(rated.close) == len(rated.impostor) == 10 * 400

    def test_a_list_that_names_nobody_is_resampled_by_pairs(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.9)
        result = evaluate(listed(simple_pairs(names), {}), portraits)
        assert (result.resampled, result.rates_people) == ("pairs", None)
        assert result.accuracy_interval_95 is not None

    def test_the_worst_pairs_are_named(self) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.3)
        vectors = portraits.embeddings.copy()
        vectors[portraits.row["/p003/2.jpg"]] = vectors[portraits.row["/p011/1.jpg"]]  # a photo with a wrong name
        wrong = Portraits(portraits.paths, vectors, {})
        rated = score_everybody(wrong, names, 1e-2)
        first = rated.nearest_strangers[0]
        assert len(rated.nearest_strangers) == 10
        assert {first.first, first.second} == {"/p003/2.jpg", "/p011/1.jpg"}
        assert "/p003/2.jpg" in (rated.farthest_photos[0].first, rated.farthest_photos[0].second)


class TestRefusals:
    @pytest.mark.parametrize("same", [True, False])
    def test_one_kind_of_pairs_only(self, same: bool) -> None:
        portraits, names = plant(PEOPLE, PHOTOS, spread=0.2)
        one_kind = [pair for pair in simple_pairs(names) if pair.same == same]
        with pytest.raises(InputError, match=r"all of (one person|two people)"):
            evaluate(listed(one_kind, names), portraits)

    def test_nothing_left(self) -> None:
        portraits, _ = plant(2, 2, spread=0.2)
        nobody = dataclasses.replace(portraits, skipped={"/x": "not in the store", "/y": "missing: no such file"})
        pair_list = listed([Pair("/x", "/y", True)], {})
        with pytest.raises(InputError, match=r"None of the 1 pairs .* not in the store"):
            score_list(pair_list, nobody, Skipped())

    def test_all_pairs_need_two_people(self) -> None:
        portraits, names = plant(3, 2, spread=0.2)
        with pytest.raises(InputError, match="two people or more, not of 1"):
            score_everybody(portraits, {path: name for path, name in names.items() if name == "p001"}, 1e-2)

    @pytest.mark.parametrize("value", [np.nan, np.inf, 7.0])
    def test_a_broken_embedding_is_no_missing_face(self, value: float) -> None:
        portraits, _ = plant(3, 2, spread=0.2)
        vectors = portraits.embeddings.copy()
        vectors[1, 5] = value
        with pytest.raises(EmbeddingInvalid):
            Portraits(portraits.paths, vectors, {})


@given(st.floats(0.25, 4), st.sampled_from([0.0, 1e-3, 0.3, 0.54, 1.0, 2.5, 3.99, 4.0]), st.integers(0, 2**31))
def test_decisions_at_t_are_those_of_the_matcher(exponent: float, threshold: float, seed: int) -> None:
    calibration = Calibration(exponent)
    raw = np.random.default_rng(seed).random(200) * 4
    distances = 2 * (np.sqrt(raw) / 2) ** exponent
    clear = np.abs(distances**2 - threshold) > 1e-9  # at the threshold itself, rounding decides
    decided = raw < match_cut(threshold, calibration)
    np.testing.assert_array_equal(decided[clear], Matcher(calibration, threshold).matches(distances)[clear])
    inverse = [match_cut(contract_threshold(float(r), calibration), calibration) for r in raw[:5]]
    np.testing.assert_allclose(inverse, raw[:5], rtol=1e-9)


@pytest.fixture(params=[3, 7, 40, 512])
def photos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and people, whose pairs come in blocks of so many rows; the last photo shows no face."""
    monkeypatch.setattr("pipeline.evaluation.pair_distances._BLOCK_ROWS", request.param)
    rng = np.random.default_rng(3)
    vectors = unit_rows(rng.standard_normal((40, 16)))
    vectors[-1] = np.nan
    return vectors, rng.integers(0, 6, 40)


def naive(vectors: np.ndarray) -> dict[tuple[int, int], float]:
    wide = vectors.astype(np.float64)
    distances = {}
    for a, b in itertools.combinations(range(len(vectors)), 2):
        squared = float(((wide[a] - wide[b]) ** 2).sum())
        distances[a, b] = np.inf if np.isnan(squared) else squared
    return distances


def test_every_pair_once(photos: tuple[np.ndarray, np.ndarray]) -> None:
    vectors, people = photos
    genuine, impostor, rows = all_distances(vectors, people)
    expected = naive(vectors)
    same = {pair: d for pair, d in expected.items() if people[pair[0]] == people[pair[1]]}
    assert {tuple(row) for row in rows.tolist()} == set(same)
    np.testing.assert_allclose(genuine, [same[tuple(row)] for row in rows.tolist()], atol=1e-6)
    others = sorted(d for pair, d in expected.items() if pair not in same)
    np.testing.assert_allclose(np.sort(impostor), others, atol=1e-6)
    assert np.isinf(impostor).any()


@pytest.mark.parametrize("within", [0.0, 1.5, 4.0, np.inf])
def test_the_closest_are_those_of_all(photos: tuple[np.ndarray, np.ndarray], within: float) -> None:
    vectors, people = photos
    _, impostor, _ = all_distances(vectors, people)
    distances, rows = closest_impostors(vectors, people, within)
    np.testing.assert_array_equal(distances, np.sort(impostor[impostor <= within]))
    expected = naive(vectors)
    np.testing.assert_allclose(distances, [expected[tuple(row)] for row in rows.tolist()], atol=1e-6)
    assert (people[rows[:, 0]] != people[rows[:, 1]]).all()


def test_more_pairs_than_memory_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.evaluation.pair_distances.MAX_PAIRS", 9)
    vectors, people = np.eye(5, dtype=np.float32), np.arange(5)
    with pytest.raises(InputError, match="5 photos make 10 pairs"):
        all_distances(vectors, people)
    assert len(all_distances(vectors[:4], people[:4])[1]) == 6
