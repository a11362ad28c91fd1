"""The embedder's crops against facenet-pytorch's `extract_face`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from facenet_pytorch.models.utils.detect_face import extract_face
from PIL import Image

from pipeline.config import AlignSettings
from pipeline.extraction.align import cut_crops
from pipeline.extraction.images.batch import ImageBatch
from pipeline.types import Detections


def _found(boxes: list[list[float]], image: list[int], device: str) -> Detections:
    n = len(boxes)
    values = torch.tensor(boxes, device=device)
    points = torch.zeros((n, 5, 2), device=device)
    return Detections(torch.tensor(image, device=device), values, points, torch.ones(n, device=device))


@pytest.mark.parametrize("margin", [0, 14, 32])
def test_equals_the_reference_crop(hopper_path: Path, device: str, margin: int) -> None:
    photo = Image.open(hopper_path).convert("RGB").resize((256, 300))
    boxes = [[80.3, 40.7, 170.2, 160.9], [-20.5, -10.0, 90.0, 80.0], [200.0, 250.0, 280.0, 330.0]]
    crops = cut_crops(
        ImageBatch([np.array(photo)], device), _found(boxes, [0, 0, 0], device), AlignSettings(margin_px=margin), 160
    )
    for box, crop, frame in zip(boxes, crops.pixels.cpu(), crops.frames.tolist(), strict=True):
        expected = extract_face(photo, np.array(box), 160, margin)
        assert (crop - expected).abs().max() <= 1.5
        assert 0 <= frame[0] < frame[2] <= 256
        assert 0 <= frame[1] < frame[3] <= 300


@pytest.mark.parametrize("margin", [0, 14, 32])
def test_with_pillows_resampling_it_is_the_reference_crop(hopper_path: Path, device: str, margin: int) -> None:
    """Enlarged and shrunk, whole and cut off at the edges."""
    photo = Image.open(hopper_path).convert("RGB")
    boxes = [[80.3, 40.7, 170.2, 160.9], [-20.5, -10.0, 90.0, 80.0], [400.0, 250.0, 580.0, 730.0], [60.5, 9, 480, 420]]
    settings = AlignSettings(margin_px=margin, resampling="pillow")
    crops = cut_crops(ImageBatch([np.array(photo)], device), _found(boxes, [0] * 4, device), settings, 160)
    for box, crop in zip(boxes, crops.pixels.cpu(), strict=True):
        expected = extract_face(photo, np.array(box, np.float32), 160, margin)
        assert (crop - expected).abs().max() <= (0 if device == "cpu" else 1)


def test_shrinking_stays_near_the_reference(hopper_path: Path, device: str) -> None:
    photo = Image.open(hopper_path).convert("RGB")
    box = [100.0, 20.0, 460.0, 420.0]
    crops = cut_crops(
        ImageBatch([np.array(photo)], device), _found([box], [0], device), AlignSettings(margin_px=14), 160
    )
    expected = extract_face(photo, np.array(box), 160, 14)
    # A box filter against Pillow's triangle: the means agree, edges differ.
    assert (crops.pixels[0].cpu() - expected).abs().mean() < 3


def test_a_box_outside_the_image_gives_a_crop_all_the_same(device: str) -> None:
    batch = ImageBatch([np.zeros((30, 40, 3), np.uint8)], device)
    crops = cut_crops(batch, _found([[100.0, 100.0, 120.0, 120.0]], [0], device), AlignSettings(), 160)
    assert crops.pixels.shape == (1, 3, 160, 160)
    assert torch.isfinite(crops.pixels).all()
