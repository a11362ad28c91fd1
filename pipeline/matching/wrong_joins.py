"""How many faces a threshold joins to somebody else's identity: a search among n identities has n chances of it."""

from __future__ import annotations

import numpy as np

from pipeline.types import IntArray

PHOTOS = 1000


def wrong_joins(fmr: float, identities: IntArray, faces: IntArray | None = None) -> float:
    """Expected wrong joins per 1,000 photos of one face each: 1,000 times the mean of 1 - (1 - fmr)^n.

    `identities` [k] are the n that a face was compared with; `faces` [k], not all 0, how many faces were compared with
    so many (None: one each). Every face counts as one of somebody new, so this errs on the side of too many.
    """
    return PHOTOS * float(np.average(1.0 - (1.0 - fmr) ** identities, weights=faces))


def rate_for(joins: float, identities: int) -> float:
    """The inverse of `wrong_joins`: the false match rate with which so many of 1,000 photos are joined wrongly among
    `identities`, at least one."""
    return float(1.0 - (1.0 - joins / PHOTOS) ** (1.0 / identities))
