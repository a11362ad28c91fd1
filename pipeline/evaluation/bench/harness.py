"""Times variants in turns, as every benchmark of this project does.

Variants are warmed up, then take turns (A B A B ...), so that a busy machine affects all alike: it hardly changes
medians and ratios within a turn. A turn is timed from an idle device to an idle device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from pipeline.runtime.device import synchronize


@dataclass(frozen=True)
class Timing:
    """The seconds that one variant took in each turn, and their median."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return float(statistics.median(self.seconds))


def timed(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Returns the seconds of one call, from an idle device to an idle device."""
    synchronize(str(device))
    start = time.perf_counter()
    run()
    synchronize(str(device))
    return time.perf_counter() - start


def interleave(
    variants: Mapping[str, Callable[[], object]], repeats: int, device: str | torch.device = "cpu", warmup: int = 1
) -> dict[str, Timing]:
    """Calls all variants `warmup` times untimed, then in turns `repeats` times; returns their timings by name.

    Raises ValueError for fewer than one repeat.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    for _ in range(warmup):
        for run in variants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, run in variants.items():
            seconds[name].append(timed(run, device))
    return {name: Timing(values) for name, values in seconds.items()}


def turn_ratios(first: Timing, second: Timing) -> list[float]:
    """For each turn, the first's time divided by the second's."""
    return [a / b for a, b in zip(first.seconds, second.seconds, strict=True)]
