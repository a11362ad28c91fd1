"""Turns photo archives into a store of identities, and answers from it who a face belongs to.

The command line is `facepipe`; this is the library for notebooks and other programs:

    open_store, create_store   a store (OpenStore), to run photos into, recognise faces with, and read as tables
    FaceExtractor              the faces of images in memory, without a store
    pairwise_distances         of the vectors of faces, as squared L2 or on the scale of T
    evaluate_clustering, sweep_thresholds, evaluate_pairs, calibrate
                               how accurate a store or a model is on your photos, and what its distances mean there

Failures are the classes of `pipeline.errors`. Tables are pyarrow.Table; `to_pandas()` makes a DataFrame of one. The
types of arguments and answers can be imported, too: `pipeline.__all__` lists them. scripts/first_things.py uses most.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.library import *
    from pipeline.library.types import *

__all__ = [
    "Agreement",
    "Calibration",
    "CalibrationReport",
    "Candidate",
    "ChangeEntry",
    "ChangesPage",
    "ClusteringResult",
    "CorrectionAnswer",
    "Face",
    "FaceAnswer",
    "FaceExtractor",
    "GivenImage",
    "ImageRejected",
    "LoggedCorrection",
    "MatchSettings",
    "Matrix",
    "OpenStore",
    "PairsResult",
    "People",
    "PersonRow",
    "RegroupSettings",
    "Regrouping",
    "Report",
    "RunReport",
    "Suggestion",
    "Suggestions",
    "SweptRow",
    "TwiceOnPhoto",
    "UnassignedFace",
    "calibrate",
    "create_store",
    "evaluate_clustering",
    "evaluate_pairs",
    "open_store",
    "pairwise_distances",
    "sweep_thresholds",
]


def __getattr__(name: str) -> object:
    """Loads the library with the first name that is used: `import pipeline` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    library = import_module("pipeline.library")
    return getattr(library if name in library.__all__ else import_module("pipeline.library.types"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
