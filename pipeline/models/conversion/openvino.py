"""Converts torch networks to OpenVINO and compares each with the original."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from pipeline.models.networks.openvino import OpenVino, OpenVinoNetwork, openvino
from pipeline.types import FloatArray

MIN_COSINE: Final = 0.99999  # of a torch and a converted output

_CONTRASTS: Final = (1.0, 0.5, 0.1)  # of the noise to compare on, one per item


class ConversionUnfaithful(Exception):
    """The converted network's answers are too far from torch's, or there are none."""


def convert(network: nn.Module, shape: tuple[int, ...], runtime: OpenVino) -> tuple[Any, dict[str, str]]:
    """The network as an OpenVINO model, and its deviation from torch's.

    Raises ConversionUnfaithful, and what OpenVINO raises for an unsupported network.
    """
    with warnings.catch_warnings():  # torch.jit, which OpenVINO uses, is deprecated
        warnings.simplefilter("ignore")
        model = openvino().convert_model(network, example_input=torch.zeros(2, *shape))
    model.reshape([-1, *shape])
    cosine, difference = compare(network, OpenVinoNetwork(model, runtime), shape)
    return model, {"cosine": f"{cosine:.9f}", "max_difference": f"{difference:.3g}"}


@torch.inference_mode()
def compare(
    network: nn.Module, converted: Callable[[FloatArray], FloatArray], shape: tuple[int, ...]
) -> tuple[float, float]:
    """The smallest cosine and largest absolute difference between outputs of torch and of the converted network.

    Raises ConversionUnfaithful for a cosine below MIN_COSINE.
    """
    noise = torch.rand(len(_CONTRASTS), *shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    pixels = noise * torch.tensor(_CONTRASTS).view(-1, *(1,) * len(shape))
    expected, answers = network(pixels), torch.from_numpy(converted(pixels.numpy()))
    cosine = float(functional.cosine_similarity(expected.double(), answers.double()).min())
    difference = float((expected - answers).abs().max())
    if not cosine >= MIN_COSINE:  # also if NaN
        raise ConversionUnfaithful(f"a cosine of {cosine} and a difference of {difference}")
    return cosine, difference
