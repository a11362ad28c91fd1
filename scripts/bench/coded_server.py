"""`facepipe serve` with the extractor of `coded_faces` where the models stand: for benchmarks and tests.

    python scripts/bench/coded_server.py CROP_BYTES --store DIR [the options of `facepipe serve`]

Says on standard error when its "models" are loaded, in seconds of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from coded_faces import CodedExtractor

import pipeline.jobs.models
import pipeline.serve.server
from pipeline.cli import main as facepipe
from pipeline.config import Settings
from pipeline.runtime.threads import set_threads
from pipeline.store.records import StoreIdentity

LOADED = "models loaded at "


def install(crop_bytes: int) -> None:
    """From now on a server of this process has no models."""

    def load_extractor(
        settings: Settings, identity: StoreIdentity, _: Path, __: object, other: StoreIdentity | None
    ) -> CodedExtractor:
        set_threads(settings.run.threads)
        print(LOADED + str(time.monotonic()), file=sys.stderr, flush=True)
        extractor = CodedExtractor(identity.embedding_size, crop_bytes, identity.model)
        extractor.measure_also(other)
        return extractor

    pipeline.serve.server.load_extractor = load_extractor  # type: ignore[assignment]
    pipeline.jobs.models.load_other = lambda _, identity, *__: identity  # type: ignore[assignment]


if __name__ == "__main__":
    install(int(sys.argv[1]))
    facepipe(["serve", *sys.argv[2:]])
