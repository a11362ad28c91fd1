"""ARCHITECTURE.md says where each behaviour is, and CONTRIBUTING.md links to lines: it is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from update_docs import line_of, relinked

ROOT = Path(__file__).resolve().parents[2]
PLACES = re.findall(
    r"^\| .+ \| `([\w/]+\.py)` \| `([\w.]+)` \|$", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.MULTILINE
)


def test_there_are_many() -> None:
    assert len(PLACES) >= 30
    assert len(re.findall(r"\.py#L[1-9]", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))) >= 60


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_a_behaviour_is_where_the_table_says(file: str, name: str) -> None:
    assert line_of(ROOT / "pipeline" / file, name), f"there is no {name} in {file}"


def test_a_link_gets_the_line_of_its_function(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    @property\n    async def b(self): ...\n")
    links = "[`A`](a.py#L9) [`A.b`](a.py#L) [`A.b()`](a.py#L3) [`A.c`](a.py#L3) [`b`](a.py#L3) [`A`](b.py#L1)"
    assert re.findall(r"#L(\d*)", relinked(links, tmp_path)) == ["1", "3", "3", "0", "0", "0"]
