"""The machine code that is kept on disk: never of an old version of any file, and nothing depends on it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

PART = "from pipeline.compiled import compiled\n@compiled()\ndef number():\n    return {number}\n"
KERNEL = """
from pipeline.compiled import compiled
import part
@compiled()
def between():
    return {factor} * part.number()
@compiled("i8()", inlined=(part,))
def answer():
    return between()
print(answer(), *answer.stats.cache_hits.values())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def write(folder: Path, number: int = 1, factor: int = 1) -> None:
    (folder / "part.py").write_text(PART.format(number=number))
    (folder / "kernel.py").write_text(KERNEL.format(factor=factor))


def answer(folder: Path, **variables: str) -> list[str]:
    """What a process of its own prints: the answer, and a 1 where the machine code was there."""
    found = importlib.util.find_spec("pipeline.compiled")
    assert found is not None
    assert found.origin is not None
    root = str(Path(found.origin).parents[1])
    given = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": root, "NUMBA_CACHE_DIR": str(folder / "kept"), **variables}
    command, environment = [sys.executable, str(folder / "kernel.py")], {**os.environ, **given}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def kept(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / "kept").rglob("*") if file.is_file())


def test_it_is_compiled_once(folder: Path) -> None:
    assert [answer(folder), answer(folder)] == [["1"], ["1", "1"]]


def test_it_follows_the_files_that_it_is_made_of(folder: Path) -> None:
    """Through a function between them, too; numba itself looks at one file only, its time and size."""
    assert answer(folder) == ["1"]
    times = (folder / "kernel.py").stat()
    write(folder, number=2)
    assert answer(folder) == ["2"]
    write(folder, number=2, factor=3)
    os.utime(folder / "kernel.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answer(folder) == ["6"]


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04nonsense"])
def test_damaged_files_are_made_anew(folder: Path, ending: str, content: bytes) -> None:
    assert answer(folder) == ["1"]
    damaged = [file for file in kept(folder) if file.suffix == ending]
    for file in damaged:
        file.write_bytes(content)
    assert damaged
    assert [answer(folder), answer(folder), answer(folder)] == [["1"], ["1"], ["1", "1"]]


def test_without_a_folder_each_process_compiles_for_itself(folder: Path) -> None:
    (folder / "file").write_text("")
    nowhere = str(folder / "file" / "kept")
    assert answer(folder, NUMBA_CACHE_DIR=nowhere, NUMBA_CACHE_LOCATOR_CLASSES="_UserProvidedCacheLocator") == ["1"]
    assert kept(folder) == []


def test_an_error_in_the_loop_is_raised(folder: Path) -> None:
    (folder / "part.py").write_text(PART.format(number="unknown"))
    with pytest.raises(AssertionError, match="unknown"):
        answer(folder)
