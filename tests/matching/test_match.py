"""Scores against the contract's table and plain arithmetic, what products exclude, and the edges of the search."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config import CONTRACT_FMR
from pipeline.errors import BadValue, DeviceError, EmbeddingInvalid, UnknownKey, UsageError
from pipeline.matching.calibration import Calibration
from pipeline.matching.error_bound import ProductFilter
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import contract_distance, exact_dots, similarity_score
from pipeline.types import FloatArray
from tests.matching.vectors import TORCH_ON_CPU, make_index, unit_rows

EXPONENTS = (0.25, 0.7, 1.0, 1.281, 2.0, 4.0)


# --- the exact function


def loop_dot(a: FloatArray, b: FloatArray) -> float:
    total = 0.0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        total += x * y
    return total


@pytest.mark.parametrize(("count", "size"), [(1, 512), (2, 512), (7, 513), (1, 1), (300, 3), (1, 8), (4097, 2)])
def test_exact_dots_are_the_plain_loop_bit_for_bit(count: int, size: int) -> None:
    a, b = unit_rows(1, count, size), unit_rows(2, count, size)
    a[0], b[0] = a[0] * np.float32(1e-30), b[0] * np.float32(1e-12)  # products far apart in size
    expected = np.array([loop_dot(x, y) for x, y in zip(a, b, strict=True)])
    assert exact_dots(a, b).tobytes() == expected.tobytes()
    fortran = np.asfortranarray(a), np.asfortranarray(b)
    assert exact_dots(*fortran).tobytes() == expected.tobytes()


def test_exact_dots_of_negative_zeros_are_zero_as_in_the_loop() -> None:
    a, b = np.full((1, 3), -0.0, dtype=np.float32), np.ones((1, 3), dtype=np.float32)
    assert math.copysign(1.0, exact_dots(a, b)[0]) == 1.0 == math.copysign(1.0, loop_dot(a[0], b[0]))


def test_exact_dots_order_matters_so_that_the_test_above_can_fail() -> None:
    a, b = unit_rows(1, 200, 512), unit_rows(2, 200, 512)
    pairwise = (a.astype(np.float64) * b).sum(axis=1)
    assert (pairwise != exact_dots(a, b)).any()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.zeros((2, 3), np.float64), np.zeros((2, 3), np.float32)),
        (np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)),
        (np.zeros(3, np.float32), np.zeros(3, np.float32)),
        (np.zeros((2, 0), np.float32), np.zeros((2, 0), np.float32)),
    ],
)
def test_exact_dots_refuse_other_shapes_and_types(a: FloatArray, b: FloatArray) -> None:
    with pytest.raises(UsageError, match="float32"):
        exact_dots(a, b)


# --- the formula


@pytest.mark.parametrize(("squared", "percent"), [(0.68, 93), (0.84, 86), (0.92, 82), (1.00, 79)])
def test_the_published_table_at_054(squared: float, percent: int) -> None:
    assert round(100 * similarity_score(math.sqrt(squared), 0.54)) == percent


@pytest.mark.parametrize("threshold", [0.0, 0.45, 0.54, 0.67, 0.84, 1.0, 3.9, 3.99, 4.0])
def test_a_distance_of_the_threshold_matches_and_the_next_one_does_not(threshold: float) -> None:
    edge = math.sqrt(threshold)
    assert similarity_score(edge, threshold) >= 1.0
    if threshold < 4:
        assert similarity_score(edge + 1e-14, threshold) < 1.0


def test_at_threshold_4_everything_matches_and_near_ones_keep_their_score() -> None:
    scores = similarity_score(np.array([0.0, 1.0, 1.9999, 2.0]), 4.0)
    assert scores.tolist() == [similarity_score(0.0, 3.99), similarity_score(1.0, 3.99), 1.0, 1.0]


@pytest.mark.parametrize("threshold", [-0.01, 3.991, 3.9999999, 4.01, math.nan, math.inf, -math.inf, True, "0.5"])
def test_thresholds_outside_the_contract_are_refused(threshold: float) -> None:
    with pytest.raises(BadValue, match=r"in \[0, 3\.99\], or 4"):
        similarity_score(0.0, threshold)
    with pytest.raises(BadValue):
        Matcher(Calibration(), threshold)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_one_value_or_many_give_the_same_bits(exponent: float) -> None:
    calibration = Calibration(exponent)
    dots = np.concatenate([np.random.default_rng(0).uniform(-1.001, 1.001, 997), [1.0, -1.0, 0.0, 1 - 1e-16]])
    together = contract_distance(dots, calibration)
    alone = [contract_distance(float(dot), calibration) for dot in dots]
    strided = contract_distance(np.repeat(dots, 3)[::3], calibration)
    assert together.tobytes() == np.array(alone).tobytes() == strided.tobytes()
    for threshold in (0.0, 0.54, 4.0):
        scores = similarity_score(together, threshold)
        assert scores.tobytes() == np.array([similarity_score(d, threshold) for d in alone]).tobytes()


def test_distance_is_clamped_and_keeps_0_and_2() -> None:
    for exponent in EXPONENTS:
        values = contract_distance(np.array([1.0, 1.0001, -1.0, -1.0001]), Calibration(exponent))
        assert values.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_without_calibration_d_is_the_l2_distance() -> None:
    a, b = unit_rows(1, 50, 16).astype(np.float64), unit_rows(2, 50, 16).astype(np.float64)
    dots = np.einsum("ij,ij->i", a, b)
    np.testing.assert_allclose(
        contract_distance(dots, Calibration()), np.linalg.norm(a - b, axis=1), rtol=1e-6
    )  # the rows have norm 1 within float32


def test_the_measured_exponent_maps_its_raw_distance_to_the_published_threshold() -> None:
    exponent = math.log(math.sqrt(0.54) / 2) / math.log(math.sqrt(0.838) / 2)
    assert exponent == pytest.approx(1.281, abs=5e-4)
    dot = 1 - 0.838 / 2
    assert contract_distance(dot, Calibration(exponent)) == pytest.approx(math.sqrt(0.54), rel=1e-12)


def test_calibration_survives_a_round_trip_and_refuses_what_it_does_not_know() -> None:
    calibration = Calibration(1.281, "LFW view 1", 2e-4, "margin 14")
    assert Calibration.from_dict(calibration.as_dict()) == calibration
    with pytest.raises(UnknownKey, match="exponnent"):
        Calibration.from_dict({"exponnent": 1.0})


@pytest.mark.parametrize("fields", [{"exponent": 0.2}, {"exponent": 4.1}, {"exponent": math.nan}, {"fmr": 2.0}])
def test_calibrations_out_of_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(BadValue, match="calibration"):
        Calibration.from_dict(fields)


# --- the filter


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_cut_never_excludes_a_candidate_that_could_rank_as_high(exponent: float) -> None:
    """For dots on either side of the cut's edge: what is below it has a strictly lower score."""
    calibration = Calibration(exponent)
    products = ProductFilter(512, 1.0, calibration)
    tops = np.concatenate([np.linspace(-1, 1, 401), 1 - np.logspace(-12, -3, 60)])
    cuts = products.cut(tops)
    finite = cuts > -1
    worst_top, best_out = tops[finite] - products.bound, cuts[finite] + products.bound
    high, low = (contract_distance(dots, calibration) for dots in (worst_top, best_out))
    assert finite.sum() > 300
    assert (similarity_score(high, 0.54) > similarity_score(low, 0.54)).all()


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_the_match_cut_excludes_no_match_and_nearly_all_others(exponent: float) -> None:
    products = ProductFilter(512, 1.0, Calibration(exponent))
    for threshold in np.linspace(0, 3.99, 60).tolist():
        cut = products.match_cut(threshold)
        if math.isfinite(cut):
            assert similarity_score(contract_distance(cut + products.bound, products.calibration), threshold) < 1.0
            kept = contract_distance(cut + products.bound + 1e-6, products.calibration)
            assert similarity_score(kept, threshold) > 1.0 - 1e-4
    assert products.match_cut(4.0) == -math.inf


