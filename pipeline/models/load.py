"""Loads and verifies networks from resolved weights, without unpickling code."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from pipeline.errors import WeightsCorrupt
from pipeline.models.architectures import ARCHITECTURES
from pipeline.models.files.converted import read_converted
from pipeline.models.weights import ResolvedWeights, read_weights
from pipeline.runtime.arrays import on_host
from pipeline.runtime.device import padded
from pipeline.runtime.threads import tell_torch
from pipeline.types import Array


def load_torch_network(resolved: ResolvedWeights) -> nn.Module:
    """The network in torch, on the CPU, in float32 (`Architecture`). Raises WeightsMissing or WeightsCorrupt."""
    tensors = read_converted(resolved.path) if resolved.path.suffix == ".safetensors" else _read_state_dict(resolved)
    try:
        return ARCHITECTURES[resolved.weight_set.architecture].build(tensors)
    except RuntimeError as exc:
        raise _unusable(resolved, " ".join(str(exc).split())[:300]) from exc


class TorchNetwork:
    """An embedding network on `device`: [n, 3, S, S] float32, preprocessed -> [n, d] float32, of the input's kind
    (tensor there, or array), computed in `precision`."""

    def __init__(self, module: nn.Module, device: str, precision: str) -> None:
        tell_torch()  # may be imported only now
        self._dtype: torch.dtype = getattr(torch, precision)
        self._device = device
        self._module = module.to(device, self._dtype)

    @torch.inference_mode()
    def __call__(self, pixels: Array) -> Array:
        inputs = torch.as_tensor(pixels).to(self._device, self._dtype, memory_format=torch.channels_last)
        answers = self._module(padded(inputs))[: len(inputs)].float()
        return on_host(answers) if isinstance(pixels, np.ndarray) else answers


def _read_state_dict(resolved: ResolvedWeights) -> Mapping[str, torch.Tensor]:
    """A torch state dict, parsed from the bytes that are hashed."""
    data = read_weights(resolved.weight_set, resolved.path)
    if hashlib.sha256(data).hexdigest() != resolved.sha256:
        raise WeightsCorrupt(path=resolved.path, detail="it changed while it was read", cure="Run the command again.")
    try:
        state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as exc:
        raise _unusable(resolved, str(exc).split("\n", 1)[0]) from exc
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise _unusable(resolved, "it holds no plain state dict")
    return state


def _unusable(resolved: ResolvedWeights, detail: str) -> WeightsCorrupt:
    detail = f"no weights of {resolved.weight_set.architecture}: {detail}"
    return WeightsCorrupt(path=resolved.path, detail=detail, cure="Use another file.")
