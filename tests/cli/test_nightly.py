"""The timer and the cron line of docs/nightly.md do what it says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import (
    Interrupted,
    ManifestInvalid,
    ServerUnreachable,
    SourceEmpty,
    SourceMissing,
    StoreDamaged,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "nightly.md").read_text("utf-8")


def _block(heading: str, language: str) -> list[str]:
    """The blocks of code under a heading."""
    section = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on the PATH")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    service, timer = _block("With systemd", "ini")
    command = tmp_path / "facepipe"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    (tmp_path / "facepipe.service").write_text(service.replace("ExecStart=facepipe", f"ExecStart={command}"))
    (tmp_path / "facepipe.timer").write_text(timer)
    units = [str(tmp_path / f"facepipe.{kind}") for kind in ("service", "timer")]
    done = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "facepipe" in line]) == (0, [])


@pytest.mark.parametrize("code", [0, 11])
def test_the_cron_line_tells_failures_only(tmp_path: Path, code: int) -> None:
    (line,) = _block("With cron", "sh")
    minute, hour, *_, command = line.strip().split(" ", 5)
    assert (minute, hour) == ("17", "3")
    facepipe = tmp_path / "facepipe"
    facepipe.write_text(f'#!/bin/sh\necho "$@"\necho why >&2\nexit {code}\n')
    facepipe.chmod(0o755)
    environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True, env=environ)
    said = f"run {tmp_path}/photos --store {tmp_path}/people\nwhy\n"
    assert (done.stdout, done.stderr) == (f"exit code {code}\n{said}" if code else "", "")


def test_the_exit_codes_are_those_of_the_errors() -> None:
    codes = re.findall(r"^\| ([\d, ]+) \|", DOCUMENT, re.MULTILINE)
    named = {int(code) for row in codes for code in row.split(", ")}
    errors = (Interrupted, SourceMissing, SourceEmpty, ManifestInvalid, StoreLocked, StoreFull, StoreUnwritable)
    assert named == {0, 1, 2, *(error.exit_code for error in (*errors, StoreDamaged, ServerUnreachable))}
