"""Networks in onnxruntime, and in our compiled loops where those need fewer operations: faster than torch on a CPU.

onnxruntime is optional: without it torch does the same; so is numba, without which there are no loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from torch import nn

from pipeline.errors import BadValue
from pipeline.models.architectures import ARCHITECTURES
from pipeline.models.onnx_graph import Array, read_onnx, read_outputs
from pipeline.models.onnx_split import GraphPart, Run, cut
from pipeline.models.onnx_trace import INPUT
from pipeline.models.onnx_write import write_onnx
from pipeline.models.registry import WeightSet

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


def choose_runtime(
    backend: str, weights: WeightSet, device: torch.device, cache: Path, threads: int
) -> OnnxRuntime | None:
    """The runtime that the setting `run.backend` means for these weights on this device; None: torch.

    `auto` takes onnxruntime on the CPU, if it is installed, for the networks that are faster in it. Raises BadValue
    where it was asked for and cannot be had.
    """
    gains = device.type == "cpu" and ARCHITECTURES[weights.architecture].gains_from_onnxruntime
    if backend not in (AUTO, ONNXRUNTIME) or (backend == AUTO and not gains):
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

    With `split`, what `cut` takes out of it runs in compiled loops, where numba is installed; all else, and without
    numba everything, in onnxruntime. However many items there are, they go through each part together, and the loops
    keep memory for some of them only; onnxruntime needs more for more. A forked child has none of its `threads`, and
    would wait for them for ever; only with one thread it may be used.
    """

    def __init__(self, model: bytes, threads: int, *, split: bool = False) -> None:
        super().__init__()
        self.version = str(_module().__version__)
        self._outputs = read_outputs(model)
        parts = cut(read_onnx(model), self._outputs) if split else None
        self._steps: list[_Step] = [_step(part, threads) for part in parts or ()]
        if not self._steps:
            self._steps.append(_Session(model, self._outputs, threads))
        later = [{name for step in self._steps[i + 1 :] for name in step.inputs} for i in range(len(self._steps))]
        self._needed = [{*self._outputs, *names} for names in later]

    def forward(self, pixels: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """[n, *shape] float32 -> as the torch network that was exported: one tensor, or a tuple of several."""
        tensors = tuple(torch.from_numpy(answer) for answer in self._answers(pixels.contiguous().numpy()))
        return tensors[0] if len(tensors) == 1 else tensors

    def _answers(self, pixels: Array) -> list[Array]:
        values = {INPUT: pixels}
        for step, needed in zip(self._steps, self._needed, strict=True):
            made = step([values[name] for name in step.inputs])
            values |= dict(zip(step.outputs, made, strict=True))
            values = {name: value for name, value in values.items() if name in needed}
        return [values[name] for name in self._outputs]


class _Session:
    """onnxruntime for a model or a part of one."""

    def __init__(self, model: bytes, outputs: Sequence[str], threads: int) -> None:
        onnxruntime = _module()
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
        self.inputs = tuple(value.name for value in self._session.get_inputs())
        self.outputs = tuple(outputs)

    def __call__(self, values: Sequence[Array]) -> Sequence[Array]:
        answers: Sequence[Array] = self._session.run(self.outputs, dict(zip(self.inputs, values, strict=True)))
        return answers


class _Loops:
    """The compiled loops for a run of steps; each of the threads has some of the items, so one item has one thread."""

    def __init__(self, run: Run, threads: int) -> None:
        self._loops = run.loops
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="loops") if threads > 1 else None
        self.inputs, self.outputs = (run.input,), (run.output,)

    def __call__(self, values: Sequence[Array]) -> Sequence[Array]:
        (pictures,) = values
        if self._pool is None or len(pictures) < 2:
            return [self._loops(pictures)]
        parts = np.array_split(pictures, min(self._threads, len(pictures)))
        return [np.concatenate(list(self._pool.map(self._loops, parts)))]


_Step: TypeAlias = "_Session | _Loops"


def _step(part: GraphPart | Run, threads: int) -> _Step:
    if isinstance(part, Run):
        return _Loops(part, threads)
    return _Session(write_onnx(part.graph, dict.fromkeys(part.inputs), part.outputs, {}), part.outputs, threads)


def backend_of(network: nn.Module) -> str:
    """What reports say of a network: "onnxruntime 1.23.2" or "torch 2.9.0"."""
    return f"{ONNXRUNTIME} {network.version}" if isinstance(network, OnnxNetwork) else f"torch {torch.__version__}"


def _module() -> Any:
    """onnxruntime, imported when it is first needed. Raises ImportError."""
    module = import_module("onnxruntime")
    try:
        module.set_default_logger_severity(_ERRORS_ONLY)
    except AttributeError as exc:  # the folder that an uninstallation left is a module, too, of nothing
        raise ImportError("its installation is incomplete") from exc
    return module
