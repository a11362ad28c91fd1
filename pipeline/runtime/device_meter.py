"""The share of time that a CUDA device was busy, as counted by its driver."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from statistics import fmean
from tempfile import TemporaryFile
from typing import IO, Final

_EVERY_MS: Final = 100
_COMMAND: Final = (
    "nvidia-smi",
    "--query-gpu=utilization.gpu",
    "--format=csv,noheader,nounits",
    f"--loop-ms={_EVERY_MS}",
)


class DeviceMeter:
    """A context manager that samples the device with this UUID (`device.driver_uuid`).

    Without a UUID or nvidia-smi it does nothing. MIG slices have no such count: nvidia-smi prints "[N/A]" or knows no
    such device.
    """

    def __init__(self, uuid: str | None) -> None:
        self._uuid = uuid
        self._process: subprocess.Popen[bytes] | None = None
        self._samples: IO[bytes] | None = None
        self._share: float | None = None

    def __enter__(self) -> DeviceMeter:
        if self._uuid is not None:
            self._samples = TemporaryFile()
            with suppress(OSError):
                command = [*_COMMAND, f"--id={self._uuid}"]
                self._process = subprocess.Popen(command, stdout=self._samples, stderr=subprocess.DEVNULL)
        return self

    @property
    def busy_share(self) -> float | None:
        """Mean of the samples in [0, 1]; None without samples."""
        if self._samples is not None:
            # Not through the file object: the child writes at the shared position.
            text = os.pread(self._samples.fileno(), os.fstat(self._samples.fileno()).st_size, 0)
            samples = [int(line) for line in text[: text.rfind(b"\n") + 1].splitlines() if line.strip().isdigit()]
            self._share = fmean(samples) / 100 if samples else None
        return self._share

    def __exit__(self, *raised: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        if self._samples is not None:
            _ = self.busy_share  # the last samples
            self._samples.close()
            self._samples = None
