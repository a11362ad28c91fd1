"""Recognition: who is in this photo, from the identities of one directory. Nothing is stored.

The answer is that of the identity service, in this process or, while a server holds the store, in the server's.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.accounts import find_account
from pipeline.jobs.models import load_extractor
from pipeline.jobs.stores import settings_of_store
from pipeline.matching.calibration import Calibration
from pipeline.matching.score import strength, strong_score
from pipeline.people.service import IdentityService
from pipeline.people.types import FaceResult, PersonView, PostRequest
from pipeline.store.connect import open_store
from pipeline.store.local import LocalStore
from pipeline.store.operations import Store
from pipeline.store.records import Candidate, FaceAnswer, SearchQuery
from pipeline.types import QUALITIES


def search(
    image: bytes, store: Path, settings: Settings, account: str | None, directory: str, top: int
) -> list[FaceAnswer]:
    """The faces of an encoded image, each with its identity and the `top` most similar ones.

    Raises ImageRejected, StoreError, ModelError, DeviceError.
    """
    with open_store(store, command="search", reading=True) as opened:
        settings = settings_of_store(settings, opened.identity, store)
        with closing(Recogniser(opened, settings)) as recogniser:
            return recogniser.faces(image, account, directory, top)


class Recogniser:
    """Recognises faces from the identities of an open store. Where no server does it, the models load with the first
    image, and the identities as they are then."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self.service: IdentityService | None = None  # where it answers in this process, from the first image on

    def faces(self, image: bytes, account: str | None, directory: str, top: int) -> list[FaceAnswer]:
        """The faces of an encoded image, each with its identity and the `top` most similar ones.

        Raises ImageRejected, AccountUnknown, UsageError, StoreError, ModelError, DeviceError.
        """
        _, account_id = find_account(self._store, account)
        query = SearchQuery(image, account_id, directory, top, self._settings.match.threshold)
        calibration = Calibration.from_dict(self._store.identity.calibration)
        strong = strong_score(calibration, query.threshold)
        return _explained(self._store, self._store.search(query, self._answers_here), strong)

    def _answers_here(self, store: LocalStore, query: SearchQuery) -> list[FaceAnswer]:
        if self.service is None:
            extractor = load_extractor(self._settings, store.identity, store.path)
            self.service = IdentityService(store, extractor, Decoder(self._settings.decode), self._settings)
        return answers(self.service, query)

    def close(self) -> None:
        """Lets the models go."""
        if self.service is not None:
            self.service.close()
            self.service = None


def answers(service: IdentityService, query: SearchQuery) -> list[FaceAnswer]:
    """What the service recognises in an encoded image. Raises ImageRejected, StoreError, Overloaded."""
    request = PostRequest(threshold=query.threshold, insert=False, update=False, similar_limit=query.top)
    return [_answer(face) for face in service.post(query.account_id, query.directory, query.image, request).faces]


def _answer(result: FaceResult) -> FaceAnswer:
    return FaceAnswer(
        box=result.face.box,
        confidence=result.face.fields["confidence"],
        quality={name: result.face.fields[name] for name in QUALITIES},
        identity=None if result.person is None else _candidate(result.person, result.score or 0.0),
        similar=[_candidate(match.person, match.score) for match in result.similar or ()],
    )


def _explained(store: Store, faces: list[FaceAnswer], strong: float) -> list[FaceAnswer]:
    """The same, each candidate with the photo that its identity is known by and the word for its score."""
    found = [candidate for face in faces for candidate in (face.identity, *face.similar) if candidate is not None]
    photos = store.reference_photos(sorted({candidate.person_id for candidate in found}))

    def shown(candidate: Candidate) -> Candidate:
        word = strength(candidate.similarity_score, strong)
        return replace(candidate, photo=photos.get(candidate.person_id), strength=word)

    return [
        replace(face, identity=face.identity and shown(face.identity), similar=[shown(c) for c in face.similar])
        for face in faces
    ]


def _candidate(person: PersonView, score: float) -> Candidate:
    return Candidate(person.root.person_id, person.root.name, person.root.external_id, score)
