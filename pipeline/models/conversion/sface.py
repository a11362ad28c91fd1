"""Converts SFace's ONNX file to our module's tensors.

Weights are 8-bit numbers in blocks with a scale and a zero point each. Batch norms are folded, in float64, into the
neighbouring layer. Field numbers are from onnx/onnx.proto (ONNX 1.16). The file is known by its SHA-256, so its form is
not checked.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from pipeline.models.conversion.protobuf import Message
from pipeline.models.networks.sface import empty_network
from pipeline.types import DoubleArray, FloatArray

Array: TypeAlias = npt.NDArray[Any]

# TensorProto.DataType -> dtype; raw_data is always little-endian.
_DTYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 3: np.dtype("i1"), 7: np.dtype("<i8")}


def convert_onnx(data: bytes) -> dict[str, torch.Tensor]:
    """The state dict of `SFace` from the published ONNX file."""
    graph = Message(data).message(7)
    constants = dict(map(_constant, graph.messages(5)))
    operands: dict[str, list[list[Array]]] = defaultdict(list)  # of each kind of layer, in order
    norms: list[tuple[DoubleArray, DoubleArray]] = []
    for node in graph.messages(1):  # in an order of evaluation
        op, own = node.text(4), [constants[name] for name in node.texts(1) if name in constants]
        if op == "DequantizeLinear":
            constants[node.text(2)] = _dequantized(node, *own)
        elif op == "Reshape":
            constants[node.text(2)] = own[0].reshape(own[1])
        elif op == "BatchNormalization":
            norms.append(_batch_norm(node, *own))
        else:
            operands[op].append(own)
    *layer_norms, before, after = norms
    names = [name for name, _ in empty_network().layers.named_children()]
    tensors: dict[str, Array] = {}
    layers = zip(names, operands["Conv"], layer_norms, operands["PRelu"], strict=True)
    for name, (weight,), (scale, shift), (slope,) in layers:
        tensors[f"layers.{name}.conv.weight"] = weight * scale[:, None, None, None]
        tensors[f"layers.{name}.conv.bias"] = shift
        tensors[f"layers.{name}.relu.weight"] = slope.reshape(-1)
    ((weight, bias),) = operands["Gemm"]
    tensors["embedding.weight"], tensors["embedding.bias"] = _linear(weight, bias, before, after)
    return {name: torch.from_numpy(np.array(value, np.float32, order="C")) for name, value in tensors.items()}


def _constant(tensor: Message) -> tuple[str, Array]:
    """A TensorProto's name and array."""
    content = tensor.body(9) or tensor.body(4)  # raw bytes, or packed floats
    return tensor.text(8), np.frombuffer(content, _DTYPES[tensor.number(2)]).reshape(tensor.numbers(1))


def _attribute(node: Message, name: str) -> Message:
    return next(each for each in node.messages(5) if each.text(1) == name)


def _dequantized(node: Message, values: Array, scales: Array, zeros: Array) -> FloatArray:
    """DequantizeLinear of opset 21: (x - zero point) * scale, both per block of an axis."""
    axis, block = (_attribute(node, name).number(3) for name in ("axis", "block_size"))
    spread = np.arange(values.shape[axis]) // block
    # 8-bit differences are exact: only the product is rounded.
    difference = values.astype(np.int32) - zeros.astype(np.int32).take(spread, axis)
    return np.asarray(difference.astype(np.float32) * scales.take(spread, axis), np.float32)


def _batch_norm(node: Message, *parameters: Array) -> tuple[DoubleArray, DoubleArray]:
    """A batch norm in eval mode as y = scale * x + shift, per channel."""
    gamma, beta, mean, variance = (value.astype(np.float64) for value in parameters)
    (epsilon,) = struct.unpack("<f", _attribute(node, "epsilon").body(2))
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


def _linear(
    weight: Array, bias: Array, before: tuple[DoubleArray, DoubleArray], after: tuple[DoubleArray, DoubleArray]
) -> tuple[DoubleArray, DoubleArray]:
    """Weight and bias of the last layer with the batch norms around it."""
    scale, shift = before
    wide, cells = weight.astype(np.float64), weight.shape[1] // len(scale)
    bias = bias + wide @ np.repeat(shift, cells)
    after_scale, after_shift = after
    return after_scale[:, None] * wide * np.repeat(scale, cells), after_scale * bias + after_shift
