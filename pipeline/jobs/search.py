"""Recognition: who is in this photo, from the identities of one directory. Nothing is stored.

The answer is that of the identity service, in this process or, while a server holds the store, in the server's.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from pipeline.config import Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.rows import QUALITIES
from pipeline.identities.service import IdentityService
from pipeline.identities.types import FaceResult, PersonView, PostRequest
from pipeline.jobs.models import load_extractor
from pipeline.jobs.stores import find_account, settings_of_store
from pipeline.store.client import StoreClient
from pipeline.store.connect import open_store
from pipeline.store.records import Candidate, FaceAnswer, SearchQuery


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
        query = SearchQuery(data, account_id, directory, top, settings.match.threshold)

        def here(held: StoreClient, query: SearchQuery) -> list[FaceAnswer]:
            extractor = load_extractor(settings, held.identity, store)
            with closing(IdentityService(held, extractor, Decoder(settings.decode), settings)) as service:
                return answers(service, query)

        return opened.search(query, here)


def answers(service: IdentityService, query: SearchQuery) -> list[FaceAnswer]:
    """What the service recognises in an encoded image. Raises ImageRejected, StoreError, Overloaded."""
    request = PostRequest(threshold=query.threshold, insert=False, update=False, similar_limit=query.top)
    return [_answer(face) for face in service.post(query.account_id, query.directory, query.image, request).faces]


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
