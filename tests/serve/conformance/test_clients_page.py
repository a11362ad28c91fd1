"""Runs every command of docs/clients.md, and the call of docs/recipes.md, against a live server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.serve.conformance.client import Account, Directory
from tests.serve.conformance.launch import Launched
from tests.serve.conformance.photos import opened, other, photo

DOCS = Path(__file__).parents[3] / "docs"
_BLOCK = re.compile(r"^```(\w+)( \w+)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(account: Account, language: str, *, cloud: bool, name: str = "clients") -> str:
    """All blocks of a language, with the address and the credentials of this account. `cloud`: also the blocks marked
    for cloud hosting."""
    blocks = [
        text
        for kind, mark, text in _BLOCK.findall((DOCS / f"{name}.md").read_text())
        if kind == language and (cloud or not mark)
    ]
    assert blocks
    text = "\n".join(blocks)
    for written, real in (("http://127.0.0.1:8080", account.server.base_url), ("alice:secret", account.authorization)):
        assert written in text
        text = text.replace(written, real)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the two photos of the page."""
    (tmp_path / "photo.jpg").write_bytes(photo("hopper"))
    (tmp_path / "visitor.jpg").write_bytes(other("hopper"))
    return tmp_path


@pytest.fixture(params=["local"])
def main(request: pytest.FixtureRequest) -> Iterator[Directory]:
    """The directory of the page, in local hosting or where the test says."""
    process: Launched = request.getfixturevalue(f"{request.param}_process")
    directory = process.account("bob").directory("main")
    yield directory
    directory.clear()


def run_bash(script: str, folder: Path, tools: Sequence[str] = ("bash", "curl", "openssl", "xxd", "python3")) -> str:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_work_in_local_hosting(main: Directory, folder: Path) -> None:
    run_bash(page(main.account, "bash", cloud=False), folder)
    (person,) = main.people()
    assert (person["name"], person["tags"]) == ("Grace M. Hopper", ["navy"])
    assert (folder / "object").read_bytes() == (folder / "face.jpg").read_bytes()
    assert opened((folder / "face.jpg").read_bytes()).format == "JPEG"


@pytest.mark.slow
@pytest.mark.parametrize("main", ["cloud"], indirect=True)
def test_the_commands_work_in_cloud_hosting_and_decrypt(main: Directory, folder: Path) -> None:
    run_bash(page(main.account, "bash", cloud=True), folder)
    assert (folder / "object").read_bytes() != (folder / "face.jpg").read_bytes()
    assert (folder / "decrypted.jpg").read_bytes() == (folder / "face.jpg").read_bytes()


def test_the_python_sample_works(main: Directory, folder: Path) -> None:
    person_id = main.insert(photo("hopper"), "Grace Hopper", "N-1906")["personId"]
    sample = page(main.account, "python", cloud=False)
    done = subprocess.run([sys.executable, "-c", sample], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Grace Hopper {person_id} 1.")


def test_the_recipe_says_who_is_in_a_picture(main: Directory, folder: Path) -> None:
    """And stores nothing."""
    tools, recipe = ("bash", "curl", "jq"), page(main.account, "bash", cloud=False, name="recipes")
    assert run_bash(recipe, folder, tools) == "a stranger\n"
    assert main.people() == []
    main.insert(photo("hopper"), "Grace Hopper", "N-1906")
    (folder / "photo.jpg").write_bytes(other("hopper"))
    assert run_bash(recipe, folder, tools) == "Grace Hopper\n"
    (folder / "photo.jpg").write_bytes(photo("collins"))
    assert run_bash(recipe, folder, tools) == "a stranger\n"
    assert len(main.people()) == 1
