"""`match.once_per_photo` concerns what is stored; recognition answers about each face alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coded_faces import CodedExtractor, Shown, photo

from pipeline.extraction.images.decode import Decoder
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, SIZE, fill

ONCE = replace(SETTINGS, match=replace(SETTINGS.match, once_per_photo=True))
TWICE = photo(Shown(1, 7), Shown(1, 8))


def test_recognition_is_as_without_the_rule(tmp_path: Path) -> None:
    with LocalStore.open(fill(tmp_path) / "store", command="test") as client:
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(ONCE.decode), ONCE)  # type: ignore[arg-type]
        try:
            found = service.post(1, "main", TWICE, PostRequest(insert=False, update=False)).faces
            assert len({face.person.root.person_id for face in found if face.person is not None}) == 1
            assert len([face for face in found if face.person is not None]) == 2
            stored = service.post(1, "main", TWICE, PostRequest(update=False, insert_all=True)).faces
            assert len({face.person.root.person_id for face in stored if face.person is not None}) == 2
        finally:
            service.close()
