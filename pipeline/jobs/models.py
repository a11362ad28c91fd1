"""Loads the models of a store, and reports their work."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from pipeline.config import FAST, Settings
from pipeline.errors import StoreMismatch
from pipeline.extraction.detection.cascade import MtcnnDetector, MtcnnNetworks
from pipeline.extraction.embed import Embedder, load_embedder
from pipeline.extraction.extractor import BatchExtractor, FaceModel
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.device_jpeg import decodes_on_device, load_nvimgcodec
from pipeline.jobs.run_report import WorkDone
from pipeline.jobs.store_identity import preprocessing_of, settings_of_generation, weights_file
from pipeline.models.backend import choose_backend, fast_precision
from pipeline.models.weights import ResolvedWeights, cache_folder, detector_arrays, detector_files, resolve
from pipeline.runtime.device import HOST, describe, device_errors, resolve_device, synchronize
from pipeline.runtime.optional_kernels import if_compiled
from pipeline.runtime.precision import check_fast_mode, set_tf32
from pipeline.runtime.stage_times import PNET
from pipeline.runtime.threads import set_threads
from pipeline.store import StoreIdentity


def load_extractor(
    settings: Settings,
    identity: StoreIdentity,
    path: Path,
    network_threads: int | None = None,
    other: StoreIdentity | None = None,
) -> BatchExtractor:
    """Loads the models of the store at `path` onto the settings' device. `other`: a second generation that also embeds
    the faces.

    `network_threads`: per network call on the CPU (None: the settings' threads). Raises DeviceError, ModelError,
    BadValue, and StoreMismatch if the weights or their preprocessing are not the store's.
    """
    if decodes_on_device(settings.run):
        load_nvimgcodec()  # fails early if it is missing
    device = resolve_device(settings.run.device)
    check_fast_mode(settings.run, device)
    set_tf32(device, settings.run.tf32)
    cache = cache_folder(settings.model.cache)
    resolved = resolve(identity.weights, weights_file(settings), cache)
    with device_errors():
        embedder = _load_embedder(settings, identity, path, resolved, network_threads)
        detector = MtcnnDetector(load_detector(device, cache), settings.detect)
        extractor = BatchExtractor(detector, embedder, settings, identity.model)
        if other is not None:
            extractor.measure_also(load_other(settings, other, path, network_threads))
        # Workers run the networks on their own streams, which do not wait for these copies.
        synchronize(device)
    return extractor


def load_other(
    settings: Settings, identity: StoreIdentity, path: Path, network_threads: int | None = None
) -> FaceModel:
    """Loads the store's other generation's model from the cache. Raises as `load_extractor`."""
    settings = settings_of_generation(settings, identity)
    resolved = resolve(identity.weights, None, cache_folder(settings.model.cache))
    with device_errors():
        embedder = _load_embedder(settings, identity, path, resolved, network_threads)
        synchronize(embedder.device)
    return FaceModel(embedder, settings.align, identity.model)


def _load_embedder(
    settings: Settings, identity: StoreIdentity, path: Path, resolved: ResolvedWeights, network_threads: int | None
) -> Embedder:
    if resolved.sha256 != identity.weights_sha256:
        raise StoreMismatch(path=path, key="weights_sha256", stored=identity.weights_sha256, given=resolved.sha256)
    for key, value in preprocessing_of(settings, resolved).items():
        stored = identity.preprocessing.get(key, value)  # an older store may not have it
        if stored != value:
            raise StoreMismatch(path=path, key=f"preprocessing.{key}", stored=stored, given=value)
    device, cache = resolve_device(settings.run.device), cache_folder(settings.model.cache)
    threads = set_threads(settings.run.threads)
    threads_each = network_threads or threads
    runtime = choose_backend(settings.run.backend, device, cache, threads_each, calls=max(1, threads // threads_each))
    precision = fast_precision(settings.run.precision, device, runtime) if settings.run.mode == FAST else None
    embedder = load_embedder(resolved, device, centred=settings.embed.centre, runtime=runtime, precision=precision)
    if settings.run.tf32:
        embedder.backend += " with TF32"
    return embedder


def load_detector(device: str, cache: Path) -> MtcnnNetworks:
    """Loads the detector: compiled loops on a CPU with numba, else torch. Raises WeightsMissing or WeightsCorrupt."""
    if device == HOST and (loops := load_host_networks()):
        networks: MtcnnNetworks = loops.HostNetworks(detector_arrays(cache))
        return networks
    from pipeline.extraction.detection.torch_networks import load_networks

    return load_networks(detector_files(), device)


@if_compiled
def load_host_networks() -> ModuleType:
    """MTCNN in compiled loops."""
    from pipeline.extraction.detection import host_networks

    return host_networks


def work_of(decoder: Decoder, extractor: BatchExtractor | None) -> WorkDone:
    """Returns the work so far, without times. `extractor`: None before it is loaded."""
    return WorkDone(
        device=describe(extractor.device) if extractor else None,
        backend=extractor.embedder.backend if extractor else None,
        decoded=decoder.counts.calls,
        detector_calls=extractor.detector.counts[PNET].calls if extractor else 0,
        embedder_calls=extractor.embedder.counts.calls if extractor else 0,
    )
