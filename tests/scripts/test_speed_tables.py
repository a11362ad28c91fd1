"""The tables of docs/speed.md: made of a benchmark's JSON, and empty where it was not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import speed_tables
from speed_tables import TABLES


def side(rate: float) -> dict[str, float]:
    return {"images_per_s": rate, "cpu_busy_share": 0.9, "peak_rss_mib": 812.4}


def parity(missed: int, cosine: float) -> dict[str, Any]:
    return {"images": 64, "reference_faces": 90, "missed": missed, "extra": 0, "cosine_same_box_min": cosine}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(speed_tables, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture
def measured(results: Path) -> None:
    sides = {"facepipe_1x2": side(25), "reference_1x2": side(8), "facepipe_2x1": side(24), "reference_2x1": side(7.5)}
    stages = {"decode_s": 1.0, "detect_s": 5.0, "embed_s": 3.0, "rest_s": 1.0}
    corpus = {
        **sides,
        "fast_1x2": side(32),
        "parity": parity(0, 0.999991),
        "parity_fast": parity(1, 0.99971),
        "stages": {**stages, "decode_share_of_bound": 0.5, "detect_share_of_bound": 1.2, "embed_share_of_bound": 0.9},
        "reference": "reference_1x2",
        "ratio": 3.125,
        "ratio_facepipe_2x1": 3.0,
        "ratio_fast_1x2": 4.0,
        "share_of_bound": 0.75,
    }
    (results / "extract-cpu.json").write_text(json.dumps({"figures": {"d": corpus, "a": corpus}}))
    modes = {
        "faces": {"exact": 6000, "fast": 6001, "both": 6000},
        "identities": {"exact": 3000, "fast": 3002},
        "accuracy": {"exact": {"accuracy": 0.986}, "fast": {"accuracy": 0.985}},
        "cosine_min": 0.9991,
        "cosine_1_percent": 0.9995,
        "cosine_median": 0.9999,
        "pairwise": {"f": 0.99812},
    }
    (results / "fast-cpu.json").write_text(json.dumps({"figures": modes}))


def test_what_was_not_run_has_no_rows(results: Path) -> None:
    assert all(make()[1] == [] for make in TABLES.values())


@pytest.mark.usefixtures("measured")
def test_every_row_has_its_columns() -> None:
    for make in TABLES.values():
        head, rows = make()
        assert rows
        assert {len(row) for row in rows} == {len(head)}


@pytest.mark.usefixtures("measured")
def test_the_figures_stand_where_they_belong() -> None:
    assert TABLES["extraction"]()[1] == [
        ("250 x 250", "8.00", "25.00", "**3.12**", "32.00", "4.00"),
        ("a mix with group photos", "8.00", "25.00", "**3.12**", "32.00", "4.00"),
    ]
    assert TABLES["parity"]()[1][0] == ("250 x 250", "64", "90", "0 (1)", "0 (0)", "0.99999 (0.99971)")
    assert TABLES["layouts"]()[1][0][1:] == ("8.00 (1x2) / 7.50 (2x1)", "25.00 (1x2) / 24.00 (2x1)")
    shares = ("10 % (bound: 50 %)", "50 % (bound: 120 %)", "30 % (bound: 90 %)", "10 %", "0.75", "0.90", "812")
    assert TABLES["stages"]()[1][0][1:] == shares
    assert TABLES["fast"]()[1][2:] == [
        ("accuracy on the 1,000 listed pairs", "98.6 %", "98.5 %"),
        ("cosine to `exact`: least, 1 %, median", "", "0.99910, 0.99950, 0.99990"),
        ("partition against `exact`, pairwise F", "", "0.9981"),
    ]
