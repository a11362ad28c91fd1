"""Values cross the admin port with their types; and only the store has SQL."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.jobs.wire import ARROW, decode, pack, stream, unpack
from pipeline.store.records import (
    Candidate,
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

PACKAGE = Path(__file__).parents[2] / "pipeline"
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\s")
RUN = RunRow("r", "/photos", "folder", 1, "main", {"match": {"x": 0.5}}, "open", 4, 1, datetime(2026, 1, 2), None, None)
CHANGE = PersonChange(name="ä", tags=["a"], ignored=False, metadata={"b": [1, None], "c": {"d": 0.5}})
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901)
ANSWER = FaceAnswer((1.0, 2.0, 3.5, 4.0), 0.99, {"sharpness_quality": 0.1}, None, [Candidate("p", None, "x", 1.25)])


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
        (CheckReport([Problem("a", "b", "c", "d")], {"media": 1}, []), CheckReport),
        (Path("/to"), Path),
        (None, None),
        (pa.table({"path": ["a", None]}), pa.Table),
        ((pa.table({"path": ["a"]}), {"p": None}), tuple[pa.Table, dict[str, str | None]]),
        ((0.5, 1.5), tuple[float, ...]),
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


def test_a_batch_is_read_once_the_one_before_is_written() -> None:
    """So neither side holds more than one."""
    read: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            read.append(number)
            yield pa.record_batch({"number": [number]})

    parts = stream(pa.RecordBatchReader.from_batches(pa.schema([("number", pa.int64())]), batches()))
    received = next(parts)
    assert read == [0]
    received += b"".join(parts)
    assert unpack(ARROW, received, pa.Table)["number"].to_pylist() == read == [0, 1, 2]
