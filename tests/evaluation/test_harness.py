"""The harness of the benchmarks: the order of the calls, and the arithmetic."""

from __future__ import annotations

import pytest

from pipeline.evaluation.bench.harness import Timing, interleave, paired_ratio, turn_ratios


def test_variants_run_in_turns_after_their_warm_up() -> None:
    calls: list[str] = []
    variants = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timings = interleave(variants, repeats=3, warmup=2)
    assert "".join(calls) == "abab" + "ababab"
    assert [len(timings[name].seconds) for name in "ab"] == [3, 3]
    assert min(timings["a"].seconds) > 0


def test_median_spread_and_ratio() -> None:
    one = Timing([3.0, 1.0, 2.0]).as_dict()
    assert one == {"seconds": [3.0, 1.0, 2.0], "median": 2.0, "min": 1.0, "max": 3.0}
    # The first turn fell into a busy minute: the ratio of the medians would be wrong.
    first, second = Timing([20.0, 2.0, 4.0]), Timing([10.0, 1.0, 1.0])
    assert turn_ratios(first, second) == [2.0, 2.0, 4.0]
    assert paired_ratio(first, second) == 2.0


def test_no_repeat_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats"):
        interleave({"a": lambda: None}, repeats=0)
