"""Password hashes that take no time to check, for accounts whose passwords a test does not put to the proof."""

from __future__ import annotations

import pytest

from pipeline.store.catalog import accounts


def quick_hash(password: str) -> str:
    """As `hash_password`, of the least work: a hash names its own parameters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "_N", 2)
        return accounts.hash_password(password)
