"""A network converted from torch, in OpenVINO on the CPU. Needs no torch."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np

from pipeline.config import BFLOAT16, FLOAT32
from pipeline.types import FloatArray

_HINTS: Final = {FLOAT32: "f32", BFLOAT16: "bf16"}
_FIRST_USE: Final = threading.Lock()


@dataclass(frozen=True)
class OpenVino:
    """The installed OpenVINO. `cache` holds converted networks; `calls` calls run concurrently on `threads` threads
    each."""

    version: str
    cache: Path
    threads: int
    calls: int = 1


class OpenVinoNetwork:
    """A converted network, compiled for this processor; float32 if it lacks `precision`.

    Thread-safe: `runtime.calls` calls run at once, others wait. A call runs on the calling thread, and with
    `runtime.threads` > 1 also on others, which a forked child lacks: it must not call the network then.
    """

    def __init__(self, model: Any, runtime: OpenVino, precision: str = FLOAT32) -> None:
        options = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": str(runtime.calls),
            "INFERENCE_NUM_THREADS": str(runtime.calls * runtime.threads),
            # The engine has its own threads, and may not have every core.
            "ENABLE_CPU_PINNING": "NO",
        }
        self.version = runtime.version
        self._compiled = core().compile_model(model, "CPU", options)
        used = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.precision = BFLOAT16 if used == _HINTS[BFLOAT16] else FLOAT32
        # All at the start: OpenVINO crashed when one was created beside another's call.
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(runtime.calls):
            self._idle.put(self._compiled.create_infer_request())

    def __call__(self, pixels: FloatArray) -> FloatArray:
        """[n, *shape] -> the torch network's output."""
        request = self._idle.get()
        try:
            answers: FloatArray = request.infer({0: np.ascontiguousarray(pixels)}, share_inputs=True)[0]
        finally:
            self._idle.put(request)
        return answers


def openvino_version() -> str:
    """The installed version, such as "2026.4.1". Raises ImportError."""
    return str(openvino().__version__).partition("-")[0]


@cache
def core() -> Any:
    return openvino().Core()


def openvino() -> Any:
    """Imports OpenVINO without its telemetry, on first use. Raises ImportError."""
    # This package would look up an analytics host and store a user id. OpenVINO works without it.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    module = import_module("openvino")
    if not hasattr(module, "Core"):  # the folder left by an uninstallation imports, too
        raise ImportError("its installation is incomplete")
    # Type tables are created on first use: two threads at once would deadlock, one of them with the interpreter's lock.
    with _FIRST_USE:
        module.Tensor(np.zeros(1, np.float32)).element_type.to_dtype()
    return module
