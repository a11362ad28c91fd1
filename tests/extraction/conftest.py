"""The detector's networks, loaded once."""

from __future__ import annotations

import pytest

from pipeline.extraction.detection.networks import MtcnnNetworks, load_networks
from pipeline.models.weights import detector_files


@pytest.fixture(scope="session")
def networks(device: str) -> MtcnnNetworks:
    return load_networks(detector_files(), device)


@pytest.fixture(scope="session")
def cpu_networks() -> MtcnnNetworks:
    return load_networks(detector_files(), "cpu")
