"""facepipe with the reference's settings: every face of the cascade's own threshold is kept, crops have a given margin
and are resampled by Pillow, embeddings are not centred."""

from __future__ import annotations

import os

from pipeline.config import ENV_CACHE, EXACT, Settings, load_settings
from pipeline.evaluation.bench.facepipe import comparable


def benchmark_settings(device: str, threads: int, weights: str, margin_px: int, mode: str = EXACT) -> Settings:
    """facepipe's defaults but for what would make its output another than the reference's."""
    flags = {
        "run.device": device,
        "run.threads": threads,
        "model.weights": weights,
        "align.margin_px": margin_px,
        "run.mode": mode,
    }
    cache = {name: value for name, value in os.environ.items() if name == ENV_CACHE}
    return comparable(load_settings(environ=cache, flags=flags))
