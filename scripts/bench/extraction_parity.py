"""When two extractions of the same photos count as equal, and what is written down of their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.evaluation.bench.parity import Parity
from pipeline.types import FloatArray

WANT_FOUND, WANT_EXTRA, WANT_LANDMARKS = 0.99, 0.01, 0.01
WANT_COSINE = 0.999  # of every face of the same box


def figures_of(parity: Parity, cosine: Mapping[str, FloatArray]) -> dict[str, Any]:
    return {
        "images": parity.images,
        "reference_faces": parity.reference_faces,
        "our_faces": parity.our_faces,
        "missed": parity.reference_faces - parity.found,
        "extra": parity.extra,
        "landmark_error_median": parity.landmark_median,
        **{f"cosine_{name}_min": float(values.min()) for name, values in cosine.items()},
        **{f"cosine_{name}_median": float(np.median(values)) for name, values in cosine.items()},
        **{f"cosine_{name}_below_{WANT_COSINE}": int((values < WANT_COSINE).sum()) for name, values in cosine.items()},
    }


def assert_same_faces(parity: Parity) -> None:
    """Raises AssertionError unless both found the same faces."""
    assert parity.reference_faces > 0, "the photos show no face"
    assert parity.found_share >= WANT_FOUND, parity
    assert parity.extra_share <= WANT_EXTRA, parity
    assert parity.landmark_median <= WANT_LANDMARKS, parity.landmark_median


def assert_equal(parity: Parity, same_box: FloatArray) -> None:
    """Raises AssertionError unless both found the same faces, and embed the same boxes alike."""
    assert_same_faces(parity)
    assert same_box.min() >= WANT_COSINE, np.sort(same_box)[:5]
