"""Networks in onnxruntime, which is faster than torch on a CPU. It is optional: without it torch does the same."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pipeline.errors import BadValue
from pipeline.models.onnx_trace import INPUT

AUTO: Final = "auto"
ONNXRUNTIME: Final = "onnxruntime"
_ERRORS_ONLY: Final = 3  # onnxruntime's severity; its warnings are about hardware it looked for in vain
_PROVIDERS: Final = ("CPUExecutionProvider",)


@dataclass(frozen=True)
class OnnxRuntime:
    """The installed onnxruntime: exported networks are kept in `cache`, and each uses `threads` threads."""

    version: str
    cache: Path
    threads: int


def choose_runtime(backend: str, device: torch.device, cache: Path, threads: int) -> OnnxRuntime | None:
    """The runtime that the setting `run.backend` means on this device; None: torch.

    `auto` takes onnxruntime on the CPU, if it is installed. Raises BadValue where it was asked for and cannot be had.
    """
    if backend not in (AUTO, ONNXRUNTIME) or (backend == AUTO and device.type != "cpu"):
        return None
    problem = f"it runs on the CPU, and the device is {device}" if device.type != "cpu" else ""
    try:
        version = str(_module().__version__)
    except ImportError as exc:
        problem = problem or f'it cannot be imported ({exc}): pip install "facepipe[fast]", or take auto or torch'
    if not problem:
        return OnnxRuntime(version, cache, threads)
    if backend == AUTO:
        return None
    raise BadValue(key="run.backend", where="the settings", value=ONNXRUNTIME, expected=problem)


class OnnxNetwork(nn.Module):
    """A network that `exported` wrote, on the CPU. Several threads may call it at the same time.

    A forked child has none of its `threads`, and would wait for them for ever; only with one thread it may be used.
    """

    def __init__(self, model: bytes, threads: int) -> None:
        super().__init__()
        onnxruntime = _module()
        self.version = str(onnxruntime.__version__)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _ERRORS_ONLY
        # Given, or threads are pinned to cores which the process may not have.
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that wait for the next call would take the cores from the decoders and from other processes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # A pattern is kept for every batch size that was seen: the number of candidates differs from call to call.
        options.enable_mem_pattern = False
        self._session = onnxruntime.InferenceSession(model, options, providers=list(_PROVIDERS))
        # Kept for providers that fail at their first run, as the CPU's does not: as much memory again as the weights.
        self._session._model_bytes = None

    def forward(self, pixels: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """[n, *shape] float32 -> as the torch network that was exported: one tensor, or a tuple of several."""
        answers = self._session.run(None, {INPUT: pixels.contiguous().numpy()})
        tensors = tuple(torch.from_numpy(answer) for answer in answers)
        return tensors[0] if len(tensors) == 1 else tensors


def backend_of(network: nn.Module) -> str:
    """What reports say of a network: "onnxruntime 1.23.2" or "torch 2.9.0"."""
    return f"{ONNXRUNTIME} {network.version}" if isinstance(network, OnnxNetwork) else f"torch {torch.__version__}"


def _module() -> Any:
    """onnxruntime, imported when it is first needed. Raises ImportError."""
    module = import_module("onnxruntime")
    module.set_default_logger_severity(_ERRORS_ONLY)
    return module
