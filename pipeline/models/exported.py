"""Networks as ONNX files in the cache: made once per set of weights, compared with torch, and checked when read.

A file's metadata say what it was made from and how near its answers are to torch's. Its last entry is the SHA-256 of
all before it. What is missing, damaged, or of other weights or versions is made anew: it follows from the weights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from pipeline.errors import CacheUnwritable
from pipeline.models.files.cache import exclusive, replacing
from pipeline.models.loops import load_kernels
from pipeline.models.onnx_runtime import OnnxNetwork, OnnxRuntime
from pipeline.models.onnx_trace import INPUT, trace
from pipeline.models.onnx_write import metadata_entry, write_onnx
from pipeline.models.protobuf import GraphInvalid, fields

# Raised when the same network would give another file.
EXPORTER_VERSION: Final = 4
MIN_COSINE: Final = 0.99999

# The modules on which the answers of a network in loops rest.
LOOPS: Final = (
    "pipeline.runtime.vector_code",
    "pipeline.models.layers",
    "pipeline.models.loop_instructions",
    "pipeline.models.loop_memory",
    "pipeline.models.loop_steps",
    "pipeline.models.loops",
    "pipeline.models.onnx_runtime",
    "pipeline.models.onnx_split",
    "pipeline.models.onnx_steps",
    "pipeline.models.winograd_forms",
    "pipeline.models.winograd_kernels",
)

_DIGEST: Final = "content_sha256"
_CONTRASTS: Final = (1.0, 0.5, 0.1)  # of the noise that both see: one item each
_METADATA_FIELD: Final = 14


class ExportUnfaithful(Exception):
    """The exported network's answers are too far from torch's."""


@dataclass(frozen=True)
class Exportable:
    """A network that may run in onnxruntime."""

    name: str  # of the file in the cache
    weights_sha256: str
    shape: tuple[int, ...]  # of one input, without the number of items
    build: Callable[[], nn.Module]  # the network in eval mode on the CPU


def load_exported(source: Exportable, runtime: OnnxRuntime) -> OnnxNetwork | None:
    """The network in onnxruntime, and in compiled loops what they do faster; None where its answers would not be
    torch's, so that torch should do it.

    Raises what `source.build` raises. A cache that cannot be written costs time, and is no error.
    """
    try:
        return OnnxNetwork(_from_cache(source, runtime), runtime.threads, split=True)
    except ExportUnfaithful:
        return None


def _from_cache(source: Exportable, runtime: OnnxRuntime) -> bytes:
    path = runtime.cache / f"{source.name}.onnx"
    claims = _claims(source, runtime)
    data = _read(path, claims)
    if data is not None:
        return data
    try:
        with exclusive(runtime.cache, path.name):
            data = _read(path, claims)  # another process may have made it meanwhile
            if data is None:
                data = export(source, runtime)
                with replacing(path) as file:
                    file.write(data)
        return data
    except CacheUnwritable:
        return data or export(source, runtime)


def export(source: Exportable, runtime: OnnxRuntime) -> bytes:
    """The bytes of the file, compared with torch. Raises ExportUnfaithful, and what `source.build` raises."""
    network = source.build()
    graph, outputs = trace(network, source.shape)
    model = write_onnx(graph, {INPUT: ("n", *source.shape)}, outputs, _claims(source, runtime))
    cosine, difference = compare(network, OnnxNetwork(model, runtime.threads, split=True), source.shape)
    model += metadata_entry("cosine", f"{cosine:.9f}") + metadata_entry("max_difference", f"{difference:.3g}")
    return model + _digest_entry(model)


@torch.inference_mode()
def compare(network: nn.Module, exported: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """The least cosine between an answer of torch and of the exported network, and the largest difference of a number.

    Raises ExportUnfaithful for a cosine below MIN_COSINE.
    """
    noise = torch.rand(len(_CONTRASTS), *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    pixels = noise * torch.tensor(_CONTRASTS).view(-1, *(1,) * len(shape))
    cosines, differences = [], []
    for expected, found in zip(_answers(network(pixels)), _answers(exported(pixels)), strict=True):
        cosines.append(functional.cosine_similarity(expected.double(), found.double()).min())
        differences.append((expected - found).abs().max())
    cosine, difference = float(torch.stack(cosines).min()), float(torch.stack(differences).max())
    if not cosine >= MIN_COSINE:  # not a number, too
        raise ExportUnfaithful(f"a cosine of {cosine} and a difference of {difference}")
    return cosine, difference


def _answers(answers: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return answers if isinstance(answers, tuple) else (answers,)


def _claims(source: Exportable, runtime: OnnxRuntime) -> dict[str, str]:
    """What a file must say of itself to be used. Of the runtime, of the loops and of what compiles them, too: with
    another, the comparison is made again."""
    return {
        "weights_sha256": source.weights_sha256,
        "exporter": str(EXPORTER_VERSION),
        "onnxruntime": runtime.version,
        "loops": _loops(),
    }


def _loops() -> str:
    """A name that changes with numba and with what holds the loops, and cuts networks for them; "none" without them."""
    if load_kernels() is None:
        return "none"
    from pipeline.runtime.compiled import edition

    return f"{version('numba')} {edition(*(import_module(name) for name in LOOPS))}"


def _read(path: Path, claims: Mapping[str, str]) -> bytes | None:
    """The file's bytes, checked; None where it is missing, damaged or not what `claims` says."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    end = len(data) - len(_digest_entry(b""))
    if data[end:] != _digest_entry(memoryview(data)[:end]):
        return None
    found = read_metadata(data)
    return data if all(found.get(key) == value for key, value in claims.items()) else None


def read_metadata(data: bytes) -> dict[str, str]:
    """The metadata of a serialised model. Raises GraphInvalid."""
    entries = (value for number, value in fields(memoryview(data)) if number == _METADATA_FIELD)
    return dict(_texts(entry) for entry in entries)


def _texts(entry: int | memoryview) -> tuple[str, str]:
    if isinstance(entry, int):
        raise GraphInvalid("an entry of the metadata is a number")
    texts = {number: str(value, "utf-8") for number, value in fields(entry) if isinstance(value, memoryview)}
    return texts[1], texts[2]


def _digest_entry(content: bytes | memoryview) -> bytes:
    return metadata_entry(_DIGEST, hashlib.sha256(content).hexdigest())
