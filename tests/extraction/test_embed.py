"""The embedding stage: shapes, equality across batches and devices, the reference module, and what it loads."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pipeline.errors import WeightsCorrupt
from pipeline.extraction.embed import BATCH_CROPS, Embedder, load_embedder
from pipeline.models.files.converted import read_converted, write_converted
from pipeline.models.registry import weight_set
from pipeline.models.weights import ResolvedWeights, cached_file, package_files, resolve
from pipeline.runtime.device import resolve_device


@pytest.fixture(scope="module")
def casia(weights_cache: Path) -> ResolvedWeights:
    return resolve("casia-webface", None, weights_cache)


@pytest.fixture(scope="module", params=["casia-webface", "sface"])
def resolved(request: pytest.FixtureRequest) -> ResolvedWeights:
    cache: Path = request.getfixturevalue("sface_cache" if request.param == "sface" else "weights_cache")
    return resolve(request.param, None, cache)


@pytest.fixture(scope="module")
def embedder(resolved: ResolvedWeights, device: str) -> Embedder:
    return load_embedder(resolved, resolve_device(device))


@pytest.fixture(scope="module")
def portraits(hopper_path: Path, astronaut_path: Path) -> list[Image.Image]:
    """Three crops of each person."""
    photos = (hopper_path, (190, 60, 370, 240), 5), (astronaut_path, (165, 55, 280, 170), 3)
    cut = []
    for path, (x1, y1, x2, y2), step in photos:
        with Image.open(path) as opened:
            photo = opened.convert("RGB")
        cut += [photo.crop((x1 - k, y1 + k, x2 - k, y2 + k)) for k in range(0, 3 * step, step)]
    return cut


def as_input(portraits: list[Image.Image], size: int) -> torch.Tensor:
    """[6, 3, size, size] float32 in [0, 255]"""
    resized = [np.asarray(p.resize((size, size), Image.Resampling.BILINEAR), np.float32) for p in portraits]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).contiguous()


@pytest.fixture(scope="module")
def crops(resolved: ResolvedWeights, portraits: list[Image.Image]) -> torch.Tensor:
    return as_input(portraits, resolved.weight_set.input_size)


FACTS = {"casia-webface": (160, 512, "box"), "sface": (112, 128, "five-point")}


def test_shape_dtype_and_norm(embedder: Embedder, crops: torch.Tensor, device: str) -> None:
    found = embedder(crops.to(device))
    assert (embedder.input_size, embedder.embedding_size, embedder.alignment) == FACTS[embedder.name]
    assert (found.shape, found.dtype, found.device.type) == ((6, embedder.embedding_size), torch.float32, device)
    torch.testing.assert_close(found.norm(dim=1).cpu(), torch.ones(6), atol=1e-6, rtol=0)


def test_one_person_is_nearer_than_another(embedder: Embedder, crops: torch.Tensor) -> None:
    products = embedder(crops) @ embedder(crops).T
    assert products[:3, :3].min() > products[:3, 3:].max()
    assert products[3:, 3:].min() > products[:3, 3:].max()


@pytest.mark.slow
def test_neighbours_order_and_layout_do_not_matter(embedder: Embedder, crops: torch.Tensor, device: str) -> None:
    single = torch.cat([embedder(crop[None]) for crop in crops])
    copies = BATCH_CROPS[device] // len(crops) + 1  # more than one call
    many, expected = crops.flip(0).repeat(copies, 1, 1, 1), single.flip(0).repeat(copies, 1)
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.testing.assert_close(embedder(many.contiguous(memory_format=layout)), expected, atol=2e-6, rtol=0)


def test_the_device_agrees_with_the_cpu(embedder: Embedder, resolved: ResolvedWeights, crops: torch.Tensor) -> None:
    on_cpu = load_embedder(resolved)(crops)
    torch.testing.assert_close(embedder(crops).cpu(), on_cpu, atol=1e-5, rtol=0)


def test_arrays_give_what_tensors_give(embedder: Embedder, crops: torch.Tensor) -> None:
    found = embedder(crops.numpy())
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, embedder(crops).cpu(), rtol=0, atol=1e-6)
    assert embedder(crops[:0].numpy()).shape == (0, embedder.embedding_size)


class Recording(nn.Module):
    """How many pictures came at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.numbers.append(len(pixels))
        return pixels.flatten(1)[:, :512]


