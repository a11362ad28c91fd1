"""The GPU check on a CPU: its dry run, and that it says what failed, was ended or left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gpu_check import check
from gpu_check.check import FAILED, OK, SKIPPED, STEPS, Running, Step, one_step, state_of, verdict
from gpu_check.device_work import _covered
from gpu_check.findings import Findings
from gpu_check.jpeg import levels_apart, odd_files, outcome, pixels_apart
from gpu_check.options import ROOT, SECONDS, Options, options_of, parser
from gpu_check.pack import chosen_photos
from gpu_check.rates import batches_at_once
from gpu_check.unpack import interleaved, planes_of
from PIL import Image

from pipeline.config import RunSettings
from pipeline.extraction.images.device_jpeg import JpegLibrary
from pipeline.runtime.device import CUDA_BATCHES, batch_workers

NAMES = tuple(step.name for step in STEPS)
ON_CPU = [step.name for step in STEPS if not step.not_on_cpu]


def options_in(folder: Path, faces: Path | None = None) -> Options:
    return Options("cpu", faces, folder, folder, seconds=60, quick=True, only=NAMES)


@pytest.mark.slow
def test_a_dry_run(weights_cache: Path, tmp_path: Path, full: bool) -> None:
    """With --full all steps that a CPU can take: 75 CPU seconds."""
    steps = NAMES if full else ("smoke", "jpeg")
    words = ["--device", "cpu", "--quick", "--out", tmp_path, "--only", *steps]
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gpu_check", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "FACEPIPE_CACHE": str(weights_cache)},
        cwd=tmp_path,
        check=False,
    )
    report = json.loads((tmp_path / "gpu_check.json").read_text())["steps"]
    states = {name: state_of(found) for name, found in report.items()}
    assert states == {name: OK if name in ON_CPU else SKIPPED for name in steps}, done.stdout
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[-len(steps) :]] == [[states[n], n] for n in steps]
    assert report["smoke"]["figures"]["exact a"]["faces"] == 4


def test_a_step_that_fails_is_a_problem_with_its_reason(tmp_path: Path) -> None:
    one_step("photos", options_in(tmp_path, faces=tmp_path))
    found = {**json.loads((tmp_path / "photos.json").read_text()), "seconds": 1.25}
    assert state_of(found) == FAILED
    line = verdict("photos", found)
    assert line.startswith("FAILED  photos           1.2 s  photos: SystemExit: ")
    assert line.endswith("does not hold lfw-view1/images and groups-with-boxes")


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    found = Running(Step("env", "machine", limit_s=0.1, least_s=0), options_in(tmp_path)).end(most_s=60)
    assert state_of(found) == FAILED
    assert found["problems"][0].startswith("it was ended after ")


def test_a_step_may_take_longer_where_all_may(tmp_path: Path) -> None:
    options = replace(options_in(tmp_path), seconds=5 * SECONDS)
    its_own = options_of(parser(NAMES, None).parse_args(options.words()), tmp_path)
    assert its_own.patience == options.patience == 5
    assert options_in(tmp_path).patience == 1


def test_a_step_that_hangs_says_where(tmp_path: Path) -> None:
    program = (
        "import time; from gpu_check import check; from gpu_check.options import Options;"
        "from pathlib import PosixPath; from types import SimpleNamespace; import sys;"
        "check.STEPS = (check.Step('env', 'hangs', limit_s=1, least_s=0),);"
        "sys.modules['gpu_check.hangs'] = SimpleNamespace(env=lambda *_: time.sleep(1.5));"
        f"check.one_step('env', {options_in(tmp_path)})"
    )
    paths = (ROOT, ROOT / "scripts", ROOT / "scripts" / "bench")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert "Timeout (" in done.stderr
    assert 'File "<string>", line 1 in <lambda>' in done.stderr


def run_main(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["gpu_check", "--out", str(folder), *words])
    return check.main()


def test_without_time_steps_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(tmp_path, monkeypatch, "--device", "cpu", "--seconds", "5") == 0
    assert "skipped env              0.0 s  5 s were left: --only env runs it" in capsys.readouterr().out


@pytest.mark.slow
def test_without_the_device_steps_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(tmp_path, monkeypatch, "--device", "cuda:99") == 1
    lines = capsys.readouterr().out.splitlines()[-len(STEPS) :]
    assert lines[0].startswith("FAILED  env")
    assert 'DeviceMissing: Device "cuda:99" was asked for' in lines[0]
    assert all(line.endswith("there is no device to run it on") for line in lines[1:])


@pytest.mark.usefixtures("nvimgcodec")
def test_odd_files_through_the_code_for_a_device(hopper_path: Path, tmp_path: Path) -> None:
    found, device = Findings(tmp_path / "jpeg.json"), torch.device("cpu")
    libraries = {"interpolated": JpegLibrary(), "plain": JpegLibrary(interpolates=False)}
    with Image.open(hopper_path) as picture:
        files = odd_files(picture)
    made = {name: outcome(name, data, libraries, device, found) for name, data in files.items()}
    assert found.problems == []
    assert made["4:2:0"]["facepipe"] == "DeviceImage"
    assert made["CMYK"]["facepipe"] == "DecodedImage"
    assert made["damaged: cut"]["facepipe"] == made["damaged: cut"]["cpu"] == "ImageTruncated"
    assert made["damaged: cut"]["library alone"] == {"interpolated": False, "plain": False}
    outcome("17 x 33", files["damaged: cut"], libraries, device, found)
    assert found.problems == ["17 x 33: None grey levels from libjpeg-turbo's"]
    apart = pixels_apart([files["4:4:4"], files["4:2:0"]], libraries, device)
    same = (0, 0.0)
    assert apart["interpolated"] == [same, same]
    assert apart["plain"][0] == same
    assert (apart["plain"][1] or same)[0] > 3
    assert levels_apart(torch.zeros(2, 3, 3), torch.zeros(3, 2, 3)) is None


def test_small_parts(photos: Path) -> None:
    with batches_at_once(6):
        assert batch_workers(RunSettings(device="cuda")) == 6
    assert batch_workers(RunSettings(device="cuda")) == CUDA_BATCHES
    assert _covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    for length in range(10):
        data = bytes(range(length))
        assert interleaved(planes_of(data)) == data
    names = [name for _, name in chosen_photos(photos)]
    assert names[-1] == "groups-with-boxes/both.jpg"
    assert "lfw-view1/images/A/A_0002.jpg" in names
