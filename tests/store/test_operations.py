"""Operations are declared once, cross the admin port with their types, and are the only way to the catalog's SQL."""

from __future__ import annotations

import ast
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.store.operations import Operation, operations
from pipeline.store.records import (
    Candidate,
    Checked,
    CheckReport,
    CorrectionAnswer,
    CorrectionRequest,
    DirectoryRow,
    FaceAnswer,
    Fact,
    PersonChange,
    Problem,
    RunRow,
)
from pipeline.store.wire import decode, pack, unpack

PACKAGE = Path(__file__).parents[2] / "pipeline"
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s")
RUN = RunRow("r", "/photos", "folder", 1, "main", {"match": {"x": 0.5}}, "open", 4, 1, datetime(2026, 1, 2), None, None)
CHANGE = PersonChange(name="ä", tags=["a"], ignored=False, metadata={"b": [1, None], "c": {"d": 0.5}})
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901)
ANSWER = FaceAnswer((1.0, 2.0, 3.5, 4.0), 0.99, {"sharpness_quality": 0.1}, None, [Candidate("p", None, "x", 1.25)])


def test_arguments_keep_their_places() -> None:
    """Also those behind a default that is left out."""

    def work(catalog: object, one: int, two: int = 2, three: int = 3) -> None:
        """Takes a default in the middle."""

    operation: Any = Operation(work)  # type: ignore[arg-type]
    assert operation.arguments(1, three=7) == [1, 2, 7]
    assert operation.arguments(three=7, one=1) == [1, 2, 7]


def test_only_the_store_has_sql() -> None:
    found = []
    for file in PACKAGE.rglob("*.py"):
        constants = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant)]
        has_sql = any(isinstance(node.value, str) and SQL.match(node.value) for node in constants)
        if has_sql and not file.is_relative_to(PACKAGE / "store"):
            found.append(file)
    assert found == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (RUN, RunRow),
        (RUN, RunRow | None),
        (None, RunRow | None),
        ({3, 1}, set[int]),
        ([DirectoryRow(1, "ann", "main", 2, 3)], list[DirectoryRow]),
        ({"a": 1}, dict[str, int]),
        (b"\x00\xff", bytes | None),
        ([ANSWER], list[FaceAnswer]),
        (
            CorrectionRequest(
                1, "main", "label", ["p"], [7], CHANGE, True, media_ids=[2], labels=[(7, None, "n", True)]
            ),
            CorrectionRequest,
        ),
        (CorrectionAnswer(3, "move", ["p"], [], [7], [Fact("is", 7, "p", None, 2, "user", NOW)]), CorrectionAnswer),
        (CorrectionAnswer(4, "name", ["p"], [], [], [], made_at=NOW, names={"p": "Ann"}), CorrectionAnswer),
        (Checked(CheckReport([Problem("a", "b", "c", "d")], {"media": 1}), []), Checked),
        (Path("/to"), Path),
        (None, None),
        (pa.table({"path": ["a", None]}), pa.Table),
    ],
)
def test_a_value_crosses_the_admin_port_with_its_type(value: object, kind: Any) -> None:
    assert unpack(*pack(value), kind) == value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1", int),
        (True, int),
        (1, bool),
        ({}, list[int]),
        (["a"], set[int]),
        ([1.0, 2.0], tuple[float, float, float]),
        ({"path": 1}, RunRow),
        ("no time", datetime),
        ("&", bytes),
        (None, str),
    ],
)
def test_a_value_of_another_type_is_refused(value: object, kind: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        decode(value, kind)


def test_each_operation_declares_its_types_and_none_gives_out_passwords() -> None:
    assert len(operations()) > 20
    assert all(operation.answer is not Any and Any not in operation.parameters for operation in operations().values())
    assert not {"credentials", "references", "submit", "read", "close"} & operations().keys()
