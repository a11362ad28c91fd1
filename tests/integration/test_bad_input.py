"""What a user gets for bad input: the error's name, its exit code, and what to do. Bad files are rows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.cli.report import answer


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store, made by the command line."""
    answer("account", "create", "ann", "--store", tmp_path / "store", "--weights", "casia-webface")
    return tmp_path / "store"


def _fails(code: int, name: str, says: str, *words: object) -> None:
    report = answer(*words, exit_code=code)
    assert (report["error"], report["exit_code"]) == (name, code)
    assert says in report["message"]


def test_missing_source(tmp_path: Path) -> None:
    _fails(10, "source-missing", "Check the path", "run", tmp_path / "nowhere", "--store", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_empty_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _fails(11, "source-empty", "no image files", "run", tmp_path / "empty", "--store", store)


def test_manifest_without_path(store: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("name,age\nAda,36\n")
    _fails(12, "manifest-invalid", "path", "run", tmp_path / "rows.csv", "--store", store)


def test_files_that_are_none_end_as_rows(store: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "folder.jpg").mkdir(parents=True)
    (tmp_path / "in" / "text.jpg").write_text("no image")
    (tmp_path / "in" / "rows.csv").write_text("path\nfolder.jpg\n../outside.jpg\ngone.jpg\ntext.jpg\ntext.jpg\n")
    words = ("run", tmp_path / "in" / "rows.csv", "--store", store)
    expected = {"duplicate_row": 1, "missing": 1, "not_a_file": 1, "outside": 1, "unsupported": 1}
    assert answer(*words)["statuses"] == expected
    assert answer(*words)["already_in"] == 5


def test_too_many_directories(store: Path, tmp_path: Path) -> None:
    rows = "\n".join(f"x{k}.jpg,dir{k}" for k in range(11))
    (tmp_path / "rows.csv").write_text(f"path,directory\n{rows}\n")
    _fails(13, "too-many-directories", "at most 10", "run", tmp_path / "rows.csv", "--store", store)


def test_store_of_a_newer_format(store: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(store / "catalog-0001.duckdb")) as con:
        con.execute("UPDATE core.store SET format_version = 99")
    _fails(42, "store-too-new", "Upgrade facepipe", "check", "--store", store)


@pytest.fixture
def holder(store: Path) -> Iterator[int]:
    """Another process that holds the store's lock."""
    code = (
        "import sys; from pipeline.store.local import LocalStore;"
        "c = LocalStore.open(sys.argv[1], command='holding'); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(store)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield process.pid
        process.stdin.close()


def test_store_in_use_by_another_process(store: Path, holder: int, tmp_path: Path) -> None:
    _fails(41, "store-locked", f"process {holder}", "check", "--store", store)
    _fails(41, "store-locked", "holding", "run", tmp_path, "--store", store)


def test_no_store(tmp_path: Path) -> None:
    _fails(40, "store-missing", "account create", "check", "--store", tmp_path / "nowhere")


def test_a_damaged_store_stops_the_run(store: Path, tmp_path: Path) -> None:
    catalog = store / "catalog-0001.duckdb"
    catalog.write_bytes(b"\0" * catalog.stat().st_size)
    _fails(43, "store-damaged", "backup", "run", tmp_path, "--store", store)


def test_weights_that_are_not_here(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    words = ("run", tmp_path, "--store", tmp_path / "store", "--set", f"model.cache={tmp_path}", "--weights")
    _fails(31, "weights-missing", "facepipe models fetch vggface2", *words, "vggface2")
    _fails(30, "unknown-weights", "casia-webface", *words, "arcface")


def test_weights_file_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    (tmp_path / "weights.pt").write_bytes(b"something else")
    words = ("run", tmp_path, "--store", tmp_path / "store", "--weights", "vggface2")
    _fails(32, "weights-corrupt", "weights.pt", *words, "--weights-file", tmp_path / "weights.pt")


def test_a_device_that_is_not_there(store: Path, tmp_path: Path, hopper_path: Path) -> None:
    _fails(20, "device-missing", "--device cpu", "search", hopper_path, "--store", store, "--device", "cuda:99")


def test_unknown_account(store: Path, tmp_path: Path) -> None:
    _fails(46, "account-unknown", "ann", "run", tmp_path, "--store", store, "--account", "bob")
    _fails(47, "account-exists", "ann", "account", "create", "ann", "--store", store)


def test_unknown_setting(store: Path, tmp_path: Path) -> None:
    _fails(2, "unknown-key", "detect.min_face_px", "run", tmp_path, "--store", store, "--set", "detect.min_faces_px=3")
    _fails(2, "bad-value", "[0, 3.99], or 4", "run", tmp_path, "--store", store, "--threshold", "5")
    _fails(2, "usage-error", "1 to 64 printable", "run", tmp_path, "--store", store, "--directory", "a/b")
