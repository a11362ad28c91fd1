"""The embedding networks in OpenVINO, which runs them on a CPU faster than torch does.

OpenVINO is optional: without it torch gives the same answers. A torch module is converted once per set of weights,
compared with torch, and kept in the cache. A file there starts with the SHA-256 of all that follows and a line of JSON,
which says what the model was made from and how near its answers are to torch's; then comes the model. A file that is
missing, damaged, or made from other weights, code or versions is replaced.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from pipeline.config import AUTO, BFLOAT16, FLOAT16, FLOAT32, OPENVINO
from pipeline.errors import BadValue, CacheUnwritable
from pipeline.models.files.cache import cache_errors, exclusive, replacing

CPU_INFO: Final = Path("/proc/cpuinfo")
MIN_COSINE: Final = 0.99999  # between an answer of torch and the converted network's

_CONTRASTS: Final = (1.0, 0.5, 0.1)  # of the noise that both networks are compared on, one item each
_HINTS: Final = {FLOAT32: "f32", BFLOAT16: "bf16"}
_FIRST_USE: Final = threading.Lock()
_DIGEST_BYTES: Final = 64  # of a SHA-256 in hexadecimal
_log: Final = logging.getLogger(__name__)


class ConversionUnfaithful(Exception):
    """The converted network's answers are too far from torch's, or there are none."""


@dataclass(frozen=True)
class OpenVino:
    """The installed OpenVINO. Converted networks are kept in `cache`; each call of one uses `threads` threads, and
    `calls` of them run at the same time."""

    version: str
    cache: Path
    threads: int
    calls: int = 1


@dataclass(frozen=True)
class TorchSource:
    """A torch network to convert."""

    name: str  # of the file in the cache
    weights_sha256: str
    shape: tuple[int, ...]  # of one input, without the batch dimension
    build: Callable[[], nn.Module]  # the network in eval mode on the CPU


def choose_backend(
    backend: str, device: torch.device, cache_folder: Path, threads: int, calls: int = 1
) -> OpenVino | None:
    """What the setting `run.backend` means on this device; None: torch. `auto` takes OpenVINO on a CPU if it is
    installed.

    Raises BadValue where OpenVINO was asked for and cannot be used.
    """
    if backend not in (AUTO, OPENVINO):
        return None
    problem = f"it runs on the CPU, and the device is {device}"
    if device.type == "cpu":
        try:
            return OpenVino(openvino_version(), cache_folder, threads, calls)
        except ImportError as exc:
            problem = f'it cannot be imported ({exc}): pip install "facepipe[fast]", or use auto or torch'
    if backend == AUTO:
        return None
    raise BadValue(key="run.backend", where="the settings", value=OPENVINO, expected=problem)


def fast_precision(precision: str, device: torch.device, runtime: OpenVino | None) -> str:
    """The embedder's precision in the mode `fast`, where the setting `run.precision` is `precision`.

    `auto` on CUDA is float16: it has three more bits of mantissa than bfloat16 and is as fast, and no activation of
    these networks comes near its largest number. On a CPU it is bfloat16 in OpenVINO where that is faster, else
    float32. Raises BadValue for bfloat16 on a CPU without OpenVINO: torch is slower in it than in float32.
    """
    if precision == AUTO:
        if device.type == "cuda":
            return FLOAT16
        return BFLOAT16 if runtime is not None and _gains_from_bfloat16() else FLOAT32
    if precision == BFLOAT16 and device.type == "cpu" and runtime is None:
        problem = "on a CPU that needs OpenVINO, and torch runs the embedder"
        raise BadValue(key="run.precision", where="the settings", value=precision, expected=problem)
    return precision


def _gains_from_bfloat16() -> bool:
    """Whether OpenVINO is faster in bfloat16 than in float32 on this processor.

    AMD's with AVX-512 BF16 took half of float32's time, an Intel with the same instructions but without AMX (as virtual
    machines often have it) one and a half times as long.
    """
    if "BF16" not in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return False
    intel = "Intel" in _core().get_property("CPU", "FULL_DEVICE_NAME")
    return not intel or (CPU_INFO.exists() and "amx_bf16" in CPU_INFO.read_text())


def openvino_version() -> str:
    """The version of the installed OpenVINO, such as "2026.4.1". Raises ImportError."""
    return str(_openvino().__version__).partition("-")[0]


def load_openvino(source: TorchSource, runtime: OpenVino, precision: str = FLOAT32) -> OpenVinoNetwork | None:
    """The network in OpenVINO; None where its answers would not be torch's, so that torch has to run it.

    Raises what `source.build` raises. A cache that cannot be written costs time, and is no error.
    """
    model = _model(source, runtime)
    return None if model is None else OpenVinoNetwork(model, runtime, precision)


def backend_of(network: nn.Module) -> str:
    """What reports call the network's backend: "openvino 2026.4.1" or "torch 2.9.0"."""
    return f"{OPENVINO} {network.version}" if isinstance(network, OpenVinoNetwork) else f"torch {torch.__version__}"


