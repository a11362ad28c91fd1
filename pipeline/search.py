"""Recognition: who is in this photo, from the identities of one directory. Nothing is stored."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.assembly import load_extractor, make_matcher, settings_of_store, settle_account
from pipeline.config import Settings
from pipeline.decode import Decoder
from pipeline.extract import QUALITIES
from pipeline.extracted import ExtractedFace, faces_of_table
from pipeline.files import read_file
from pipeline.match import Matcher, ReferenceIndex
from pipeline.store.client import StoreClient
from pipeline.store.records import References


@dataclass(frozen=True)
class Candidate:
    """An identity and how similar it is: a score of 1.0 or more is a match (contract, section 4.3)."""

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


def search(
    image: Path, store: Path, settings: Settings, account: str | None, directory: str, top: int
) -> list[FaceAnswer]:
    """The faces of `image`, each with its identity and the `top` most similar ones.

    Raises ImageRejected, StoreError, ModelError, DeviceError.
    """
    decoder = Decoder(settings.decode)
    data = read_file(image, settings.decode.max_bytes)
    with StoreClient.open(store, command="search") as client:
        settings = settings_of_store(settings, client.identity, store)
        _, account_id = settle_account(client, account)
        decoded = decoder(data)
        (faces,) = load_extractor(settings, client.identity, store).extract([decoded])
        references = client.references(account_id, directory)
        matcher = make_matcher(client.identity, settings.match.threshold)
        index = ReferenceIndex(client.identity.embedding_size)
        index.append(references.vectors, references.seq, references.image_hashes, references.boxes)
    hashes = (hashlib.sha256(data).hexdigest(), decoded.pixel_sha256)
    return [_answer(face, hashes, references, index, matcher, top) for face in faces_of_table(faces)]


def _answer(
    face: ExtractedFace,
    hashes: tuple[str, ...],
    references: References,
    index: ReferenceIndex,
    matcher: Matcher,
    top: int,
) -> FaceAnswer:
    similar = []
    if len(index):
        positions, scores = matcher.top_k(index, face.embedding[None], max(top, 1))
        similar = [_candidate(references, p, s) for p, s in zip(positions[0].tolist(), scores[0].tolist(), strict=True)]
    identical = index.images.find(hashes, face.box)
    if identical is not None:
        same = _candidate(references, identical, float(matcher.scores(np.zeros(1))[0]))
        similar = [same, *(c for c in similar if c.person_id != same.person_id)]
    found = similar[0] if similar and similar[0].similarity_score >= 1.0 else None
    return FaceAnswer(
        box=face.box,
        confidence=face.fields["confidence"],
        quality={name: face.fields[name] for name in QUALITIES},
        identity=found,
        similar=similar[:top],
    )


def _candidate(references: References, position: int, score: float) -> Candidate:
    return Candidate(
        references.person_ids[position], references.names[position], references.external_ids[position], score
    )
