"""docs/clients.md: every command on the page does what the page says, against a live server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.conformance.client import Account, Directory
from tests.serve.conformance.launch import Launched
from tests.serve.conformance.photos import opened, other, photo

PAGE = Path(__file__).parents[3] / "docs" / "clients.md"
_BLOCK = re.compile(r"^```(\w+)( \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(account: Account, language: str, *, cloud: bool) -> str:
    """All blocks of a language, as they are for this server; those only for cloud hosting too, or not."""
    blocks = [text for kind, mark, text in _BLOCK.findall(PAGE.read_text()) if kind == language and (cloud or not mark)]
    assert blocks
    text = "\n".join(blocks)
    for written, real in (("http://127.0.0.1:8080", account.server.base_url), ("alice:secret", account.authorization)):
        assert written in text
        text = text.replace(written, real)
    return text


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder with the two photos of the page."""
    (tmp_path / "photo.jpg").write_bytes(photo("hopper"))
    (tmp_path / "visitor.jpg").write_bytes(other("hopper"))
    return tmp_path


@pytest.fixture
def main_of_local(local_process: Launched) -> Iterator[Directory]:
    directory = local_process.account("bob").directory("main")
    yield directory
    directory.clear()


@pytest.fixture
def main_of_cloud(cloud_process: Launched) -> Iterator[Directory]:
    directory = cloud_process.account("bob").directory("main")
    yield directory
    directory.clear()


def run_bash(script: str, folder: Path) -> str:
    missing = [tool for tool in ("bash", "curl", "openssl", "xxd", "python3") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_work_in_local_hosting(main_of_local: Directory, desk: Path) -> None:
    run_bash(page(main_of_local.account, "bash", cloud=False), desk)
    (person,) = main_of_local.people()
    assert (person["name"], person["tags"]) == ("Grace M. Hopper", ["navy"])
    assert (desk / "object").read_bytes() == (desk / "face.jpg").read_bytes()
    assert opened((desk / "face.jpg").read_bytes()).format == "JPEG"


def test_the_commands_work_in_cloud_hosting_and_decrypt(main_of_cloud: Directory, desk: Path) -> None:
    run_bash(page(main_of_cloud.account, "bash", cloud=True), desk)
    assert (desk / "object").read_bytes() != (desk / "face.jpg").read_bytes()
    assert (desk / "decrypted.jpg").read_bytes() == (desk / "face.jpg").read_bytes()


def test_the_python_sample_works(main_of_local: Directory, desk: Path) -> None:
    person_id = main_of_local.insert(photo("hopper"), "Grace Hopper", "N-1906")["personId"]
    sample = page(main_of_local.account, "python", cloud=False)
    done = subprocess.run([sys.executable, "-c", sample], cwd=desk, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Grace Hopper {person_id} 1.")
