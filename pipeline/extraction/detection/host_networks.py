"""MTCNN's networks on the host, in compiled loops. Needs numba."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.extraction.detection import network_kernels
from pipeline.extraction.detection.pyramid import Cells, Level
from pipeline.extraction.detection.row_convolutions import packed_layer
from pipeline.extraction.images.batch import HostBatch, host_memory
from pipeline.runtime.stage_times import ONET, RNET, CallCounts
from pipeline.runtime.threads import over_threads, single_threaded_blas
from pipeline.types import ByteArray, FloatArray

Weights = Mapping[str, FloatArray]  # a network's parameters by facenet-pytorch's names
_CROPS_PER_JOB: Final = 32  # the loops process 8 at a time


class HostNetworks:
    """P-, R- and O-Net in float32: see `cascade.MtcnnNetworks`."""

    device: Final = "cpu"
    crops_per_call: Final = 512

    def __init__(self, weights: Mapping[str, Weights]) -> None:
        """`weights` of "pnet", "rnet" and "onet"."""
        pnet = weights["pnet"]
        first, second, third = _packed_layers(pnet, 3)
        face, box = (_layer(pnet, name) for name in ("conv4_1", "conv4_2"))
        self._pnet = (first, second, third, _flat(*face), _flat(*box))  # arguments of `network_kernels.scan_level`
        self._crop_networks = {
            RNET: CropNetwork(weights["rnet"], network_kernels.rnet_features, 3, "4", ("5_2", "5_1")),
            ONET: CropNetwork(weights["onet"], network_kernels.onet_features, 4, "5", ("6_2", "6_3", "6_1")),
        }

    def computing(self) -> AbstractContextManager[object]:
        return single_threaded_blas()

    def memory(self, pixels: int) -> ByteArray:
        return host_memory(pixels)

    def batch(self, images: Sequence[ByteArray], memory: ByteArray | None = None) -> HostBatch:
        return HostBatch(images, memory)

    def likely_cells(
        self, batch: HostBatch, pyramids: Sequence[Sequence[Level]], threshold: float, counts: CallCounts
    ) -> Cells:
        """Runs P-Net by level, on several threads, independently of the batch."""
        jobs = [(image, k, level) for image, levels in enumerate(pyramids) for k, level in enumerate(levels)]
        order = sorted(range(len(jobs)), key=lambda j: -jobs[j][2].height * jobs[j][2].width)  # long jobs first
        found = over_threads(lambda j: self._scan(batch.image(jobs[j][0]), jobs[j][2], threshold), order)
        by_job = dict(zip(order, found, strict=True))
        counts.add(len(jobs))
        return _joined(jobs, [by_job[j] for j in range(len(jobs))])

    def _scan(self, pixels: ByteArray, level: Level, threshold: float) -> tuple[npt.NDArray[np.int32], FloatArray]:
        """A level's likely cells: (row, column) [n, 2], and probability and regression [n, 5]."""
        room = max(0, (level.height - 1) // 2 - 4) * max(0, (level.width - 1) // 2 - 4)
        # Pages never written take no memory.
        cells, answers = np.empty((room, 2), np.int32), np.empty((room, 5), np.float32)
        rows = pixels.reshape(len(pixels), -1)
        sides = level.height, level.width
        count = network_kernels.scan_level(rows, *sides, *self._pnet, threshold, cells, answers)
        return cells[:count].copy(), answers[:count].copy()

    def run(self, stage: str, pixels: FloatArray) -> tuple[FloatArray, ...]:
        return self._crop_networks[stage](pixels)


class CropNetwork:
    """R- or O-Net: [n, 3, size, size] float32 in [0, 255] -> outputs [n, width], probabilities last."""

    def __init__(
        self,
        weights: Weights,
        loop: Callable[..., None],
        convolutions: int,
        dense: str,
        outputs: Sequence[str],
    ) -> None:
        """`loop` has the convolutions; `dense` and `outputs` number the dense layers."""
        self._loop = loop
        self._layers = _packed_layers(weights, convolutions)
        self._dense = _dense(weights, dense)
        self._slope = weights[f"prelu{dense}.weight"]
        self._outputs = [_dense(weights, number) for number in outputs]

    def __call__(self, pixels: FloatArray) -> tuple[FloatArray, ...]:
        jobs = [slice(start, start + _CROPS_PER_JOB) for start in range(0, max(len(pixels), 1), _CROPS_PER_JOB)]
        parts = over_threads(lambda job: self._outputs_of(pixels[job]), jobs)
        *regressions, logits = (np.concatenate(column) for column in zip(*parts, strict=True))
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return (*regressions, odds / odds.sum(axis=1, keepdims=True))

    def _outputs_of(self, pixels: FloatArray) -> list[FloatArray]:
        features = np.empty((len(pixels), len(self._dense[0])), np.float32)
        self._loop(pixels, *self._layers, features)
        x = _product(features, *self._dense)
        x = np.where(x > 0, x, self._slope * x)
        return [_product(x, *layer) for layer in self._outputs]


def _packed_layers(weights: Weights, count: int) -> list[FloatArray]:
    """The first `count` convolutions with their activations, packed for the loops."""
    return [packed_layer(*_layer(weights, f"conv{k}"), weights[f"prelu{k}.weight"]) for k in range(1, count + 1)]


def _layer(weights: Weights, name: str) -> tuple[FloatArray, FloatArray]:
    """A layer's weight and bias."""
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _dense(weights: Weights, number: str) -> tuple[FloatArray, FloatArray]:
    """A dense layer's, for `network_kernels.dense`."""
    weight, bias = _layer(weights, f"dense{number}")
    return np.ascontiguousarray(weight.T), bias


def _product(x: FloatArray, weight: FloatArray, bias: FloatArray) -> FloatArray:
    out = np.empty((len(x), len(bias)), np.float32)
    network_kernels.dense(x, weight, bias, out)
    return out


def _flat(weight: FloatArray, bias: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A 1 x 1 convolution as a dense layer."""
    return np.ascontiguousarray(weight.reshape(len(weight), -1)), bias


def _joined(jobs: Sequence[tuple[int, int, Level]], parts: Sequence[tuple[npt.NDArray[np.int32], FloatArray]]) -> Cells:
    """The cells of all jobs: (image, level's index, level)."""
    counts = [len(cells) for cells, _ in parts]
    image, level = (np.repeat(np.array([job[k] for job in jobs], dtype=np.int64), counts) for k in (0, 1))
    scale = np.repeat(np.array([job[2].scale for job in jobs], dtype=np.float32), counts)
    cells = np.concatenate([np.empty((0, 2), np.int32), *(part for part, _ in parts)]).astype(np.int64)
    answers = np.concatenate([np.empty((0, 5), np.float32), *(part for _, part in parts)])
    return Cells(image, level, scale, cells[:, 1], cells[:, 0], answers[:, 0], answers[:, 1:])
