"""scripts/setup_env where it installs nothing: a set-up that is there already, and machines that lack something."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder with the scripts and nothing to install."""
    folder = tmp_path / "a project"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__", "results"))
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\n')
    return folder


def setup(project: Path, extras: str = "demo", **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("FACEPIPE_")}
    command = ["sh", str(project / "scripts" / "setup_env"), extras]
    return subprocess.run(
        command, env={**inherited, **environ}, capture_output=True, text=True, check=False, cwd="/", timeout=60
    )


def executable(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_python_that_is_too_old_is_named(project: Path) -> None:
    old = executable(project / "python3.9", '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 1\n')
    done = setup(project, FACEPIPE_PYTHON=old)
    assert done.returncode == 1
    assert "Python 3.10 or newer; found: Python 3.9.2" in done.stderr
    assert not (project / ".venv").exists()


def test_a_missing_venv_module_prints_the_apt_line(project: Path) -> None:
    without = executable(
        project / "python3",
        f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n',
    )
    done = setup(project, FACEPIPE_PYTHON=without)
    assert done.returncode == 1
    assert "apt-get install python3-venv" in done.stderr
    assert not (project / ".venv").exists()


def stamped(project: Path, extras: str = "demo") -> Path:
    """An environment that a set-up finished: its Python, and a pip that must not be called."""
    venv = project / ".venv"
    executable(venv / "bin" / "python", f'#!/bin/sh\n[ "$2" = pip ] && exit 77\nexec "{sys.executable}" "$@"\n')
    text = f"{project.resolve()}\n".encode() + (project / "pyproject.toml").read_bytes()
    (venv / f".facepipe-{extras}").write_text(hashlib.sha256(text).hexdigest() + "\n")
    return venv


def test_a_finished_set_up_is_reused_without_a_word(project: Path) -> None:
    stamped(project)
    done = setup(project)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_another_folder_can_be_named(project: Path, tmp_path: Path) -> None:
    stamped(project).rename(tmp_path / "elsewhere")
    assert setup(project, FACEPIPE_VENV=str(tmp_path / "elsewhere")).returncode == 0
    assert not (project / ".venv").exists()


@pytest.mark.parametrize("change", ["requirements", "extras", "interpreter"])
def test_what_is_out_of_date_is_made_anew(project: Path, change: str) -> None:
    venv = stamped(project)
    if change == "requirements":
        (project / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "2"\n')
    elif change == "interpreter":  # as after an upgrade of the system's Python
        executable(venv / "bin" / "python", "#!/bin/sh\nexit 127\n")
    without_venv = executable(
        project / "python3", f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n'
    )
    # It goes on to look for a Python to make the environment with, and here finds none that can.
    done = setup(project, "dev" if change == "extras" else "demo", FACEPIPE_PYTHON=without_venv)
    assert done.returncode == 1
    assert "python3-venv" in done.stderr


@pytest.mark.parametrize("script", ["setup_env", "demo", "test"])
def test_the_scripts_are_executable_posix_shell(script: str) -> None:
    path = ROOT / "scripts" / script
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", str(path)], check=True)