def test_float32_products_keep_the_bound(device: str) -> None:
    a, b = unit_rows(1, 400, 512), unit_rows(2, 300, 512)
    b[:100] = a[:100]
    for _, chunk in make_index(b, device=device).view().vectors.chunks(a, np.empty(0, np.int64)):
        products = np.array(chunk.tolist())
    exact = np.stack([exact_dots(np.repeat(row[None], 300, axis=0), b) for row in a])
    assert np.abs(products - exact).max() <= ProductFilter(512, 1.001, Calibration()).bound


def test_reduced_precision_is_refused() -> None:
    index, matcher = make_index(unit_rows(1, 4, 8), device=TORCH_ON_CPU), Matcher(Calibration(), 0.54)
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(DeviceError, match="float32"):
            matcher.top_k(index, unit_rows(1, 4, 8), 1)
    finally:
        torch.set_float32_matmul_precision("highest")
    matcher.top_k(index, unit_rows(1, 4, 8), 1)


# --- search


def test_scores_that_rounding_makes_equal_go_to_the_earlier_identity() -> None:
    """At g = 4 distances below 1e-16 vanish in the score: dots 5e-9 apart tie, though one is nearer."""
    query = np.array([[1 - 2.0**-24, 3e-4]], dtype=np.float32)
    stored = np.array([[1.0, 5.0e-8 / 3e-4], [1.0, 5.5e-8 / 3e-4]], dtype=np.float32)
    matcher = Matcher(Calibration(4.0), 0.54)
    distances = matcher.distances(np.repeat(query, 2, axis=0), stored)
    assert distances[0] > distances[1] > 0.0
    assert matcher.top_k(make_index(stored), query, 1)[0].tolist() == [[0]]
    assert Matcher(Calibration(4.0), 4.0).top_k(make_index(stored), query, 1)[0].tolist() == [[1]]  # ranked by d


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_dots_beyond_1_tie_because_the_distance_is_clamped(sign: float) -> None:
    """Norms are 1 only within 1e-3; all dots >= 1 are d = 0 and all <= -1 are d = 2."""
    stored = np.array([[1.0002, 0.0], [1.0005, 0.0], [1.0, 0.0]], dtype=np.float32)
    query = np.array([[sign * 1.0005, 0.0]], dtype=np.float32)
    order = [1, 2, 0] if sign > 0 else [2, 0, 1]
    for threshold in (0.54, 4.0):
        for k in (1, 3):
            positions, _ = Matcher(Calibration(1.281), threshold).top_k(make_index(stored, order), query, k)
            assert positions.tolist() == [np.argsort(order)[:k].tolist()]


