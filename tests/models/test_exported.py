"""Exported networks: made once, compared with torch, checked when read, made anew when they are not what they should
be; shared by processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn

from pipeline.models import exported
from pipeline.models.exported import LOOPS, Exportable, ExportUnfaithful, compare, export, load_exported, read_metadata
from pipeline.models.loops import load_kernels
from pipeline.models.onnx_runtime import OnnxNetwork, OnnxRuntime, choose_runtime
from pipeline.models.registry import weight_set

SHAPE = (3, 8, 9)


class Source:
    """A small network to export, and how often it was built."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
        self.builds = 0

    def build(self) -> nn.Module:
        self.builds += 1
        return self.network

    @property
    def exportable(self) -> Exportable:
        return Exportable("small", "ab" * 32, SHAPE, self.build)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def runtime(tmp_path: Path) -> OnnxRuntime:
    pytest.importorskip("onnxruntime")
    runtime = choose_runtime("onnxruntime", weight_set("sface"), torch.device("cpu"), tmp_path / "cache", 1)
    assert runtime is not None
    return runtime


def loaded(source: Exportable, runtime: OnnxRuntime) -> OnnxNetwork:
    network = load_exported(source, runtime)
    assert network is not None
    return network


def test_it_answers_as_torch_does_and_is_made_once(source: Source, runtime: OnnxRuntime) -> None:
    pixels = torch.randn(5, *SHAPE)
    for _ in range(3):
        found = loaded(source.exportable, runtime)
        with torch.inference_mode():
            torch.testing.assert_close(found(pixels), source.network(pixels), atol=1e-6, rtol=0)
    assert source.builds == 1
    assert sorted(path.name for path in runtime.cache.iterdir()) == ["small.onnx", "small.onnx.lock"]


def test_the_file_says_what_it_is(source: Source, runtime: OnnxRuntime) -> None:
    loaded(source.exportable, runtime)
    metadata = read_metadata((runtime.cache / "small.onnx").read_bytes())
    assert metadata["weights_sha256"] == "ab" * 32
    assert metadata["onnxruntime"] == runtime.version
    assert metadata["loops"].split()[0] == ("none" if load_kernels() is None else version("numba"))
    assert float(metadata["cosine"]) >= 0.99999
    assert float(metadata["max_difference"]) < 1e-5


@pytest.mark.parametrize("number", [0, 1, 2, 33])
def test_any_number_of_items_goes_through_at_once(source: Source, runtime: OnnxRuntime, number: int) -> None:
    pixels = torch.randn(number, *SHAPE)
    found = loaded(source.exportable, runtime)(pixels)
    assert isinstance(found, torch.Tensor)
    assert (found.shape, found.dtype) == ((number, 4, 1, 1), torch.float32)
    torch.testing.assert_close(found, source.network(pixels).detach(), atol=1e-6, rtol=0)


