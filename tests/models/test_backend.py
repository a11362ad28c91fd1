"""The embedders in OpenVINO: which setting means it, that it answers as torch does, and its files in the cache."""

from __future__ import annotations

import dataclasses
import inspect
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cosine_similarity

from pipeline.config import DetectSettings, Settings, load_settings
from pipeline.errors import BadValue, WeightsCorrupt
from pipeline.extraction.align import warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.torch_networks import load_networks
from pipeline.extraction.embed import BATCH_CROPS, load_embedder
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.models import backend
from pipeline.models.backend import TorchSource, choose_backend, fast_precision, load_openvino
from pipeline.models.conversion.openvino import ConversionUnfaithful, compare
from pipeline.models.files.converted import read_metadata
from pipeline.models.networks.openvino import OpenVino, OpenVinoNetwork, core
from pipeline.models.weights import ResolvedWeights, detector_arrays, detector_files, resolve
from pipeline.types import FloatArray

CPU = "cpu"
ROOT = Path(__file__).resolve().parents[2]
SHAPE = (3, 8, 9)
FILE = "small.openvino"


class Source:
    """A small network to convert, and how often it was built."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.network: nn.Module = nn.Sequential(*layers).eval()
        self.builds = 0

    def build(self) -> nn.Module:
        self.builds += 1
        return self.network

    @torch.inference_mode()
    def in_torch(self, pixels: FloatArray) -> FloatArray:
        answers: FloatArray = self.network(torch.from_numpy(pixels)).numpy()
        return answers

    @property
    def of_torch(self) -> TorchSource:
        return TorchSource("small", "ab" * 32, SHAPE, self.build)


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def runtime(tmp_path: Path) -> OpenVino:
    return chosen(tmp_path / "cache")


def chosen(cache: Path, threads: int = 1, calls: int = 1) -> OpenVino:
    """OpenVINO; skips where it is not installed."""
    runtime = choose_backend("auto", "cpu", cache, threads, calls)
    if runtime is None:
        pytest.skip("OpenVINO is not installed")
    return runtime


@pytest.fixture
def no_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it fails, as where it is not installed."""
    monkeypatch.setitem(sys.modules, "openvino", None)


def noise(number: int) -> FloatArray:
    return np.random.default_rng(0).standard_normal((number, *SHAPE), np.float32)


def loaded(source: TorchSource, runtime: OpenVino) -> OpenVinoNetwork:
    network = load_openvino(source, runtime)
    assert network is not None
    return network


# What the setting means.


def test_auto_is_openvino_on_a_cpu(runtime: OpenVino, tmp_path: Path) -> None:
    import openvino

    assert openvino.__version__.startswith(runtime.version)
    for setting in ("auto", "openvino"):
        assert choose_backend(setting, "cpu", tmp_path, 3, 2) == OpenVino(runtime.version, tmp_path, 3, 2)
    assert choose_backend("torch", "cpu", tmp_path, 3) is None
    assert choose_backend("auto", "cuda:0", tmp_path, 3) is None


def test_asked_for_on_cuda_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"run\.backend.*runs on the CPU.* cuda:0"):
        choose_backend("openvino", "cuda:0", tmp_path, 1)


# Each child is a process that has imported OpenVINO and not used it. Without care half of them never end.
FIRST_USE = """
import os, sys, threading
sys.modules["openvino_telemetry"] = None
import openvino
from pipeline.models.networks.openvino import openvino_version
children = []
for _ in range(8):
    children.append(os.fork())
    if children[-1] == 0:
        sys.setswitchinterval(1e-6)
        openvino_version()
        start = threading.Barrier(4)
        threads = [
            threading.Thread(target=lambda: (start.wait(), openvino.Type.f32.to_dtype()), daemon=True) for _ in range(4)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
"""


def test_threads_may_use_it_first_at_the_same_time() -> None:
    with subprocess.Popen([sys.executable, "-c", FIRST_USE], start_new_session=True) as process:
        try:
            assert process.wait(timeout=120) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_not_installed_auto_takes_torch_and_asking_is_an_error(no_openvino: None, tmp_path: Path) -> None:
    assert choose_backend("auto", "cpu", tmp_path, 1) is None
    with pytest.raises(BadValue, match=r"pip install -e '\.\[fast\]'") as caught:
        choose_backend("openvino", "cpu", tmp_path, 1)
    assert caught.value.exit_code == 2


