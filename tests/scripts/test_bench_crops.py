"""What the benchmark of crops does beside embedding: choosing faces, cutting them in frames, and its rates."""

from __future__ import annotations

from pathlib import Path

import bench_crops
import numpy as np
import pytest
import torch
from bench_crops import CHOICES, NEAREST, choose, part_of, rates, ways_of
from crop_recipes import COMPARED, MIRROR, RECIPES, by_box, by_landmarks, framed
from torch.nn.functional import avg_pool2d

from pipeline.config import Settings
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.networks import load_networks
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.images.decode import decode_image
from pipeline.models.weights import detector_files
from pipeline.types import Detections


@pytest.fixture(scope="module")
def faces(hopper_path: Path, astronaut_path: Path) -> tuple[ImageBatch, Detections]:
    images = [decode_image(path.read_bytes(), Settings().decode).pixels for path in (hopper_path, astronaut_path)]
    batch = ImageBatch(images)
    return batch, MtcnnDetector(load_networks(detector_files(), "cpu"), Settings().detect)(batch)


def boxes_of_one_photo() -> tuple[Detections, np.ndarray]:
    """Photo 1: a small sure face in the middle, a large one aside, a doubtful one in the very middle; photo 4: one."""
    boxes = torch.tensor([[40.0, 40, 60, 60], [0, 0, 50, 50], [45, 45, 55, 55], [0, 0, 9, 9]])
    offsets = np.array([[2.0, 0], [-25, -25], [0, 0], [3, 3]], np.float32)
    scores = torch.tensor([0.99, 0.99, 0.7, 0.96])
    return Detections(torch.tensor([1, 1, 1, 4]), boxes, torch.zeros(4, 5, 2), scores), offsets


@pytest.mark.parametrize(
    ("which", "least", "expected"),
    [(NEAREST, 0.95, 20), (NEAREST, 0.0, 10), ("largest", 0.95, 50), ("centre-weighted size", 0.95, 20)],
)
def test_which_face_is_chosen(which: str, least: float, expected: int) -> None:
    found, offsets = boxes_of_one_photo()
    chosen = choose(found, offsets, which, least)
    assert chosen.image_index.tolist() == [1, 4]
    assert (chosen.boxes[0, 2] - chosen.boxes[0, 0]).item() == expected
    assert part_of(chosen, 3, 6).image_index.tolist() == [1]
    assert (which, least) in {(NEAREST, 0.95), *CHOICES.values()}


def test_every_way_cuts_the_same_faces_otherwise(faces: tuple[ImageBatch, Detections]) -> None:
    batch, found = faces
    crops = {name: RECIPES[name](batch, found) for name in COMPARED}
    for name, crop in crops.items():
        assert len(crop) == len(found)
        assert 0 <= crop.min() <= crop.max() <= 255 + 1e-3
        others = [other for key, other in crops.items() if key != name and other.shape == crop.shape]
        assert all((crop - other).abs().max() > 1 for other in others), name
    usual = crops["box, margin 32"]
    assert torch.equal(crops[f"box, margin 32{MIRROR}"], usual.flip(3))


def test_frames_agree_with_the_crops_that_run_makes(faces: tuple[ImageBatch, Detections]) -> None:
    """The frame of the box is the box crop, but for whole pixels and resampling; by landmarks it is near."""
    batch, found = faces
    usual = RECIPES["box, margin 32"](batch, found)
    other = framed(batch, found, by_box, 32)
    assert avg_pool2d(other - usual, 16).abs().mean() < 3
    assert avg_pool2d(other.flip(3) - usual, 16).abs().mean() > 10
    (centre, size, _), (other_centre, other_size, angle) = by_box(found), by_landmarks(found)
    assert ((centre - other_centre).abs() / size).max() < 0.15
    assert (other_size / size - 1).abs().max() < 0.25
    assert angle.abs().max() < 0.3


def test_averages_have_norm_1_and_rates_of_perfect_embeddings_are_0() -> None:
    rng = np.random.default_rng(0)
    people = np.repeat(rng.standard_normal((8, 64)), 3, axis=0)
    vectors = (people / np.linalg.norm(people, axis=1, keepdims=True)).astype(np.float32)
    owner = np.repeat(np.arange(8), 3)
    ways = ways_of({"way": vectors, f"way{MIRROR}": vectors[::-1].copy()})
    assert set(ways) == {"way", "way, averaged with its mirror image"}
    for e in ways.values():
        assert np.allclose(np.linalg.norm(e, axis=1), 1, atol=1e-6)
    assert rates(vectors, owner, centred=False) == [0] * len(bench_crops.FMRS)
    assert rates(vectors, owner, centred=True) == [0] * len(bench_crops.FMRS)
    shared = vectors + np.float32(3) * vectors[0]  # a mean that all share hides who they are, and centring takes it off
    shared[::3] += rng.standard_normal((8, 64)).astype(np.float32) / 20
    shared /= np.linalg.norm(shared, axis=1, keepdims=True)
    assert rates(shared, owner, centred=True) == [0] * len(bench_crops.FMRS)
