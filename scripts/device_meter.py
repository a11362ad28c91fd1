"""The share of time in which a CUDA device was at work, as its driver counts it."""

from __future__ import annotations

import subprocess
from statistics import fmean
from types import TracebackType

_EVERY_MS = 100
_COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--loop-ms={_EVERY_MS}")


class DeviceMeter:
    """A context manager that samples a device until it is left; for the CPU it does nothing."""

    def __init__(self, device: str) -> None:
        self._index = device.partition(":")[2] or "0" if device.startswith("cuda") else None
        self._process: subprocess.Popen[str] | None = None
        self.busy_share: float | None = None  # None on the CPU, and where the time was too short for a sample

    def __enter__(self) -> DeviceMeter:
        if self._index is not None:
            self._process = subprocess.Popen([*_COMMAND, f"--id={self._index}"], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        samples = [int(line) for line in self._process.communicate()[0].split()]
        self.busy_share = fmean(samples) / 100 if samples else None
