"""Recognition: who is in this photo, from the identities of one directory. Nothing is stored.

The answer is that of the identity service, in this process or, while a server holds the store, in the server's.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.rows import QUALITIES
from pipeline.identities.service import IdentityService
from pipeline.identities.types import FaceResult, PersonView, PostRequest
from pipeline.jobs.models import load_extractor
from pipeline.jobs.stores import find_account, settings_of_store
from pipeline.store.connect import open_store
from pipeline.store.remote import RemoteStore


@dataclass(frozen=True)
class Candidate:
    """An identity (of a merged set its root) and how similar it is: a score of 1.0 or more is a match (contract,
    section 4.3)."""

    person_id: str
    name: str | None
    external_id: str | None
    similarity_score: float


@dataclass(frozen=True)
class FaceAnswer:
    """One face of the photo, the largest first."""

    box: tuple[float, float, float, float]  # xyxy in pixels of the upright photo
    confidence: float
    quality: dict[str, float]
    identity: Candidate | None  # the best match, if any
    similar: list[Candidate]  # the most similar identities, best first

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; no `identity` where nobody matches."""
        return {k: v for k, v in asdict(self).items() if v is not None}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> FaceAnswer:
        """What `as_dict` gave, also by way of JSON."""
        identity = said.get("identity")
        return cls(
            box=tuple(said["box"]),
            confidence=said["confidence"],
            quality=said["quality"],
            identity=Candidate(**identity) if identity else None,
            similar=[Candidate(**each) for each in said["similar"]],
        )


def search(
    image: Path, store: Path, settings: Settings, account: str | None, directory: str, top: int
) -> list[FaceAnswer]:
    """The faces of `image`, each with its identity and the `top` most similar ones.

    Raises ImageRejected, StoreError, ModelError, DeviceError.
    """
    data = read_file(image, settings.decode.max_bytes)
    with open_store(store, command="search") as opened:
        settings = settings_of_store(settings, opened.identity, store)
        _, account_id = find_account(opened, account)
        threshold = settings.match.threshold
        if isinstance(opened, RemoteStore):
            return [FaceAnswer.from_dict(each) for each in opened.search(data, account_id, directory, top, threshold)]
        extractor = load_extractor(settings, opened.identity, store)
        with closing(IdentityService(opened, extractor, Decoder(settings.decode), settings)) as service:
            return answers(service, account_id, directory, data, top=top, threshold=threshold)


def answers(
    service: IdentityService, account_id: int, directory: str, data: bytes, *, top: int, threshold: float
) -> list[FaceAnswer]:
    """What the service recognises in an encoded image. Raises ImageRejected, StoreError, Overloaded."""
    request = PostRequest(threshold=threshold, insert=False, update=False, similar_limit=top)
    return [_answer(face) for face in service.post(account_id, directory, data, request).faces]


def _answer(found: FaceResult) -> FaceAnswer:
    return FaceAnswer(
        box=found.face.box,
        confidence=found.face.fields["confidence"],
        quality={name: found.face.fields[name] for name in QUALITIES},
        identity=None if found.person is None else _candidate(found.person, found.score or 0.0),
        similar=[_candidate(each.person, each.score) for each in found.similar or ()],
    )


def _candidate(person: PersonView, score: float) -> Candidate:
    return Candidate(person.root.person_id, person.root.name, person.root.external_id, score)