def test_without_references_or_queries_there_are_none_to_find() -> None:
    index, queries = ReferenceIndex(4), unit_rows(1, 3, 4)
    matcher = Matcher(Calibration(), 0.54)
    nearest = matcher.nearest(index, queries, 1)
    assert nearest.positions.tolist() == [[-1]] * 3
    assert np.isnan(nearest.distances).all()
    assert matcher.top_k(index, queries, 5)[0].shape == (3, 0)
    assert matcher.top_k(make_index(queries), queries[:0], 2)[1].shape == (0, 2)


def test_k_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        Matcher(Calibration(), 0.54).top_k(ReferenceIndex(4), unit_rows(1, 1, 4), 0)


@pytest.mark.parametrize("bad", [np.zeros(4), np.full(4, np.nan), np.full(4, np.inf), np.array([2.0, 0, 0, 0])])
def test_vectors_that_are_no_embeddings_are_refused(bad: FloatArray) -> None:
    rows = np.stack([np.array([1.0, 0, 0, 0]), bad]).astype(np.float32)
    index = make_index(unit_rows(1, 3, 4))
    with pytest.raises(EmbeddingInvalid, match="vector 1 of 2"):
        make_index(rows)
    with pytest.raises(EmbeddingInvalid):
        Matcher(Calibration(), 0.54).top_k(index, rows, 1)
    with pytest.raises(EmbeddingInvalid, match="shape"):
        Matcher(Calibration(), 0.54).top_k(index, unit_rows(1, 2, 5), 1)


@pytest.mark.parametrize("name", ["casia-webface", "sface"])
def test_the_registrys_calibration_maps_its_rate_to_the_default_threshold(name: str) -> None:
    """The squared L2 distance that was measured at FMR 1e-5 becomes 0.54, that of each other rate its T."""
    from pipeline.models.registry import weight_set

    results = Path(__file__).resolve().parents[2] / "scripts/bench/results"
    measured = json.loads((results / f"accuracy-{name}-cpu.json").read_text())["figures"]["calibration"]
    calibration = weight_set(name).calibration
    assert measured["fmr"] == calibration.fmr == CONTRACT_FMR
    distance = contract_distance(1 - measured["squared_l2"] / 2, calibration)
    assert distance**2 == pytest.approx(0.54, abs=5e-4)
    by_rate = measured["by_rate"]
    assert [row["fmr"] for row in by_rate] == [rate for rate, _ in calibration.thresholds]
    mapped = [contract_distance(1 - row["squared_l2"] / 2, calibration) ** 2 for row in by_rate]
    assert mapped == pytest.approx([threshold for _, threshold in calibration.thresholds], abs=1e-3)
    assert all(
        low < t < high for (_, t), (low, high) in zip(calibration.thresholds, calibration.intervals, strict=True)
    )
