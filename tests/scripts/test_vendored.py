"""The JavaScript of others that lies in the repository is what its record says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORD: dict[str, dict[str, Any]] = json.loads((ROOT / "scripts/vendored.json").read_text("utf-8"))
FILES = {place: file["sha256"] for package in RECORD.values() for place, file in package["files"].items()}


@pytest.mark.parametrize("place", FILES)
def test_a_file_is_the_recorded_one(place: str) -> None:
    assert hashlib.sha256((ROOT / place).read_bytes()).hexdigest() == FILES[place]


def test_every_file_of_others_is_recorded_with_its_licence() -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in ("pipeline/serve/ui/static/vendor", "tests/browser/vendor")
        for file in (ROOT / folder).iterdir()
    }
    assert found == set(FILES)
    for package in RECORD.values():
        assert package["licence"] in {"MIT", "Apache-2.0", "MPL-2.0"}
        assert any("LICENSE" in place for place in package["files"])


def test_modules_name_no_other_host_and_no_bare_module() -> None:
    for file in (ROOT / "pipeline/serve/ui/static").rglob("*.js"):
        code = file.read_text("utf-8")
        assert "://" not in code.replace("http://www.w3.org/", ""), file
        for quoted in code.split('from "')[1:] + code.split('from"')[1:]:
            assert quoted.startswith("./"), file
