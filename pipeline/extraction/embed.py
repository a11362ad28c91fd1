"""Embeds face crops as vectors; their distance measures the faces' difference.

Schroff et al. 2015, "FaceNet: A Unified Embedding for Face Recognition and Clustering".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from pipeline.config import FLOAT32, OPENVINO
from pipeline.models.backend import TorchSource, load_openvino
from pipeline.models.networks.openvino import OpenVino
from pipeline.models.registry import WeightSet
from pipeline.models.weights import ResolvedWeights, load_centre
from pipeline.runtime.arrays import like, module_of, on_host
from pipeline.runtime.device import HOST, is_cuda
from pipeline.runtime.stage_times import CallCounts
from pipeline.types import Array, FloatArray

if TYPE_CHECKING:
    from torch import nn

# Crops per forward pass, bounded by memory (some 10 MB per crop); more gains nothing on a CPU. An H100 takes 40 ms for
# 256 in float32 and 10 in float16; smaller parts would be bound by launches.
BATCH_CROPS: Final = {"cpu": 32, "cuda": 256}
_MIN_NORM: Final = 1e-12  # avoids 0 / 0

Network: TypeAlias = Callable[[Array], Array]  # [n, 3, S, S] float32, preprocessed -> [n, d] float32


class Embedder:
    """An embedding network on one device, with an optional `centre` [d] to subtract.

    `counts` counts its calls and crops; `backend` is its name in reports.
    """

    def __init__(
        self,
        weights: WeightSet,
        network: Network,
        device: str = HOST,
        centre: FloatArray | None = None,
        backend: str = "",
    ) -> None:
        self.name = weights.name
        self.input_size = weights.input_size
        self.embedding_size = weights.embedding_size
        self.alignment = weights.preprocessing.alignment
        self.device = device
        self.backend = backend
        self.counts = CallCounts()
        self._preprocessing = weights.preprocessing
        self._network = network
        self._centre = centre

    def __call__(self, crops: Array) -> Array:
        """crops [n, 3, S, S] float32 RGB in [0, 255], S the `input_size` -> [n, d] float32 of L2 norm 1.

        n may be 0; larger n is split by BATCH_CROPS. Embeddings do not depend on neighbours, except for rounding (about
        1e-6). Raises ValueError for another shape.
        """
        size, count = self.input_size, len(crops)
        if crops.ndim != 4 or tuple(crops.shape[1:]) != (3, size, size):
            raise ValueError(f"crops must be [n, 3, {size}, {size}], not {list(crops.shape)}")
        if not count:
            return crops.reshape(0, 3 * size**2)[:, : self.embedding_size]
        step = BATCH_CROPS["cuda" if is_cuda(self.device) else "cpu"]
        if not is_cuda(self.device):  # even parts; on CUDA few shapes instead
            step = -(-count // -(-count // step))
        parts = [self._forward(crops[start : start + step]) for start in range(0, count, step)]
        return module_of(crops).concatenate(parts, axis=0)

    def _forward(self, crops: Array) -> Array:
        self.counts.add(len(crops))
        embeddings = self._network((crops - self._preprocessing.mean) * self._preprocessing.scale)
        normed = _normalised(embeddings)
        return normed if self._centre is None else _normalised(normed - like(normed, self._centre))


def _normalised(vectors: Array) -> Array:
    xp = module_of(vectors)
    return vectors / xp.sqrt(xp.square(vectors).sum(axis=1, keepdims=True)).clip(min=_MIN_NORM)


def load_embedder(
    resolved: ResolvedWeights,
    device: str = HOST,
    *,
    centred: bool = False,
    runtime: OpenVino | None = None,
    precision: str | None = None,
) -> Embedder:
    """The embedder of `resolved` on `device`.

    `centred` subtracts the weights' centre, if any. `runtime`: OpenVINO on the CPU; None: torch. `precision` of the
    network, then named in `backend`; None: float32. Raises WeightsMissing or WeightsCorrupt.
    """
    centre = load_centre(resolved.weight_set) if centred else None
    size = resolved.weight_set.input_size
    converted = None
    if runtime is not None:
        source = TorchSource(resolved.name, resolved.sha256, (3, size, size), partial(_torch_module, resolved))
        converted = load_openvino(source, runtime, precision or FLOAT32)
    if converted is not None:  # its input and output are always float32
        network, used, backend = _on_arrays(converted), converted.precision, f"{OPENVINO} {converted.version}"
    else:
        import torch

        from pipeline.models.load import TorchNetwork

        used = FLOAT32 if runtime is not None else precision or FLOAT32
        network, backend = TorchNetwork(_torch_module(resolved), device, used), f"torch {torch.__version__}"
    if precision is not None:
        backend += f" in {used}"
    return Embedder(resolved.weight_set, network, device, centre, backend)


def _torch_module(resolved: ResolvedWeights) -> nn.Module:
    from pipeline.models.load import load_torch_network

    return load_torch_network(resolved)


def _on_arrays(network: Callable[[FloatArray], FloatArray]) -> Network:
    """Accepts any array for a network of NumPy arrays."""
    return lambda pixels: like(pixels, network(on_host(pixels)))
