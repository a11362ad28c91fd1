"""A network that was converted from torch, in OpenVINO on the CPU. It needs no torch."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import BFLOAT16, FLOAT32
from pipeline.types import FloatArray

_HINTS: Final = {FLOAT32: "f32", BFLOAT16: "bf16"}
_FIRST_USE: Final = threading.Lock()


@dataclass(frozen=True)
class OpenVino:
    """The installed OpenVINO. Converted networks are kept in `cache`; each call of one uses `threads` threads, and
    `calls` of them run at the same time."""

    version: str
    cache: Path
    threads: int
    calls: int = 1


class OpenVinoNetwork:
    """A converted network, compiled for this processor; it computes in `precision` where the processor has that, else
    in float32.

    Several threads may call it. Each has a request of its own, and OpenVINO a stream for each of `runtime.calls` of
    them; further ones wait. A call runs on the thread that makes it, and with `runtime.threads` > 1 on more. A forked
    child has none of those, so it may use the network only where that is 1.
    """

    def __init__(self, model: Any, runtime: OpenVino, precision: str = FLOAT32) -> None:
        options = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": str(runtime.calls),
            "INFERENCE_NUM_THREADS": str(runtime.calls * runtime.threads),
            # The engine has threads of its own, and the process may not have every core.
            "ENABLE_CPU_PINNING": "NO",
        }
        self.version = runtime.version
        self._compiled = core().compile_model(model, "CPU", options)
        used = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.precision = BFLOAT16 if used == _HINTS[BFLOAT16] else FLOAT32
        self._requests = threading.local()

    def __call__(self, pixels: FloatArray) -> FloatArray:
        """[n, *shape] -> what the torch network gives."""
        if not hasattr(self._requests, "of_thread"):
            self._requests.of_thread = self._compiled.create_infer_request()
        answers: FloatArray = self._requests.of_thread.infer({0: np.ascontiguousarray(pixels)}, share_inputs=True)[0]
        return answers


def openvino_version() -> str:
    """The version of the installed OpenVINO, such as "2026.4.1". Raises ImportError."""
    return str(openvino().__version__).partition("-")[0]


@cache
def core() -> Any:
    return openvino().Core()


def openvino() -> Any:
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
        module.Tensor(np.zeros(1, np.float32)).element_type.to_dtype()
    return module
