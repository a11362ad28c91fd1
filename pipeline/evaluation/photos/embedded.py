"""The embeddings that an evaluation works on, and the model they are of: a store's, or made now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.config import Settings
from pipeline.evaluation.photos.subjects import Portraits, from_images, from_store
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor, make_identity
from pipeline.jobs.stores import settings_of_store, settle_threshold
from pipeline.store.connect import open_store
from pipeline.store.records import StoreIdentity
from pipeline.types import Progress


@dataclass(frozen=True)
class Embedded:
    """Portraits, what made them, and the settings with which their model is used."""

    portraits: Portraits
    identity: StoreIdentity
    settings: Settings


def embed_photos(
    files: Mapping[str, Path], settings: Settings, store: Path | None, command: str, progress: Progress
) -> Embedded:
    """The faces of the photos `files` (path as the store shows it -> file), from `store` if there is one.

    Raises StoreError, StoreMismatch among them where the settings name another model than the store's; ModelError,
    DeviceError, UsageError.
    """
    if store is not None:
        with open_store(store, command=command) as opened:
            settled = settings_of_store(settings, opened.identity, store)
            return Embedded(from_store(opened, list(files)), opened.identity, settled)
    identity = make_identity(settings)
    settled = settle_threshold(settings, identity)
    extractor = load_extractor(settled, identity, Path())
    progress.start("embedding", len(files))
    portraits = from_images(extractor, Decoder(settled.decode), list(files.values()), progress.advance)
    return Embedded(portraits, identity, settled)
