"""The arithmetic of verification experiments, against counting by hand and against published values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.errors import InputError, SourceMissing
from pipeline.verification import (
    all_distances,
    best_threshold,
    bootstrap_interval,
    calibration_exponent,
    decisions_right,
    error_rates,
    error_versus_discard,
    mcnemar_exact,
    read_pairs,
    squared_distances,
)

DISTANCES = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 4) | st.sampled_from([0.5, 1.0, np.inf]))


class TestPairs:
    def test_reads_both_kinds(self, tmp_path: Path) -> None:
        file = tmp_path / "pairs.txt"
        file.write_text("1\nAda_Lovelace\t1\t3\nAda_Lovelace\t2\tMary_Shelley\t1\n")
        genuine, impostor = read_pairs(file)
        assert (genuine.first, genuine.second, genuine.genuine) == (("Ada_Lovelace", 1), ("Ada_Lovelace", 3), True)
        assert (impostor.first, impostor.second, impostor.genuine) == (
            ("Ada_Lovelace", 2),
            ("Mary_Shelley", 1),
            False,
        )

    @pytest.mark.parametrize(
        "text", ["", "1\nA 1 2\n", "x\nA 1 2\nA 1 B 1\n", "1\nA 1 2\nA 1\n", "1\nA one 2\nA 1 B 1"]
    )
    def test_refuses_what_is_no_pairs_file(self, tmp_path: Path, text: str) -> None:
        file = tmp_path / "pairs.txt"
        file.write_text(text)
        with pytest.raises(InputError, match=r"pairs\.txt, line \d"):
            read_pairs(file)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(SourceMissing):
            read_pairs(tmp_path / "none.txt")


class TestDistances:
    def test_equal_the_definition(self) -> None:
        rng = np.random.default_rng(5)
        vectors = rng.normal(size=(6, 16)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        people = np.array([0, 0, 1, 1, 1, 2])
        genuine, impostor, rows = all_distances(vectors, people)
        assert [tuple(r) for r in rows] == [(0, 1), (2, 3), (2, 4), (3, 4)]
        assert len(impostor) == 15 - 4
        expected = [float(((vectors[a] - vectors[b]).astype(np.float64) ** 2).sum()) for a, b in rows]
        np.testing.assert_allclose(genuine, expected, atol=1e-6)
        np.testing.assert_allclose(squared_distances(vectors[rows[:, 0]], vectors[rows[:, 1]]), expected, atol=1e-6)

    def test_no_face_is_infinitely_far(self) -> None:
        vectors = np.array([[1, 0], [np.nan, np.nan]], dtype=np.float32)
        genuine, _, _ = all_distances(vectors, np.array([0, 0]))
        assert genuine.tolist() == [np.inf]
        assert squared_distances(vectors[:1], vectors[1:]).tolist() == [np.inf]


class TestThreshold:
    @given(DISTANCES, st.integers(0, 99))
    def test_no_other_threshold_is_better(self, distances: np.ndarray, seed: int) -> None:
        genuine = np.random.default_rng(seed).random(len(distances)) < 0.5
        best = decisions_right(distances, genuine, best_threshold(distances, genuine)).mean()
        finite = np.unique(distances[np.isfinite(distances)])
        for candidate in [0.0, *finite, *(finite + 1e-9), 4.1]:
            assert decisions_right(distances, genuine, float(candidate)).mean() <= best + 1e-12

    def test_middle_of_the_gap(self) -> None:
        distances = np.array([0.2, 0.4, 1.0, 1.2])
        assert best_threshold(distances, np.array([True, True, False, False])) == pytest.approx(0.7)

    def test_no_face_is_wrong_for_both_kinds(self) -> None:
        right = decisions_right(np.array([np.inf, np.inf, 0.1, 1.0]), np.array([True, False, True, False]), 0.5)
        assert right.tolist() == [False, False, True, True]


class TestErrorRates:
    def test_counted_by_hand(self) -> None:
        impostor = np.linspace(0.001, 1, 1000)  # one below 0.002, two below 0.003, ...
        genuine = np.array([0.0005, 0.0015, 0.01, np.inf])
        rates = error_rates(genuine, impostor, 1e-3)
        assert np.count_nonzero(impostor < rates.threshold) == 1
        assert rates.fnmr == 0.5
        assert error_rates(genuine, impostor, 1e-4).fnmr == 0.75
        assert error_rates(genuine, impostor, 1.0).fnmr == 0.25

    @given(DISTANCES, DISTANCES, st.floats(0, 1))
    def test_never_above_the_fmr_asked_for(self, genuine: np.ndarray, impostor: np.ndarray, fmr: float) -> None:
        rates = error_rates(genuine, impostor, fmr)
        assert np.count_nonzero(impostor < rates.threshold) <= fmr * len(impostor) + 1e-6
        assert 0 <= rates.fnmr <= 1


class TestStatistics:
    def test_interval_of_a_binomial(self) -> None:
        right = np.arange(1000) >= 16  # 98.4 %
        low, high = bootstrap_interval(right)
        half = 1.96 * math.sqrt(0.984 * 0.016 / 1000)
        assert low == pytest.approx(0.984 - half, abs=0.002)
        assert high == pytest.approx(0.984 + half, abs=0.002)

    @pytest.mark.parametrize(("b", "c", "p"), [(0, 0, 1.0), (5, 5, 1.0), (1, 9, 22 / 1024), (0, 6, 2 / 64)])
    def test_mcnemar(self, b: int, c: int, p: float) -> None:
        first = np.array([True] * b + [False] * c + [True, False])
        second = np.array([False] * b + [True] * c + [True, False])
        assert mcnemar_exact(first, second) == (b, c, pytest.approx(p))

    def test_calibration_of_the_published_set_up(self) -> None:
        g = calibration_exponent(0.838)
        assert g == pytest.approx(1.281, abs=5e-4)
        assert 2 * (math.sqrt(0.838) / 2) ** g == pytest.approx(math.sqrt(0.54))

    def test_discarding_the_worst(self) -> None:
        distances = np.array([0.1, 0.1, 0.9, 0.1, 0.9])
        quality = np.array([0.8, 0.9, 0.1, 0.7, 0.2], dtype=np.float32)
        assert error_versus_discard(distances, quality, 0.5, [0, 0.2, 0.4]) == [0.4, 0.25, 0.0]
