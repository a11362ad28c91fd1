"""What the mode `fast` may change: the settings for it, and which of them a store's mode and a device allow."""

from __future__ import annotations

from pipeline.config import AUTO, BFLOAT16, CPU, FAST, FLOAT32, RunSettings
from pipeline.errors import BadValue
from pipeline.runtime.device import is_cuda


def check_fast_mode(run: RunSettings, device: str | None = None) -> None:
    """Raises BadValue for settings that make results less exact, where the mode is `exact`, or where they are not for
    `device`, if that is known: on a CPU only bfloat16 is possible. `run.mode` must be the store's."""
    allowed = {AUTO, FLOAT32}
    if run.mode != FAST:
        problem = "the store's mode is exact; that is for stores made with --mode fast"
    elif device is not None and not is_cuda(device):
        problem = f"that is for CUDA, and the device is {device}"
        allowed.add(BFLOAT16)
    else:
        return
    refused = {
        "run.precision": run.precision if run.precision not in allowed else None,
        "run.tf32": "true" if run.tf32 else None,
        "run.jpeg": run.jpeg if run.jpeg != CPU else None,
    }
    for key, value in refused.items():
        if value is not None:
            raise BadValue(key=key, where="the settings", value=value, expected=problem)


def set_tf32(device: str, allowed: bool) -> None:
    """Whether convolutions on CUDA may run in TF32, in the whole process: torch has no switch for one thread.

    The switch for matrix products stays as it is. The networks have few of them, and the exact search, which refuses
    TF32, the crops and the qualities need theirs in float32.
    """
    if is_cuda(device):
        import torch

        torch.backends.cudnn.allow_tf32 = allowed
