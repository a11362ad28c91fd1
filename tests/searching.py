"""A search in a store that nothing else has open."""

from __future__ import annotations

from pathlib import Path

from pipeline.config import Settings
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from pipeline.store import FaceAnswer


def search(
    image: bytes, store: Path, settings: Settings, account: str | None, directory: str, top: int
) -> list[FaceAnswer]:
    with open_store(store, settings, command="search", reading=True) as opened:
        return People(opened, account, directory).recognise(image, top)
