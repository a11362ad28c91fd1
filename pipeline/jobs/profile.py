"""What `--profile` measures: the time of each stage, queue lengths, the load of processor and device, and the
bottleneck.

Imports torch only for a profile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pipeline.config import RunSettings
from pipeline.runtime.device_meter import DeviceMeter
from pipeline.runtime.stage_times import DECODING, NETWORKS, PARTS, StageTimes

if TYPE_CHECKING:
    from pipeline.jobs.cluster.engine import RayEngine

STAGES: Final = tuple(stage for groups in PARTS.values() for stages in groups.values() for stage in stages)


@dataclass(frozen=True)
class StageProfile:
    """Wall-clock seconds summed over the stage's threads, and the share of all stages' seconds."""

    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class QueueProfile:
    """Waiting items: mean over time, and maximum."""

    mean: float
    most: int


@dataclass(frozen=True)
class RunProfile:
    """Where the time of a command went."""

    wall: str  # the bottleneck: the part whose threads worked longest
    wall_shares: dict[str, float]  # shares of all work, by this part's groups
    stages: dict[str, StageProfile]
    images_waiting: QueueProfile  # decoded
    batches_waiting: QueueProfile  # complete
    workers: int  # batches processed concurrently
    workers_waited_s: float  # summed over the workers
    workers_waited_for: dict[str, float]  # of that, for images in decoding, and for loading models
    decoding_held_back_s: float  # summed over decoding threads, while enough images were waiting
    cpu_busy_share: float  # of all cores
    device_busy_share: float | None  # of a CUDA device, if its driver tells

    def lines(self) -> Iterator[str]:
        """For people."""
        shares = sorted(((name, share) for name, share in self.wall_shares.items() if share), key=lambda item: -item[1])
        yield f"wall        the {self.wall}: {', '.join(f'{name} {share:.0%}' for name, share in shares)} of the work"
        for name, stage in self.stages.items():
            yield f"            {name:<12}{stage.seconds:>10.2f} s {stage.share:>5.0%}{stage.calls:>10,} calls"
        device = "" if self.device_busy_share is None else f", device {self.device_busy_share:.0%}"
        yield f"busy        CPU {self.cpu_busy_share:.0%}{device}"
        images, batches = self.images_waiting, self.batches_waiting
        if not images.most:
            return  # all was extracted elsewhere
        yield f"queues      {images.mean:.1f} decoded images (at most {images.most}), {batches.mean:.1f} batches"
        waited = ", ".join(f"for {what} {seconds:.1f} s" for what, seconds in self.workers_waited_for.items())
        yield (
            f"waited      {self.workers} workers {self.workers_waited_s:.1f} s in all ({waited});"
            f" decoding was held back {self.decoding_held_back_s:.1f} s"
        )


class Profiler:
    """Measures one command. `times` always works; only for a profile do stages wait for the device and is the device
    monitored."""

    def __init__(self, enabled: bool, settings: RunSettings) -> None:
        self._enabled = enabled
        self._settings = settings
        self._device: str | None = None  # until the models are loaded
        self._meter: DeviceMeter | None = None
        self._resources = ExitStack()
        self._begun, self._cpu_begun = time.perf_counter(), time.process_time()
        # Their stage times are added; their waits and devices are not measured.
        self.elsewhere: list[RayEngine] = []
        self.times = StageTimes(self._finish) if enabled else StageTimes()

    def watch(self, device: str) -> None:
        """From now on the networks run on `device`."""
        if self._enabled and self._meter is None:
            from pipeline.runtime.device import driver_uuid

            self._device = device
            self._meter = self._resources.enter_context(DeviceMeter(driver_uuid(device)))

    def _finish(self) -> None:
        """Waits for the device's work of this stage."""
        if self._device is not None:
            from pipeline.runtime.device import finish

            finish(self._device)

    def profile(self) -> RunProfile | None:
        """The measurements so far; None without a profile."""
        if not self._enabled:
            return None
        from pipeline.runtime.device import batch_workers
        from pipeline.runtime.threads import thread_count, usable_cores

        threads = {DECODING: thread_count(self._settings.threads), NETWORKS: batch_workers(self._settings)}
        cpu_s, cores = time.process_time() - self._cpu_begun, usable_cores()
        for others in (each for each in self.elsewhere if each.cores):  # no cores if all was extracted already
            threads = dict.fromkeys(threads, others.cores)
            cpu_s, cores = cpu_s + others.cpu_s, max(cores, others.cores)
        busy = cpu_s / (time.perf_counter() - self._begun) / cores
        return make_profile(self.times, threads, busy, None if self._meter is None else self._meter.busy_share)

    def close(self) -> None:
        """Stops monitoring the device."""
        self._resources.close()


def make_profile(
    times: StageTimes, threads: Mapping[str, int], cpu_busy_share: float, device_busy_share: float | None
) -> RunProfile:
    """`threads` of DECODING and NETWORKS; any other part has one."""
    seconds = {stage: times.stages[stage].seconds for stage in STAGES if stage in times.stages}
    total = sum(seconds.values()) or 1.0
    groups = {
        part: {group: sum(seconds.get(stage, 0.0) for stage in stages) for group, stages in own.items()}
        for part, own in PARTS.items()
    }
    wall = max(PARTS, key=lambda part: sum(groups[part].values()) / threads.get(part, 1))
    return RunProfile(
        wall=wall,
        wall_shares={group: own / total for group, own in groups[wall].items()},
        stages={stage: StageProfile(times.stages[stage].calls, own, own / total) for stage, own in seconds.items()},
        images_waiting=QueueProfile(times.images_waiting.mean, times.images_waiting.most),
        batches_waiting=QueueProfile(times.batches_waiting.mean, times.batches_waiting.most),
        workers=threads[NETWORKS],
        workers_waited_s=times.idle_s,
        workers_waited_for=dict(times.idle_for),
        decoding_held_back_s=times.held_back_s,
        cpu_busy_share=cpu_busy_share,
        device_busy_share=device_busy_share,
    )
