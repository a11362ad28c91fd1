"""An archive of real photo files that show coded faces, and real runs over it: everything but the models is real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from coded_faces import SIDE, CodedExtractor, Shown, coded_identity, photo
from coded_store import USER

from pipeline.config import Settings, load_settings
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.reindex import Reindex
from pipeline.jobs.run_report import RunReport
from pipeline.jobs.store import Store, open_store
from pipeline.people.service import IdentityService
from pipeline.run.run import RunRequest, run
from pipeline.runtime.stage_times import PNET
from pipeline.serve.admin import open_admin_port
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import StoreIdentity
from pipeline.types import FloatArray, Progress, SilentProgress

SIZE = 32
SETTINGS = load_settings(environ={}, flags={"run.threads": 1, "run.device": "cpu", "serve.person_headers": "optional"})


class ArchiveExtractor(CodedExtractor):
    """As the stages of a run want it: without pictures, which are cut from the photos."""

    device = "cpu"
    detector = SimpleNamespace(networks=SimpleNamespace(device=device), counts={PNET: SimpleNamespace(calls=0)})
    embedder = SimpleNamespace(backend="coded", counts=SimpleNamespace(calls=0), input_size=SIDE)

    @classmethod
    def load(cls, _: Settings, identity: StoreIdentity, *more: Any) -> ArchiveExtractor:
        """As `jobs.models.load_extractor`; `more` ends with the identity of the other generation, if there is one."""
        extractor = cls(identity.embedding_size)
        extractor.measure_also(more[-1] if len(more) == 3 else None)
        return extractor

    def vector(self, face: Shown, size: int) -> FloatArray:
        """Of a second model that decides as the first one does: the same numbers in another order, among zeros."""
        own = super().vector(face, SIZE)
        return own if size == SIZE else np.pad(own[::-1], (size - SIZE, 0))

    def table(self, faces: list[Shown]) -> pa.Table:  # type: ignore[override]
        return super().table(faces).drop_columns(["crop"])


class OtherwiseDeciding(ArchiveExtractor):
    """Whose second model has distances of its own."""

    vector = CodedExtractor.vector


def index_otherwise(store: Path, settings: Settings = SETTINGS) -> None:
    """Builds a newer index, by a model that decides some faces otherwise."""
    loading = patch("pipeline.jobs.reindex.load_extractor", OtherwiseDeciding.load)
    with loading, open_store(store, settings, command="reindex") as opened:
        reindex(opened, "build")


def write_photo(folder: Path, name: str, *faces: Shown) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(photo(*faces))
    return path


def make_store(path: Path) -> Path:
    with LocalStore.open_or_create(path, lambda: coded_identity(SIZE), command="make") as client:
        client.create_account(USER, None)
    return path


def run_over(source: Path, store: Path, progress: Progress | None = None, **wishes: Any) -> RunReport:
    """What `facepipe run` does. `wishes`: further fields of its request."""
    with patch("pipeline.run.stages.load_extractor", lambda *_: ArchiveExtractor(SIZE)):
        return run(RunRequest(source, store, **{"settings": SETTINGS, **wishes}), progress)


def fill(folder: Path) -> Path:
    """Makes photos/ and store/ there. Person 1 has the faces 1, 2 and 3 (known by 1; then 3 is the best), person 2 the
    faces 4 and 5, person 3 the face 6; the face 7 was too poor. Face 3 and 4 are in one photo."""
    photos = folder / "photos"
    write_photo(photos, "a1.png", Shown(1))
    write_photo(photos, "a2.png", Shown(1, 1, 0.8))
    write_photo(photos, "b-both.png", Shown(1, 2), Shown(2))
    write_photo(photos, "c2.png", Shown(2, 1))
    write_photo(photos, "d3.png", Shown(3))
    write_photo(photos, "e-poor.png", Shown(8, 0, 0.1))
    make_store(folder / "store")
    run_over(photos, folder / "store")
    return folder


def reindex(store: Store, step: str) -> None:
    """Builds an index by another coded model, swaps the two, or deletes the former one."""
    if step == "build":
        other = replace(coded_identity(SIZE + 16), weights="other", weights_sha256="1" * 64)
        build = Reindex(store, other, SilentProgress(), Event())
        build.estimate()
        build.build()
    elif step == "swap":
        store.switch_generation()
    else:
        store.drop_generation(older=True)


@contextmanager
def serving(store: Path, page: str | None = None) -> Iterator[IdentityService]:
    """A server's parts hold the store, and its admin port is open. `page`: the address of its web UI."""
    with LocalStore.open(store, command="serve") as client:
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
        service.load()
        try:
            with open_admin_port(Store(client, SETTINGS, service), page=page):
                yield service
        finally:
            service.close()


def problems(store: Path) -> list[object]:
    with LocalStore.open(store, command="check") as client:
        return list(check_store(client).problems)