@pytest.mark.parametrize(
    ("number", "parts"), [(0, []), (1, [1]), (32, [32]), (33, [17, 16]), (64, [32, 32]), (65, [22, 22, 21])]
)
def test_parts_are_even_and_crops_stay_what_they_were(number: int, parts: list[int]) -> None:
    network = Recording()
    embedder = Embedder(weight_set("casia-webface"), network, "cpu")
    crops = torch.rand(number, 3, 160, 160).to(memory_format=torch.channels_last)
    before = crops.clone()
    found = embedder(crops)
    assert (found.shape, found.dtype) == ((number, 512), torch.float32)
    assert network.numbers == parts
    assert (embedder.counts.calls, embedder.counts.inputs) == (len(parts), number)
    assert torch.equal(crops, before)


@pytest.mark.parametrize("shape", [(3, 160, 160), (1, 3, 112, 112), (1, 1, 160, 160), (1, 160, 160, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    embedder = Embedder(weight_set("casia-webface"), Recording(), "cpu")
    with pytest.raises(ValueError, match="crops must be"):
        embedder(torch.zeros(shape))


@pytest.mark.slow
def test_folding_and_layout_change_nothing(
    casia: ResolvedWeights, portraits: list[Image.Image], tmp_path: Path, device: str
) -> None:
    """Against the reference module, whose state dict, with a classifier, gives the same."""
    from facenet_pytorch.models.inception_resnet_v1 import InceptionResnetV1

    crops, tensors = as_input(portraits, 160), read_converted(casia.path)
    reference = InceptionResnetV1(pretrained=None).eval()
    reference.load_state_dict(tensors)
    with torch.inference_mode():
        expected = reference((crops - 127.5) / 128)
    classifier = {"logits.weight": torch.zeros(10, 512), "logits.bias": torch.zeros(10)}
    # The format of the published file, from before torch 1.6.
    torch.save({**tensors, **classifier}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    for weights in (casia, as_vggface2(tmp_path / "w.pt")):
        embedder = load_embedder(weights, resolve_device(device))
        assert embedder.name == weights.name
        torch.testing.assert_close(embedder(crops).cpu(), expected, atol=1e-5, rtol=0)


def as_vggface2(path: Path) -> ResolvedWeights:
    """`path` taken for vggface2, its hash accepted."""
    return ResolvedWeights("vggface2", hashlib.sha256(path.read_bytes()).hexdigest(), path, weight_set("vggface2"))


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_other_tensors_are_refused_by_name(resolved: ResolvedWeights, tmp_path: Path, change: str) -> None:
    tensors = read_converted(resolved.path)
    name = {"casia-webface": "repeat_2.2.branch1.1.conv.weight", "sface": "layers.conv_5_dw.relu.weight"}[resolved.name]
    changed = {
        "missing": {key: value for key, value in tensors.items() if key != name},
        "unknown": {**tensors, "more": torch.zeros(1)},
        "shape": {**tensors, name: torch.zeros(3)},
    }
    path = cached_file(resolved.weight_set, tmp_path)
    write_converted(path, changed[change], resolved.sha256)
    with pytest.raises(WeightsCorrupt, match=f"{path}.* no weights of {resolved.weight_set.architecture}"):
        load_embedder(resolve(resolved.name, None, tmp_path), "cpu")


@pytest.mark.parametrize("content", [[1, 2], {"state": {"a": 1}}, b"<html>Not found</html>"], ids=type)
def test_a_file_that_is_no_state_dict_is_refused_by_name(tmp_path: Path, content: object) -> None:
    path = tmp_path / "w.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(WeightsCorrupt, match=str(path)):
        load_embedder(as_vggface2(path), "cpu")


@pytest.mark.parametrize("name", ["auto", "sface"])
def test_the_onnx_file_by_path_is_known_by_its_hash(sface_cache: Path, name: str) -> None:
    (file,) = package_files(weight_set("sface"))
    found = resolve(name, file, sface_cache)
    assert (found.name, found.path) == ("sface", cached_file(weight_set("sface"), sface_cache))


class Malicious:
    """Unpickling this would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_weights_file_does_not_run(tmp_path: Path) -> None:
    torch.save({"conv2d_1a.conv.weight": Malicious(tmp_path / "made")}, tmp_path / "w.pt")
    with pytest.raises(WeightsCorrupt):
        load_embedder(as_vggface2(tmp_path / "w.pt"), "cpu")
    assert not (tmp_path / "made").exists()


def test_a_file_changed_after_it_was_resolved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({}, path)
    before = as_vggface2(path)
    path.write_bytes(b"other")
    with pytest.raises(WeightsCorrupt, match="changed"):
        load_embedder(before, "cpu")
