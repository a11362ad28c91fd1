"""The expected wrong joins per 1,000 photos at a store's threshold, as far as its calibration tells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pipeline.config import EVERYBODY, nearest_threshold
from pipeline.matching.calibration import Calibration, rate_for, wrong_joins
from pipeline.store import LocalStore, StoreIdentity, runs


@dataclass(frozen=True)
class Expectation:
    """Wrong joins per 1,000 photos with one face each. Pairs are (lower, upper) bounds, equal if the calibration's
    table has the value."""

    per_1000_photos: tuple[float, float]
    thresholds: tuple[float, ...]
    identities: int  # current records of the (largest) directory, each with a face to compare with
    threshold_for_1_in_1000: tuple[float, float]  # among so many

    def __str__(self) -> str:
        if self.threshold_for_1_in_1000 == _ANY_THRESHOLD:
            return "wrong joins are not known: no false match rates were measured for this store"
        low, high = self.per_1000_photos
        joins = f"about {_rounded(low)}" if low == high else f"more than {_rounded(low)}" if low else ""
        thresholds = " and ".join(f"{threshold:g}" for threshold in self.thresholds)
        expected = f"{joins or f'less than {_rounded(high)}'} wrong joins per 1,000 photos at T = {thresholds}"
        return f"{expected}; with {self.identities:,} records {self._for_one()}" if self.identities else expected

    def _for_one(self) -> str:
        low, high = self.threshold_for_1_in_1000
        if low == high:
            return f"1 in 1,000 needs T = {math.floor(low * 1000) / 1000:g}"
        where = f"below {high:g}" if low == 0 else f"above {low:g}"
        return f"1 in 1,000 is at a T {where}, beyond the calibration's table"


_ANY_THRESHOLD = (0.0, EVERYBODY)


def _rounded(joins: float) -> str:
    return f"{joins:,.0f}" if joins >= 10 else f"{joins:.2g}"


def expectation(calibration: Calibration, threshold: float, identities: int) -> Expectation:
    """For the next photos, at this number of identities."""
    low, high = (wrong_joins(rate, np.array([identities])) for rate in calibration.fmr_at(threshold))
    return Expectation((low, high), (threshold,), identities, _threshold_for_one(calibration, identities))


def expectation_of_runs(store: LocalStore, account_id: int, run_ids: Sequence[str]) -> Expectation | None:
    """The mean over the faces of these runs, each compared with the identities at that time. None without faces."""
    calibration = Calibration.from_dict(store.identity.calibration)
    compared = store.ask(runs.compared_identities, account_id, run_ids)
    if not compared.num_rows:
        return None
    total, sums, thresholds = 0, [0.0, 0.0], set[float]()
    for run_id in compared["run_id"].unique().to_pylist():
        rows = compared.filter(pc.equal(compared["run_id"], run_id))
        identities, faces = rows["identities"].to_numpy(), rows["faces"].to_numpy()
        thresholds.add(threshold := nearest_threshold(store.run_row(run_id).settings["match"]["threshold"]))
        total += (count := int(faces.sum()))
        for bound, rate in enumerate(calibration.fmr_at(threshold)):
            sums[bound] += count * wrong_joins(rate, identities, faces)
    directories = set(compared["directory"].to_pylist())
    now = (d.records for d in store.directories() if d.account_id == account_id and d.name in directories)
    largest = max(now, default=0)
    for_one = _threshold_for_one(calibration, largest)
    return Expectation((sums[0] / total, sums[1] / total), tuple(sorted(thresholds)), largest, for_one)


def _threshold_for_one(calibration: Calibration, identities: int) -> tuple[float, float]:
    if not calibration.thresholds:
        return _ANY_THRESHOLD
    (lowest, t_low), (highest, t_high) = calibration.thresholds[0], calibration.thresholds[-1]
    rate = rate_for(1, identities) if identities else 1.0
    if lowest <= rate <= highest:
        threshold = calibration.threshold_at(rate)
        return threshold, threshold
    return (0.0, t_low) if rate < lowest else (t_high, EVERYBODY)


def calibration_warning(identity: StoreIdentity) -> str | None:
    """The warning for uncalibrated distances, or None."""
    if Calibration.from_dict(identity.calibration).anchor is not None:
        return None
    return (
        f"the distances of this store (weights {identity.weights}) are not calibrated, so nobody knows how often a "
        "threshold takes two people for one. `facepipe calibrate` measures it, and a new store takes its file with "
        "--calibration."
    )
