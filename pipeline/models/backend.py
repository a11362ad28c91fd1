"""Selects the embedders' backend: OpenVINO, faster on a CPU, or torch, with the same results.

A torch network is converted once per weight set, compared with torch, and cached with its origin and deviation.
Missing, damaged or stale files are replaced. torch is imported only to convert.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipeline.config import AUTO, BFLOAT16, FLOAT16, FLOAT32, OPENVINO
from pipeline.errors import BadValue, CacheUnwritable, WeightsCorrupt
from pipeline.models.files.cache import cache_errors, exclusive
from pipeline.models.files.converted import check_converted, read_metadata, write_arrays
from pipeline.models.networks.openvino import OpenVino, OpenVinoNetwork, core, openvino, openvino_version
from pipeline.runtime.device import HOST
from pipeline.texts import install_extra
from pipeline.types import ByteArray

if TYPE_CHECKING:
    from torch import nn

CPU_INFO: Final = Path("/proc/cpuinfo")

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class TorchSource:
    """A torch network to convert."""

    name: str  # of the cached file
    weights_sha256: str
    shape: tuple[int, ...]  # of one input, without the batch dimension
    build: Callable[[], nn.Module]  # the network in eval mode on the CPU


def choose_backend(backend: str, device: str, cache_folder: Path, threads: int, calls: int = 1) -> OpenVino | None:
    """Resolves the setting `run.backend` on `device`; None: torch. `auto` is OpenVINO on a CPU if installed.

    Raises BadValue if a requested OpenVINO cannot be used.
    """
    if backend not in (AUTO, OPENVINO):
        return None
    problem = f"it runs on the CPU, and the device is {device}"
    if device == HOST:
        try:
            return OpenVino(openvino_version(), cache_folder, threads, calls)
        except ImportError as exc:
            problem = f"it cannot be imported ({exc}): {install_extra('fast')}, or use auto or torch"
    if backend == AUTO:
        return None
    raise BadValue(key="run.backend", where="the settings", value=OPENVINO, expected=problem)


def fast_precision(precision: str, device: str, runtime: OpenVino | None) -> str:
    """The embedder's precision in the mode `fast`, for the setting `precision`.

    `auto` on CUDA is float16: as fast as bfloat16, three more bits of mantissa, and the activations stay far below its
    maximum. On a CPU it is bfloat16 if OpenVINO gains from it, else float32. Raises BadValue for bfloat16 on a CPU
    without OpenVINO: torch is slower in it than in float32.
    """
    if precision == AUTO:
        if device != HOST:
            return FLOAT16
        return BFLOAT16 if runtime is not None and _gains_from_bfloat16() else FLOAT32
    if precision == BFLOAT16 and device == HOST and runtime is None:
        problem = "on a CPU that needs OpenVINO, and torch runs the embedder"
        raise BadValue(key="run.precision", where="the settings", value=precision, expected=problem)
    return precision


def _gains_from_bfloat16() -> bool:
    """Whether OpenVINO is faster in bfloat16 than in float32 on this processor.

    An AMD with AVX-512 BF16 took half of float32's time; an Intel with it but without AMX (as in many virtual machines)
    1.5 times as long.
    """
    if "BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    intel = "Intel" in core().get_property("CPU", "FULL_DEVICE_NAME")
    return not intel or (CPU_INFO.exists() and "amx_bf16" in CPU_INFO.read_text())


def load_openvino(source: TorchSource, runtime: OpenVino, precision: str = FLOAT32) -> OpenVinoNetwork | None:
    """The network in OpenVINO; None if its results differ and torch must run it.

    Raises what `source.build` raises. An unwritable cache only costs time.
    """
    model = _model(source, runtime)
    return None if model is None else OpenVinoNetwork(model, runtime, precision)


def _model(source: TorchSource, runtime: OpenVino) -> Any:
    """The model from the cache, or converted and cached; None if torch must run it."""
    path, claims = runtime.cache / f"{source.name}.openvino", _claims(source, runtime)
    if (found := _cached(path, claims)) is not None:
        return _unpack(found)
    converted = None
    try:
        with exclusive(runtime.cache, path.name):
            if (found := _cached(path, claims)) is not None:  # another process made it
                return _unpack(found)
            converted = _convert(source, runtime)
            _write(path, {**claims, **converted[1]}, converted[0])
    except CacheUnwritable:
        converted = converted or _convert(source, runtime)
    return converted[0]


def _convert(source: TorchSource, runtime: OpenVino) -> tuple[Any, dict[str, str]]:
    """The model (None if torch must run it), and its deviation from torch or the problem. Raises what `source.build`
    raises."""
    from pipeline.models.conversion.openvino import convert  # imports torch

    network = source.build()
    try:
        return convert(network, source.shape, runtime)
    except Exception as exc:  # noqa: BLE001 - OpenVINO raises many kinds for a network or a torch that it does not know
        _log.warning("%s stays in torch: OpenVINO could not convert it faithfully (%s)", source.name, exc)
        return None, {"problem": str(exc)[:500]}


def _claims(source: TorchSource, runtime: OpenVino) -> dict[str, str]:
    """A usable file's metadata. Builds of one torch version count as one."""
    return {
        "weights_sha256": source.weights_sha256,
        "code": _code(),
        "openvino": runtime.version,
        "torch": version("torch"),
    }


@cache
def _code() -> str:
    """A hash of the modules that convert, compare and store: a change invalidates files."""
    here = Path(__file__)
    files = [here, here.parent / "conversion" / "openvino.py", here.parent / "files" / "converted.py"]
    files += sorted((here.parent / "networks").glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _write(path: Path, facts: dict[str, str], model: Any) -> None:
    """Writes the file, without arrays if torch must run the network. Use it under `exclusive`. Raises
    CacheUnwritable."""
    # Fixed names: a killed process leaves at most one pair.
    saved = {"operations": path.with_suffix(".saving.xml"), "weights": path.with_suffix(".saving.bin")}
    arrays: dict[str, ByteArray] = {}
    try:
        with cache_errors(path.parent):
            if model is not None:
                openvino().save_model(model, saved["operations"], compress_to_fp16=False)
                arrays = {name: np.fromfile(file, np.uint8) for name, file in saved.items()}
    except RuntimeError as exc:  # from OpenVINO if the disk is full
        raise CacheUnwritable(path=path.parent, detail=str(exc)) from exc
    finally:
        for temporary in saved.values():
            with suppress(OSError):
                temporary.unlink()
    write_arrays(path, arrays, facts)


def _cached(path: Path, claims: dict[str, str]) -> dict[str, ByteArray] | None:
    """The file's arrays; None if it is missing, damaged or lacks any of `claims`."""
    try:
        return check_converted(path) if claims.items() <= read_metadata(path).items() else None
    except WeightsCorrupt:
        return None


def _unpack(arrays: dict[str, ByteArray]) -> Any:
    """The model; None without arrays: torch must run it."""
    if not arrays:
        return None
    return core().read_model(arrays["operations"].tobytes(), arrays["weights"].tobytes())
