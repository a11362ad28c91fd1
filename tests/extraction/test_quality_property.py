"""Properties of the quality measures over all pictures: each falls with what it measures, and with nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from turned_heads import pose_errors, seen, turned

from pipeline.config import AlignSettings
from pipeline.extraction.align import cut_crops
from pipeline.extraction.images.batch import ImageBatch
from pipeline.extraction.quality import _FACE_MODEL, assess_quality, center_pose
from pipeline.types import ByteArray, Detections, FaceCrops
from tests.extraction.test_quality import blurred

SIZE: Final = 160
SHARE: Final = 0.8
HOPPER_BOX: Final = (174.4, 119.6, 355.6, 340.5)
HOPPER_LANDMARKS: Final = ((221.7, 192.2), (309.8, 186.1), (269.4, 239.2), (232.7, 279.6), (306.6, 275.9))
angles = st.floats(-75, 75)
seeds = st.integers(0, 2**32 - 1)


def crops_of(pixels: torch.Tensor) -> FaceCrops:
    return FaceCrops(pixels, torch.tensor([0.0, 0, SIZE, SIZE]).expand(len(pixels), 4), SHARE)


def faces(landmarks: torch.Tensor, scores: torch.Tensor | None = None) -> Detections:
    n = len(landmarks)
    return Detections(torch.zeros(n).long(), torch.zeros(n, 4), landmarks, torch.ones(n) if scores is None else scores)


def frontal(n: int) -> torch.Tensor:
    """[n, 5, 2] landmarks in the crop."""
    return (torch.tensor(_FACE_MODEL)[:, :2] * 55 + torch.tensor([80.0, 65.0])).expand(n, 5, 2)


def rate(pixels: torch.Tensor) -> torch.Tensor:
    """[n, 3]"""
    rated = assess_quality(crops_of(pixels), faces(frontal(len(pixels))))
    return torch.stack([rated.center_pose, rated.sharpness, rated.contrast], dim=1)


def random_picture(seed: int, roughness: float) -> torch.Tensor:
    """[1, 3, 160, 160] in [0, 255]: noise whose spectrum falls with the frequency's power, as pictures' do."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIZE), np.fft.fftfreq(SIZE)))
    spectrum = np.fft.fft2(rng.standard_normal((SIZE, SIZE))) / (frequency + 0.5 / SIZE) ** roughness
    picture = np.fft.ifft2(spectrum).real
    picture = (picture - picture.mean()) / picture.std() * 40 + 127
    return torch.from_numpy(picture.clip(0, 255)).float().expand(1, 3, -1, -1)


def flattened(pixels: torch.Tensor, scale: float) -> torch.Tensor:
    return (pixels - 127) * scale + 127


@pytest.fixture(scope="module")
def portraits(hopper_path: Path, astronaut_path: Path) -> list[torch.Tensor]:
    """Crops [1, 3, 160, 160] of the two portraits."""
    boxes = (HOPPER_BOX, (181.1, 62.2, 267.7, 172.1))
    crops = []
    for path, box in zip((hopper_path, astronaut_path), boxes, strict=True):
        batch = ImageBatch([np.array(Image.open(path).convert("RGB"))])
        crops.append(batch.smooth_crops(torch.zeros(1).long(), torch.tensor([box]).long(), SIZE))
    return crops


@given(which=st.integers(0, 1), sigma=st.floats(0.8, 6), more=st.floats(1.1, 2))
def test_sharpness_of_portraits_falls_with_blur(
    portraits: list[torch.Tensor], which: int, sigma: float, more: float
) -> None:
    crop = portraits[which]
    rated = rate(torch.cat([crop, blurred(crop, sigma), blurred(crop, sigma * more)]))[:, 1]
    assert (rated.diff() < 0).all()


@given(seed=seeds, roughness=st.floats(0.5, 2), sigma=st.floats(0.8, 6), more=st.floats(1.1, 2))
def test_sharpness_of_any_picture_falls_with_blur(seed: int, roughness: float, sigma: float, more: float) -> None:
    picture = random_picture(seed, roughness)
    rated = rate(torch.cat([picture, blurred(picture, sigma), blurred(picture, sigma * more)]))[:, 1]
    assert (rated.diff() < 0).all()


@given(which=st.integers(0, 1), scale=st.floats(0.02, 1), less=st.floats(0.3, 0.95), rounded=st.booleans())
def test_contrast_of_portraits_falls_with_flattening(
    portraits: list[torch.Tensor], which: int, scale: float, less: float, rounded: bool
) -> None:
    steps = torch.cat([flattened(portraits[which], s) for s in (scale, scale * less)])
    rated = rate(steps.round() if rounded else steps)[:, 2]
    assert rated[1] < rated[0] + 1e-6


@given(seed=seeds, roughness=st.floats(0.5, 2), scale=st.floats(0.02, 1), less=st.floats(0.3, 0.95))
def test_contrast_of_any_picture_falls_with_flattening(seed: int, roughness: float, scale: float, less: float) -> None:
    picture = random_picture(seed, roughness)
    rated = rate(torch.cat([flattened(picture, s) for s in (scale, scale * less)]))[:, 2]
    assert rated[1] < rated[0]


