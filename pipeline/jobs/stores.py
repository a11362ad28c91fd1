"""Puts the parts together: settings and a store's identity to decoder, extractor and matcher."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.config import (
    AREA,
    FAST,
    AlignSettings,
    DecodeSettings,
    DetectSettings,
    EmbedSettings,
    RunSettings,
    Settings,
)
from pipeline.errors import StoreMismatch, UsageError
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.embed import load_embedder
from pipeline.extraction.extractor import FaceExtractor
from pipeline.jobs.calibration_file import NO_CALIBRATION, read_calibration
from pipeline.matching.match import Calibration
from pipeline.models.onnx_runtime import choose_runtime
from pipeline.models.weights import ResolvedWeights, cache_folder, detector_files, resolve
from pipeline.runtime.device import resolve_device, set_threads, synchronize
from pipeline.runtime.precision import check_fast_mode, fast_dtype, set_tf32
from pipeline.store.client import StoreClient
from pipeline.store.connect import Store, through_door
from pipeline.store.files.crypto import MasterKey
from pipeline.store.master_key import load_master_key, load_or_make_master_key
from pipeline.store.records import StoreIdentity

_OUTPUT_SECTIONS: Final[Mapping[str, Any]] = {
    "decode": DecodeSettings(),
    "detect": DetectSettings(),
    "align": AlignSettings(),
    "embed": EmbedSettings(),
}
DEFAULT_ACCOUNT = "default"
# What stores have that were made before there was a choice.
_BEFORE: Final[Mapping[str, Mapping[str, Any]]] = {"align": {"resampling": AREA}, "embed": {"centre": False}}
_OTHER_STORE = "Use the store's value, or make another store with --store."


def open_or_create_store(path: Path, settings: Settings, command: str) -> Store:
    """Opens the store, or makes one for the settings' weights; then `auto` is settled, once and for all.

    A new store is encrypted if the settings say so; an encrypted one is unlocked. Raises StoreError, UsageError,
    UnknownWeights, WeightsMissing, WeightsCorrupt.
    """
    master_key: MasterKey | None = None

    def make() -> StoreIdentity:
        nonlocal master_key
        if settings.security.encrypt:
            master_key = load_or_make_master_key(settings.security, path)
        identity = make_identity(settings, master_key)
        settle_threshold(settings, identity)  # before there is a store that could not do what is asked
        return identity

    client = through_door(lambda: StoreClient.open_or_create(path, make, command=command))
    try:
        unlock_store(client, settings, master_key)
    except BaseException:
        client.close()
        raise
    return client


def unlock_store(client: Store, settings: Settings, master_key: MasterKey | None = None) -> None:
    """Gives an encrypted store its master key (None: the settings'), without which no image can be read or written;
    a server that holds the store has it already.

    Raises MasterKeyMissing, MasterKeyWrong, UsageError, and StoreMismatch where the settings ask for encryption and
    the store was made without.
    """
    encrypted = client.identity.encrypted
    if settings.security.encrypt and not encrypted:
        cure = "What is stored stays as it is: make another store with --store."
        raise StoreMismatch(path=client.path, key="security.encrypt", stored="false", given="true", cure=cure)
    if encrypted and isinstance(client, StoreClient):
        client.unlock(master_key or load_master_key(settings.security, client.path))


def make_identity(settings: Settings, master_key: MasterKey | None = None) -> StoreIdentity:
    """What a new store records of its model and of what made its numbers; encrypted, if there is a master key.

    Raises UnknownWeights, WeightsMissing, WeightsCorrupt, CalibrationInvalid, and BadValue for settings that the
    store's mode would refuse.
    """
    check_fast_mode(settings.run)
    resolved = resolve(settings.model.weights, _weights_file(settings), cache_folder(settings.model.cache))
    weights = resolved.weight_set
    centred = settings.embed.centre and weights.preprocessing.centre_sha256 is not None
    # What is done, not what was asked for.
    settings = dataclasses.replace(settings, embed=EmbedSettings(centre=centred))
    return StoreIdentity(
        embedder=weights.architecture,
        weights=weights.name,
        weights_sha256=resolved.sha256,
        embedding_size=weights.embedding_size,
        preprocessing=_preprocessing(settings, resolved),
        calibration=_calibration_of(settings, resolved).as_dict(),
        mode=settings.run.mode,
        output_settings=settings.output_settings(),
        output_hash=settings.output_hash(),
        encrypted=master_key is not None,
        master_key_id=None if master_key is None else master_key.key_id,
    )


def settings_of_store(settings: Settings, identity: StoreIdentity, path: Path) -> Settings:
    """`settings` with the store's own for all that is fixed in it. A value that was changed from its default and
    is not the store's raises StoreMismatch: numbers made in two ways cannot be compared."""
    if settings.model.weights not in ("auto", identity.weights):
        raise _mismatch(path, "weights", identity.weights, settings.model.weights)
    _check_calibration(settings, identity, path)
    merged: dict[str, Any] = {}
    for section, default in _OUTPUT_SECTIONS.items():
        stored = {**_BEFORE.get(section, {}), **identity.output_settings.get(section, {})}
        for key, given in dataclasses.asdict(getattr(settings, section)).items():
            if given not in (getattr(default, key), stored[key]):
                raise _mismatch(path, f"{section}.{key}", stored[key], given)
        merged[section] = dataclasses.replace(default, **stored)
    if settings.run.mode not in (RunSettings().mode, identity.mode):
        raise _mismatch(path, "run.mode", identity.mode, settings.run.mode)
    merged["run"] = dataclasses.replace(settings.run, mode=identity.mode)
    return settle_threshold(dataclasses.replace(settings, **merged), identity)


def settle_threshold(settings: Settings, identity: StoreIdentity) -> Settings:
    """`settings` with the T that the calibration has for a threshold that was asked for as a false match rate.

    Raises BadValue where it has none.
    """
    rate = settings.match.threshold_fmr
    if rate is None:
        return settings
    threshold = Calibration.from_dict(identity.calibration).threshold_at(rate)
    return dataclasses.replace(settings, match=dataclasses.replace(settings.match, threshold=threshold))


def _check_calibration(settings: Settings, identity: StoreIdentity, path: Path) -> None:
    """Raises StoreMismatch where the settings name another calibration than the store's."""
    asked = settings.model.calibration
    if asked is None:
        return
    given = _read_calibration(asked, identity.weights_sha256, identity.output_settings, identity.preprocessing)
    known = Calibration.from_dict(identity.calibration)
    if given.exponent != known.exponent:
        raise _mismatch(path, "calibration", f"an exponent of {known.exponent:g}", f"{asked} with {given.exponent:g}")
    if given.thresholds != known.thresholds:
        raise _mismatch(path, "calibration", "its own thresholds for false match rates", f"{asked} with others")


def _calibration_of(settings: Settings, resolved: ResolvedWeights) -> Calibration:
    """What a new store is calibrated with: what the settings name, else the weights' own."""
    if settings.model.calibration is None:
        if resolved.weight_set.preprocessing.centre_sha256 and not settings.embed.centre:
            return Calibration(note="none: that of the weights is for centred embeddings")
        return Calibration(**resolved.weight_set.calibration.as_dict())
    preprocessing = _preprocessing(settings, resolved)
    return _read_calibration(settings.model.calibration, resolved.sha256, settings.output_settings(), preprocessing)


def _preprocessing(settings: Settings, resolved: ResolvedWeights) -> dict[str, Any]:
    """That of the weights; the centre only where it is subtracted."""
    preprocessing = resolved.weight_set.preprocessing
    if not settings.embed.centre:
        preprocessing = dataclasses.replace(preprocessing, centre_sha256=None)
    return preprocessing.as_dict()


def _read_calibration(
    name: str, weights_sha256: str, output_settings: Mapping[str, Any], preprocessing: Mapping[str, Any]
) -> Calibration:
    """Raises CalibrationInvalid."""
    if name == NO_CALIBRATION:
        return Calibration(note="none: distances are the model's own")
    return read_calibration(Path(name), weights_sha256, output_settings, preprocessing)


def _mismatch(path: Path, key: str, stored: object, given: object) -> StoreMismatch:
    return StoreMismatch(path=path, key=key, stored=stored, given=given, cure=_OTHER_STORE)


def load_extractor(
    settings: Settings, identity: StoreIdentity, path: Path, network_threads: int | None = None
) -> FaceExtractor:
    """Loads the store's models onto the settings' device; `network_threads` for each call of a network on the CPU
    (None: the settings' threads). Raises DeviceMissing, ModelError, StoreMismatch, BadValue."""
    device = resolve_device(settings.run.device)
    check_fast_mode(settings.run, device)
    set_tf32(device, settings.run.tf32)
    threads = set_threads(settings.run.threads)
    cache = cache_folder(settings.model.cache)
    resolved = resolve(identity.weights, _weights_file(settings), cache)
    if resolved.sha256 != identity.weights_sha256:
        raise _mismatch(path, "weights_sha256", identity.weights_sha256, resolved.sha256)
    for key, used in _preprocessing(settings, resolved).items():
        stored = identity.preprocessing.get(key, used)  # an older store may not have recorded it
        if stored != used:
            raise _mismatch(path, f"preprocessing.{key}", stored, used)
    runtime = choose_runtime(settings.run.backend, resolved.weight_set, device, cache, network_threads or threads)
    detector = MtcnnDetector(load_networks(detector_files(), device), settings.detect)
    dtype = fast_dtype(settings.run.precision, device) if settings.run.mode == FAST else None
    embedder = load_embedder(resolved, device, centred=settings.embed.centre, runtime=runtime, dtype=dtype)
    if settings.run.tf32:
        embedder.backend += " with TF32"
    # The engine's workers run the networks on streams of their own, which do not wait for the one of these copies.
    synchronize(device)
    return FaceExtractor(detector, embedder, settings)


def _weights_file(settings: Settings) -> Path | None:
    return Path(settings.model.weights_file) if settings.model.weights_file else None


def settle_account(client: Store, account: str | None) -> tuple[str, int]:
    """The account to work in, by name and id: the one named, or the only one there is.

    In a store without accounts it is made, without a password: `facepipe account rotate` gives it one.
    Raises AccountUnknown, and UsageError when there are several and none was named.
    """
    known = client.accounts()
    if not known:
        name = account or DEFAULT_ACCOUNT
        return name, client.create_account(name, None)
    return find_account(client, account)


def find_account(client: Store, account: str | None) -> tuple[str, int]:
    """The account named, or the only one there is, by name and id.

    Raises AccountUnknown, and UsageError when there are several and none was named.
    """
    known = client.accounts()
    if account is None and len(known) > 1:
        raise UsageError(message=f"The store has several accounts ({', '.join(known)}): name one with --account.")
    name = account or (known[0] if known else DEFAULT_ACCOUNT)
    return name, client.account_id(name)
