"""Who is in a photo: the identity service's answers, with the words and the photos that explain them. Loads torch."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.matching.calibration import Calibration
from pipeline.matching.strength import strength, strong_score
from pipeline.people.service import IdentityService
from pipeline.people.types import FaceResult, PersonView, PostRequest
from pipeline.store.local import LocalStore
from pipeline.store.records import Candidate, FaceAnswer, SearchQuery
from pipeline.types import QUALITIES


def load_service(store: LocalStore, settings: Settings) -> IdentityService:
    """What recognises by the identities of a store, with the models of its settings. Raises ModelError, DeviceError."""
    extractor = load_extractor(settings, store.identity, store.path)
    return IdentityService(store, extractor, Decoder(settings.decode), settings)


def answers(service: IdentityService, store: LocalStore, query: SearchQuery) -> list[FaceAnswer]:
    """What the service recognises in an encoded image; each candidate has the photo that its reference face is from,
    and the word for its score. Raises ImageRejected, StoreError, Overloaded."""
    request = PostRequest(threshold=query.threshold, insert=False, update=False, similar_limit=query.top)
    results = service.post(query.account_id, query.directory, query.image, request).faces
    faces = [_answer(face) for face in results]
    found = [candidate for face in faces for candidate in (face.identity, *face.similar) if candidate is not None]
    photos = store.reference_photos(sorted({candidate.person_id for candidate in found}))
    strong = strong_score(Calibration.from_dict(store.identity.calibration), query.threshold)

    def explained(candidate: Candidate) -> Candidate:
        word = strength(candidate.similarity_score, strong)
        return replace(candidate, photo=photos.get(candidate.person_id), strength=word)

    return [
        replace(face, identity=face.identity and explained(face.identity), similar=[explained(c) for c in face.similar])
        for face in faces
    ]


def _answer(result: FaceResult) -> FaceAnswer:
    return FaceAnswer(
        box=result.face.box,
        confidence=result.face.fields["confidence"],
        quality={name: result.face.fields[name] for name in QUALITIES},
        identity=None if result.person is None else _candidate(result.person, result.score or 0.0),
        similar=[_candidate(match.person, match.score) for match in result.similar or ()],
    )


def _candidate(person: PersonView, score: float) -> Candidate:
    return Candidate(person.root.person_id, person.root.name, person.root.external_id, score)
