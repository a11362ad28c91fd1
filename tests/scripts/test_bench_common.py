"""The contract of the benchmarks: order of the runs, arithmetic, and the schema of the results."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.fixture(scope="module")
def common() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_common", SCRIPTS / "bench_common.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def document(common: ModuleType) -> dict[str, Any]:
    return dict(common.result("nothing", {"n": 1}, {"a": common.timing([3.0, 1.0, 2.0])}, {"ratio": 1.0}))


def test_variants_run_in_turns_after_their_warm_up(common: ModuleType) -> None:
    calls: list[str] = []
    variants = {name: lambda name=name: calls.append(name) for name in "ab"}
    timings = common.interleave(variants, repeats=3, warmup=2)
    assert "".join(calls) == "abab" + "ababab"
    assert [len(timings[name]["seconds"]) for name in "ab"] == [3, 3]
    assert min(timings["a"]["seconds"]) > 0


def test_median_spread_and_ratio(common: ModuleType) -> None:
    one = common.timing([3.0, 1.0, 2.0])
    assert (one["median"], one["min"], one["max"]) == (2.0, 1.0, 3.0)
    # The second turn fell into a busy minute: the ratio of medians is off, the paired one is not.
    timings = {"a": common.timing([2.0, 20.0, 2.0]), "b": common.timing([1.0, 10.0, 1.0])}
    assert common.paired_ratio(timings, "a", "b") == 2.0


def test_no_repeat_is_refused(common: ModuleType) -> None:
    with pytest.raises(ValueError, match="repeats"):
        common.interleave({"a": lambda: None}, repeats=0)


def test_a_result_says_what_it_was_measured_on_and_is_written_as_json(
    common: ModuleType, document: dict[str, Any], tmp_path: Path
) -> None:
    path = common.write_result(document, tmp_path / "results")
    assert path.name == "nothing-cpu.json"
    read = json.loads(path.read_text("utf-8"))
    assert read == document
    common.check_result(read)
    assert read["machine"]["cores"] >= 1
    assert read["machine"]["cpu"]
    assert read["machine"]["threads"]["torch"] >= 1
    assert read["machine"]["packages"]["numpy"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema",), 2, "knows 1"),
        (("machine", "cores"), "two", "machine.cores is str"),
        (("machine", "cores"), True, "machine.cores is bool"),
        (("machine", "surprise"), 1, "surprise"),
        (("timings", "a", "median"), None, "timings.a.median"),
        (("timings", "a", "seconds"), [], "seconds is empty"),
        (("figures",), [], "figures"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(
    common: ModuleType, document: dict[str, Any], path: tuple[str, ...], value: object, message: str
) -> None:
    broken = copy.deepcopy(document)
    place: Any = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        common.check_result(broken)


def test_every_stored_result_fits_the_schema(common: ModuleType) -> None:
    for path in sorted((SCRIPTS / "results").glob("*.json")):
        common.check_result(json.loads(path.read_text("utf-8")))
