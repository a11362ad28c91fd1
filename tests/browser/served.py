"""A server of a store of coded faces in this process, and what is in its store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from coded_faces import CodedExtractor, Shown, coded_identity
from coded_store import PASSWORD, USER, Thresholds

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.people import People, PersonRow
from pipeline.jobs.store import Store
from pipeline.matching.calibration import Calibration
from pipeline.people.service import IdentityService
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, SIZE, run_over, write_photo
from tests.serve.live import listening, live_settings
from tests.serve.quick_hash import quick_hash

__all__ = ["DOUBT", "OTHER", "PASSWORD", "USER", "Served", "fill", "serving"]

OTHER = "bob"  # another account, with the same password

THRESHOLDS: Thresholds = ((1e-5, 0.03), (1e-4, 0.54), (1e-3, 0.8))  # photos of one person are nearer, others further
# Photos of one person are further apart than the first threshold, and nearer than the wider one.
DOUBT: Thresholds = ((1e-6, 0.005), (1e-3, 0.3))


class Served:
    """A server over an open store, which can go away and come back on the same port. `store` and
    `people`: what the command line does, as another user does it meanwhile."""

    def __init__(self, client: LocalStore, service: IdentityService, settings: Settings, user: str = USER) -> None:
        self.user = user
        self._parts = client, service, settings
        self.store = Store(client, settings, service)
        self._up = ExitStack()
        self._port = 0
        self.people = People(self.store, user)
        self.come()

    def come(self) -> None:
        """Sessions are of a server: who was signed in has to do it again."""
        self._port = self._up.enter_context(listening(*self._parts, port=self._port)).port

    def go(self) -> None:
        self._up.close()

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self._port}/ui"

    def person(self, photo: str) -> PersonRow:
        """Whom the first face of this photo shows."""
        for row in self.people.all():
            if any((face["path"] or "").endswith(photo) for face in self.people.photos(row.person_id)):
                return row
        raise KeyError(photo)


def fill(folder: Path, shown: Mapping[str, Sequence[Shown]], thresholds: Thresholds = THRESHOLDS) -> Path:
    """`folder` with photos/ of these faces, and store/ of a run over them by the first of these thresholds. Its account
    is USER with PASSWORD."""
    for name, faces in shown.items():
        write_photo(folder / "photos", name, *faces)
    make_store(folder / "store", thresholds)
    settings = replace(SETTINGS, match=replace(SETTINGS.match, threshold=thresholds[0][1]))
    run_over(folder / "photos", folder / "store", settings=settings)
    return folder


def make_store(path: Path, thresholds: Thresholds = THRESHOLDS) -> None:
    identity = replace(coded_identity(SIZE), calibration=Calibration(thresholds=thresholds).as_dict())
    with LocalStore.open_or_create(path, lambda: identity, command="make") as client:
        client.create_account(USER, quick_hash(PASSWORD))


@contextmanager
def serving(store: Path, **flags: object) -> Iterator[Served]:
    """`flags` set settings (`ui__photo_roots=...`)."""
    settings = live_settings(**{"serve__person_headers": "optional", "serve__workers": 2, **flags})
    with LocalStore.open(store, command="serve") as client:
        client.create_account(OTHER, quick_hash(PASSWORD))
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(settings.decode), settings)  # type: ignore[arg-type]
        service.load()
        with closing(service):
            served = Served(client, service, settings)
            try:
                yield served
            finally:
                served.go()
