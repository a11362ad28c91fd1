"""The mean embedding of many faces, which centred embeddings have subtracted.

A network trained on one kind of photo has a mean away from zero on another, which all faces share and which says
nothing about whom they show. Taking it off and scaling to norm 1 again is the first step of every whitening (Jégou and
Chum 2012, "Negative evidences and co-occurences in image retrieval"). What it gains is in docs/accuracy.md;
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
            path=file, detail="its SHA-256 is another", cure="Install facepipe again: it is a part of it."
        )
    centre: FloatArray = np.load(io.BytesIO(data), allow_pickle=False)
    return centre
