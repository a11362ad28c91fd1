"""The mean embedding of many faces, which is subtracted from centred embeddings.

A network trained on one kind of photo has a mean away from zero on another. All faces share it, so it tells nothing
about whom they show. Subtracting it and scaling to norm 1 again is the first step of every whitening (Jégou and Chum
2012, "Negative evidences and co-occurences in image retrieval"). docs/accuracy.md has what it gains;
scripts/bench/fit_centre.py makes the files.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.errors import WeightsCorrupt
from pipeline.models.registry import WeightSet
from pipeline.types import FloatArray

CENTRES: Final = Path(__file__).parent / "centres"


def centre_file(weights: WeightSet) -> Path:
    """Where the centre of these weights lies, if they have one."""
    return CENTRES / f"{weights.name}.npy"


def load_centre(weights: WeightSet) -> FloatArray | None:
    """The mean [d] float32 of embeddings of norm 1, shorter than 1; None for weights that have none.

    Raises WeightsCorrupt where the file is not the one that the registry names.
    """
    expected = weights.preprocessing.centre_sha256
    if expected is None:
        return None
    file = centre_file(weights)
    data = file.read_bytes() if file.exists() else b""
    if hashlib.sha256(data).hexdigest() != expected:
        raise WeightsCorrupt(
            path=file,
            detail="its SHA-256 is not the registry's",
            cure="Install facepipe again: the file is part of it.",
        )
    centre: FloatArray = np.load(io.BytesIO(data), allow_pickle=False)
    return centre
