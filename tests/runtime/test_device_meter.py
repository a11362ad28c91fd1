"""The device's busy share, read from a program that speaks as the driver's does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipeline.runtime.device_meter import DeviceMeter

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"


def test_samples_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\nprintf "90\\n70\\n"\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    begun = time.monotonic()
    with DeviceMeter(UUID) as meter:
        while meter.busy_share is None and time.monotonic() < begun + 30:
            time.sleep(0.01)
    assert meter.busy_share == pytest.approx(0.8)
    assert f"--id={UUID}" in (tmp_path / "arguments").read_text().split()
    assert time.monotonic() < begun + 50  # the program was ended


def test_the_cpu_needs_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with DeviceMeter(None) as meter:
        pass
    assert meter.busy_share is None


@pytest.mark.parametrize("installed", [False, True])
def test_a_driver_that_cannot_be_asked(installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if installed:
        (tmp_path / "nvidia-smi").touch(mode=0o644)  # which nobody may run
    with DeviceMeter(UUID) as meter:
        pass
    assert meter.busy_share is None


@pytest.mark.parametrize("says", ["[N/A]", "No devices were found", "Unable to find device 7 of 8"])
def test_a_slice_of_a_device_has_no_busy_share(says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "{says}"\ntouch {tmp_path}/said\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    begun = time.monotonic()
    with DeviceMeter(UUID) as meter:
        while not (tmp_path / "said").exists() and time.monotonic() < begun + 30:
            time.sleep(0.01)
    assert (tmp_path / "said").exists()
    assert meter.busy_share is None
