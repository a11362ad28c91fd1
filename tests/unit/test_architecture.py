"""ARCHITECTURE.md says where each behaviour is: it is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = re.findall(
    r"^\| .+ \| `([\w/]+\.py)` \| `([\w.]+)` \|$", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.MULTILINE
)


def test_there_are_many() -> None:
    assert len(PLACES) >= 30


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_a_behaviour_is_where_the_table_says(file: str, name: str) -> None:
    body = ast.parse((ROOT / "pipeline" / file).read_text("utf-8")).body
    for part in name.split("."):
        named = [node for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == part]
        assert named, f"there is no {name} in {file}"
        body = named[0].body
