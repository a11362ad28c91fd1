"""What `facepipe search` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.report import facepipe
from tests.integration.conftest import Runner

pytestmark = pytest.mark.usefixtures("loaded_once")


def test_a_name_cannot_forge_a_line(photos: Path, runner: Runner, tmp_path: Path) -> None:
    name = "Eve\x1b[1A\nface 2 at 1,1 to 9,9: Mallory"
    (photos / "rows.csv").write_text(f'path,name\na1.jpg,"{name}"\n', newline="")
    runner(photos / "rows.csv")
    result = facepipe("search", photos / "a2.png", "--store", tmp_path / "store", "--device", "cpu")
    assert "Eve\\x1b[1A\\nface 2 at 1,1 to 9,9: Mallory" in result.stdout
    assert "\x1b" not in result.stdout
    assert not any(line.startswith("face 2") for line in result.stdout.splitlines())


def test_each_match_is_printed_once_with_its_photo_and_strength(photos: Path, runner: Runner, tmp_path: Path) -> None:
    (photos / "rows.csv").write_text("path,name\na1.jpg,Ann\nb1.jpg,\n")
    runner(photos / "rows.csv")
    same = facepipe("search", photos / "a1.jpg", "--store", tmp_path / "store", "--device", "cpu")
    assert "loading the models" in same.stderr
    head, face, other = same.stdout.splitlines()
    assert head == f"{photos / 'a1.jpg'}: 1 face"
    assert face.startswith("face 1 at ")
    assert f": Ann  strong 1.581  {photos / 'a1.jpg'}  " in face
    assert other.startswith("    (no name)  weak 0.")
    assert f"  {photos / 'b1.jpg'}  " in other
    none = facepipe("search", photos / "e-noise.png", "--store", tmp_path / "store", "--device", "cpu")
    assert none.stdout == f"{photos / 'e-noise.png'}: no face\n"
