"""Pose, sharpness and contrast: on two real portraits, on faces computed from the model, and on any picture at all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from pipeline.config import AlignSettings, DetectSettings, MatchSettings
from pipeline.extraction import quality
from pipeline.extraction.align import cut_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.torch_networks import TorchNetworks
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.extraction.quality import assess_quality, center_pose
from pipeline.types import QUALITIES, Detections, FaceCrops
from tests.extraction.helpers import count_waits, needs_cuda

SIZE = 160
GATE = MatchSettings()
POSE, SHARPNESS, CONTRAST = range(len(QUALITIES))
angles = st.floats(-75, 75)
seeds = st.integers(0, 2**32 - 1)
roughnesses = st.floats(0.5, 2)


@dataclass(frozen=True)
class Portrait:
    """A photo and where MTCNN finds its face."""

    image: Image.Image
    box: Sequence[float]
    landmarks: Sequence[Sequence[float]]


@pytest.fixture(scope="module")
def hopper(hopper_path: Path) -> Portrait:
    points = [[221.7, 192.2], [309.8, 186.1], [269.4, 239.2], [232.7, 279.6], [306.6, 275.9]]
    return Portrait(Image.open(hopper_path).convert("RGB"), [174.4, 119.6, 355.6, 340.5], points)


@pytest.fixture(scope="module")
def astronaut(astronaut_path: Path) -> Portrait:
    points = [[205.0, 101.7], [246.8, 103.7], [224.7, 129.0], [201.7, 139.2], [245.3, 141.9]]
    return Portrait(Image.open(astronaut_path).convert("RGB"), [181.1, 62.2, 267.7, 172.1], points)


@pytest.fixture(scope="module", params=["hopper", "astronaut"])
def portrait(request: pytest.FixtureRequest) -> Portrait:
    """Each of the two."""
    found: Portrait = request.getfixturevalue(request.param)
    return found


def assessed(crops: FaceCrops, found: Detections) -> torch.Tensor:
    """The quality by torch; on the CPU NumPy must give the same, without a warning."""
    rated: torch.Tensor = assess_quality(crops, found)
    if rated.device.type == "cpu":
        arrays = Detections(*(array.numpy() for array in vars(found).values()))
        ours = assess_quality(FaceCrops(crops.pixels.numpy(), crops.frames.numpy(), crops.box_share), arrays)
        np.testing.assert_allclose(ours, rated, rtol=0, atol=5e-5)
    return rated


def rate(portraits: Sequence[Portrait], device: str = "cpu", score: float = 1.0, margin: int = 32) -> torch.Tensor:
    """The quality of the portraits' faces, through the crops that the pipeline cuts."""
    batch = TorchBatch([np.array(p.image) for p in portraits], device)
    found = Detections(
        torch.arange(len(portraits), device=device),
        torch.tensor([p.box for p in portraits], device=device, dtype=torch.float32).reshape(-1, 4),
        torch.tensor([p.landmarks for p in portraits], device=device, dtype=torch.float32).reshape(-1, 5, 2),
        torch.full((len(portraits),), score, device=device),
    )
    return assessed(cut_crops(batch, found, AlignSettings(margin_px=margin), SIZE), found)


def frontal(n: int, size: int) -> torch.Tensor:
    """[n, 5, 2]: the landmarks of a frontal face where they usually are in a crop of this size."""
    model = torch.tensor(quality._FACE_MODEL)[:, :2] * 0.4 + torch.tensor([0.5, 0.38])
    return (model * size).expand(n, 5, 2)


def rate_pixels(pixels: torch.Tensor, landmarks: torch.Tensor | None = None, score: float = 1.0) -> torch.Tensor:
    """The quality of crops [n, 3, S, S] of faces, frontal ones without `landmarks` [n, 5, 2]."""
    n, size = len(pixels), pixels.shape[-1]
    frames = torch.tensor([0.0, 0, size, size]).expand(n, 4)
    points = frontal(n, size) if landmarks is None else landmarks
    found = Detections(torch.zeros(n, dtype=torch.int64), frames, points, torch.full((n,), score))
    return assessed(FaceCrops(pixels, frames, 146 / 160), found)


