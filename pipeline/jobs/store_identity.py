"""What a new store records of its model and settings. Needs no torch once the weights are in the cache."""

from __future__ import annotations

import dataclasses
import secrets
from pathlib import Path
from typing import Any

from pipeline.config import EmbedSettings, Settings
from pipeline.jobs.calibration_file import read_calibration
from pipeline.matching.calibration import Calibration
from pipeline.models.weights import ResolvedWeights, cache_folder, resolve
from pipeline.runtime.precision import check_fast_mode
from pipeline.store import MasterKey, StoreIdentity


def make_identity(settings: Settings, master_key: MasterKey | None = None) -> StoreIdentity:
    """What a new store records of its model and of the settings that shaped its numbers; encrypted with a master key.

    Raises UnknownWeights, WeightsMissing, WeightsCorrupt, CalibrationInvalid, and BadValue for settings that the
    store's mode would refuse.
    """
    check_fast_mode(settings.run)
    resolved = resolve(settings.model.weights, weights_file(settings), cache_folder(settings.model.cache))
    weights = resolved.weight_set
    centred = settings.embed.centre and weights.preprocessing.centre_sha256 is not None
    # The store records what is done, not what was asked for.
    settings = dataclasses.replace(settings, embed=EmbedSettings(centre=centred))
    return StoreIdentity(
        embedder=weights.architecture,
        weights=weights.name,
        weights_sha256=resolved.sha256,
        embedding_size=weights.embedding_size,
        preprocessing=preprocessing_of(settings, resolved),
        calibration=_calibration(settings, resolved).as_dict(),
        mode=settings.run.mode,
        output_settings=settings.output_settings(),
        output_hash=settings.output_hash(),
        encrypted=master_key is not None,
        master_key_id=None if master_key is None else master_key.key_id,
        pixel_key=secrets.token_hex(16),
    )


def _calibration(settings: Settings, resolved: ResolvedWeights) -> Calibration:
    """The calibration of a new store: the one that the settings name, else that of the weights."""
    preprocessing = preprocessing_of(settings, resolved)
    if settings.model.calibration is not None:
        output_settings = settings.output_settings()
        return read_calibration(settings.model.calibration, resolved.sha256, output_settings, preprocessing)
    if resolved.weight_set.preprocessing.centre_sha256 and not settings.embed.centre:
        return Calibration(note="none: that of the weights is for centred embeddings")
    return resolved.weight_set.calibration


def preprocessing_of(settings: Settings, resolved: ResolvedWeights) -> dict[str, Any]:
    """The weights' preprocessing, with the centre only where it is subtracted."""
    preprocessing = resolved.weight_set.preprocessing
    if not settings.embed.centre:
        preprocessing = dataclasses.replace(preprocessing, centre_sha256=None)
    return dataclasses.asdict(preprocessing)


def weights_file(settings: Settings) -> Path | None:
    return Path(settings.model.weights_file) if settings.model.weights_file else None
