"""The detector's networks, loaded once, and a small picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from pipeline.extraction.detection.networks import MtcnnNetworks, load_networks
from pipeline.models.weights import detector_files


@pytest.fixture(scope="session")
def networks(device: str) -> MtcnnNetworks:
    return load_networks(detector_files(), device)


@pytest.fixture(scope="session")
def cpu_networks() -> MtcnnNetworks:
    return load_networks(detector_files(), "cpu")


@pytest.fixture(scope="session")
def picture(astronaut_path: Path) -> Image.Image:
    """101 x 75 RGB, sides that no block size divides, with a face in it."""
    with Image.open(astronaut_path) as image:
        return image.convert("RGB").crop((130, 10, 332, 160)).resize((101, 75), Image.Resampling.BOX)
