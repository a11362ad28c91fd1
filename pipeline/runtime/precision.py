"""What the mode `fast` may change on CUDA: the settings that say so, which a store's mode and device allow."""

from __future__ import annotations

from typing import Final

import torch

from pipeline.config import AUTO, BFLOAT16, CPU, FAST, FLOAT16, FLOAT32, RunSettings
from pipeline.errors import BadValue

_DTYPES: Final = {FLOAT32: torch.float32, FLOAT16: torch.float16, BFLOAT16: torch.bfloat16}


def check_fast_mode(run: RunSettings, device: torch.device | None = None) -> None:
    """Raises BadValue where less than float32, or other pixels than the reference decoder's, are asked for and the mode
    is `exact`, or `device`, if it is known, is not CUDA's. `run.mode` is to be the store's."""
    if run.mode != FAST:
        problem = "the store's mode is exact; that is for stores made with --mode fast"
    elif device is not None and device.type != "cuda":
        problem = f"that is for CUDA, and the device is {device}"
    else:
        return
    asked = {
        "run.precision": run.precision if run.precision not in (AUTO, FLOAT32) else None,
        "run.tf32": "true" if run.tf32 else None,
        "run.jpeg": run.jpeg if run.jpeg != CPU else None,
    }
    for key, value in asked.items():
        if value is not None:
            raise BadValue(key=key, where="the settings", value=value, expected=problem)


def set_tf32(device: torch.device, allowed: bool) -> None:
    """Whether convolutions on CUDA may run in TF32, in the whole process: torch has no switch for one thread.

    The switch for matrix products stays as it is: theirs are few in the networks, and the exact search, which refuses
    TF32, the crops and the qualities are made of them too.
    """
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = allowed


def fast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """What the embedder computes in, in the mode `fast`, where the setting `run.precision` is `precision`.

    `auto` is float16 on CUDA: it has three more bits of mantissa than bfloat16 and is as fast, and no activation of
    these networks comes near its largest number. On a CPU it is float32: bfloat16 changes decisions, and where it would
    not, it gains nothing (docs/speed.md).
    """
    if precision == AUTO:
        return torch.float16 if device.type == "cuda" else torch.float32
    return _DTYPES[precision]
