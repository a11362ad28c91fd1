"""The library for notebooks and other programs. Import these names from `pipeline`.

`opened` has stores, `extractor` faces without a store, `measures` what labelled photos tell, and `types` the types of
their arguments and answers. `arguments` is for these modules alone.
"""

from pipeline.evaluation.statistics import pairwise_distances
from pipeline.library.extractor import FaceExtractor
from pipeline.library.measures import (
    calibrate,
    evaluate_clustering,
    evaluate_pairs,
    sweep_thresholds,
)
from pipeline.library.opened import OpenStore, create_store, open_store

__all__ = [
    "FaceExtractor",
    "OpenStore",
    "calibrate",
    "create_store",
    "evaluate_clustering",
    "evaluate_pairs",
    "open_store",
    "pairwise_distances",
    "sweep_thresholds",
]