def test_any_layout_of_the_input_gives_the_same(source: Source, runtime: OnnxRuntime) -> None:
    network, pixels = loaded(source.exportable, runtime), torch.randn(4, *SHAPE)
    with torch.inference_mode():
        turned = pixels.clone().to(memory_format=torch.channels_last)
        torch.testing.assert_close(network(turned), network(pixels), atol=0, rtol=0)
        torch.testing.assert_close(network(pixels[::2]), network(pixels)[::2], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "damage", ["flipped first", "flipped middle", "flipped last", "cut", "empty", "longer", "folder"]
)
def test_a_damaged_file_is_made_anew(source: Source, runtime: OnnxRuntime, damage: str) -> None:
    path = runtime.cache / "small.onnx"
    loaded(source.exportable, runtime)
    whole = path.read_bytes()
    flipped = {"flipped first": 0, "flipped middle": len(whole) // 2, "flipped last": len(whole) - 1}
    other = {"cut": whole[:-1], "empty": b"", "longer": whole + b"\0"}
    if damage in flipped:
        place = flipped[damage]
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    elif damage in other:
        path.write_bytes(other[damage])
    else:
        path.unlink()
        path.mkdir()
    loaded(source.exportable, runtime)
    assert source.builds == 2
    assert damage == "folder" or path.read_bytes() == whole


@pytest.mark.parametrize("change", ["weights", "onnxruntime"])
def test_a_file_of_something_else_is_made_anew(source: Source, runtime: OnnxRuntime, change: str) -> None:
    loaded(source.exportable, runtime)
    exportable = source.exportable
    if change == "weights":
        exportable = dataclasses.replace(exportable, weights_sha256="cd" * 32)
    else:
        runtime = dataclasses.replace(runtime, version="1.0.0")
    loaded(exportable, runtime)
    assert source.builds == 2
    loaded(exportable, runtime)
    assert source.builds == 2


@pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")
@pytest.mark.parametrize("name", LOOPS)
def test_with_other_loops_it_is_compared_again(
    source: Source, runtime: OnnxRuntime, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(source.exportable, runtime)
    module = import_module(name)
    changed = tmp_path / "changed.py"
    changed.write_bytes(Path(str(module.__file__)).read_bytes() + b"\n")
    monkeypatch.setattr(module, "__file__", str(changed))
    loaded(source.exportable, runtime)
    assert source.builds == 2
    loaded(source.exportable, runtime)
    assert source.builds == 2


def test_no_module_of_the_loops_is_forgotten() -> None:
    models = Path(exported.__file__).parent
    found = {path.stem for pattern in ("loop*.py", "winograd*.py") for path in models.glob(pattern)}
    assert {f"pipeline.models.{name}" for name in found} <= set(LOOPS)


def test_a_cache_that_cannot_be_written_is_done_without(source: Source, runtime: OnnxRuntime) -> None:
    runtime.cache.write_text("a file, not a folder")
    assert loaded(source.exportable, runtime)(torch.zeros(1, *SHAPE)) is not None
    assert source.builds == 1
    assert runtime.cache.read_text() == "a file, not a folder"


def test_an_export_that_fails_leaves_nothing(runtime: OnnxRuntime) -> None:
    def fail() -> nn.Module:
        raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        load_exported(Exportable("small", "ab" * 32, SHAPE, fail), runtime)
    assert [path.name for path in runtime.cache.iterdir()] == ["small.onnx.lock"]


@pytest.mark.parametrize("fault", ["random", "not a number"])
def test_answers_unlike_torchs_are_not_used(source: Source, runtime: OnnxRuntime, fault: str) -> None:
    if fault == "random":  # a dropout that is not at rest: the translation leaves it out
        source.network = nn.Sequential(source.network, nn.Dropout(0.9)).train()
    else:
        next(source.network.parameters()).data.fill_(torch.nan)
    with pytest.raises(ExportUnfaithful):
        export(source.exportable, runtime)
    assert load_exported(source.exportable, runtime) is None
    assert not (runtime.cache / "small.onnx").exists()


def test_the_comparison_knows_a_small_difference_from_a_large_one() -> None:
    network = nn.Linear(20, 10)
    near, far = nn.Linear(20, 10), nn.Linear(20, 10)
    near.load_state_dict({name: value + 1e-6 for name, value in network.state_dict().items()})
    far.load_state_dict({name: value + 1e-2 for name, value in network.state_dict().items()})
    cosine, difference = compare(network, near, (20,))
    assert cosine > 0.99999
    assert 1e-7 < difference < 1e-4
    with pytest.raises(ExportUnfaithful, match="cosine"):
        compare(network, far, (20,))


PROCESS = """
import sys
from pathlib import Path
import torch
from pipeline.models.exported import load_exported
from pipeline.models.onnx_runtime import OnnxRuntime
from tests.models.test_exported import Source

source = Source()
network = load_exported(source.exportable, OnnxRuntime(sys.argv[1], Path(sys.argv[2]), 1))
print(source.builds, float(network(torch.ones(1, 3, 8, 9)).sum()))
"""


def test_processes_make_it_once(source: Source, runtime: OnnxRuntime) -> None:
    command = [sys.executable, "-W", "error", "-c", PROCESS, runtime.version, str(runtime.cache)]
    root = Path(__file__).resolve().parents[2]
    started = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [process.communicate()[0].split() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert sum(int(builds) for builds, _ in answers) == 1
    assert len({total for _, total in answers}) == 1
