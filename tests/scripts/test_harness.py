"""What every benchmark writes: the parts of its result, and what a result says of the machine."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
from harness import RESULTS, argument_parser, paired_ratio, settings_of, write_result

from pipeline.evaluation.bench.harness import Timing


@pytest.fixture
def arguments(tmp_path: Path) -> argparse.Namespace:
    return argument_parser("Nothing.").parse_args(["--results", str(tmp_path / "results")])


@pytest.fixture
def document(arguments: argparse.Namespace) -> dict[str, Any]:
    timings = {"a": Timing([3.0, 1.0, 2.0])}
    path = write_result("nothing", settings_of(arguments), timings, {"ratio": 1.0}, arguments)
    assert path.name == "nothing-cpu.json"
    return dict(json.loads(path.read_text("utf-8")))


def test_a_result_has_the_turns_and_their_spread(document: dict[str, Any]) -> None:
    assert document["timings"] == {"a": {"seconds": [3.0, 1.0, 2.0], "median": 2.0, "min": 1.0, "max": 3.0}}


def test_a_busy_turn_does_not_change_the_ratio() -> None:
    # The first turn fell into a busy minute: the ratio of the medians would be wrong.
    assert paired_ratio(Timing([20.0, 2.0, 4.0]), Timing([10.0, 1.0, 1.0])) == 2.0


def test_a_result_says_what_it_was_measured_on(document: dict[str, Any]) -> None:
    assert document["settings"] == {"device": "cpu"}
    assert document["timings"]["a"] == {"seconds": [3.0, 1.0, 2.0], "median": 2.0, "min": 1.0, "max": 3.0}
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert machine["cpu"]
    assert machine["threads"]["torch"] >= 1
    assert machine["packages"]["numpy"]


def test_a_result_without_a_number_is_refused(arguments: argparse.Namespace) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result("nothing", {}, {}, {"ratio": math.nan}, arguments)


def test_every_stored_result_has_the_same_parts(document: dict[str, Any]) -> None:
    for path in RESULTS.glob("*.json"):
        stored = json.loads(path.read_text("utf-8"))
        assert stored.keys() == document.keys(), path.name
        assert stored["machine"].keys() == document["machine"].keys(), path.name
        assert all(one.keys() == document["timings"]["a"].keys() for one in stored["timings"].values()), path.name
