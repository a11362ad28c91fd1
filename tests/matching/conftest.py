"""Where matrix products are made."""

from __future__ import annotations

import pytest
import torch

from tests.matching.vectors import TORCH_ON_CPU


@pytest.fixture(params=["cpu", TORCH_ON_CPU, *(["cuda:0"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> str:
    """NumPy on the host, torch on the host, and CUDA where there is one."""
    return str(request.param)
