"""Which runtime a setting means; that without onnxruntime torch does the same; and that both do the same."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.config import DetectSettings, Settings, load_settings
from pipeline.errors import BadValue
from pipeline.extraction.align import warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.embed import BATCH_CROPS, Embedder, load_embedder
from pipeline.extraction.extractor import FaceExtractor
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.jobs.models import load_extractor, make_identity
from pipeline.models.files.converted import read_converted
from pipeline.models.loops import load_kernels
from pipeline.models.onnx_graph import read_onnx, read_outputs
from pipeline.models.onnx_runtime import OnnxRuntime, choose_runtime
from pipeline.models.onnx_split import GraphPart, Run, cut
from pipeline.models.onnx_trace import INPUT
from pipeline.models.registry import WeightSet, weight_set
from pipeline.models.weights import ResolvedWeights, cached_file, detector_files, resolve
from pipeline.types import DecodedImage

CPU = torch.device("cpu")
CASIA, SFACE = weight_set("casia-webface"), weight_set("sface")


@pytest.fixture(scope="module")
def runtime(weights_cache: Path) -> OnnxRuntime:
    pytest.importorskip("onnxruntime")
    found = choose_runtime("auto", CASIA, CPU, weights_cache, 1)
    assert found is not None
    return found


@pytest.fixture
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it fails, as where it is not installed."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def images(*paths: Path) -> list[DecodedImage]:
    return [decode_image(path.read_bytes(), Settings().decode) for path in paths]


@pytest.fixture(scope="module")
def photos(hopper_path: Path, astronaut_path: Path) -> list[np.ndarray]:
    """The two portraits at several sizes and turns: some 20 faces."""
    opened = [Image.open(path).convert("RGB") for path in (hopper_path, astronaut_path)]
    sizes = [(150 + 37 * k, 160 + 29 * k) for k in range(5)]
    return [np.array(photo.resize(size).rotate(4 * k - 8)) for photo in opened for k, size in enumerate(sizes)]


@pytest.fixture(scope="module")
def crops(photos: list[np.ndarray]) -> dict[int, torch.Tensor]:
    """Aligned faces of both embedders' sizes: [n, 3, S, S] in [0, 255]."""
    batch = ImageBatch(photos, CPU)
    found = MtcnnDetector(load_networks(detector_files(), CPU), DetectSettings())(batch)
    assert len(found) >= 10
    return {size: warp_crops(batch, found, size) for size in (112, 160)}


def test_auto_takes_what_is_faster_on_the_cpu(runtime: OnnxRuntime, tmp_path: Path) -> None:
    """onnxruntime for InceptionResnetV1, torch for SFace; asked for by name, either for both."""
    import onnxruntime

    expected = OnnxRuntime(onnxruntime.__version__, tmp_path, 3)
    for weights in (CASIA, weight_set("vggface2")):
        assert choose_runtime("auto", weights, CPU, tmp_path, 3) == expected
    assert choose_runtime("auto", SFACE, CPU, tmp_path, 3) is None
    for weights in (CASIA, SFACE):
        assert choose_runtime("onnxruntime", weights, CPU, tmp_path, 3) == expected
        assert choose_runtime("torch", weights, CPU, tmp_path, 3) is None
        assert choose_runtime("auto", weights, torch.device("cuda", 0), tmp_path, 3) is None


@pytest.mark.parametrize("weights", [CASIA, SFACE], ids=["casia-webface", "sface"])
def test_asked_for_on_cuda_it_is_an_error(weights: WeightSet, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"run\.backend.*runs on the CPU.* cuda:0"):
        choose_runtime("onnxruntime", weights, torch.device("cuda", 0), tmp_path, 1)


@pytest.mark.parametrize("weights", [CASIA, SFACE], ids=["casia-webface", "sface"])
def test_not_installed_auto_takes_torch_and_asking_is_an_error(
    no_onnxruntime: None, weights: WeightSet, tmp_path: Path
) -> None:
    assert choose_runtime("auto", weights, CPU, tmp_path, 1) is None
    with pytest.raises(BadValue, match=r'pip install "facepipe\[fast\]"') as caught:
        choose_runtime("onnxruntime", weights, CPU, tmp_path, 1)
    assert caught.value.exit_code == 2


def test_an_installation_without_contents_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    assert choose_runtime("auto", CASIA, CPU, tmp_path, 1) is None
    with pytest.raises(BadValue, match="installation is incomplete"):
        choose_runtime("onnxruntime", CASIA, CPU, tmp_path, 1)


def test_another_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadValue, match="auto or torch or onnxruntime"):
        load_settings(environ={}, flags={"run.backend": "tensorrt"})


def test_the_backend_changes_no_output_setting() -> None:
    hashes = {load_settings(environ={}, flags={"run.backend": b}).output_hash() for b in ("torch", "onnxruntime")}
    assert hashes == {Settings().output_hash()}