@given(axis=st.integers(0, 2), angle=st.floats(0, 70), more=st.floats(1, 15), side=st.sampled_from([-1, 1]))
def test_pose_falls_with_every_turn(axis: int, angle: float, more: float, side: int) -> None:
    turns = [[0.0] * 3, [0.0] * 3]
    turns[0][axis], turns[1][axis] = side * angle, side * (angle + more)
    rated = pose(turns)
    assert rated[1] < rated[0]


@given(turn=st.tuples(angles, angles, angles))
def test_a_turn_to_the_other_side_is_as_good(turn: tuple[float, float, float]) -> None:
    yaw, pitch, roll = turn
    rated = pose([[yaw, pitch, roll], [-yaw, pitch, -roll]])
    assert abs(rated[1] - rated[0]) < 1e-4


def pose(turns: Sequence[Sequence[float]]) -> torch.Tensor:
    """[n] of the mean head, turned and far from the camera."""
    head = np.array([_FACE_MODEL])
    points = np.concatenate([seen(turned(head, *turn), 1e9) for turn in turns])
    return center_pose(torch.from_numpy(points).float())


@pytest.mark.parametrize(("turn", "most"), [((0, 0), 7), ((30, 0), 8), ((0, 30), 8), ((0, -30), 9), ((25, 15), 8)])
def test_stated_error_of_the_pose(turn: tuple[float, float], most: float) -> None:
    """Of varied heads, a metre from the camera, landmarks 3 % off."""
    (error,) = pose_errors([turn], distance=16).values()
    assert error["rms"] < most
    assert abs(error["bias"]) < 6


@given(seed=seeds, roughness=st.floats(0, 2.5), score=st.floats(0, 1))
def test_mirrored_is_as_good(seed: int, roughness: float, score: float) -> None:
    rng = np.random.default_rng(seed)
    picture = random_picture(seed, roughness)
    points = frontal(1) + torch.from_numpy(rng.normal(0, 6, (1, 5, 2))).float()
    other = torch.stack([SIZE - points[..., 0], points[..., 1]], dim=-1)[:, [1, 0, 2, 4, 3]]
    crops = crops_of(torch.cat([picture, picture.flip(3)]))
    rated = assess_quality(crops, faces(torch.cat([points, other]), torch.full((2,), score)))
    for value in (rated.center_pose, rated.sharpness, rated.contrast):
        assert abs(value[0] - value[1]) < 1e-4


@given(seed=seeds, n=st.integers(1, 5))
def test_batch_is_one_by_one(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    pixels = torch.cat([random_picture(seed + i, rng.uniform(0, 2)) for i in range(n)])
    found = faces(
        frontal(n) + torch.from_numpy(rng.normal(0, 8, (n, 5, 2))).float(), torch.from_numpy(rng.random(n)).float()
    )
    together = assess_quality(crops_of(pixels), found)
    for i in range(n):
        alone = assess_quality(crops_of(pixels[i : i + 1]), faces(found.landmarks[i : i + 1], found.scores[i : i + 1]))
        for name in ("center_pose", "sharpness", "contrast"):
            assert getattr(alone, name).item() == pytest.approx(getattr(together, name)[i].item(), abs=1e-5)


@given(
    level=st.floats(0, 255),
    noise=st.floats(0, 200),
    seed=seeds,
    score=st.floats(0, 1),
    landmarks=st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), min_size=10, max_size=10),
)
def test_anything_gives_numbers_in_range(
    level: float, noise: float, seed: int, score: float, landmarks: list[float]
) -> None:
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy((level + noise * rng.standard_normal((1, 3, SIZE, SIZE))).clip(0, 255)).float()
    found = faces(torch.tensor(landmarks).view(1, 5, 2), torch.tensor([score]))
    rated = assess_quality(crops_of(pixels), found)
    for value in (rated.center_pose, rated.sharpness, rated.contrast):
        assert 0 <= value.item() <= 1


@given(factor=st.floats(0.5, 2.5), margin=st.integers(0, 60))
def test_sharpness_hardly_changes_with_the_faces_size(hopper_path: Path, factor: float, margin: int) -> None:
    """By 0.06 at most, for faces 90 to 450 pixels wide, whatever the crop's margin."""
    photo = Image.open(hopper_path).convert("RGB")
    size = (round(photo.width * factor), round(photo.height * factor))
    assume(min(size) > 0)
    scaled = np.array(photo.resize(size, Image.Resampling.LANCZOS))
    assert abs(sharpness(scaled, size[0] / photo.width, margin) - sharpness(np.array(photo), 1, 32)) < 0.06


def sharpness(photo: ByteArray, factor: float, margin: int) -> float:
    found = Detections(
        torch.zeros(1).long(),
        torch.tensor([HOPPER_BOX]) * factor,
        torch.tensor([HOPPER_LANDMARKS]) * factor,
        torch.ones(1),
    )
    return assess_quality(cut_crops(ImageBatch([photo]), found, AlignSettings(margin), SIZE), found).sharpness.item()