def random_picture(seed: int, roughness: float) -> torch.Tensor:
    """[1, 3, 160, 160] in [0, 255]: noise whose spectrum falls with the frequency's power, as pictures' do."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIZE), np.fft.fftfreq(SIZE)))
    spectrum = np.fft.fft2(rng.standard_normal((SIZE, SIZE))) / (frequency + 0.5 / SIZE) ** roughness
    picture = np.fft.ifft2(spectrum).real
    picture = (picture - picture.mean()) / picture.std() * 40 + 127
    return torch.from_numpy(picture.clip(0, 255)).float().expand(1, 3, -1, -1)


def flattened(pixels: torch.Tensor, scale: float) -> torch.Tensor:
    return pixels * scale + 127 * (1 - scale)


def crop_of(portrait: Portrait) -> torch.Tensor:
    """[1, 3, 160, 160]"""
    batch = TorchBatch([np.array(portrait.image)])
    box = torch.tensor([portrait.box]).long()
    return batch.smooth_crops(torch.zeros(1, dtype=torch.int64), box, SIZE)


def blurred(pixels: torch.Tensor, sigma: float) -> torch.Tensor:
    """Gaussian blur of [1, 3, S, S], the edge repeated."""
    if sigma == 0:
        return pixels
    radius = math.ceil(4 * sigma)
    kernel = torch.exp(-(torch.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    padded = torch.nn.functional.pad(pixels, (radius,) * 4, mode="replicate").transpose(0, 1)
    rows = torch.nn.functional.conv2d(padded, kernel.view(1, 1, -1, 1))
    return torch.nn.functional.conv2d(rows, kernel.view(1, 1, 1, -1)).transpose(0, 1)


def resized(portrait: Portrait, factor: float) -> Portrait:
    size = (round(portrait.image.width * factor), round(portrait.image.height * factor))
    image = portrait.image.resize(size, Image.Resampling.LANCZOS)
    return Portrait(
        image, [v * factor for v in portrait.box], [[x * factor, y * factor] for x, y in portrait.landmarks]
    )


def values(rated: torch.Tensor) -> torch.Tensor:
    """[n, 3] on the CPU"""
    return rated.cpu()


def turned(heads: np.ndarray, yaw: float, pitch: float, roll: float) -> np.ndarray:
    """Heads [..., 5, 3] turned by these degrees, yaw first."""
    y, p, r = (math.radians(v) for v in (yaw, pitch, roll))
    about_y = np.array([[math.cos(y), 0, math.sin(y)], [0, 1, 0], [-math.sin(y), 0, math.cos(y)]])
    about_x = np.array([[1, 0, 0], [0, math.cos(p), -math.sin(p)], [0, math.sin(p), math.cos(p)]])
    about_z = np.array([[math.cos(r), -math.sin(r), 0], [math.sin(r), math.cos(r), 0], [0, 0, 1]])
    product: np.ndarray = heads @ (about_z @ about_x @ about_y).T
    return product


def project(yaw: float, pitch: float, roll: float) -> torch.Tensor:
    """Landmarks [1, 5, 2] of the model turned by these degrees, eyes 40 pixels apart, weak perspective."""
    points = turned(np.array(quality._FACE_MODEL), yaw, pitch, roll)[None, :, :2] * 40 + 300
    return torch.from_numpy(points).float()


def varied_heads(count: int, rng: np.random.Generator) -> np.ndarray:
    """[count, 5, 3] in eyes' distances: the model with the spread of real heads, about that of anthropometric tables.

    The face's length and breadth below the eyes vary by 6 %, the nose's height by 15 %, and the mouth lies 5 % of the
    eyes' distance before or behind them.
    """
    heads = np.tile(np.array(quality._FACE_MODEL), (count, 1, 1))
    heads[:, 2:, :2] *= 1 + 0.06 * rng.standard_normal((count, 1, 2))
    heads[:, 2, 2] *= 1 + 0.15 * rng.standard_normal(count)
    heads[:, 3:, 2] += 0.05 * rng.standard_normal((count, 1))
    return heads


def cosines(yaw: float, pitch: float, roll: float) -> float:
    product = math.prod(math.cos(math.radians(v)) for v in (yaw, pitch, roll))
    return product**2


class TestStage:
    def test_portraits_pass_the_default_gate_with_room(
        self, hopper: Portrait, astronaut: Portrait, device: str
    ) -> None:
        rated = rate([hopper, astronaut], device)
        for value in rated.T:
            assert value.shape == (2,)
            assert value.dtype == torch.float32
            assert value.device.type == device
            assert (value > 0.75).all()
            assert (value <= 1).all()

    def test_batch_equals_single(self, hopper: Portrait, astronaut: Portrait, device: str) -> None:
        faces = [hopper, astronaut, resized(hopper, 0.7), resized(astronaut, 0.4), resized(hopper, 0.2)]
        together = values(rate(faces, device))
        alone = torch.cat([values(rate([face], device)) for face in faces])
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
        assert len(together.unique(dim=0)) == len(faces)

    def test_devices_agree(self, hopper: Portrait, astronaut: Portrait, device: str) -> None:
        faces = [hopper, astronaut]
        torch.testing.assert_close(values(rate(faces, device)), values(rate(faces)), atol=1e-3, rtol=0)

    def test_no_faces(self, device: str) -> None:
        assert values(rate([], device)).shape == (0, 3)

    @given(seed=seeds, roughness=st.floats(0, 2.5), score=st.floats(0, 1))
    def test_mirrored_face_is_as_good(self, seed: int, roughness: float, score: float) -> None:
        picture, rng = random_picture(seed, roughness), np.random.default_rng(seed)
        points = frontal(1, SIZE) + torch.from_numpy(rng.normal(0, 6, (1, 5, 2))).float()
        # What was the right eye is now the left one.
        other = torch.stack([SIZE - points[..., 0], points[..., 1]], dim=-1)[:, [1, 0, 2, 4, 3]]
        rated = values(rate_pixels(torch.cat([picture, picture.flip(3)]), torch.cat([points, other]), score))
        torch.testing.assert_close(rated[0], rated[1], atol=1e-4, rtol=0)

    def test_other_crop_sizes(self, hopper: Portrait) -> None:
        crop = crop_of(hopper)
        smaller = torch.nn.functional.interpolate(crop, size=112, mode="area")
        torch.testing.assert_close(values(rate_pixels(smaller)), values(rate_pixels(crop)), atol=0.06, rtol=0)

    @needs_cuda
    def test_does_not_wait_for_the_device(self, hopper: Portrait) -> None:
        crops = FaceCrops(crop_of(hopper).cuda(), torch.tensor([hopper.box], device="cuda"), 1.0)
        points = torch.tensor([hopper.landmarks], device="cuda")
        zero = torch.zeros(1, device="cuda")
        found = Detections(zero.long(), crops.frames, points, zero)
        assess_quality(crops, found)  # libraries that load at the first call may wait
        assert count_waits(lambda: assess_quality(crops, found)) == 0


class TestCenterPose:
    @pytest.mark.parametrize("axis", [0, 1, 2])
    @given(angle=st.floats(-80, 80))
    def test_known_rotation_about_one_axis(self, axis: int, angle: float) -> None:
        turn = [0.0, 0.0, 0.0]
        turn[axis] = angle
        assert center_pose(project(*turn)).item() == pytest.approx(cosines(*turn), abs=1e-4)

    @pytest.mark.parametrize("turn", [(30, 20, 0), (25, 15, 20), (-25, 15, -20), (20, -20, 10), (0, 30, 30)])
    def test_known_rotation_about_several_axes(self, turn: tuple[float, float, float]) -> None:
        assert center_pose(project(*turn)).item() == pytest.approx(cosines(*turn), abs=0.035)

    def test_default_gate_is_forty_degrees(self) -> None:
        assert center_pose(project(39, 0, 0)).item() > GATE.min_cpq > center_pose(project(41, 0, 0)).item()

    @given(turn=st.tuples(angles, angles, angles))
    def test_a_turn_to_the_other_side_is_as_good(self, turn: tuple[float, float, float]) -> None:
        yaw, pitch, roll = turn
        assert abs(center_pose(project(yaw, pitch, roll)) - center_pose(project(-yaw, pitch, -roll))) < 1e-4

    @pytest.mark.parametrize(("turn", "most"), [((0, 0), 7), ((30, 0), 8), ((0, 30), 8), ((0, -30), 9), ((25, 15), 8)])
    def test_stated_error(self, turn: tuple[float, float], most: float) -> None:
        """Of varied heads, a metre (16 eyes' distances) from the camera, a pinhole; landmarks 3 % off."""
        rng = np.random.default_rng(0)
        heads = turned(varied_heads(4000, rng), *turn, 0)
        points = heads[:, :, :2] * (16 / (16 - heads[:, :, 2:])) * 40
        points += 0.03 * 40 * rng.standard_normal(points.shape)
        angle = torch.rad2deg(torch.acos(center_pose(torch.from_numpy(points).float()).double().sqrt())).numpy()
        error = angle - math.degrees(math.acos(math.sqrt(cosines(*turn, 0))))
        assert np.sqrt((error**2).mean()) < most
        assert abs(error.mean()) < 6

    @pytest.mark.parametrize("angle", [0, 20, 40, 60])
    def test_photo_turned_in_its_plane(self, hopper: Portrait, angle: int) -> None:
        straight, turned = (torch.tensor([hopper.landmarks]) @ _turn(a).T for a in (0, angle))
        # The photo's own roll (4 degrees) adds to the angle.
        own = math.degrees(math.atan2(192.2 - 186.1, 309.8 - 221.7))
        change = math.cos(math.radians(angle - own)) ** 2 / math.cos(math.radians(own)) ** 2
        expected = center_pose(straight).item() * change
        assert center_pose(turned).item() == pytest.approx(expected, abs=0.02)

    @pytest.mark.parametrize("roll", [90, 135, 180, -120])
    def test_upside_down_is_nothing(self, roll: float) -> None:
        assert center_pose(project(0, 0, roll)).item() < 1e-6

    def test_mirror_image_of_the_landmarks_is_no_face(self) -> None:
        assert center_pose(project(0, 0, 0) * torch.tensor([-1.0, 1.0])).item() == 0

    def test_degenerate_landmarks_are_zero(self) -> None:
        same = torch.full((5, 2), 4321.7)
        line = torch.arange(5.0)[:, None] * torch.tensor([30.0, 40.0])
        unknown = torch.full((5, 2), math.nan)
        boundless = torch.full((5, 2), math.inf)
        broken = torch.stack([same, line, unknown, boundless, torch.zeros(5, 2)])
        mixed = torch.cat([broken, project(0, 0, 0)])
        torch.testing.assert_close(center_pose(mixed), torch.tensor([0.0, 0, 0, 0, 0, 1]))


def _turn(angle: float) -> torch.Tensor:
    a = math.radians(angle)
    return torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])