def test_an_installation_without_contents_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", ModuleType("openvino"))
    assert choose_backend("auto", "cpu", tmp_path, 1) is None
    with pytest.raises(BadValue, match="installation is incomplete"):
        choose_backend("openvino", "cpu", tmp_path, 1)


def test_another_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadValue, match="must be auto or openvino or torch"):
        load_settings(environ={}, flags={"run.backend": "tensorrt"})


def test_onnxruntime_in_an_old_configuration_means_openvino(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("run:\n  backend: onnxruntime\n")
    given: list[dict[str, Any]] = [
        {"file": file},
        {"environ": {"FACEPIPE_RUN__BACKEND": "onnxruntime"}},
        {"flags": {"run.backend": "onnxruntime"}},
    ]
    assert {load_settings(**{"environ": {}, **each}).run.backend for each in given} == {"openvino"}


# The precision of the mode fast.


def test_auto_is_half_precision_where_that_is_faster(runtime: OpenVino, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fast_precision("auto", "cuda:0", None) == "float16"
    assert fast_precision("auto", "cpu", None) == "float32"
    for faster, precision in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(backend, "_gains_from_bfloat16", lambda faster=faster: faster)
        assert fast_precision("auto", "cpu", runtime) == precision


class Processor:
    """What OpenVINO says of a processor."""

    def __init__(self, name: str, capabilities: list[str]) -> None:
        self.properties = {"FULL_DEVICE_NAME": name, "OPTIMIZATION_CAPABILITIES": capabilities}

    def get_property(self, device: str, name: str) -> Any:
        assert device == "CPU"
        return self.properties[name]


@pytest.mark.parametrize(
    ("name", "capabilities", "flags", "faster"),
    [
        ("AMD EPYC 9R14", ["FP32", "BF16"], "avx512_bf16", True),
        ("Intel(R) Xeon(R) Platinum 8488C", ["FP32", "BF16"], "avx512_bf16 amx_bf16", True),
        ("Intel(R) Xeon(R) Processor", ["FP32", "BF16"], "avx512_bf16", False),
        ("Intel(R) Xeon(R) Gold 6230", ["FP32"], "avx512f", False),
        ("AMD EPYC 7763", ["FP32"], "avx2", False),
    ],
)
def test_which_processors_gain_from_bfloat16(
    name: str, capabilities: list[str], flags: str, faster: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(f"flags : {flags}\n")
    monkeypatch.setattr(backend, "core", lambda: Processor(name, capabilities))
    monkeypatch.setattr(backend, "CPU_INFO", tmp_path / "cpuinfo")
    assert fast_precision("auto", "cpu", OpenVino("2026.4.1", tmp_path, 1)) == ("bfloat16" if faster else "float32")


def test_a_precision_asked_for_is_used(runtime: OpenVino) -> None:
    assert fast_precision("float32", "cpu", runtime) == fast_precision("float32", "cpu", None) == "float32"
    assert fast_precision("bfloat16", "cpu", runtime) == fast_precision("bfloat16", "cuda:0", None) == "bfloat16"
    with pytest.raises(BadValue, match=r"run\.precision.*needs OpenVINO"):
        fast_precision("bfloat16", "cpu", None)


# Files in the cache.


def test_it_answers_as_torch_does_and_is_made_once(source: Source, runtime: OpenVino) -> None:
    runtime.cache.mkdir()
    (runtime.cache / "small.onnx").write_bytes(b"of an older version")
    pixels = noise(5)
    for _ in range(3):
        network = loaded(source.of_torch, runtime)
        np.testing.assert_allclose(network(pixels), source.in_torch(pixels), atol=1e-6, rtol=0)
    assert source.builds == 1
    assert sorted(path.name for path in runtime.cache.iterdir()) == ["small.onnx", FILE, f"{FILE}.lock"]
    facts = read_metadata(runtime.cache / FILE)
    assert (facts["weights_sha256"], facts["openvino"]) == ("ab" * 32, runtime.version)
    assert torch.__version__.startswith(facts["torch"])
    assert float(facts["cosine"]) >= 0.99999
    assert float(facts["max_difference"]) < 1e-5


@pytest.mark.parametrize("number", [1, 2, 33])
def test_any_number_of_items_and_any_layout(source: Source, runtime: OpenVino, number: int) -> None:
    network, pixels = loaded(source.of_torch, runtime), noise(2 * number)
    expected = source.in_torch(pixels)
    for given in (pixels, np.asfortranarray(pixels)):
        answers = network(given)
        assert (answers.shape, answers.dtype) == ((2 * number, 4), np.float32)
        np.testing.assert_allclose(answers, expected, atol=1e-6, rtol=0)
    np.testing.assert_allclose(network(pixels[::2]), expected[::2], atol=1e-6, rtol=0)


@pytest.mark.parametrize("damage", ["first", "middle", "last", "cut", "empty", "longer", "folder"])
def test_a_damaged_file_is_replaced(source: Source, runtime: OpenVino, damage: str) -> None:
    path = runtime.cache / FILE
    loaded(source.of_torch, runtime)
    whole = path.read_bytes()
    flipped = {"first": 0, "middle": len(whole) // 2, "last": len(whole) - 1}
    other = {"cut": whole[:-1], "empty": b"", "longer": whole + b"\0"}
    if damage in flipped:
        place = flipped[damage]
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    elif damage in other:
        path.write_bytes(other[damage])
    else:
        path.unlink()
        path.mkdir()
    loaded(source.of_torch, runtime)
    assert source.builds == 2
    loaded(source.of_torch, runtime)
    assert source.builds == (3 if damage == "folder" else 2)


@pytest.mark.parametrize("change", ["weights", "code", "openvino", "torch"])
def test_a_file_made_from_something_else_is_replaced(
    source: Source, runtime: OpenVino, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(source.of_torch, runtime)
    other = source.of_torch
    if change == "weights":
        other = dataclasses.replace(other, weights_sha256="cd" * 32)
    elif change == "code":
        monkeypatch.setattr(backend, "_code", lambda: "0" * 16)
    elif change == "openvino":
        runtime = dataclasses.replace(runtime, version="2020.1.0")
    else:
        monkeypatch.setattr(backend, "version", lambda _: "2.0.0")
    for _ in range(2):
        loaded(other, runtime)
        assert source.builds == 2


@pytest.mark.parametrize("blocked", ["cache", "saving"])
def test_a_cache_that_cannot_be_written_is_done_without(source: Source, runtime: OpenVino, blocked: str) -> None:
    if blocked == "cache":
        runtime.cache.write_text("a file, not a folder")
    else:
        (runtime.cache / "small.saving.bin").mkdir(parents=True)
    assert loaded(source.of_torch, runtime)(noise(1)).shape == (1, 4)
    assert source.builds == 1
    assert not (runtime.cache / FILE).exists()


def test_a_cache_that_may_only_be_read_serves(source: Source, runtime: OpenVino, monkeypatch: Any) -> None:
    loaded(source.of_torch, runtime)
    monkeypatch.setattr(backend, "exclusive", lambda *_: pytest.fail("it wanted to write"))
    loaded(source.of_torch, runtime)
    assert source.builds == 1


def test_a_network_that_cannot_be_built_leaves_nothing(runtime: OpenVino) -> None:
    def fail() -> nn.Module:
        raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        load_openvino(TorchSource("small", "ab" * 32, SHAPE, fail), runtime)
    assert [path.name for path in runtime.cache.iterdir()] == [f"{FILE}.lock"]


class Unknown(nn.Module):
    """What no conversion understands."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.linalg.svd(pixels.numpy().reshape(len(pixels), -1, 9))[1][:, 0])


class OfTwo(nn.Module):
    """Answers differently to two items, as many as the conversion sees."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels if len(pixels) == 2 else -pixels


@pytest.mark.parametrize("fault", ["other answers", "not a number", "not convertible"])
def test_an_unfaithful_conversion_is_not_used_and_not_tried_again(
    source: Source, runtime: OpenVino, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    if fault == "other answers":
        source.network = nn.Sequential(OfTwo(), source.network)
    elif fault == "not a number":
        next(source.network.parameters()).data.fill_(torch.nan)
    else:
        source.network = nn.Sequential(Unknown())
    for _ in range(3):
        assert load_openvino(source.of_torch, runtime) is None
    assert source.builds == 1
    assert [record.message.partition(":")[0] for record in caplog.records] == ["small stays in torch"]
    load_openvino(dataclasses.replace(source.of_torch, weights_sha256="cd" * 32), runtime)
    assert source.builds == 2


def test_the_comparison_knows_a_small_difference_from_a_large_one() -> None:
    network = nn.Linear(20, 10)
    weight, bias = (tensor.detach().numpy() for tensor in network.parameters())
    cosine, difference = compare(network, lambda pixels: pixels @ weight.T + bias + np.float32(1e-6), (20,))
    assert cosine > 0.99999
    assert 1e-7 < difference < 1e-4
    with pytest.raises(ConversionUnfaithful, match="cosine"):
        compare(network, lambda pixels: pixels @ weight.T + bias + np.float32(1e-2), (20,))


PROCESSES = f"""
import os
import sys
from pathlib import Path
import numpy as np
import torch
from torch import nn
from pipeline.models.backend import TorchSource, load_openvino
from pipeline.models.networks.openvino import OpenVino, openvino_version
from pipeline.types import FloatArray
SHAPE = {SHAPE}
{inspect.getsource(Source)}

def load():
    source = Source()
    network = load_openvino(source.of_torch, OpenVino(sys.argv[1], Path(sys.argv[2]), 1))
    with open(Path(sys.argv[3], str(os.getpid())), "w") as file:
        print(source.builds, float(network(np.ones((1, 3, 8, 9), np.float32)).sum()), file=file)


assert openvino_version() == sys.argv[1]  # imports it, for all
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        load()
        os._exit(0)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
"""


@pytest.mark.slow
def test_processes_make_it_once(source: Source, runtime: OpenVino, tmp_path: Path) -> None:
    answers_folder = tmp_path / "answers"
    answers_folder.mkdir()
    command = [sys.executable, "-W", "error", "-c", PROCESSES, runtime.version, str(runtime.cache), str(answers_folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # a process that forks must have one thread
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = [path.read_text().split() for path in answers_folder.iterdir()]
    assert len(answers) == 3
    assert sum(int(builds) for builds, _ in answers) == 1
    assert len({total for _, total in answers}) == 1


# Without torch.

WARM = """
import sys
from pathlib import Path
import numpy as np
from pipeline.models.backend import TorchSource, choose_backend, fast_precision, load_openvino
from pipeline.models.weights import detector_arrays, resolve

cache = Path(sys.argv[1])
assert len(detector_arrays(cache)) == 3
assert resolve("casia-webface", None, cache).path.exists()
runtime = choose_backend("auto", "cpu", cache, 1)
network = load_openvino(TorchSource("small", "ab" * 32, (3, 8, 9), lambda: sys.exit("it was built")), runtime)
assert network(np.zeros((2, 3, 8, 9), np.float32)).shape == (2, 4)
assert fast_precision("auto", "cpu", runtime)
assert not {"torch", "torchvision", "facenet_pytorch"} & set(sys.modules)
"""


def test_a_warm_cache_needs_no_torch(source: Source, runtime: OpenVino, weights_cache: Path) -> None:
    shutil.copytree(weights_cache, runtime.cache)
    detector_arrays(runtime.cache)
    loaded(source.of_torch, runtime)
    command = [sys.executable, "-W", "error", "-c", WARM, str(runtime.cache)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# It stays on this machine, and writes nothing.

AUDITED = """
import sys

events = []
sys.addaudithook(lambda event, arguments: events.append((event, arguments)) if event.startswith("socket.") else None)
from pathlib import Path
from torch import nn
from pipeline.models.backend import TorchSource, load_openvino
from pipeline.models.networks.openvino import OpenVino

network = nn.Conv2d(3, 4, 3).eval().requires_grad_(False)
source = TorchSource("small", "ab" * 32, (3, 8, 9), lambda: nn.Sequential(network, nn.Flatten()))
assert load_openvino(source, OpenVino(sys.argv[1], Path(sys.argv[2]), 1)) is not None
assert sys.modules["openvino_telemetry"] is None
assert not events, events
"""


@pytest.mark.slow
def test_openvino_calls_nobody_and_leaves_no_file(runtime: OpenVino, tmp_path: Path) -> None:
    """Its telemetry, when imported, looks up an analytics service and writes an id into the home folder."""
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-W", "error", "-c", AUDITED, runtime.version, str(runtime.cache)]
    environment = {"HOME": str(home), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path for path in home.rglob("*") if not path.is_dir()] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "home"]


# The embedders.


@pytest.fixture(scope="module")
def crops(hopper_path: Path, astronaut_path: Path) -> dict[int, torch.Tensor]:
    """Aligned faces of both embedders' sizes, [n, 3, S, S] in [0, 255]: two portraits at several sizes and turns."""
    opened = [Image.open(path).convert("RGB") for path in (hopper_path, astronaut_path)]
    sizes = [(150 + 37 * k, 160 + 29 * k) for k in range(5)]
    photos = [np.array(photo.resize(size).rotate(4 * k - 8)) for photo in opened for k, size in enumerate(sizes)]
    batch = TorchBatch(photos, CPU)
    boxes = MtcnnDetector(load_networks(detector_files(), CPU), DetectSettings())(batch)
    assert len(boxes) >= 10
    return {size: warp_crops(batch, boxes, size) for size in (112, 160)}


@pytest.fixture(params=["casia-webface", "sface"])
def resolved(request: pytest.FixtureRequest) -> ResolvedWeights:
    cache = {"casia-webface": "weights_cache", "sface": "sface_cache"}[request.param]
    return resolve(request.param, None, request.getfixturevalue(cache))


@pytest.mark.slow
def test_an_embedder_answers_as_in_torch(resolved: ResolvedWeights, crops: dict[int, torch.Tensor]) -> None:
    """Batches of one, of more than one call's, and any between; each crop alone as among others; in several threads."""
    runtime = chosen(resolved.path.parent, calls=2)
    ours, torchs = load_embedder(resolved, CPU, runtime=runtime), load_embedder(resolved, CPU)
    assert (ours.backend, torchs.backend) == (f"openvino {runtime.version}", f"torch {torch.__version__}")
    faces = crops[ours.input_size]
    many = faces.repeat(BATCH_CROPS["cpu"] // len(faces) + 1, 1, 1, 1)
    embeddings, expected = ours(many), torchs(many)
    assert (cosine_similarity(embeddings.double(), expected.double()) >= 0.9999999).all()
    torch.testing.assert_close(embeddings, expected, atol=2e-6, rtol=0)
    assert (ours.counts.calls, ours.counts.inputs) == (torchs.counts.calls, torchs.counts.inputs)
    assert len(ours(faces[:0])) == 0
    for number in (1, 9):
        torch.testing.assert_close(ours(many[:number]), embeddings[:number], atol=2e-6, rtol=0)
    with ThreadPoolExecutor(4) as pool:
        for of_thread in pool.map(ours, [faces] * 4):
            torch.testing.assert_close(of_thread, embeddings[: len(faces)], atol=2e-6, rtol=0)
    several = load_embedder(resolved, CPU, runtime=dataclasses.replace(runtime, threads=3, calls=1))
    torch.testing.assert_close(several(faces), embeddings[: len(faces)], atol=2e-6, rtol=0)


@pytest.mark.slow
def test_in_bfloat16_it_is_near(resolved: ResolvedWeights, crops: dict[int, torch.Tensor]) -> None:
    runtime = chosen(resolved.path.parent)
    exact = load_embedder(resolved, CPU, runtime=runtime)
    fast = load_embedder(resolved, CPU, runtime=runtime, precision="bfloat16")
    supported = "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert fast.backend == f"{exact.backend} in {'bfloat16' if supported else 'float32'}"
    faces = crops[exact.input_size]
    cosines = (exact(faces) * fast(faces)).sum(1)
    assert cosines.min() > 0.998
    assert fast(faces).dtype == torch.float32
    single = load_embedder(resolved, CPU, runtime=runtime, precision="float32")
    assert single.backend == f"{exact.backend} in float32"
    assert torch.equal(single(faces), exact(faces))


def test_weights_in_the_cache_are_not_built_in_torch_again(resolved: ResolvedWeights) -> None:
    """With the converted network in the cache, the weights' own file is not read: here it is gone. Another file of that
    name does not take the first one's network."""
    runtime = chosen(resolved.path.parent)
    load_embedder(resolved, CPU, runtime=runtime)
    gone = dataclasses.replace(resolved, path=resolved.path.with_name("gone.safetensors"))
    assert load_embedder(gone, CPU, runtime=runtime).backend.startswith("openvino")
    with pytest.raises(WeightsCorrupt, match="gone"):
        load_embedder(dataclasses.replace(gone, sha256="cd" * 32), CPU, runtime=runtime)


# The whole extraction.


def extractor_with(setting: str, cache: Path) -> BatchExtractor:
    flags = {"run.device": "cpu", "run.backend": setting, "model.cache": str(cache), "model.weights": "casia-webface"}
    settings = load_settings(environ={}, flags=flags)
    return load_extractor(settings, make_identity(settings), cache)


def test_without_openvino_torch_extracts(no_openvino: None, weights_cache: Path) -> None:
    assert extractor_with("auto", weights_cache).embedder.backend == f"torch {torch.__version__}"


@pytest.mark.parametrize("photos", ["portraits", pytest.param("archive", marks=[pytest.mark.faces, pytest.mark.slow])])
def test_the_whole_extraction_is_the_same(photos: str, weights_cache: Path, request: pytest.FixtureRequest) -> None:
    """The same faces with the same numbers, up to rounding."""
    if photos == "portraits":
        paths, least = [request.getfixturevalue(name) for name in ("hopper_path", "astronaut_path")], 2
    else:
        folder, least = request.getfixturevalue("faces_dir"), 40
        paths = [
            *sorted((folder / "groups-with-boxes").glob("*.jpg")),
            *sorted((folder / "lfw-view1").rglob("*.jpg"))[:24],
        ]
    chosen(weights_cache)
    ours, torchs = extractor_with("openvino", weights_cache), extractor_with("torch", weights_cache)
    assert ours.embedder.backend.startswith("openvino ")
    images = [decode_image(path.read_bytes(), Settings().decode) for path in paths]
    extracted, expected = ours.extract(images), torchs.extract(images)
    assert [len(faces) for faces in extracted] == [len(faces) for faces in expected]
    assert sum(map(len, extracted)) >= least
    for name in set(extracted[0].column_names) - {"crop"}:
        tolerance = 1e-5 if name in ("embedding", "confidence") else 1e-3
        for pair in zip(extracted, expected, strict=True):
            numbers = (np.array(table[name].to_pylist(), np.float64) for table in pair)
            np.testing.assert_allclose(*numbers, atol=tolerance, rtol=0, err_msg=name)


THREADS = """
import os, sys
from pathlib import Path
from pipeline.config import load_settings
from pipeline.jobs import models
from pipeline.jobs.store_identity import make_identity

if sys.argv[1] == "detector":
    models.load_host_networks = lambda: None
flags = {"run.threads": 1, "run.device": "cpu", "run.backend": "torch" if sys.argv[1] == "embedder" else "auto"}
settings = load_settings(environ=os.environ, flags=flags)
assert "torch" not in sys.modules
models.load_extractor(settings, make_identity(settings), Path())
import torch
from threading import Thread
assert torch.get_num_threads() == 1, torch.get_num_threads()
found = []
other = Thread(target=lambda: found.append(torch.get_num_threads()))
other.start()
other.join()
assert found == [1], found
"""


@pytest.mark.slow
@pytest.mark.parametrize("torchs", ["embedder", "detector"])
def test_torch_uses_the_settings_threads_if_it_is_loaded_late(torchs: str, weights_cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FACEPIPE_CACHE": str(weights_cache)}
    command = [sys.executable, "-c", THREADS, torchs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
