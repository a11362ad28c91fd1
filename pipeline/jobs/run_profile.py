"""What `--profile` tells of a run: what each stage took, how long the queues were, and which part is the wall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pipeline.runtime.stage_times import (
    CROP,
    DECIDE,
    DECODE,
    EMBED,
    ENCODE,
    HASH,
    IMAGES,
    JPEGS,
    LOAD,
    ONET,
    PNET,
    QUALITY,
    READ,
    RNET,
    SCAN,
    WRITE,
    Gauge,
    StageTimes,
)

DECODING, NETWORKS = "decoding", "networks"
# What runs at the same time, or alone, and what each is made of: part -> group -> stages, in a run's order.
PARTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "scan": {"hashing": (SCAN,)},
    "models": {"loading": (LOAD,)},
    DECODING: {"reading": (READ, HASH), "decoding": (DECODE,)},
    NETWORKS: {
        "decoding": (JPEGS,),
        "detection": (IMAGES, PNET, RNET, ONET),
        "crops and quality": (CROP, QUALITY, ENCODE),
        "embedding": (EMBED,),
    },
    "store": {"writing": (WRITE,), "deciding": (DECIDE,)},
}
STAGES: Final = tuple(stage for groups in PARTS.values() for stages in groups.values() for stage in stages)


@dataclass(frozen=True)
class Lanes:
    """How many threads a part has. Those that are not named here have one."""

    decoding: int
    networks: int

    def of(self, part: str) -> int:
        return {DECODING: self.decoding, NETWORKS: self.networks}.get(part, 1)


@dataclass(frozen=True)
class StageProfile:
    """One stage: wall-clock seconds over its threads, and its share of all stages' seconds."""

    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class QueueProfile:
    """How many waited, on average over the time and at most."""

    mean: float
    most: int


@dataclass(frozen=True)
class RunProfile:
    """Where the time of a command went. Times of stages are the host's, or where the run was asked for its profile
    those of the device, too."""

    wall: str  # the part whose threads were at work longest
    wall_shares: dict[str, float]  # of all work, by what this part is made of
    stages: dict[str, StageProfile]
    images_waiting: QueueProfile  # decoded
    batches_waiting: QueueProfile  # complete
    workers: int  # batches that can be worked on at the same time
    workers_waited_s: float  # summed over them
    workers_waited_for: dict[str, float]  # of this: seconds for images that were not decoded yet, and for models
    decoding_held_back_s: float  # summed over its threads: enough images were waiting
    cpu_busy_share: float  # of all cores
    device_busy_share: float | None  # of a CUDA device, where its driver tells

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """For people."""
        shares = sorted(((name, share) for name, share in self.wall_shares.items() if share), key=lambda each: -each[1])
        yield f"wall        the {self.wall}: {', '.join(f'{name} {share:.0%}' for name, share in shares)} of the work"
        for name, stage in self.stages.items():
            yield f"            {name:<8}{stage.seconds:>10.2f} s {stage.share:>5.0%}{stage.calls:>10,} calls"
        device = "" if self.device_busy_share is None else f", device {self.device_busy_share:.0%}"
        yield f"busy        CPU {self.cpu_busy_share:.0%}{device}"
        images, batches = self.images_waiting, self.batches_waiting
        yield f"queues      {images.mean:.1f} decoded images (at most {images.most}), {batches.mean:.1f} batches"
        waited = ", ".join(f"for {what} {seconds:.1f} s" for what, seconds in self.workers_waited_for.items())
        yield (
            f"waited      {self.workers} workers {self.workers_waited_s:.1f} s in all ({waited});"
            f" decoding was held back {self.decoding_held_back_s:.1f} s"
        )


def make_profile(times: StageTimes, lanes: Lanes, cpu_busy_share: float, device_busy_share: float | None) -> RunProfile:
    """The profile of what was measured so far."""
    seconds = {stage: times.stages[stage].seconds for stage in STAGES if stage in times.stages}
    total = sum(seconds.values()) or 1.0
    wall = max(PARTS, key=lambda part: sum(_groups(part, seconds).values()) / lanes.of(part))
    return RunProfile(
        wall=wall,
        wall_shares={group: own / total for group, own in _groups(wall, seconds).items()},
        stages={stage: StageProfile(times.stages[stage].calls, own, own / total) for stage, own in seconds.items()},
        images_waiting=_queue(times.images_waiting),
        batches_waiting=_queue(times.batches_waiting),
        workers=lanes.networks,
        workers_waited_s=times.idle_s,
        workers_waited_for=dict(times.idle_for),
        decoding_held_back_s=times.held_back_s,
        cpu_busy_share=cpu_busy_share,
        device_busy_share=device_busy_share,
    )


def _groups(part: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each group of a part."""
    return {group: sum(seconds.get(stage, 0.0) for stage in stages) for group, stages in PARTS[part].items()}


def _queue(gauge: Gauge) -> QueueProfile:
    return QueueProfile(gauge.mean, gauge.most)
