"""Turns photo archives into a store of identities, and answers from it who a face belongs to.

The command line is `facepipe`; this is the library for notebooks and other programs:

    open_store, create_store   a store (OpenStore), to run photos into, recognise faces with, and read as tables
    FaceExtractor              the faces of images in memory, without a store
    evaluate_pairs, calibrate  how accurate a model is on your photos, and what its distances mean there

Failures are the classes of `pipeline.errors`. Tables are pyarrow.Table; `to_pandas()` makes a DataFrame of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.library import FaceExtractor, OpenStore, calibrate, create_store, evaluate_pairs, open_store

__all__ = ["FaceExtractor", "OpenStore", "calibrate", "create_store", "evaluate_pairs", "open_store"]


def __getattr__(name: str) -> object:
    """Loads the library with the first name that is used: `import pipeline` alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipeline import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
