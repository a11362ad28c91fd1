"""How well embeddings tell people apart: the arithmetic of verification (one to one) experiments.

Distances are squared L2 between embeddings, 0 to 4; a pair is taken for one person when its distance is *below* the
threshold. A pair with an image in which no face was found has distance infinity: it never matches. False match
rate (FMR) and false non-match rate (FNMR) are those of ISO/IEC 19795-1, failures to find a face counted as
non-matches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.errors import InputError, SourceMissing
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

# The contract's default threshold T, and the false match rate that its callers expect there.
CONTRACT_THRESHOLD = 0.54
CONTRACT_FMR = 2e-4


@dataclass(frozen=True)
class Pair:
    """Two images, each as a name and a number from 1, as the LFW pairs files give them."""

    first: tuple[str, int]
    second: tuple[str, int]

    @property
    def genuine(self) -> bool:
        return self.first[0] == self.second[0]


@dataclass(frozen=True)
class ErrorRates:
    """The threshold at which the FMR is at most the one asked for, and the FNMR there."""

    fmr: float
    threshold: float  # squared L2
    fnmr: float
    genuine_pairs: int
    impostor_pairs: int


def read_pairs(file: Path) -> list[Pair]:
    """Reads a pairs file of LFW's view 1: n, then n lines `Name i j`, then n lines `NameA i NameB j`.

    Huang et al. 2007, "Labeled Faces in the Wild". Raises SourceMissing, or InputError with the line at fault.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError as exc:
        raise SourceMissing(path=file) from exc
    pairs = [_pair(file, number, line) for number, line in enumerate(lines[1:], start=2) if line.strip()]
    if not lines or not lines[0].strip().isdecimal() or len(pairs) != 2 * int(lines[0]):
        raise InputError(
            message=f"{file}, line 1: must be the number of pairs of each kind ({len(pairs)} pairs follow)."
        )
    return pairs


def _pair(file: Path, number: int, line: str) -> Pair:
    match line.split():
        case [name, i, j] if i.isdecimal() and j.isdecimal():
            return Pair((name, int(i)), (name, int(j)))
        case [a, i, b, j] if i.isdecimal() and j.isdecimal():
            return Pair((a, int(i)), (b, int(j)))
    raise InputError(message=f'{file}, line {number}: "{line}" is neither "Name i j" nor "NameA i NameB j".')


def squared_distances(first: FloatArray, second: FloatArray) -> DoubleArray:
    """[n] squared L2 of the rows of two [n, d] arrays of unit vectors; a row of NaN (no face) is infinitely far."""
    products = np.einsum("nd,nd->n", first.astype(np.float64), second.astype(np.float64))
    return _to_distance(products)


def all_distances(embeddings: FloatArray, people: IntArray) -> tuple[DoubleArray, DoubleArray, IntArray]:
    """All pairs of [n, d] unit vectors of known people [n]: genuine and impostor distances, and which genuine pairs.

    Returns the genuine distances [g], the impostor distances [i], and the genuine pairs' rows [g, 2].
    """
    wide = embeddings.astype(np.float64)
    distances = _to_distance(wide @ wide.T)
    first, second = np.triu_indices(len(people), k=1)
    same = people[first] == people[second]
    pairwise = distances[first, second]
    return pairwise[same], pairwise[~same], np.stack([first[same], second[same]], axis=1)


def _to_distance(products: DoubleArray) -> DoubleArray:
    distances = np.clip(2 - 2 * products, 0, 4)
    return np.where(np.isnan(distances), np.inf, distances)


def decisions_right(distances: DoubleArray, genuine: BoolArray, threshold: float) -> BoolArray:
    """[n] whether each pair is decided rightly. Without a face (distance infinity) none is, of either kind."""
    right: BoolArray = ((distances < threshold) == genuine) & np.isfinite(distances)
    return right


def best_threshold(distances: DoubleArray, genuine: BoolArray) -> float:
    """The threshold with the highest accuracy on these pairs, in the middle of the widest gap that has it."""
    found = np.isfinite(distances)
    order = np.argsort(distances[found], kind="stable")
    values, kinds = distances[found][order], genuine[found][order]
    edges = np.concatenate([[0.0], values, [4.0 + 1e-6]])
    # Cutting before value k: the k below are taken for genuine, the others for impostors.
    right = np.concatenate([[0], np.cumsum(kinds)]) + (np.count_nonzero(~kinds) - np.cumsum(np.r_[0, ~kinds]))
    right[1:][np.diff(edges)[1:] == 0] = -1  # no threshold lies between equal distances
    k = int(np.argmax(np.where(right == right.max(), np.diff(edges), -1)))
    middle = float((edges[k] + edges[k + 1]) / 2)
    return middle if middle > edges[k] else float(edges[k + 1])


def error_rates(genuine: DoubleArray, impostor: DoubleArray, fmr: float) -> ErrorRates:
    """FNMR at the largest threshold at which no more than the share `fmr` of the impostor pairs matches."""
    threshold = threshold_at_fmr(impostor, fmr)
    fnmr = float(np.mean(genuine >= threshold))
    return ErrorRates(fmr, threshold, fnmr, len(genuine), len(impostor))


def threshold_at_fmr(impostor: DoubleArray, fmr: float) -> float:
    allowed = math.floor(fmr * len(impostor) + 1e-9)
    if allowed >= len(impostor):
        return math.inf
    return float(np.partition(impostor, allowed)[allowed])


def bootstrap_interval(right: BoolArray, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of the share of True in `right`, over resamples of the pairs (Efron 1979)."""
    drawn = np.random.default_rng(seed).binomial(len(right), right.mean(), size=resamples) / len(right)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def mcnemar_exact(first_right: BoolArray, second_right: BoolArray) -> tuple[int, int, float]:
    """Do two methods differ on the same pairs? Exact test of McNemar 1947, two-sided.

    Returns how many pairs only the first and only the second decided rightly, and the p-value.
    """
    only_first = int(np.count_nonzero(first_right & ~second_right))
    only_second = int(np.count_nonzero(second_right & ~first_right))
    n = only_first + only_second
    tail = sum(math.comb(n, k) for k in range(min(only_first, only_second) + 1))
    return only_first, only_second, min(1.0, 2 * tail / 2**n)


def calibration_exponent(squared_l2: float, threshold: float = CONTRACT_THRESHOLD) -> float:
    """g of the map d = 2 (r / 2)^g that takes the raw distance r = sqrt(squared_l2) to sqrt(threshold)."""
    return math.log(math.sqrt(threshold) / 2) / math.log(math.sqrt(squared_l2) / 2)


def error_versus_discard(
    genuine: DoubleArray, quality: FloatArray, threshold: float, discards: Sequence[float]
) -> list[float]:
    """FNMR of the genuine pairs [g] left when the share of the worst is discarded, by `quality` [g], for each share.

    Grother and Tabassi 2007, "Performance of biometric quality measures"; the quality of a pair is that of its
    worse image. A quality measure that works makes the FNMR fall.
    """
    missed = (genuine >= threshold)[np.argsort(quality, kind="stable")]
    return [float(missed[math.floor(share * len(missed)) :].mean()) for share in discards]
