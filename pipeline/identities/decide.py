"""What a face is decided by."""

from __future__ import annotations

from pipeline.matching.match import Matcher
from pipeline.matching.score import Calibration
from pipeline.store.records import StoreIdentity


def make_matcher(identity: StoreIdentity, threshold: float) -> Matcher:
    """The matcher with the store's calibration."""
    return Matcher(Calibration.from_dict(identity.calibration), threshold)
