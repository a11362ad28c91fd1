"""Measures what `--profile` tells of a command: its stages, and how busy the processor and the device are."""

from __future__ import annotations

import time
from contextlib import ExitStack

import torch

from pipeline.config import RunSettings
from pipeline.jobs.run_profile import Lanes, RunProfile, make_profile
from pipeline.runtime.device import batch_workers, driver_uuid, finish, thread_count, usable_cores
from pipeline.runtime.device_meter import DeviceMeter
from pipeline.runtime.stage_times import StageTimes


class Profiler:
    """`times` is to be handed to what works; it always measures. Only where the profile is `wanted` do stages wait for
    the device, and is the device watched."""

    def __init__(self, wanted: bool, settings: RunSettings) -> None:
        self._wanted = wanted
        self._lanes = Lanes(thread_count(settings.threads), batch_workers(settings))
        self._device = torch.device("cpu")  # until one is used
        self._meter: DeviceMeter | None = None
        self._held = ExitStack()
        self._begun, self._cpu_begun = time.perf_counter(), time.process_time()
        self.times = StageTimes(lambda: finish(self._device)) if wanted else StageTimes()

    def watch(self, device: torch.device) -> None:
        """From now on the networks run on `device`."""
        if self._wanted and self._meter is None:
            self._device = device
            self._meter = self._held.enter_context(DeviceMeter(driver_uuid(device)))

    def profile(self) -> RunProfile | None:
        """What was measured so far; None where it is not wanted."""
        if not self._wanted:
            return None
        busy = (time.process_time() - self._cpu_begun) / (time.perf_counter() - self._begun) / usable_cores()
        return make_profile(self.times, self._lanes, busy, None if self._meter is None else self._meter.busy_share)

    def close(self) -> None:
        """Ends the watch of the device."""
        self._held.close()
