"""Float32 matrix products as a filter: their error bound, and which candidates need exact scores.

Let s(a, b) be the exact dot (`score.exact_dots`), p(a, b) the device's float32 product, n the dimension and u the unit
roundoff of a format (2^-24 for float32, 2^-53 for float64).

1. In any order of summation, with or without fused multiply-add, a computed dot product is within
   gamma_n sum|a_i b_i| <= gamma_n |a| |b| (Cauchy-Schwarz) of the true one, gamma_n = n u / (1 - n u) (Higham,
   Accuracy and Stability of Numerical Algorithms, 2002, section 3.1). So
   |p - s| <= B = (gamma_n(2^-24) + gamma_n(2^-53)) |a| |b|, with measured norms, for IEEE float32 only:
   `device_products` refuses TF32 and bfloat16. Underflow, even flushed to zero, adds less than n 2^-125, which
   ROUNDING covers.
2. The score is computed from s by correctly rounded, hence monotone, operations, except the power, whose relative
   error is below 2 ulp. With v = (1 - s) / 2 in [0, 1], d = 2 v^(g/2). The error of the computed 2 - d is below 2^-48:
   candidates whose true values differ by 2^-46 or more have different scores, in the true order. If v grows by e, d
   grows by at least 2 e^(g/2) if g >= 2 (d is convex and d(0) = 0), and by at least g e if g < 2 (d is concave with
   slope g at v = 1). Solving for 2^-46 gives e: values of s within TIES = 2 e may tie or come in either order.
3. All s >= 1 tie at d = 0 and all s <= -1 at d = 2, so values are clamped to [-1, 1] before comparing.

Hence, if at least k candidates have p >= t, their s >= t - B, and a candidate with p < cut(t) ranks strictly below all
of them: cut(t) = min(t - B, 1) - TIES - B, or -inf if min(t - B, 1) - TIES <= -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.matching.calibration import Calibration
from pipeline.matching.score import dot_at
from pipeline.types import DoubleArray

# Covers underflow and the rounding of the cuts (below 2) to float32.
ROUNDING: Final = 2.0**-22
_DISTINCT: Final = 2.0**-46


@dataclass(frozen=True)
class ProductFilter:
    """Cuts for float32 products of vectors of `size` dimensions; `norms` bounds the product of two norms."""

    size: int
    norms: float
    calibration: Calibration

    @property
    def bound(self) -> float:
        """B, the bound of |float32 product - exact dot|."""
        return (_gamma(self.size, 2.0**-24) + _gamma(self.size, 2.0**-53)) * self.norms

    @property
    def ties(self) -> float:
        """TIES: exact dots that differ by more have scores in the same order."""
        g = self.calibration.exponent
        return 2.0 * ((_DISTINCT / 2.0) ** (2.0 / g) if g >= 2.0 else _DISTINCT / g)

    def cut(self, products: DoubleArray) -> DoubleArray:
        """cut(t) of each t: candidates with a lower float32 product rank strictly lower."""
        level = np.minimum(products - self.bound, 1.0) - self.ties
        return np.where(level <= -1.0 + ROUNDING, -np.inf, level - self.bound - ROUNDING)

    def match_cut(self, threshold: float) -> float:
        """The float32 product below which a score is below 1.0; -inf if none can be excluded."""
        level = dot_at(threshold, self.calibration) - self.ties
        return -np.inf if level <= -1.0 + ROUNDING else level - self.bound - ROUNDING


def _gamma(terms: int, unit: float) -> float:
    return terms * unit / (1.0 - terms * unit)
