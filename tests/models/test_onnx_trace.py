"""Every layer that is translated does in onnxruntime what it does in torch; every other is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.models.onnx_graph import OnnxGraph, read_onnx, read_outputs
from pipeline.models.onnx_runtime import OnnxNetwork
from pipeline.models.onnx_trace import INPUT, Untranslatable, trace
from pipeline.models.onnx_write import write_onnx

SHAPE = (6, 13, 10)


class Applied(nn.Module):
    """A function of one tensor as a network."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, pixels: torch.Tensor) -> Any:
        return self.function(pixels)


def sloped(channels: int) -> nn.PReLU:
    """A PReLU with slopes of both signs."""
    layer = nn.PReLU(channels)
    layer.weight.data = torch.linspace(-0.5, 1.5, channels)
    return layer


def flattened(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), Applied(lambda x: x.flatten(1)), *layers)


TRANSLATED = {
    "convolution": nn.Conv2d(6, 5, 3),
    "without bias": nn.Conv2d(6, 5, 3, bias=False),
    "uneven kernel": nn.Conv2d(6, 5, (1, 7), stride=(2, 1), padding=(0, 3)),
    "dilated": nn.Conv2d(6, 4, 3, dilation=(2, 1), padding=1),
    "depth-wise": nn.Conv2d(6, 12, 3, groups=6, padding=1),
    "channels last": nn.Conv2d(6, 5, 3).to(memory_format=torch.channels_last),
    "pool up": nn.MaxPool2d(3, 2, ceil_mode=True),
    "pool down": nn.MaxPool2d(2, 2),
    "padded pool": nn.MaxPool2d((3, 2), stride=(2, 3), padding=1, ceil_mode=True),
    "relu": nn.ReLU(),
    "slopes of channels": sloped(6),
    "slopes of features": flattened(sloped(6)),
    "one slope": nn.PReLU(init=0.3),
    "linear": flattened(nn.Linear(6, 9)),
    "linear without bias": flattened(nn.Linear(6, 9, bias=False)),
    "nothing": nn.Sequential(nn.ReLU(), nn.Identity(), nn.Dropout()),
    "view": Applied(lambda x: x.view(x.shape[0], -1)),
    "sum": Applied(lambda x: x * 0.17 + x),
    "number": Applied(lambda x: x + 0.5),
    "joined": Applied(lambda x: torch.cat((x, x * 2.0, x), 1)),
    "joined at the end": Applied(lambda x: torch.cat([x, x], -1)),
    "unit": Applied(lambda x: functional.normalize(x.flatten(1), p=2, dim=1)),
    "several answers": Applied(lambda x: (x, x * 2.0)),
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_the_translation_does_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    network = nn.Sequential(TRANSLATED[name]).eval()
    graph, outputs = trace(network, SHAPE)
    found = OnnxNetwork(write_onnx(graph, {INPUT: ("n", *SHAPE)}, outputs, {}), threads=1)
    for number in (1, 4):
        pixels = torch.randn(number, *SHAPE, generator=torch.Generator().manual_seed(number))
        with torch.inference_mode():
            torch.testing.assert_close(found(pixels), network(pixels), atol=1e-5, rtol=1e-5)


REFUSED = {
    "unknown layer": nn.Sigmoid(),
    "padding by name": nn.Conv2d(6, 5, 3, padding="same"),
    "circular": nn.Conv2d(6, 5, 3, padding=1, padding_mode="circular"),
    "dilated pool": nn.MaxPool2d(2, dilation=2),
    "pool with places": nn.MaxPool2d(2, return_indices=True),
    "average of parts": nn.AdaptiveAvgPool2d(2),
    "unknown function": Applied(torch.sigmoid),
    "unknown method": Applied(lambda x: x.abs()),
    "another number": Applied(lambda x: x + 1),
    "another norm": Applied(lambda x: functional.normalize(x, p=1.0)),
    "another axis": Applied(lambda x: functional.normalize(x, dim=2)),
    "another length": Applied(lambda x: x.view(x.shape[1], -1)),
    "another view": Applied(lambda x: x.view(x.shape[0], 6, -1)),
    "another flattening": Applied(lambda x: x.flatten(2)),
    "a length as an answer": Applied(lambda x: (x, x.shape)),
    "another attribute": Applied(lambda x: x.mT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(Untranslatable):
        trace(nn.Sequential(REFUSED[name]).eval(), SHAPE)


def test_the_shapes_of_all_values_are_written_down() -> None:
    """Without the number of items, which each call may choose; and they survive the file."""
    network = nn.Sequential(nn.Conv2d(6, 5, 3), nn.MaxPool2d(2, 2), flattened(nn.Linear(5, 9))).eval()
    graph, outputs = trace(network, SHAPE)
    assert graph.shapes[INPUT] == ("n", *SHAPE)
    assert list(graph.shapes.values()) == [
        ("n", 6, 13, 10),
        ("n", 5, 11, 8),
        ("n", 5, 5, 4),
        ("n", 5, 1, 1),
        ("n", 5),
        ("n", 9),
    ]
    read = read_onnx(write_onnx(graph, {INPUT: ("n", *SHAPE)}, outputs, {}))
    assert read.shapes == graph.shapes


def test_a_value_of_unknown_shape_has_none() -> None:
    graph, outputs = trace(nn.Sequential(nn.ReLU()).eval(), SHAPE)
    unknown = OnnxGraph(graph.nodes, graph.constants)
    model = write_onnx(unknown, {INPUT: None}, outputs, {})
    assert read_onnx(model).shapes == {}
    assert read_outputs(model) == outputs
