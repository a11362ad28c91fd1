"""Recognition in a photo, with the verdicts and photos that explain the answers."""

from __future__ import annotations

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.models import load_extractor
from pipeline.matching.calibration import Calibration
from pipeline.matching.score import strength, strong_score
from pipeline.people.service import IdentityService
from pipeline.people.types import PersonView, PostRequest
from pipeline.store import Candidate, FaceAnswer, LocalStore, SearchQuery, reference_origins
from pipeline.types import QUALITIES


def load_service(store: LocalStore, settings: Settings) -> IdentityService:
    """Makes a store's recognition service. Raises ModelError, DeviceError."""
    extractor = load_extractor(settings, store.identity, store.path)
    return IdentityService(store, extractor, Decoder(settings.decode), settings)


def answers(service: IdentityService, store: LocalStore, query: SearchQuery) -> list[FaceAnswer]:
    """Recognises an encoded image; candidates have the photo of their reference face, and a word for the score. Raises
    ImageRejected, StoreError, Overloaded."""
    request = PostRequest(threshold=query.threshold, insert=False, update=False, similar_limit=query.top)
    faces = service.post(query.account_id, query.directory, query.image, request).faces
    shown = [match.person for face in faces for match in face.similar or ()]
    shown += [face.person for face in faces if face.person is not None]
    origins = store.ask(reference_origins, sorted({person.root.person_id for person in shown}))
    strong = strong_score(Calibration.from_dict(store.identity.calibration), query.threshold)

    def candidate(person: PersonView, score: float) -> Candidate:
        root, origin = person.root, origins.get(person.root.person_id)
        photo = None if origin is None else origin.path
        return Candidate(root.person_id, root.name, root.external_id, score, photo, strength(score, strong))

    return [
        FaceAnswer(
            box=face.face.box,
            confidence=face.face.fields["confidence"],
            quality={name: face.face.fields[name] for name in QUALITIES},
            identity=None if face.person is None else candidate(face.person, face.score or 0.0),
            similar=[candidate(match.person, match.score) for match in face.similar or ()],
        )
        for face in faces
    ]
