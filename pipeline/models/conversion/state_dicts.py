"""Merges several torch state dicts into one."""

from __future__ import annotations

import io
from collections.abc import Mapping

import torch


def convert_state_dicts(files: Mapping[str, bytes]) -> dict[str, torch.Tensor]:
    """The tensors of all `files`, named "file.tensor". No code is unpickled."""
    loaded = {name: torch.load(io.BytesIO(data), weights_only=True) for name, data in files.items()}
    return {f"{file}.{name}": tensor for file, state in loaded.items() for name, tensor in state.items()}
