"""What `facepipe search` prints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Settings
from pipeline.jobs.calibration_file import write_calibration
from pipeline.jobs.store_identity import make_identity
from pipeline.matching.calibration import Calibration
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.integration.conftest import Runner
from tests.store.store_samples import flip, segments_of, small_segments
from tests.store.test_disk import in_namespace

pytestmark = pytest.mark.usefixtures("loaded_once")
ON_A_READ_ONLY_DISK = """
from pipeline.cli import main
main(["search", *sys.argv[2:], "--store", str(store), "--device", "cpu", "--json"])
"""


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


def test_the_calibration_says_what_is_strong(photos: Path, runner: Runner, settings: Settings, tmp_path: Path) -> None:
    """With a table by which a hundredth of the rate takes nearly equal faces, another photo of a person is likely."""
    file = tmp_path / "calibration.json"
    calibration = Calibration(1.0, "planted", 1e-5, "", ((1e-6, 1e-4), (1e-4, 0.54)))
    write_calibration(file, calibration, make_identity(settings), {})
    (photos / "rows.csv").write_text("path\na1.jpg\n")
    runner(photos / "rows.csv", settings=replace(settings, model=replace(settings.model, calibration=str(file))))
    words = []
    for photo in ("a1.jpg", "a2.png", "b1.jpg"):
        report = answer("search", photos / photo, "--store", tmp_path / "store", "--device", "cpu")
        (face,) = report["faces"]
        (found,) = face["similar"]
        words.append(found["strength"])
    assert words == ["strong", "likely", "weak"]


def rounded(report: str) -> Any:
    """The last bits of OpenVINO's numbers differ from process to process."""
    return json.loads(report, parse_float=lambda text: round(float(text), 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda store: shutil.rmtree(store / "references"),
        lambda store: flip(next(store.glob("references/*/*")), 99),
    ],
    ids=["whole", "without a segment", "with a damaged segment"],
)
def test_on_a_read_only_disk_the_answer_is_the_same(
    archive: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    photo, disk = archive / "photos/c-both.png", tmp_path / "disk"
    store = shutil.copytree(archive / "store", disk / "store")
    with small_segments(), LocalStore.open(store, command="test") as client:
        client.fold()
        assert len(segments_of(client)) == 1
    expected = answer("search", photo, "--store", store, "--device", "cpu")
    assert [face["identity"] is not None for face in expected["faces"]] == [True, True]
    damage(store)
    mount = f"mount --bind '{disk}' '{disk}' && mount -o remount,bind,ro '{disk}'"
    assert rounded(in_namespace(disk, mount, ON_A_READ_ONLY_DISK, str(photo))) == rounded(json.dumps(expected))
