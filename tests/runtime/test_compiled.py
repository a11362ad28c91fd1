"""The machine code that is kept on disk: never of an old version of any file, and nothing depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pipeline.errors
from tests.forking import Forker

pytest.importorskip("numba")

ROOT = str(Path(pipeline.errors.__file__).parents[1])

PART = "from pipeline.runtime.compiled import compiled\n@compiled()\ndef number():\n    return {number}\n"
KERNEL = """
from pipeline.runtime.compiled import compiled
import part
@compiled()
def between():
    return {factor} * part.number()
@compiled("i8()", inlined=(part,))
def answer():
    return between()
print(answer(), *answer.stats.cache_hits.values())
"""
LOGGED = "from pipeline.runtime.compiled import logging_compilation\nwith logging_compilation():\n    import kernel"
TOLD = "compiling loops for this processor, once: about half a minute\n"


Answer = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with Forker("tests.runtime.forked_kernel") as forker:
        yield forker


@pytest.fixture
def answer(forker: Forker, folder: Path) -> Answer:
    """What a process of its own prints: the answer, and a 1 where the machine code was there."""

    def run_kernel(**variables: str) -> list[str]:
        output, variables = folder / "output", {"NUMBA_CACHE_DIR": str(folder / "kept"), **variables}
        child = forker.start(script=str(folder / "kernel.py"), variables=variables, output=str(output))
        assert child.wait().status == 0
        return output.read_text().split()

    return run_kernel


def write(folder: Path, number: int = 1, factor: int = 1) -> None:
    (folder / "part.py").write_text(PART.format(number=number))
    (folder / "kernel.py").write_text(KERNEL.format(factor=factor))


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python of its own, which keeps machine code in the folder."""
    given = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ROOT, "NUMBA_CACHE_DIR": str(folder / "kept"), **variables}
    command, environment = [sys.executable, *arguments], {**os.environ, **given}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


def kept(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / "kept").rglob("*") if file.is_file())


def test_it_is_compiled_once(folder: Path, answer: Answer) -> None:
    assert [answer(), answer()] == [["1"], ["1", "1"]]


def test_it_follows_the_files_that_it_is_made_of(folder: Path, answer: Answer) -> None:
    """Through a function between them, too; numba itself looks at one file only, its time and size."""
    assert answer() == ["1"]
    times = (folder / "kernel.py").stat()
    write(folder, number=2)
    assert answer() == ["2"]
    write(folder, number=2, factor=3)
    os.utime(folder / "kernel.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert answer() == ["6"]


@pytest.mark.parametrize("ending", [".nbi", ".nbc"])
@pytest.mark.parametrize("content", [b"", b"\x80\x04nonsense"])
def test_damaged_files_are_made_anew(folder: Path, answer: Answer, ending: str, content: bytes) -> None:
    assert answer() == ["1"]
    damaged = [file for file in kept(folder) if file.suffix == ending]
    for file in damaged:
        file.write_bytes(content)
    assert damaged
    assert [answer(), answer(), answer()] == [["1"], ["1"], ["1", "1"]]


def test_without_a_folder_each_process_compiles_for_itself(folder: Path, answer: Answer) -> None:
    (folder / "file").write_text("")
    nowhere = str(folder / "file" / "kept")
    assert answer(NUMBA_CACHE_DIR=nowhere, NUMBA_CACHE_LOCATOR_CLASSES="_UserProvidedCacheLocator") == ["1"]
    assert kept(folder) == []


@pytest.mark.slow
def test_what_takes_long_is_told_of_and_nothing_else(folder: Path) -> None:
    """Two functions are compiled, and one line says so, on standard error."""
    assert run(folder, str(folder / "kernel.py")).stderr == ""  # where nobody asked for the log
    write(folder, number=2)
    first, second = (run(folder, "-c", LOGGED, PYTHONPATH=f"{ROOT}:{folder}") for _ in range(2))
    assert (first.stdout.split(), second.stdout.split()) == (["2"], ["2", "1"])
    assert first.stderr == TOLD
    assert second.stderr == ""


def test_the_loops_of_detection_are_told_of_before_they_are_compiled(tmp_path: Path) -> None:
    code = "from pipeline.jobs.models import load_host_networks; load_host_networks()"
    environment = {**os.environ, "PYTHONPATH": ROOT, "NUMBA_CACHE_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        process.kill()  # the rest of the half minute
    assert told == TOLD


@pytest.mark.slow
def test_an_error_in_the_loop_is_raised(folder: Path) -> None:
    (folder / "part.py").write_text(PART.format(number="unknown"))
    with pytest.raises(AssertionError, match="unknown"):
        run(folder, str(folder / "kernel.py"))