class TestSharpness:
    def test_falls_with_every_step_of_blur(self, portrait: Portrait) -> None:
        steps = torch.cat([blurred(crop_of(portrait), s) for s in np.arange(0, 6.01, 0.5).tolist()])
        rated = rate_pixels(steps)[:, SHARPNESS]
        assert (rated.diff() < 0).all(), rated
        assert rated[0] > 0.9
        assert (rated[8:] < 0.15).all()  # sigma 4 and more

    @pytest.mark.slow
    @given(seed=seeds, roughness=roughnesses, sigma=st.floats(0.8, 6), more=st.floats(1.1, 2))
    def test_of_any_picture_falls_with_blur(self, seed: int, roughness: float, sigma: float, more: float) -> None:
        picture = random_picture(seed, roughness)
        rated = rate_pixels(torch.cat([picture, blurred(picture, sigma), blurred(picture, sigma * more)]))[:, SHARPNESS]
        assert (rated.diff() < 0).all()

    @pytest.mark.parametrize("factor", [0.5, 0.75, 1.5, 2.0])
    def test_hardly_changes_with_the_faces_size(self, portrait: Portrait, factor: float) -> None:
        rated = rate([portrait, resized(portrait, factor)])[:, SHARPNESS]
        # The astronaut's face is 87 pixels wide; at half size some detail is truly lost.
        assert abs(rated[0] - rated[1]) < 0.12

    @pytest.mark.slow
    @given(factor=st.floats(0.5, 2.5), margin=st.integers(0, 60))
    def test_hardly_changes_between_90_and_450_pixels(self, hopper: Portrait, factor: float, margin: int) -> None:
        """Whatever the crop's margin."""
        other = rate([resized(hopper, factor)], margin=margin)[:, SHARPNESS]
        assert abs(other - rate([hopper])[:, SHARPNESS]) < 0.06

    def test_tiny_face_enlarged_is_not_as_sharp(self, hopper: Portrait) -> None:
        factors = [1.0, 0.3, 0.15, 0.1]
        rated = rate([resized(hopper, f) for f in factors])[:, SHARPNESS]
        assert (rated.diff() < 0).all()
        assert rated[-1] < GATE.min_fsq  # 18 pixels wide

    @pytest.mark.parametrize("scale", [0.5, 0.3])
    def test_low_contrast_is_not_blur(self, hopper: Portrait, astronaut: Portrait, scale: float) -> None:
        crops = torch.cat([crop_of(hopper), crop_of(astronaut)])
        flat = (crops * scale + 80).round()
        difference = rate_pixels(crops)[:, SHARPNESS] - rate_pixels(flat)[:, SHARPNESS]
        assert difference.abs().max() < 0.03

    def test_noise_does_not_hide_blur(self, hopper: Portrait) -> None:
        noise = torch.randn(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3)) * 5
        noisy = (blurred(crop_of(hopper), 5) + noise).round().clamp(0, 255)
        assert rate_pixels(noisy)[:, SHARPNESS].item() < GATE.min_fsq

    def test_flat_noise_is_not_sharp(self) -> None:
        noise = torch.randn(1, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(3)) * 0.5
        assert rate_pixels((noise + 128).round().expand(1, 3, -1, -1))[:, SHARPNESS].item() < GATE.min_fsq


