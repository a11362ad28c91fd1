"""What a run has to do with each row, decided from real files and a real store, before any image is decoded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from pipeline.config import load_settings
from pipeline.errors import ImageMissing, TooManyDirectories
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_ROW, SKIP
from pipeline.jobs.plan_counts import PlanCounts
from pipeline.jobs.profile import Profiler
from pipeline.jobs.store import Store
from pipeline.run import changed_files
from pipeline.run.plan import Plan
from pipeline.run.session import RunRequest, Session
from pipeline.store.local import LocalStore
from pipeline.types import ImageRef, SilentProgress
from tests.store.store_samples import identity


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Plan]:
    with LocalStore.open_or_create(tmp_path / "store", identity, command="test") as client:
        settings, folder = load_settings(environ={}), tmp_path / "store"
        account_id, profiler = client.create_account("ann", None), Profiler(enabled=False, settings=settings.run)
        request, store = RunRequest("/source", folder, settings), Store(client, settings)
        yield Plan(Session(request, SilentProgress(), Event(), store, settings, "ann", account_id, profiler))


def _ref(folder: Path, file: str, data: bytes | None = None, **fields: Any) -> ImageRef:
    if data is not None:
        (folder / file).write_bytes(data)
    return dataclasses.replace(ImageRef(path=str(folder / file), file=str(folder / file)), **fields)


def _rows(planned: Plan, refs: list[ImageRef]) -> list[dict[str, object]]:
    batches = list(planned.batches(refs))
    return pa.Table.from_batches(batches, MANIFEST_SCHEMA).to_pylist()


def test_bytes_seen_twice_are_decoded_once(planned: Plan, tmp_path: Path) -> None:
    rows = _rows(
        planned,
        [
            _ref(tmp_path, "a", b"one"),
            _ref(tmp_path, "b", b"two"),
            _ref(tmp_path, "c", b"one"),
            _ref(tmp_path, "a"),
            _ref(tmp_path, "a", directory="other"),
            _ref(tmp_path, "a", directory="other"),
        ],
    )
    assert [(r["row"], r["action"], r["source_row"]) for r in rows] == [
        (0, EXTRACT, None),
        (1, EXTRACT, None),
        (2, REUSE_ROW, 0),
        (3, SKIP, None),
        (4, REUSE_ROW, 0),  # the same file in another directory is a sighting of its own
        (5, SKIP, None),
    ]
    assert [r["status"] for r in rows] == [None, None, None, "duplicate_row", None, "duplicate_row"]
    assert rows[5]["reason"] == "the same file and directory as row 4"
    assert (rows[0]["sha256"], rows[0]["bytes"]) == hash_file(tmp_path / "a")[:2]


def test_repeats_are_found_across_chunks(planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_files, "CHUNK_ROWS", 2)
    refs = [_ref(tmp_path, f"{k}", b"%d" % (k % 3)) for k in range(7)]
    rows = _rows(planned, refs)
    assert [r["source_row"] for r in rows] == [None, None, None, 0, 1, 2, 0]
    assert planned.counts == PlanCounts(new=7)


def test_rows_that_cannot_be_read_keep_their_reason(planned: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "folder.jpg"
    folder.mkdir()
    refs = [
        _ref(tmp_path, "gone"),
        _ref(tmp_path, "gone"),
        _ref(tmp_path, "folder.jpg"),
        _ref(tmp_path, "a", b"one", rejected=ImageMissing()),
        _ref(tmp_path, "b", b"one"),
    ]
    rows = _rows(planned, refs)
    assert [(r["action"], r["status"], r["sha256"] is None) for r in rows] == [
        (SKIP, "missing", True),
        (SKIP, "missing", True),
        (SKIP, "not_a_file", True),
        (SKIP, "missing", True),  # refused already, so never opened, and no original of the next
        (EXTRACT, None, False),
    ]


def test_labels_and_further_columns_are_kept(planned: Plan, tmp_path: Path) -> None:
    (row,) = _rows(
        planned, [_ref(tmp_path, "ä b", b"x", name="Ännie", external_id="7", extra={"year": 1960, "ü": None})]
    )
    assert (row["name"], row["external_id"], row["directory"]) == ("Ännie", "7", "main")
    assert json.loads(str(row["extra"])) == {"year": 1960, "ü": None}


def test_an_eleventh_directory_is_refused(planned: Plan, tmp_path: Path) -> None:
    refs = [_ref(tmp_path, f"{k}", b"%d" % k, directory=f"d{k}") for k in range(10)]
    assert len(_rows(planned, refs)) == 10
    with pytest.raises(TooManyDirectories, match="11 directories"):
        _rows(planned, [*refs, _ref(tmp_path, "x", b"x")])


def test_a_file_over_the_limit_is_a_row_that_stays_known(planned: Plan, tmp_path: Path) -> None:
    with (tmp_path / "sparse.jpg").open("wb") as file:
        file.truncate(2**40)
    (row,) = _rows(planned, [_ref(tmp_path, "sparse.jpg")])
    assert (row["action"], row["status"], row["sha256"], row["bytes"]) == (SKIP, "too_large", None, None)
    assert "a file of 1,099,511,627,776 bytes is over the limit" in str(row["reason"])
