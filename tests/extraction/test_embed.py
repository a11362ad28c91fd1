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
from pipeline.models.files.converted import read_converted
from pipeline.models.registry import weight_set
from pipeline.models.weights import ResolvedWeights, cached_file, resolve
from pipeline.runtime.device import resolve_device


@pytest.fixture(scope="module")
def resolved(weights_cache: Path) -> ResolvedWeights:
    return resolve("casia-webface", None, weights_cache)


@pytest.fixture(scope="module")
def embedder(resolved: ResolvedWeights, device: str) -> Embedder:
    return load_embedder(resolved, resolve_device(device))


@pytest.fixture(scope="module")
def crops(hopper_path: Path, astronaut_path: Path) -> torch.Tensor:
    """[6, 3, 160, 160] float32 in [0, 255]: three of each person."""
    photos = (hopper_path, (190, 60, 370, 240), 5), (astronaut_path, (165, 55, 280, 170), 3)
    cut = []
    for path, (x1, y1, x2, y2), step in photos:
        with Image.open(path) as opened:
            photo = opened.convert("RGB")
        for k in range(0, 3 * step, step):
            crop = photo.crop((x1 - k, y1 + k, x2 - k, y2 + k)).resize((160, 160), Image.Resampling.BILINEAR)
            cut.append(np.asarray(crop, np.float32).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(cut))


def test_shape_dtype_and_norm(embedder: Embedder, crops: torch.Tensor, device: str) -> None:
    found = embedder(crops.to(device))
    assert found.shape == (6, 512)
    assert found.dtype == torch.float32
    assert found.device.type == device
    torch.testing.assert_close(found.norm(dim=1).cpu(), torch.ones(6), atol=1e-6, rtol=0)
    assert (embedder.name, embedder.input_size, embedder.embedding_size) == ("casia-webface", 160, 512)


def test_one_person_is_nearer_than_another(embedder: Embedder, crops: torch.Tensor) -> None:
    products = embedder(crops) @ embedder(crops).T
    assert products[:3, :3].min() > products[:3, 3:].max()
    assert products[3:, 3:].min() > products[:3, 3:].max()


def test_batch_equals_single(embedder: Embedder, crops: torch.Tensor) -> None:
    single = torch.cat([embedder(crop[None]) for crop in crops])
    torch.testing.assert_close(embedder(crops), single, atol=2e-6, rtol=0)


def test_neighbours_and_order_do_not_matter(embedder: Embedder, crops: torch.Tensor) -> None:
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    torch.testing.assert_close(embedder(crops[order]), embedder(crops)[order], atol=2e-6, rtol=0)


def test_the_memory_layout_of_the_crops_does_not_matter(embedder: Embedder, crops: torch.Tensor) -> None:
    turned = crops.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(embedder(turned), embedder(crops), atol=2e-6, rtol=0)


def test_the_device_agrees_with_the_cpu(embedder: Embedder, resolved: ResolvedWeights, crops: torch.Tensor) -> None:
    on_cpu = load_embedder(resolved, torch.device("cpu"))(crops)
    torch.testing.assert_close(embedder(crops).cpu(), on_cpu, atol=1e-5, rtol=0)


def test_large_batches_are_divided_and_counted(resolved: ResolvedWeights, crops: torch.Tensor) -> None:
    embedder = load_embedder(resolved, torch.device("cpu"))
    number = BATCH_CROPS["cpu"] + 1
    assert embedder(crops[:1].expand(number, -1, -1, -1)).shape == (number, 512)
    assert (embedder.counts.calls, embedder.counts.inputs) == (2, number)


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
    embedder = Embedder(weight_set("casia-webface"), network, torch.device("cpu"))
    crops = torch.rand(number, 3, 160, 160).to(memory_format=torch.channels_last)
    before = crops.clone()
    assert embedder(crops).shape == (number, 512)
    assert network.numbers == parts
    assert torch.equal(crops, before)