def both(resolved: ResolvedWeights, runtime: OnnxRuntime) -> tuple[Embedder, Embedder]:
    ours = load_embedder(resolved, CPU, runtime=runtime)
    torchs = load_embedder(resolved, CPU)
    assert (ours.backend, torchs.backend) == (f"onnxruntime {runtime.version}", f"torch {torch.__version__}")
    return ours, torchs


def check_equal(ours: Embedder, torchs: Embedder, crops: torch.Tensor) -> None:
    """Batches of none, of one, and of more than one call's; each crop alone as among others."""
    many = crops.repeat(BATCH_CROPS["cpu"] // len(crops) + 1, 1, 1, 1)
    assert len(ours(crops[:0])) == 0
    found, expected = ours(many), torchs(many)
    assert found.shape == expected.shape
    assert ((found.double() * expected.double()).sum(1) >= 0.9999999).all()
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(ours(crops[:1]), found[:1], atol=5e-6, rtol=0)
    assert (ours.counts.calls, ours.counts.inputs) == (torchs.counts.calls + 1, torchs.counts.inputs + 1)


def test_casia_webface(runtime: OnnxRuntime, weights_cache: Path, crops: dict[int, torch.Tensor]) -> None:
    check_equal(*both(resolve("casia-webface", None, weights_cache), runtime), crops[160])


@pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")
def test_casia_webface_runs_in_compiled_loops_but_for_its_end(runtime: OnnxRuntime, weights_cache: Path) -> None:
    load_embedder(resolve("casia-webface", None, weights_cache), CPU, runtime=runtime)
    model = (weights_cache / "casia-webface.onnx").read_bytes()
    run, tail = cut(read_onnx(model), read_outputs(model)) or []
    assert isinstance(run, Run)
    assert isinstance(tail, GraphPart)
    assert run.input == INPUT
    assert Counter(node.op for node in run.nodes)["Conv"] == 132
    assert tail.inputs == (run.output,)
    assert [node.op for node in tail.graph.nodes] == ["GlobalAveragePool", "Flatten", "Gemm", "LpNormalization"]


@pytest.mark.skipif(load_kernels() is None, reason="numba is not installed")
def test_sface_stays_whole(runtime: OnnxRuntime, sface_cache: Path) -> None:
    """Its 3 x 3 convolutions are of single channels: nothing in it pays."""
    load_embedder(resolve("sface", None, sface_cache), CPU, runtime=dataclasses.replace(runtime, cache=sface_cache))
    model = (sface_cache / "sface.onnx").read_bytes()
    assert cut(read_onnx(model), read_outputs(model)) is None


def test_sface(runtime: OnnxRuntime, sface_cache: Path, crops: dict[int, torch.Tensor]) -> None:
    runtime = dataclasses.replace(runtime, cache=sface_cache)
    check_equal(*both(resolve("sface", None, sface_cache), runtime), crops[112])


def test_vggface2_and_another_file_of_that_name(
    runtime: OnnxRuntime, weights_cache: Path, tmp_path: Path, crops: dict[int, torch.Tensor]
) -> None:
    """Its published form, a state dict; a second file that the user accepts does not take the first one's export."""
    tensors = read_converted(cached_file(weight_set("casia-webface"), weights_cache))
    runtime = dataclasses.replace(runtime, cache=tmp_path)
    answers = []
    for scale in (1.0, -1.0):
        path = tmp_path / "vggface2.pt"
        torch.save({**tensors, "last_bn.bias": tensors["last_bn.bias"] * scale}, path)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        ours, torchs = both(ResolvedWeights("vggface2", sha256, path, weight_set("vggface2")), runtime)
        answers.append(ours(crops[160][:2]))
        torch.testing.assert_close(answers[-1], torchs(crops[160][:2]), atol=5e-6, rtol=0)
    assert (answers[0] - answers[1]).abs().max() > 1e-3


def test_the_network_is_not_loaded_into_torch_a_second_time(runtime: OnnxRuntime, weights_cache: Path) -> None:
    """With the export in the cache, the weights' own file is not read: here it is gone."""
    resolved = resolve("casia-webface", None, weights_cache)
    load_embedder(resolved, CPU, runtime=runtime)
    gone = dataclasses.replace(resolved, path=weights_cache / "gone.safetensors")
    assert load_embedder(gone, CPU, runtime=runtime).backend.startswith("onnxruntime")


def test_threads_may_share_a_network(runtime: OnnxRuntime, weights_cache: Path, crops: dict[int, torch.Tensor]) -> None:
    embedder = load_embedder(resolve("casia-webface", None, weights_cache), CPU, runtime=runtime)
    expected = embedder(crops[160])
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(embedder, [crops[160]] * 8):
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_several_threads_give_the_same(
    runtime: OnnxRuntime, weights_cache: Path, crops: dict[int, torch.Tensor], number: int
) -> None:
    resolved = resolve("casia-webface", None, weights_cache)
    one, three = (
        load_embedder(resolved, CPU, runtime=dataclasses.replace(runtime, threads=threads)) for threads in (1, 3)
    )
    torch.testing.assert_close(three(crops[160][:number]), one(crops[160][:number]), atol=1e-6, rtol=0)


def test_every_number_of_crops(runtime: OnnxRuntime, weights_cache: Path, crops: dict[int, torch.Tensor]) -> None:
    """However a batch is divided, each crop's embedding is the same."""
    embedder = load_embedder(resolve("casia-webface", None, weights_cache), CPU, runtime=runtime)
    many = crops[160].repeat(7, 1, 1, 1)[:65]
    expected = embedder(many)
    for number in (0, 1, 2, 3, 5, 8, 9, 17, 33):
        torch.testing.assert_close(embedder(many[:number]), expected[:number], atol=2e-6, rtol=0)


def extractor_with(backend: str, cache: Path, weights: str = "casia-webface") -> FaceExtractor:
    flags = {"run.device": "cpu", "run.backend": backend, "model.cache": str(cache), "model.weights": weights}
    settings = load_settings(environ={}, flags=flags)
    return load_extractor(settings, make_identity(settings), cache)


def test_each_extraction_takes_the_faster_one_unless_told(
    runtime: OnnxRuntime, weights_cache: Path, sface_cache: Path
) -> None:
    onnx, torchs = f"onnxruntime {runtime.version}", f"torch {torch.__version__}"
    assert extractor_with("auto", weights_cache).embedder.backend == onnx
    assert extractor_with("auto", sface_cache, "sface").embedder.backend == torchs
    assert extractor_with("onnxruntime", sface_cache, "sface").embedder.backend == onnx


def test_the_extraction_without_onnxruntime_is_torchs(
    no_onnxruntime: None, weights_cache: Path, hopper_path: Path
) -> None:
    without, torchs = extractor_with("auto", weights_cache), extractor_with("torch", weights_cache)
    assert without.embedder.backend == torchs.embedder.backend == f"torch {torch.__version__}"
    (found,), (expected,) = (extractor.extract(images(hopper_path)) for extractor in (without, torchs))
    assert found.equals(expected)
    assert len(found) == 1


def compare_extractions(ours: FaceExtractor, torchs: FaceExtractor, photos: list[DecodedImage]) -> int:
    """The same faces with the same numbers, up to rounding; returns how many."""
    faces = 0
    for found, expected in zip(ours.extract(photos), torchs.extract(photos), strict=True):
        assert len(found) == len(expected)
        faces += len(found)
        for name in found.column_names:
            if name == "crop":
                continue
            pair = (np.array(table[name].to_pylist(), np.float64) for table in (found, expected))
            tolerance = 1e-5 if name in ("embedding", "confidence") else 1e-3
            np.testing.assert_allclose(*pair, atol=tolerance, rtol=0, err_msg=name)
    return faces


def test_the_whole_extraction_is_the_same(
    runtime: OnnxRuntime, weights_cache: Path, hopper_path: Path, astronaut_path: Path
) -> None:
    ours, torchs = extractor_with("onnxruntime", weights_cache), extractor_with("torch", weights_cache)
    assert compare_extractions(ours, torchs, images(hopper_path, astronaut_path)) == 2
    assert ours.embedder.backend.startswith("onnxruntime")


@pytest.mark.faces
@pytest.mark.slow
def test_the_whole_extraction_of_photographs_is_the_same(
    runtime: OnnxRuntime, weights_cache: Path, faces_dir: Path
) -> None:
    ours, torchs = extractor_with("onnxruntime", weights_cache), extractor_with("torch", weights_cache)
    paths = [
        *sorted((faces_dir / "groups-with-boxes").glob("*.jpg")),
        *sorted((faces_dir / "lfw-view1").rglob("*.jpg"))[:24],
    ]
    assert compare_extractions(ours, torchs, images(*paths)) >= 40


def test_it_writes_nothing_where_people_read(runtime: OnnxRuntime, weights_cache: Path) -> None:
    """No warning of Python's and no line of onnxruntime's own log; the command line stays free of both packages."""
    code = (
        "import sys; import pipeline.cli; assert not {'torch', 'onnxruntime'} & set(sys.modules);"
        "from pathlib import Path; from pipeline.models.load import load_network;"
        "from pipeline.models.onnx_runtime import OnnxRuntime; from pipeline.models.weights import resolve;"
        f"cache = Path({str(weights_cache)!r});"
        f"load_network(resolve('casia-webface', None, cache), OnnxRuntime('{runtime.version}', cache, 1))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