class OpenVinoNetwork(nn.Module):
    """A converted network, compiled for this processor; it computes in `precision` where the processor has that, else
    in float32.

    Several threads may call it. Each has a request of its own, and OpenVINO a stream for each of `runtime.calls` of
    them; further ones wait. A call runs on the thread that makes it, and with `runtime.threads` > 1 on more. A forked
    child has none of those, so it may use the network only where that is 1.
    """

    def __init__(self, model: Any, runtime: OpenVino, precision: str = FLOAT32) -> None:
        super().__init__()
        options = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": str(runtime.calls),
            "INFERENCE_NUM_THREADS": str(runtime.calls * runtime.threads),
            # The engine has threads of its own, and the process may not have every core.
            "ENABLE_CPU_PINNING": "NO",
        }
        self.version = runtime.version
        self._compiled = _core().compile_model(model, "CPU", options)
        used = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.precision = BFLOAT16 if used == _HINTS[BFLOAT16] else FLOAT32
        self._requests = threading.local()

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """[n, *shape] float32 -> what the torch network gives."""
        if not hasattr(self._requests, "of_thread"):
            self._requests.of_thread = self._compiled.create_infer_request()
        answers = self._requests.of_thread.infer({0: pixels.contiguous().numpy()}, share_inputs=True)
        return torch.from_numpy(answers[0])


def _model(source: TorchSource, runtime: OpenVino) -> Any:
    """The model from the cache, or converted and put there; None if torch has to run the network."""
    path, claims = runtime.cache / f"{source.name}.openvino", _claims(source, runtime)
    if (data := _read(path, claims)) is not None:
        return _unpack(data)
    converted = None
    try:
        with exclusive(runtime.cache, path.name):
            if (data := _read(path, claims)) is not None:  # another process made it meanwhile
                return _unpack(data)
            converted = _convert(source, runtime)
            _write(path, {**claims, **converted[1]}, converted[0])
    except CacheUnwritable:
        converted = converted or _convert(source, runtime)
    return converted[0]


def _convert(source: TorchSource, runtime: OpenVino) -> tuple[Any, dict[str, str]]:
    """The network converted, None if torch has to run it, and how near it is to torch's, or what the problem is. Raises
    what `source.build` raises."""
    network = source.build()
    try:
        with warnings.catch_warnings():  # torch.jit, which OpenVINO uses, is deprecated
            warnings.simplefilter("ignore")
            model = _openvino().convert_model(network, example_input=torch.zeros(2, *source.shape))
        model.reshape([-1, *source.shape])
        cosine, difference = compare(network, OpenVinoNetwork(model, runtime), source.shape)
    except Exception as exc:  # noqa: BLE001 - OpenVINO raises many kinds for a network or a torch that it does not know
        _log.warning("%s stays in torch: OpenVINO could not convert it faithfully (%s)", source.name, exc)
        return None, {"problem": str(exc)[:500]}
    return model, {"cosine": f"{cosine:.9f}", "max_difference": f"{difference:.3g}"}


