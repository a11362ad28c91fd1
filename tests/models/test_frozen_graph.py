"""The converted weights, in the network as it is run, against the frozen graph itself, evaluated by OpenCV."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from pipeline.extraction.embed import Embedder, load_embedder
from pipeline.models.registry import weight_set
from pipeline.models.weights import package_files, resolve
from pipeline.runtime.device import resolve_device
from pipeline.types import FloatArray

# (file, x, y, side): Grace Hopper's and Eileen Collins' faces, tight to loose.
HOPPER = ((205, 70, 150), (190, 60, 180), (175, 45, 210), (215, 80, 150), (195, 75, 165))
ASTRONAUT = ((175, 65, 95), (165, 55, 115), (150, 40, 145), (180, 70, 105), (160, 65, 110))


def cut(path: Path, boxes: tuple[tuple[int, int, int], ...]) -> list[FloatArray]:
    """[3, 160, 160] float32 RGB crops in [0, 255]."""
    image = cv2.imread(str(path))[:, :, ::-1]
    crops = [cv2.resize(np.ascontiguousarray(image[y : y + s, x : x + s]), (160, 160)) for x, y, s in boxes]
    return [crop.transpose(2, 0, 1).astype(np.float32) for crop in crops]


def frozen(crops: list[FloatArray]) -> FloatArray:
    """[n, 512]: the graph's own answer, one crop at a time (its reshapes are frozen to a batch of one)."""
    (path,) = package_files(weight_set("casia-webface"))
    graph = cv2.dnn.readNetFromTensorflow(str(path))
    answers = []
    for crop in crops:
        graph.setInput((np.ascontiguousarray(crop[None]) - 127.5) / 128)
        answers.append(graph.forward().reshape(512).copy())
    return np.stack(answers)


@pytest.fixture(scope="module")
def embedder(weights_cache: Path, device: str) -> Embedder:
    return load_embedder(resolve("casia-webface", None, weights_cache), resolve_device(device))


def check(embedder: Embedder, crops: list[FloatArray]) -> FloatArray:
    expected = frozen(crops)
    found = embedder(torch.from_numpy(np.stack(crops))).cpu().numpy()
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=0, atol=3e-5)
    return found


def test_ten_crops_of_two_people(embedder: Embedder, hopper_path: Path, astronaut_path: Path) -> None:
    found = check(embedder, cut(hopper_path, HOPPER) + cut(astronaut_path, ASTRONAUT))
    products = found @ found.T
    # The vectors tell the two people apart, so they are no constant that any weights would give.
    assert products[:5, :5].min() > products[:5, 5:].max()
    assert products[5:, 5:].min() > products[:5, 5:].max()


@pytest.mark.faces
def test_ten_photographs(embedder: Embedder, faces_dir: Path) -> None:
    photos = sorted((faces_dir / "lfw-view1" / "images").rglob("*.jpg"))[::150][:10]
    assert len(photos) == 10
    check(embedder, [crop for photo in photos for crop in cut(photo, ((65, 65, 120),))])
