"""The models of a store: what a new store records of them, and loading them again for a store that exists."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from pipeline.config import FAST, EmbedSettings, Settings
from pipeline.errors import StoreMismatch
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.embed import load_embedder
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.calibration_file import read_calibration
from pipeline.matching.calibration import Calibration
from pipeline.models.backend import choose_backend, fast_precision
from pipeline.models.weights import ResolvedWeights, cache_folder, detector_files, resolve
from pipeline.runtime.device import resolve_device, synchronize
from pipeline.runtime.precision import check_fast_mode, set_tf32
from pipeline.runtime.threads import set_threads
from pipeline.store.files.crypto import MasterKey
from pipeline.store.records import StoreIdentity


def make_identity(settings: Settings, master_key: MasterKey | None = None) -> StoreIdentity:
    """What a new store records of its model and of the settings that shaped its numbers; encrypted with a master key.

    Raises UnknownWeights, WeightsMissing, WeightsCorrupt, CalibrationInvalid, and BadValue for settings that the
    store's mode would refuse.
    """
    check_fast_mode(settings.run)
    resolved = resolve(settings.model.weights, _weights_file(settings), cache_folder(settings.model.cache))
    weights = resolved.weight_set
    centred = settings.embed.centre and weights.preprocessing.centre_sha256 is not None
    # The store records what is done, not what was asked for.
    settings = dataclasses.replace(settings, embed=EmbedSettings(centre=centred))
    return StoreIdentity(
        embedder=weights.architecture,
        weights=weights.name,
        weights_sha256=resolved.sha256,
        embedding_size=weights.embedding_size,
        preprocessing=_preprocessing(settings, resolved),
        calibration=_calibration(settings, resolved).as_dict(),
        mode=settings.run.mode,
        output_settings=settings.output_settings(),
        output_hash=settings.output_hash(),
        encrypted=master_key is not None,
        master_key_id=None if master_key is None else master_key.key_id,
    )


def load_extractor(
    settings: Settings, identity: StoreIdentity, path: Path, network_threads: int | None = None
) -> BatchExtractor:
    """Loads the models of the store at `path` onto the settings' device.

    `network_threads`: threads of one network call on the CPU (None: the settings' threads). Raises DeviceMissing,
    ModelError, BadValue, and StoreMismatch where the weights or their preprocessing are not the store's.
    """
    device = resolve_device(settings.run.device)
    check_fast_mode(settings.run, device)
    set_tf32(device, settings.run.tf32)
    threads = set_threads(settings.run.threads)
    cache = cache_folder(settings.model.cache)
    resolved = resolve(identity.weights, _weights_file(settings), cache)
    if resolved.sha256 != identity.weights_sha256:
        raise StoreMismatch(path=path, key="weights_sha256", stored=identity.weights_sha256, given=resolved.sha256)
    for key, value in _preprocessing(settings, resolved).items():
        stored = identity.preprocessing.get(key, value)  # an older store may not have recorded it
        if stored != value:
            raise StoreMismatch(path=path, key=f"preprocessing.{key}", stored=stored, given=value)
    threads_each = network_threads or threads
    runtime = choose_backend(settings.run.backend, device, cache, threads_each, calls=max(1, threads // threads_each))
    detector = MtcnnDetector(load_networks(detector_files(), device), settings.detect)
    precision = fast_precision(settings.run.precision, device, runtime) if settings.run.mode == FAST else None
    embedder = load_embedder(resolved, device, centred=settings.embed.centre, runtime=runtime, precision=precision)
    if settings.run.tf32:
        embedder.backend += " with TF32"
    # The engine's workers run the networks on their own streams, which don't wait for the stream of these copies.
    synchronize(device)
    return BatchExtractor(detector, embedder, settings)


def _calibration(settings: Settings, resolved: ResolvedWeights) -> Calibration:
    """The calibration of a new store: the one that the settings name, else that of the weights."""
    preprocessing = _preprocessing(settings, resolved)
    if settings.model.calibration is not None:
        output_settings = settings.output_settings()
        return read_calibration(settings.model.calibration, resolved.sha256, output_settings, preprocessing)
    if resolved.weight_set.preprocessing.centre_sha256 and not settings.embed.centre:
        return Calibration(note="none: that of the weights is for centred embeddings")
    return Calibration(**resolved.weight_set.calibration.as_dict())


def _preprocessing(settings: Settings, resolved: ResolvedWeights) -> dict[str, Any]:
    """The weights' preprocessing, with the centre only where it is subtracted."""
    preprocessing = resolved.weight_set.preprocessing
    if not settings.embed.centre:
        preprocessing = dataclasses.replace(preprocessing, centre_sha256=None)
    return preprocessing.as_dict()


def _weights_file(settings: Settings) -> Path | None:
    return Path(settings.model.weights_file) if settings.model.weights_file else None