@torch.inference_mode()
def compare(network: nn.Module, converted: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """The least cosine between an answer of torch and of the converted network, and the largest difference of a number.

    Raises ConversionUnfaithful for a cosine below MIN_COSINE.
    """
    noise = torch.rand(len(_CONTRASTS), *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    pixels = noise * torch.tensor(_CONTRASTS).view(-1, *(1,) * len(shape))
    expected, answers = network(pixels), converted(pixels)
    cosine = float(functional.cosine_similarity(expected.double(), answers.double()).min())
    difference = float((expected - answers).abs().max())
    if not cosine >= MIN_COSINE:  # true for NaN, too
        raise ConversionUnfaithful(f"a cosine of {cosine} and a difference of {difference}")
    return cosine, difference


def _claims(source: TorchSource, runtime: OpenVino) -> dict[str, str]:
    """What a file must say of itself to be used."""
    return {
        "weights_sha256": source.weights_sha256,
        "code": _code(),
        "openvino": runtime.version,
        "torch": torch.__version__,
    }


@cache
def _code() -> str:
    """A hash of this file and of the networks' modules: with other code the conversion is made and compared again."""
    here = Path(__file__)
    files = [here, *sorted((here.parent / "networks").glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _write(path: Path, facts: dict[str, str], model: Any) -> None:
    """Writes the file. Use it under `exclusive`. Raises CacheUnwritable."""
    # Fixed names, so that a killed process leaves at most one such pair.
    operations, weights = path.with_suffix(".saving.xml"), path.with_suffix(".saving.bin")
    try:
        with cache_errors(path.parent):
            if model is not None:
                _openvino().save_model(model, operations, compress_to_fp16=False)
            parts = [file.read_bytes() if model is not None else b"" for file in (operations, weights)]
    except RuntimeError as exc:  # OpenVINO's, where there is no room
        raise CacheUnwritable(path=path.parent, detail=str(exc)) from exc
    finally:
        for temporary in (operations, weights):
            with suppress(OSError):
                temporary.unlink()
    content = json.dumps({**facts, "operations_bytes": str(len(parts[0]))}).encode() + b"\n" + b"".join(parts)
    with replacing(path) as file:
        file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def _unpack(data: bytes) -> Any:
    """The model of a whole file; None where it records that torch has to run the network."""
    facts, start = read_facts(data)
    weights = start + int(facts["operations_bytes"])
    return None if "problem" in facts else _core().read_model(data[start:weights], data[weights:])


def _read(path: Path, claims: dict[str, str]) -> bytes | None:
    """The file's bytes; None where it is missing, damaged or not what `claims` says."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if data[:_DIGEST_BYTES] != hashlib.sha256(memoryview(data)[_DIGEST_BYTES + 1 :]).hexdigest().encode():
        return None
    facts, _ = read_facts(data)
    return data if all(facts.get(key) == value for key, value in claims.items()) else None


def read_facts(data: bytes) -> tuple[dict[str, str], int]:
    """What a whole file says of itself, and where its model begins."""
    end = data.index(b"\n", _DIGEST_BYTES + 1)
    facts: dict[str, str] = json.loads(data[_DIGEST_BYTES + 1 : end])
    return facts, end + 1


@cache
def _core() -> Any:
    return _openvino().Core()


def _openvino() -> Any:
    """OpenVINO, imported when it is first needed, in a way that it calls nobody. Raises ImportError."""
    # Importing this package would look up the host of an analytics service and leave a file with an id of the user.
    # OpenVINO does without it where it cannot be imported.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    module = import_module("openvino")
    if not hasattr(module, "Core"):  # the folder that an uninstallation left is a module, too
        raise ImportError("its installation is incomplete")
    # It makes its tables of types when they are first used. Two threads that did so at once would wait for each other
    # forever, one of them with the interpreter's lock.
    with _FIRST_USE:
        module.Tensor(torch.zeros(1).numpy()).element_type.to_dtype()
    return module
