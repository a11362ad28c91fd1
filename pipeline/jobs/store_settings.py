"""Brings a command's settings in line with a store's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.config import AREA, OUTPUT_SECTIONS, Settings, nearest_threshold
from pipeline.errors import StoreMismatch
from pipeline.jobs.calibration_file import read_calibration
from pipeline.matching.calibration import Calibration
from pipeline.store import StoreIdentity

# Stores that are older than these settings don't record them.
_VALUES_OF_OLD_STORES: Final[Mapping[str, Mapping[str, Any]]] = {
    "align": {"resampling": AREA},
    "embed": {"centre": False},
}


def settings_of_store(settings: Settings, identity: StoreIdentity, path: Path) -> Settings:
    """`settings` with the store's own values for all that is fixed in it.

    Raises StoreMismatch for a value that is neither the default nor the store's: numbers made in two ways cannot be
    compared.
    """
    if settings.model.weights not in ("auto", identity.weights):
        raise StoreMismatch(path=path, key="weights", stored=identity.weights, given=settings.model.weights)
    _check_calibration(settings, identity, path)
    defaults, sections = Settings(), dict[str, Any]()
    for section in OUTPUT_SECTIONS:
        default = getattr(defaults, section)
        stored = {**_VALUES_OF_OLD_STORES.get(section, {}), **identity.output_settings.get(section, {})}
        for key, value in dataclasses.asdict(getattr(settings, section)).items():
            if value not in (getattr(default, key), stored[key]):
                raise StoreMismatch(path=path, key=f"{section}.{key}", stored=stored[key], given=value)
        sections[section] = dataclasses.replace(default, **stored)
    if settings.run.mode not in (defaults.run.mode, identity.mode):
        raise StoreMismatch(path=path, key="run.mode", stored=identity.mode, given=settings.run.mode)
    sections["run"] = dataclasses.replace(settings.run, mode=identity.mode)
    return settle_threshold(dataclasses.replace(settings, **sections), identity)


def settle_threshold(settings: Settings, identity: StoreIdentity) -> Settings:
    """`settings` with the calibration's threshold T where they ask for a false match rate.

    Raises BadValue where the calibration has no threshold for that rate.
    """
    rate = settings.match.threshold_fmr
    if rate is None:
        return settings
    threshold = nearest_threshold(Calibration.from_dict(identity.calibration).threshold_at(rate))
    return dataclasses.replace(settings, match=dataclasses.replace(settings.match, threshold=threshold))


def _check_calibration(settings: Settings, identity: StoreIdentity, path: Path) -> None:
    """Raises StoreMismatch where the settings name another calibration than the store's."""
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