def test_no_crops_are_no_call(resolved: ResolvedWeights) -> None:
    embedder = load_embedder(resolved, torch.device("cpu"))
    found = embedder(torch.empty(0, 3, 160, 160))
    assert (found.shape, found.dtype) == ((0, 512), torch.float32)
    assert (embedder.counts.calls, embedder.counts.inputs) == (0, 0)


@pytest.mark.parametrize("shape", [(3, 160, 160), (1, 3, 112, 112), (1, 1, 160, 160), (1, 160, 160, 3)])
def test_other_shapes_are_refused(embedder: Embedder, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="crops must be"):
        embedder(torch.zeros(shape))


def test_folding_and_layout_change_nothing(embedder: Embedder, weights_cache: Path, crops: torch.Tensor) -> None:
    from facenet_pytorch.models.inception_resnet_v1 import InceptionResnetV1

    reference = InceptionResnetV1(pretrained=None).eval()
    reference.load_state_dict(read_converted(cached_file(weight_set("casia-webface"), weights_cache)))
    with torch.inference_mode():
        expected = reference((crops - 127.5) / 128)
    torch.testing.assert_close(embedder(crops).cpu(), expected, atol=1e-5, rtol=0)


def as_vggface2(path: Path) -> ResolvedWeights:
    """`path` taken for vggface2, its hash accepted."""
    return ResolvedWeights("vggface2", hashlib.sha256(path.read_bytes()).hexdigest(), path, weight_set("vggface2"))


def test_a_state_dict_with_a_classifier_gives_the_same(
    weights_cache: Path, tmp_path: Path, embedder: Embedder, crops: torch.Tensor
) -> None:
    tensors = read_converted(cached_file(weight_set("casia-webface"), weights_cache))
    classifier = {"logits.weight": torch.zeros(10, 512), "logits.bias": torch.zeros(10)}
    # The format of the published file, from before torch 1.6.
    torch.save({**tensors, **classifier}, tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    loaded = load_embedder(as_vggface2(tmp_path / "w.pt"), embedder.device)
    assert loaded.name == "vggface2"
    torch.testing.assert_close(loaded(crops), embedder(crops), atol=1e-6, rtol=0)


@pytest.mark.parametrize("change", ["missing", "unknown", "shape", "no dict", "no tensors", "no torch file"])
def test_a_file_that_is_no_weights_is_refused_by_name(weights_cache: Path, tmp_path: Path, change: str) -> None:
    tensors = read_converted(cached_file(weight_set("casia-webface"), weights_cache))
    name = "repeat_2.2.branch1.1.conv.weight"
    states: dict[str, object] = {
        "missing": {key: value for key, value in tensors.items() if key != name},
        "unknown": {**tensors, "more": torch.zeros(1)},
        "shape": {**tensors, name: torch.zeros(3)},
        "no dict": [1, 2],
        "no tensors": {"state": {"a": 1}},
    }
    path = tmp_path / "w.pt"
    if change in states:
        torch.save(states[change], path)
    else:
        path.write_bytes(b"<html>Not found</html>")
    with pytest.raises(WeightsCorrupt, match=str(path)):
        load_embedder(as_vggface2(path), torch.device("cpu"))


class Malicious:
    """Unpickling this would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_weights_file_does_not_run(tmp_path: Path) -> None:
    torch.save({"conv2d_1a.conv.weight": Malicious(tmp_path / "made")}, tmp_path / "w.pt")
    with pytest.raises(WeightsCorrupt):
        load_embedder(as_vggface2(tmp_path / "w.pt"), torch.device("cpu"))
    assert not (tmp_path / "made").exists()


def test_a_file_changed_after_it_was_resolved_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    torch.save({}, path)
    before = as_vggface2(path)
    path.write_bytes(b"other")
    with pytest.raises(WeightsCorrupt, match="changed"):
        load_embedder(before, torch.device("cpu"))
