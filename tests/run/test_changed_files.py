"""Which files of a source are read again: those that may have changed since the store got them."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.config import Settings, load_settings
from pipeline.errors import ImageUnreadable
from pipeline.extraction.images import files
from pipeline.extraction.images.files import HashedFile, hash_file
from pipeline.run import changed_files
from pipeline.run.changed_files import Comparison, StoredRows
from pipeline.store.records import KNOWN_FILES_SCHEMA, ScanNotes
from pipeline.types import FileState, ImageRef, utc_now

_CLOCK = time.time_ns


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were just written are taken as two seconds old."""
    monkeypatch.setattr(time, "time_ns", lambda: _CLOCK() + 3 * 10**9)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, in any order."""
    names: list[str] = []

    def read(path: str, max_bytes: int) -> HashedFile:
        names.append(Path(path).name)
        return hash_file(path, max_bytes)

    monkeypatch.setattr(changed_files, "hash_file", read)
    return names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def _known(folder: Path) -> pa.Table:
    """The two files as the store has them, read now."""
    rows = []
    for number, path in enumerate(sorted(folder.iterdir())):
        file = hash_file(path)
        row = {"path": str(path), "directory": "main", "media_id": number, "sha256": file.sha256, "seen_at": utc_now()}
        if file.state is not None:
            row |= dict(zip(("size", "mtime_ns", "ctime_ns", "inode"), file.state, strict=True))
        rows.append(row)
    return pa.Table.from_pylist(rows, KNOWN_FILES_SCHEMA)


def _with(known: pa.Table, column: str, *values: object) -> pa.Table:
    at = known.schema.get_field_index(column)
    return known.set_column(at, known.schema.field(at), pa.array(values, known.schema.field(at).type))


def _compare(known: pa.Table, folder: Path, **run: bool) -> tuple[list[bool], Comparison]:
    """Whether the store has each file, and the comparison after it."""
    settings: Settings = load_settings(environ={}, flags={f"run.{key}": value for key, value in run.items()})
    compared = Comparison(
        StoredRows(known.to_batches(), check_inode=settings.run.check_inode), "main", settings, lambda: None, list
    )
    refs = [ImageRef(path=str(path), file=str(path)) for path in sorted(folder.iterdir())]
    return [compared.is_stored(row) for chunk in compared.chunks(refs) for row in chunk], compared


def test_unchanged_files_are_not_read(folder: Path, opened: list[str]) -> None:
    known = _known(folder)
    assert _compare(known, folder)[0] == [True, True]
    assert opened == []


@pytest.mark.parametrize("column", ["size", "mtime_ns", "ctime_ns"])
def test_a_file_with_another_size_or_time_is_read_and_its_content_decides(
    folder: Path, opened: list[str], column: str
) -> None:
    known = _known(folder)
    first, second = known[column].to_pylist()
    stored, compared = _compare(_with(known, column, first + 1, second), folder)
    assert (stored, opened) == ([True, True], ["a"])
    assert compared.notes().read_again == [(0, *(hash_file(folder / "a").state or ()))]


def test_other_bytes_of_the_same_size_at_the_same_mtime_are_found(folder: Path, opened: list[str]) -> None:
    known = _known(folder)
    entry = (folder / "a").stat()
    (folder / "a").write_bytes(b"x")
    os.utime(folder / "a", ns=(entry.st_atime_ns, entry.st_mtime_ns))
    stored, compared = _compare(known, folder)
    assert (stored, opened, compared.notes().read_again) == ([False, True], ["a"], [])


def test_the_inode_counts_where_it_is_asked_for(folder: Path, opened: list[str]) -> None:
    known = _known(folder)
    moved = _with(known, "inode", 1, known["inode"][1].as_py())
    assert _compare(moved, folder)[0] == [True, True]
    assert opened == []
    stored, compared = _compare(moved, folder, check_inode=True)
    assert (stored, opened, len(compared.notes().read_again)) == ([True, True], ["a"], 1)


def test_everything_is_read_where_that_is_asked_for(folder: Path, opened: list[str]) -> None:
    assert _compare(_known(folder), folder, rehash=True)[0] == [True, True]
    assert sorted(opened) == ["a", "b"]


def test_a_file_that_changed_within_two_seconds_before_it_was_read_is_read_again(
    folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time_ns", _CLOCK)
    known = _known(folder)
    assert known["ctime_ns"].null_count == 2  # a second change could leave the same times
    stored, compared = _compare(known, folder)
    assert (stored, sorted(opened), compared.notes().read_again) == ([True, True], ["a", "b"], [])


def test_a_clock_that_went_backwards_proves_nothing(folder: Path, opened: list[str]) -> None:
    known = _known(folder)
    later = _with(known, "seen_at", utc_now() + timedelta(hours=1), utc_now())
    stored, compared = _compare(later, folder)
    assert (stored, opened, len(compared.notes().read_again)) == ([True, True], ["a"], 1)


def test_a_file_system_without_ctime_proves_nothing(
    folder: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = FileState
    monkeypatch.setattr(files, "FileState", lambda size, mtime, _ctime, inode: state(size, mtime, 0, inode))
    known = _known(folder)
    assert known["ctime_ns"].null_count == 2
    assert _compare(known, folder)[0] == [True, True]
    assert sorted(opened) == ["a", "b"]
    nothing = _with(known, "ctime_ns", 0, 0)
    assert _compare(nothing, folder)[0] == [True, True]
    assert len(opened) == 4


def test_a_row_whose_content_the_store_has_twice_is_known_by_either(folder: Path, opened: list[str]) -> None:
    """A file that was changed and changed back."""
    known = _known(folder)
    first = known.slice(0, 1).to_pylist()[0]
    other = {**first, "media_id": 2, "sha256": "other", "ctime_ns": 1}
    assert _compare(pa.concat_tables([known, pa.Table.from_pylist([other], known.schema)]), folder)[0] == [True, True]
    assert opened == []


def test_what_cannot_be_read_is_known_where_it_could_not_be_read_before(folder: Path) -> None:
    (folder / "c").mkdir()
    known = pa.Table.from_pylist([{"path": str(folder / "c"), "directory": "main", "media_id": 9}], KNOWN_FILES_SCHEMA)
    stored, compared = _compare(known, folder)
    assert (stored, compared.notes().read_again) == ([False, False, True], [])


def _moves(known: pa.Table, folder: Path, **run: object) -> Comparison:
    """The comparison of all that is in the folder."""
    settings: Settings = load_settings(environ={}, flags={f"run.{key}": value for key, value in run.items()})
    compared = Comparison(StoredRows(known.to_batches(), check_inode=False), "main", settings, lambda: None, list)
    refs = [ImageRef(path=str(path), file=str(path)) for path in sorted(folder.rglob("*")) if not path.is_dir()]
    compared.without_moves([row for chunk in compared.chunks(refs) for row in chunk if not compared.is_stored(row)])
    return compared


def test_a_vanished_file_is_paired_with_a_new_one_of_the_same_bytes(folder: Path) -> None:
    for name in ("c", "d"):
        (folder / name).write_bytes(b"a")  # as the file a
    known = _known(folder)
    old, new = ([str(folder / path) for path in paths] for paths in (["a", "c", "d"], ["n/1", "n/2", "n/3"]))
    (folder / "n").mkdir()
    for name, path in (("d", "1"), ("a", "2"), ("b", "x")):
        (folder / name).rename(folder / "n" / path)
    compared = _moves(known, folder)
    b = (str(folder / "b"), "main", str(folder / "n" / "x"))
    assert compared.moved == [(old[0], "main", new[0]), (old[2], "main", new[1]), b]  # in the order of the paths
    assert sorted(row[0] for row in compared.notes().read_again) == [0, 1, 3]  # with the times that they have now
    assert compared.vanished == []
    (folder / "n" / "2").unlink()
    compared = _moves(known, folder)
    assert compared.moved == [(old[0], "main", new[0]), b]
    assert (compared.vanished, compared.notes().gone) == ([(old[2], "main")], [3])
    assert _moves(known, folder, on_missing="keep").notes().gone == []


def test_a_file_whose_old_path_is_still_there_is_a_copy(folder: Path) -> None:
    known = _known(folder)
    (folder / "copy").write_bytes(b"a")
    compared = _moves(known, folder)
    assert (compared.moved, compared.vanished) == ([], [])


def test_a_new_path_that_a_manifest_names_twice_takes_one_file(folder: Path) -> None:
    (folder / "c").write_bytes(b"a")
    known = _known(folder)
    (folder / "a").rename(folder / "z")
    (folder / "c").unlink()
    compared = Comparison(
        StoredRows(known.to_batches(), check_inode=False), "main", load_settings(environ={}), lambda: None, list
    )
    refs = [ImageRef(path=str(folder / name), file=str(folder / name)) for name in "zbz"]
    fresh = [row for chunk in compared.chunks(refs) for row in chunk if not compared.is_stored(row)]
    assert compared.without_moves(fresh) == []
    assert compared.moved == [(str(folder / "a"), "main", str(folder / "z"))]
    assert compared.vanished == [(str(folder / "c"), "main")]


def test_a_path_that_is_read_into_another_directory_is_not_missed(folder: Path) -> None:
    known = _with(_known(folder), "directory", "other", "main")
    compared = _moves(known, folder)
    assert (compared.moved, compared.vanished) == ([], [])
    (folder / "a").rename(folder / "z")
    compared = _moves(known, folder)
    assert (compared.moved, compared.vanished) == ([], [(str(folder / "a"), "other")])


def test_what_lies_in_a_folder_that_cannot_be_listed_is_not_missed(folder: Path) -> None:
    known = _known(folder)
    (folder / "a").unlink()
    settings = load_settings(environ={})
    for closed, missed in ((folder, []), (folder / "other", [(str(folder / "a"), "main")])):
        compared = Comparison(StoredRows(known.to_batches(), check_inode=False), "main", settings, lambda: None, list)
        refs = [
            ImageRef(path=str(closed), file=str(closed), rejected=ImageUnreadable(detail="it cannot be listed")),
            ImageRef(path=str(folder / "b"), file=str(folder / "b")),
        ]
        compared.without_moves([r for chunk in compared.chunks(refs) for r in chunk if not compared.is_stored(r)])
        assert compared.vanished == missed


def test_a_row_of_a_manifest_whose_file_is_missing_is_missed(folder: Path) -> None:
    known = _known(folder)
    (folder / "a").unlink()
    compared = Comparison(
        StoredRows(known.to_batches(), check_inode=False), "main", load_settings(environ={}), lambda: None, list
    )
    refs = [ImageRef(path=str(folder / n), file=str(folder / n)) for n in "abc"]
    fresh = [row for chunk in compared.chunks(refs) for row in chunk if not compared.is_stored(row)]
    left = compared.without_moves(fresh)
    assert [row.ref.path for row in left] == [str(folder / "c")]  # never was there: a row with a reason, as ever
    assert compared.vanished == [(str(folder / "a"), "main")]


def test_what_was_missed_and_is_back_is_told_once(folder: Path) -> None:
    known = _with(_known(folder), "gone_at", utc_now(), None)
    compared = _moves(known, folder)
    assert compared.notes() == ScanNotes([], [], [], [0])
    (folder / "a").rename(folder / "z")
    compared = _moves(known, folder)  # it is back at another path
    assert (len(compared.moved), compared.notes().back) == (1, [0])
    (folder / "z").unlink()
    compared = _moves(known, folder)
    assert (compared.vanished, compared.notes()) == ([], ScanNotes([], [], [], []))
