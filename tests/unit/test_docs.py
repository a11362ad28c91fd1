"""The documents agree with the code and its figures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.cli import COMMANDS
from pipeline.errors import all_errors

ROOT = Path(__file__).resolve().parents[2]
README, COMMANDS_PAGE = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/commands.md"))
MOST_LINES = 150  # of the README: for a visitor of two minutes
FOLDERS = (".", "docs", "docs/decisions", "pipeline/store", "scripts/bench")
DOCUMENTS = sorted(file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in (ROOT / folder).glob("*.md"))


def section(name: str) -> str:
    return COMMANDS_PAGE.split(f"<!-- generated: {name} -->")[1].split("<!-- end -->")[0]


def test_the_generated_sections_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/update_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^\| `(\w+)", section("commands"), re.MULTILINE))
    assert listed == set(COMMANDS)


def test_every_exit_code_is_listed() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", section("exit codes"), re.MULTILINE)}
    assert {error.exit_code for error in all_errors()} <= listed
    assert 0 in listed


def test_exit_codes_from_3_up_are_unique_unless_inherited() -> None:
    own = [error.exit_code for error in all_errors() if "exit_code" in vars(error)]
    assert len(own) == len(set(own))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("https://") or (ROOT / document).parent.joinpath(link).exists(), link


def test_the_readme_starts_with_the_two_commands() -> None:
    first = README.split("```")[1]
    assert re.findall(r"^scripts/\w+", first, re.MULTILINE) == ["scripts/demo", "scripts/test"]


def test_the_readme_is_short_and_shows_a_picture_first() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    assert 0 < README.index("![") < README.index("```")


def test_the_readme_has_the_terms_of_all_weights() -> None:
    listed = yaml.safe_load((ROOT / "pipeline/models/registry.yaml").read_text("utf-8"))
    for name, weights in listed.items():
        if weights["kind"] == "embedder":
            (row,) = re.findall(rf"^\| `{name}`.*$", README, re.MULTILINE)
            assert f"| {weights['licence']} |" in row


def test_nobody_is_told_to_install_facepipe_from_an_index() -> None:
    """It is on none: anybody could register the name."""
    pattern, files = r"pip install (--upgrade )?['\"]?facepipe", ("*.md", "*.py", "*.yaml", "*.ipynb", ":!tests")
    command = ["git", "grep", "-nE", pattern, "--", *files]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (1, "")
