"""Turns the frozen graph of InceptionResnetV1 into tensors under facenet-pytorch's names.

Every float constant of the graph is used: weights and biases become tensors, the residual scales are compared with the
module's, and the one guard against division by zero is known by name. Anything left over on either side is an error.
(The graph's integer constants are shapes and axes.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from pipeline.models.conversion.graphdef import read_float_constants
from pipeline.models.conversion.protobuf import GraphInvalid
from pipeline.models.networks.inception_resnet import empty_network
from pipeline.types import FloatArray

_PREFIX = "InceptionResnetV1/"
_NORM_EPSILON = "embeddings/Maximum/y"  # of the L2 norm; torch's normalize has its own
_REPEATS = {"Repeat": "repeat_1", "Repeat_1": "repeat_2", "Repeat_2": "repeat_3"}
_TOP = {"Mixed_6a": "mixed_6a", "Mixed_7a": "mixed_7a", "Block8": "block8"}
# Sandberg's layer names inside a branch, in order: 0a, 0b, 0c, then the strided 1a.
_ORDER = re.compile(r"Conv2d_([01][abc])?_?\dx\d")
_BOTTLENECK = {
    "weights": "last_linear.weight",
    "BatchNorm/Const": "last_bn.weight",
    "BatchNorm/beta": "last_bn.bias",
    "BatchNorm/moving_mean": "last_bn.running_mean",
    "BatchNorm/moving_variance": "last_bn.running_var",
}


def convert_graph(data: bytes) -> dict[str, torch.Tensor]:
    """The state dict of `InceptionResnetV1` from a serialised frozen graph. Raises GraphInvalid."""
    return convert_constants(read_float_constants(data))


def convert_constants(constants: Mapping[str, FloatArray]) -> dict[str, torch.Tensor]:
    """The state dict from the graph's float constants by name. Raises GraphInvalid unless they are all used and all
    tensors filled."""
    network = empty_network()
    left = {name: value for name, value in constants.items() if name != _NORM_EPSILON}
    _check_scales(left, network)
    modules = _branch_modules(left)
    tensors = {_tensor_name(name, modules): _as_torch(value) for name, value in left.items()}
    if len(tensors) != len(left):
        raise GraphInvalid("two constants of the graph map onto one tensor")
    tensors.update(_implied(network))
    check_complete(tensors, network)
    return tensors


def _check_scales(constants: dict[str, FloatArray], network: nn.Module) -> None:
    """Takes the residual scales (`.../mul/x`) out of `constants`; the module has them in its code."""
    for name in [name for name in constants if name.endswith("/mul/x")]:
        block: Any = network.get_submodule(_block(name.removeprefix(_PREFIX).split("/")[:-2]))
        if np.float32(block.scale) != constants.pop(name):
            raise GraphInvalid(f"the scale {name} differs from the module's {block.scale}")


def _block(parts: list[str]) -> str:
    """`Repeat_1/block17_3` -> `repeat_2.2`; `Block8` -> `block8`."""
    if parts[0] in _REPEATS and len(parts) == 2:
        return f"{_REPEATS[parts[0]]}.{int(parts[1].rsplit('_', 1)[1]) - 1}"
    if len(parts) == 1 and parts[0] in _TOP:
        return _TOP[parts[0]]
    raise GraphInvalid(f"{'/'.join(parts)} is no block of InceptionResnetV1")


def _branch_modules(constants: dict[str, FloatArray]) -> dict[str, str]:
    """Graph layer -> module name, for every layer of every branch: a branch of one layer is no sequence."""
    branches: dict[str, set[str]] = {}
    for name in constants:
        layer = name.removeprefix(_PREFIX).removesuffix("/weights")
        branch, _, conv = layer.rpartition("/")
        if name.endswith("/weights") and "/Branch_" in layer:
            branches.setdefault(branch, set()).add(conv)
    modules: dict[str, str] = {}
    for branch, convs in branches.items():
        block, _, number = branch.rpartition("/Branch_")
        base = f"{_block(block.split('/'))}.branch{number}"
        for position, conv in enumerate(sorted(convs, key=_order)):
            modules[f"{branch}/{conv}"] = base if len(convs) == 1 else f"{base}.{position}"
    return modules


def _order(conv: str) -> str:
    match = _ORDER.fullmatch(conv)
    if match is None:
        raise GraphInvalid(f"{conv} is no layer of InceptionResnetV1")
    return match[1] or ""


def _tensor_name(constant: str, branch_modules: dict[str, str]) -> str:
    """`InceptionResnetV1/Conv2d_1a_3x3/weights` -> `conv2d_1a.conv.weight`. Raises GraphInvalid."""
    name = constant.removeprefix(_PREFIX)
    if name.startswith("Bottleneck/") and name.removeprefix("Bottleneck/") in _BOTTLENECK:
        return _BOTTLENECK[name.removeprefix("Bottleneck/")]
    layer, _, kind = name.rpartition("/")
    parts = layer.split("/")
    suffixes = {"weights": "conv.weight", "Conv2D_bn_offset": "bn.bias"}
    if layer in branch_modules and kind in suffixes:
        return f"{branch_modules[layer]}.{suffixes[kind]}"
    if re.fullmatch(r"Conv2d_\d[ab]_\dx\d", layer) and kind in suffixes:
        return f"{layer.lower().rpartition('_')[0]}.{suffixes[kind]}"
    if parts[-1] == "Conv2d_1x1" and kind in ("weights", "biases"):
        return f"{_block(parts[:-1])}.conv2d.{'weight' if kind == 'weights' else 'bias'}"
    raise GraphInvalid(f"the constant {constant} is no part of InceptionResnetV1")


def _as_torch(value: FloatArray) -> torch.Tensor:
    """TensorFlow's layout (height, width, in, out; in, out) as torch's (out, in, height, width; out, in)."""
    axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(value.ndim)
    # A copy in any case: the constants are views of the file's bytes, which no tensor may write to.
    return torch.from_numpy(np.array(value if axes is None else value.transpose(axes), order="C"))


def _implied(network: nn.Module) -> dict[str, torch.Tensor]:
    """What the graph's folded batch norms leave out: scale 1, mean 0, and a variance that makes sqrt(var + eps) 1."""
    tensors: dict[str, torch.Tensor] = {}
    for name, module in network.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            tensors[f"{name}.weight"] = torch.ones(module.num_features)
            tensors[f"{name}.running_mean"] = torch.zeros(module.num_features)
            tensors[f"{name}.running_var"] = torch.full((module.num_features,), 1 - module.eps)
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            tensors[f"{name}.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    return tensors


def check_complete(tensors: dict[str, torch.Tensor], network: nn.Module) -> None:
    """Raises GraphInvalid unless `tensors` are those of the network, each in its shape."""
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise GraphInvalid(f"{len(wrong)} tensors are missing, left over or of another shape: {', '.join(wrong[:5])}")
