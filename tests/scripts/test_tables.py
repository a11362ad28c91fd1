"""The documents' tables: each is made of the stored results, and the document's markers take it."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import tables
from update_docs import table, updated


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_row_has_its_columns(name: str) -> None:
    head, rows = tables.TABLES[name]()
    assert rows
    assert {len(row) for row in rows} == {len(head)}


def test_a_document_takes_a_section_anywhere() -> None:
    text = "a\n<!-- generated: fast -->\nold\n<!-- end -->\nb\n"
    assert updated(text) == f"a\n<!-- generated: fast -->\n{table(*tables.fast())}<!-- end -->\nb\n"
    with pytest.raises(KeyError):
        updated(text.replace("fast", "faster"))


def test_figures_of_both_embedders_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("extract", "fast"):
        text = (tables.RESULTS / f"{name}-casia-webface-cpu.json").read_text("utf-8")
        for weights in ("casia-webface", "sface"):
            (tmp_path / f"{name}-{weights}-cpu.json").write_text(text, "utf-8")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert len(tables.fast()[0]) == 5
    assert [row[0] for row in tables.parity()[1]][3:5] == [
        "a mix with group photos, `casia-webface`",
        "250 x 250, `sface`",
    ]
    assert ("grouping 1,000,000 faces, the same way", "not measured yet") in tables.measured()[1]
