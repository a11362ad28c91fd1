"""What a new store records of its model and settings, and the settings of an existing store. Needs no torch once the
weights are in the cache."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.config import AREA, AUTO, OUTPUT_SECTIONS, EmbedSettings, Settings, nearest_threshold
from pipeline.errors import StoreMismatch
from pipeline.jobs.calibration_file import read_calibration
from pipeline.matching.calibration import Calibration
from pipeline.models.weights import ResolvedWeights, cache_folder, resolve
from pipeline.runtime.precision import check_fast_mode
from pipeline.store import MasterKey, StoreIdentity

# Older stores do not record these settings.
_VALUES_OF_OLD_STORES: Final[Mapping[str, Mapping[str, Any]]] = {
    "align": {"resampling": AREA},
    "embed": {"centre": False},
}


def make_identity(settings: Settings, master_key: MasterKey | None = None) -> StoreIdentity:
    """What a new store records of its model and of the settings that shaped its numbers; encrypted with a master key.

    Raises UnknownWeights, WeightsMissing, WeightsCorrupt, CalibrationInvalid, and BadValue for settings that the
    store's mode refuses.
    """
    check_fast_mode(settings.run)
    resolved = resolve(settings.model.weights, weights_file(settings), cache_folder(settings.model.cache))
    weights = resolved.weight_set
    centred = settings.embed.centre and weights.preprocessing.centre_sha256 is not None
    # Records what is done, not what was asked for.
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
    """The settings' calibration, else that of the weights."""
    preprocessing = preprocessing_of(settings, resolved)
    if settings.model.calibration is not None:
        output_settings = settings.output_settings()
        return read_calibration(settings.model.calibration, resolved.sha256, output_settings, preprocessing)
    if resolved.weight_set.preprocessing.centre_sha256 and not settings.embed.centre:
        return Calibration(note="none: that of the weights is for centred embeddings")
    return resolved.weight_set.calibration


def preprocessing_of(settings: Settings, resolved: ResolvedWeights) -> dict[str, Any]:
    """The weights' preprocessing, with the centre only if subtracted."""
    preprocessing = resolved.weight_set.preprocessing
    if not settings.embed.centre:
        preprocessing = dataclasses.replace(preprocessing, centre_sha256=None)
    return dataclasses.asdict(preprocessing)


def weights_file(settings: Settings) -> Path | None:
    return Path(settings.model.weights_file) if settings.model.weights_file else None


def settings_of_store(
    settings: Settings, identity: StoreIdentity, path: Path, other: StoreIdentity | None = None
) -> Settings:
    """Returns `settings` with all values that the store fixes. The weights of its `other` generation are allowed, too.

    Raises StoreMismatch for a value that is neither the default nor the store's: such numbers are not comparable.
    """
    if settings.model.weights not in (AUTO, identity.weights, identity.weights if other is None else other.weights):
        raise StoreMismatch(path=path, key="weights", stored=identity.weights, given=settings.model.weights)
    _check_calibration(settings, identity, path)
    defaults, stored = Settings(), settings_of_generation(settings, identity)
    for section in OUTPUT_SECTIONS:
        own = getattr(stored, section)
        for key, value in dataclasses.asdict(getattr(settings, section)).items():
            if value not in (getattr(getattr(defaults, section), key), getattr(own, key)):
                raise StoreMismatch(path=path, key=f"{section}.{key}", stored=getattr(own, key), given=value)
    if settings.run.mode not in (defaults.run.mode, identity.mode):
        raise StoreMismatch(path=path, key="run.mode", stored=identity.mode, given=settings.run.mode)
    return resolve_threshold(stored, identity)


def settings_of_generation(settings: Settings, identity: StoreIdentity) -> Settings:
    """`settings` with the values of a generation."""
    sections: dict[str, Any] = {"run": dataclasses.replace(settings.run, mode=identity.mode)}
    for section in OUTPUT_SECTIONS:
        stored = {**_VALUES_OF_OLD_STORES.get(section, {}), **identity.output_settings.get(section, {})}
        sections[section] = type(getattr(settings, section))(**stored)
    return dataclasses.replace(settings, **sections)


def resolve_threshold(settings: Settings, identity: StoreIdentity) -> Settings:
    """`settings` with the calibration's T if they ask for a false match rate.

    Raises BadValue if the calibration has no threshold for that rate.
    """
    rate = settings.match.threshold_fmr
    if rate is None:
        return settings
    threshold = nearest_threshold(Calibration.from_dict(identity.calibration).threshold_at(rate))
    return dataclasses.replace(settings, match=dataclasses.replace(settings.match, threshold=threshold))


def _check_calibration(settings: Settings, identity: StoreIdentity, path: Path) -> None:
    """Raises StoreMismatch for another calibration than the store's."""
    file = settings.model.calibration
    if file is None:
        return
    other = read_calibration(file, identity.weights_sha256, identity.output_settings, identity.preprocessing)
    own = Calibration.from_dict(identity.calibration)
    if other.exponent != own.exponent:
        stored, given = f"an exponent of {own.exponent:g}", f"{file} with {other.exponent:g}"
        raise StoreMismatch(path=path, key="calibration", stored=stored, given=given)
    if other.thresholds != own.thresholds:
        stored, given = "its own thresholds for false match rates", f"{file} with others"
        raise StoreMismatch(path=path, key="calibration", stored=stored, given=given)
