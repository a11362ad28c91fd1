"""Whether there is a browser to test with."""

from __future__ import annotations

import pytest
from chromium import CHROMIUM


def skip_without_chromium() -> None:
    """Skips where Chromium or playwright, the extra `browser`, is not installed."""
    if not CHROMIUM.exists():
        pytest.skip(f"no Chromium at {CHROMIUM}")
    pytest.importorskip("playwright.sync_api", reason="playwright, the extra browser, is not installed")
