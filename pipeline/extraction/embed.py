"""Turns face crops into embeddings: vectors whose distance says how unlike two faces are.

Schroff et al. 2015, "FaceNet: A Unified Embedding for Face Recognition and Clustering".
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from pipeline.config import FLOAT32
from pipeline.models.backend import TorchSource, backend_of, load_openvino
from pipeline.models.load import load_torch_network
from pipeline.models.networks.openvino import OpenVino, OpenVinoNetwork
from pipeline.models.registry import WeightSet
from pipeline.models.weights import ResolvedWeights, load_centre
from pipeline.runtime.device import padded
from pipeline.runtime.stage_times import CallCounts
from pipeline.types import FloatArray

# Crops in one forward pass, by type of device: bounds the memory (some 10 MB a crop), and more gains nothing on a CPU.
# CUDA's was not measured: there each call costs the launches of its kernels, and memory is what bounds it.
BATCH_CROPS: Final = {"cpu": 32, "cuda": 256}


class Embedder:
    """An embedding network on one device; its embeddings less `centre` [d], if there is one.

    The network computes in `dtype`; what is subtracted from pixels and embeddings, and their norm, are float32 always.
    `counts` tells how often the network ran, and over how many crops.
    """

    def __init__(
        self,
        weights: WeightSet,
        network: nn.Module | OpenVinoNetwork,
        device: torch.device,
        centre: FloatArray | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name = weights.name
        self.input_size = weights.input_size
        self.embedding_size = weights.embedding_size
        self.alignment = weights.preprocessing.alignment
        self.device = device
        self.backend = backend_of(network)
        self.counts = CallCounts()
        self._preprocessing = weights.preprocessing
        self._dtype = dtype
        self._network = network if isinstance(network, OpenVinoNetwork) else network.to(device, dtype)
        # torch's networks are channels_last; OpenVINO arranges the channels itself.
        self._layout = torch.contiguous_format if isinstance(network, OpenVinoNetwork) else torch.channels_last
        self._centre = None if centre is None else torch.from_numpy(centre).to(device)

    @torch.inference_mode()
    def __call__(self, crops: torch.Tensor) -> torch.Tensor:
        """crops [n, 3, S, S] float32 RGB in [0, 255], S the `input_size` -> [n, d] float32 of L2 norm 1, on the device.

        n may be 0, and any number: it goes through the network in parts of at most the device's BATCH_CROPS. A crop's
        embedding does not depend on its neighbours, but for rounding (about 1e-6). Raises ValueError for another shape.
        """
        size = self.input_size
        if crops.ndim != 4 or tuple(crops.shape[1:]) != (3, size, size):
            raise ValueError(f"crops must be [n, 3, {size}, {size}], not {list(crops.shape)}")
        if not len(crops):
            return torch.empty(0, self.embedding_size, device=self.device)
        most = BATCH_CROPS[self.device.type]
        on_cpu = self.device.type == "cpu"  # as even as can be; else in few shapes
        parts = torch.tensor_split(crops, -(-len(crops) // most)) if on_cpu else torch.split(crops, most)
        return torch.cat([self._forward(part) for part in parts])

    def _forward(self, crops: torch.Tensor) -> torch.Tensor:
        self.counts.add(len(crops))
        pixels = crops.to(self.device, torch.float32, memory_format=self._layout)
        scaled = pixels.sub(self._preprocessing.mean).mul_(self._preprocessing.scale)
        inputs = padded(scaled.to(self._dtype))
        if isinstance(self._network, OpenVinoNetwork):
            embeddings = torch.from_numpy(self._network(inputs.numpy()))[: len(crops)]
        else:
            embeddings = self._network(inputs)[: len(crops)]
        normed = functional.normalize(embeddings.float(), dim=1)
        return normed if self._centre is None else functional.normalize(normed - self._centre, dim=1)


def load_embedder(
    resolved: ResolvedWeights,
    device: torch.device,
    *,
    centred: bool = False,
    runtime: OpenVino | None = None,
    precision: str | None = None,
) -> Embedder:
    """The embedder of `resolved` on `device`.

    `centred`: with the centre of its weights, if they have one. `runtime`: OpenVINO on the CPU; None: torch.
    `precision`: what the network computes in, which its `backend` then names; None: float32. Raises WeightsMissing or
    WeightsCorrupt.
    """
    centre = load_centre(resolved.weight_set) if centred else None
    network, used, dtype = None, FLOAT32, torch.float32
    if runtime is not None:
        size = resolved.weight_set.input_size
        source = TorchSource(resolved.name, resolved.sha256, (3, size, size), lambda: load_torch_network(resolved))
        network = load_openvino(source, runtime, precision or FLOAT32)
        if network is not None:  # takes and gives float32, whatever it computes in
            used = network.precision
    elif precision is not None:
        used, dtype = precision, getattr(torch, precision)
    embedder = Embedder(resolved.weight_set, network or load_torch_network(resolved), device, centre, dtype)
    if precision is not None:
        embedder.backend += f" in {used}"
    return embedder
