"""Which settings of the mode `fast` a store's mode and a device allow."""

from __future__ import annotations

from pipeline.config import AUTO, BFLOAT16, CPU, FAST, FLOAT32, RunSettings
from pipeline.errors import BadValue
from pipeline.runtime.device import is_cuda


def check_fast_mode(run: RunSettings, device: str | None = None) -> None:
    """Raises BadValue for less exact settings if `run.mode`, the store's, is `exact`, or if a known `device` does not
    support them: a CPU only has bfloat16."""
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
    """Allows or forbids TF32 in CUDA convolutions, in the whole process: torch has no switch per thread.

    Matrix products are unaffected: the networks have few; the exact search (which refuses TF32), crops and quality need
    float32.
    """
    if is_cuda(device):
        import torch

        torch.backends.cudnn.allow_tf32 = allowed