class TestContrast:
    def test_falls_with_the_scale_of_grey_levels(self, portrait: Portrait) -> None:
        scales = [1, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05]
        rated = rate_pixels(torch.cat([flattened(crop_of(portrait), s).round() for s in scales]))[:, CONTRAST]
        assert (rated[:-1].diff() < 0).all(), rated
        assert rated[5] < GATE.min_fcq / 2  # a tenth
        assert rated[3] > GATE.min_fcq
        assert rated[-1] < 0.01

    @given(seed=seeds, roughness=roughnesses, scale=st.floats(0.02, 1), less=st.floats(0.3, 0.95))
    def test_of_any_picture_falls_with_flattening(self, seed: int, roughness: float, scale: float, less: float) -> None:
        picture = random_picture(seed, roughness)
        rated = rate_pixels(torch.cat([flattened(picture, s) for s in (scale, scale * less)]))[:, CONTRAST]
        assert rated[1] < rated[0]

    def test_brightness_alone_does_not_matter(self, hopper: Portrait) -> None:
        crop = crop_of(hopper) * 0.6
        rated = rate_pixels(torch.cat([crop, crop + 60]))[:, CONTRAST]
        assert abs(rated[0] - rated[1]) < 0.01

    def test_overexposed_face_is_worse(self, hopper: Portrait) -> None:
        crop = crop_of(hopper)
        rated = rate_pixels(torch.cat([crop, (crop * 1.8 + 60).clamp(0, 255)]))[:, CONTRAST]
        assert rated[1] < rated[0] - 0.2

    def test_portrait_of_ordinary_contrast_is_excellent(self, hopper: Portrait, astronaut: Portrait) -> None:
        assert (rate([hopper, astronaut])[:, CONTRAST] > 0.85).all()

    @pytest.mark.parametrize("level", [0.0, 255.0])
    def test_half_a_face_in_shadow_or_glare_is_worse(self, hopper: Portrait, level: float) -> None:
        crop = crop_of(hopper)
        hidden = crop.clone()
        hidden[:, :, :, : SIZE // 2] = level
        assert rate_pixels(hidden)[:, CONTRAST] < rate_pixels(crop)[:, CONTRAST] / 4

    def test_hard_light_from_one_side_is_worse_though_its_range_is_wider(self, hopper: Portrait) -> None:
        crop = crop_of(hopper)
        lit = (crop * torch.linspace(0.05, 1.6, SIZE)).clamp(0, 255)
        assert quality._cells(lit, 0.75).std() > 1.3 * quality._cells(crop, 0.75).std()
        assert rate_pixels(lit)[:, CONTRAST] < rate_pixels(crop)[:, CONTRAST] - 0.01

    def test_what_surrounds_the_face_does_not_count(self, hopper: Portrait) -> None:
        crop = crop_of(hopper)
        framed = torch.zeros_like(crop)
        framed[:, :, 20:-20, 20:-20] = crop[:, :, 20:-20, 20:-20]
        assert torch.equal(values(rate_pixels(framed)), values(rate_pixels(crop)))


class TestTrust:
    """Is there a face at the landmarks? Only then their places say how it is turned."""

    def test_portraits_are_believed(self, hopper: Portrait, astronaut: Portrait) -> None:
        believed = rate([hopper, astronaut])[:, POSE]
        places = center_pose(torch.tensor([hopper.landmarks, astronaut.landmarks]))
        torch.testing.assert_close(believed, places, atol=0.01, rtol=0)

    def test_falls_with_the_detectors_odds(self, hopper: Portrait) -> None:
        rated = [rate([hopper], score=score)[:, POSE].item() for score in (1.0, 0.999, 0.99, 0.95, 0.5, 0.0)]
        assert all(a > b for a, b in itertools.pairwise(rated))
        assert rated[0] - rated[1] < 0.05
        assert rated[-2] < GATE.min_cpq

    def test_upright_landmarks_on_an_upside_down_face(self, hopper: Portrait) -> None:
        """What MTCNN reports of this photo turned by 180 degrees, with a score of 0.9985."""
        points = [[219.8, 357.8], [297.5, 352.4], [259.6, 407.0], [221.2, 445.1], [292.6, 441.2]]
        turned = Portrait(hopper.image.rotate(180), [157.4, 251.9, 361.1, 494.5], points)
        assert center_pose(torch.tensor([points])).item() > 0.95
        assert rate([turned], score=0.9985)[:, POSE].item() < 0.1

    @pytest.mark.parametrize("angle", [90, 180, 270])
    def test_the_detector_on_turned_portraits(
        self, cpu_networks: TorchNetworks, hopper_path: Path, astronaut_path: Path, angle: int
    ) -> None:
        detector = MtcnnDetector(cpu_networks, DetectSettings())
        images = [Image.open(path).convert("RGB").rotate(angle) for path in (hopper_path, astronaut_path)]
        batch = TorchBatch([np.array(image) for image in images])
        found = detector(batch)
        assert (assess_quality(cut_crops(batch, found, AlignSettings(), SIZE), found)[:, POSE] < 0.4).all()

    def test_no_pixels_no_evidence(self) -> None:
        """A crop of one colour says nothing against its landmarks."""
        assert rate_pixels(torch.full((1, 3, SIZE, SIZE), 90.0))[:, POSE].item() > GATE.min_cpq

    def test_landmarks_that_are_no_numbers(self, hopper: Portrait) -> None:
        broken = [Portrait(hopper.image, hopper.box, [[value] * 2] * 5) for value in (math.nan, math.inf, 1e30, 0.0)]
        assert (rate(broken)[:, POSE] == 0).all()


class TestMargin:
    @pytest.mark.parametrize("margin", [0, 14, 40, 60])
    def test_the_crops_margin_does_not_matter(self, portrait: Portrait, margin: int) -> None:
        difference = values(rate([portrait], margin=margin)) - values(rate([portrait]))
        assert difference.abs().max() < 0.025


class TestDegenerateCrops:
    @pytest.mark.parametrize("level", [0.0, 127.3, 255.0])
    def test_constant_crop_is_worth_nothing(self, level: float) -> None:
        rated = rate_pixels(torch.full((2, 3, SIZE, SIZE), level))
        assert (rated[:, SHARPNESS] < 1e-9).all()
        assert (rated[:, CONTRAST] < 1e-9).all()

    @given(
        pixels=hnp.arrays(np.uint8, (1, 3, 8, 8)),
        mode=st.sampled_from(["nearest", "bilinear"]),
        score=st.floats(0, 1),
        points=st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf]), min_size=10, max_size=10),
    )
    def test_anything_gives_numbers_in_range(
        self, pixels: np.ndarray, mode: str, score: float, points: list[float]
    ) -> None:
        crop = torch.nn.functional.interpolate(torch.from_numpy(pixels).float(), size=SIZE, mode=mode)
        rated = values(rate_pixels(crop, torch.tensor(points).view(1, 5, 2), score))
        assert ((rated >= 0) & (rated <= 1)).all()
