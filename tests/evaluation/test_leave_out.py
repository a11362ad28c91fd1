"""The list of photos to leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import InputError, SourceMissing
from pipeline.evaluation.labels import read_leave_out

PATHS = ["/lfw/Ada/Ada_0001.jpg", "/lfw/Ada/Ada_0002.jpg", "/lfw/Bob #2/1.jpg", "/old/lfw/Ada/Ada_0001.jpg"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "list.txt"


def test_a_line_is_the_end_of_a_path_and_a_reason(file: Path) -> None:
    file.write_text("# notes\n\nAda/Ada_0002.jpg # Bob under another name\n")
    assert read_leave_out(file, PATHS) == {"/lfw/Ada/Ada_0002.jpg"}
    file.write_text("Ada_0001.jpg\r\n/lfw/Ada/Ada_0002.jpg   # shows Bob # and Eve\r\n")
    assert read_leave_out(file, PATHS) == {path for path in PATHS if "Ada" in path}


def test_only_whole_names_count(file: Path) -> None:
    file.write_text("a/Ada_0001.jpg")
    with pytest.raises(InputError, match=r"names a/Ada_0001\.jpg, and no photo here"):
        read_leave_out(file, PATHS)


def test_a_name_that_was_mistyped_is_said(file: Path) -> None:
    file.write_text("Ada/Ada_0001.jpg\nAda/Ada_001.jpg\n")
    with pytest.raises(InputError, match=r"names Ada/Ada_001\.jpg, and no photo"):
        read_leave_out(file, PATHS)


def test_an_empty_list_leaves_all(file: Path) -> None:
    file.write_text("# nobody\n")
    assert read_leave_out(file, PATHS) == set()


def test_what_is_no_list(file: Path) -> None:
    with pytest.raises(SourceMissing):
        read_leave_out(file, PATHS)
    file.write_bytes(b"\xff\xd8\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read_leave_out(file, PATHS)
