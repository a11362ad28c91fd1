"""The formula of docs/capacity.md. That the page is what the generator writes is for `tests/unit/test_docs.py`."""

from __future__ import annotations

import json
from pathlib import Path

import capacity
import numpy as np
import pytest
from bench import tables
from bench.writer_model import SIZE, Model

ONE = capacity.Constants(
    photos_per_s=10,
    faces_per_photo=2,
    writer=Model(0.001, 1e-11, 0.002, 0.004, bytes_per_face=3000, bytes_per_person=2500),
    picture_bytes=5000,
    process_bytes=1e9,
    bytes_per_reference=4000,
    search_s_per_reference=2e-8,
)


def test_the_formula_gives_what_was_measured() -> None:
    _, rows = capacity.checks()
    assert len(rows) == 8
    for what, _, _, ratio in rows:
        assert float(ratio) == pytest.approx(1, abs=0.15), what


def test_products_are_those_of_faces_in_any_order() -> None:
    who = np.random.default_rng(3).permutation(20_000) // 5
    first = np.zeros(len(who), bool)
    first[np.unique(who, return_index=True)[1]] = True
    counted = float(np.cumsum(first).sum()) * SIZE
    assert capacity.Archive(10_000, 2, 5).products == pytest.approx(counted, rel=0.01)
    assert capacity.Archive(10_000, 2, 5, directories=4).products == pytest.approx(counted / 4, rel=0.01)


def test_needs_of_an_archive() -> None:
    archive = capacity.Archive(36_000, 2, 20)
    need = capacity.needs(archive, ONE)
    assert need.extraction_s == 3600
    assert need.writer_s == pytest.approx(72_000 * 0.003 + 3600 * 0.004 + archive.products * 1e-11)
    assert need.disk_bytes == 72_000 * 3000 + 3600 * (2 * 4096 + 2500)
    assert need.server_bytes == 1e9 + 3600 * 4000
    assert need.search_s == pytest.approx(7.2e-5)
    assert need.seconds(1) == need.extraction_s + need.writer_s
    assert need.seconds(10_000) == need.writer_s


def test_a_gpu_has_no_figure_that_nobody_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in tables.RESULTS.glob("*-cpu.json"):
        (tmp_path / file.name).write_text(file.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(capacity, "RESULTS", tmp_path)
    assert ("the same on a GPU", "not measured", "`extract-casia-webface-cuda`") in capacity.constants_table()[1]
    rates = {"figures": {"b": {"facepipe_4x2": {"images_per_s": 321.0}, "ratio": 2.0}}}
    (tmp_path / "extract-casia-webface-cuda.json").write_text(json.dumps(rates), "utf-8")
    assert "321.0 (1 MP, 4 x 2 threads)" in capacity.constants_table()[1][1][1]


@pytest.mark.parametrize(("number", "text"), [(0.0123, "0.012"), (1.26, "1.3"), (47.6, "48"), (12_345, "12,000")])
def test_two_digits(number: float, text: str) -> None:
    assert capacity._short(number) == text
