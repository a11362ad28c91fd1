"""`POST /people`: recognises the faces of an image, and inserts or updates as asked (contract, 4.2 and 4.3)."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from pipeline.config import MatchSettings, ServeSettings, Settings
from pipeline.errors import ExternalIdTaken, PersonHeadersRequired
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import ExtractedFace, faces_of_table
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.identities.batcher import MicroBatcher
from pipeline.identities.claims import Claim
from pipeline.identities.decide import make_matcher
from pipeline.identities.directory import Directories, Directory, DirectoryView, ReferenceFace
from pipeline.identities.quality_gate import failed_measures
from pipeline.identities.similar import most_similar
from pipeline.identities.turns import Turn
from pipeline.identities.types import FaceResult, PostRequest, PostResult, SimilarPerson
from pipeline.identities.views import root_view
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.runtime.device import usable_cores
from pipeline.store.catalog.opening import utc_now
from pipeline.store.client import StoreClient
from pipeline.store.records import DirectoryCommit, NewReference, PersonRecord, PostedImage
from pipeline.types import Decisions, DecodedImage, FaceBatch


@dataclass(frozen=True)
class _Posted:
    """An image with its faces, and what was asked for."""

    image: PostedImage
    faces: Sequence[ExtractedFace]  # from the largest to the smallest
    request: PostRequest
    gate: MatchSettings  # the request's threshold and qualities
    guids: Sequence[str]  # of the faces' pictures, should they be stored

    @property
    def hashes(self) -> tuple[str, ...]:
        return self.image.sha256, self.image.pixel_sha256

    def failed(self, ordinal: int) -> tuple[str, ...]:
        """The quality measures below the gate."""
        return failed_measures(self.faces[ordinal], self.gate)

    def fits(self, ordinal: int) -> bool:
        """The face is good enough to become a reference."""
        x1, y1, x2, y2 = self.faces[ordinal].box
        return max(x2 - x1, y2 - y1) >= self.request.min_size_px and not self.failed(ordinal)

    def allowed(self, ordinal: int) -> bool:
        """The request lets this face become an identity, if it is good enough and matches nobody."""
        return self.request.insert and (ordinal == 0 or self.request.insert_all)

    def batch(self) -> FaceBatch:
        count = len(self.faces)
        return FaceBatch(
            embeddings=np.stack([face.embedding for face in self.faces]),
            insertable=np.array([self.allowed(k) and self.fits(k) for k in range(count)]),
            image_hashes=[self.hashes] * count,
            boxes=np.array([face.box for face in self.faces], dtype=np.float32),
        )


@dataclass
class _Decided:
    """What was decided on one view of the directory. By face: whose record it is (None: nobody's)."""

    view: DirectoryView
    positions: Decisions
    person_ids: list[str | None]
    similar: list[list[SimilarPerson]] | None
    identical: frozenset[int]  # faces whose very image is the reference they matched


@dataclass
class _Changes:
    """What a post changes: the directory's commit in the making."""

    now: datetime
    records: dict[str, PersonRecord] = field(default_factory=dict)  # as they are afterwards
    inserted: list[str] = field(default_factory=list)
    references: list[NewReference] = field(default_factory=list)
    account_updated: bool = False


class Poster:
    """Answers posts. Any number of threads may call it."""

    def __init__(
        self,
        client: StoreClient,
        directories: Directories,
        batcher: MicroBatcher,
        decoder: Decoder,
        settings: Settings,
    ) -> None:
        self._client = client
        self._directories = directories
        self._batcher = batcher
        self._decoder = decoder
        self._match = settings.match
        self._serve: ServeSettings = settings.serve
        # So many images are in memory at a time. Who waits for a lock or the disk afterwards holds none of them up.
        self._working = threading.BoundedSemaphore(settings.serve.workers or 2 * usable_cores())

    def post(self, account_id: int, directory: str, data: bytes, request: PostRequest) -> PostResult:
        """See `IdentityService.post`."""
        with self._working:
            posted, detection_ms = self._seen(data, request)
        results: list[FaceResult] = []
        updated = False
        if posted.faces:
            with self._directories.using(account_id, directory) as held:
                results, updated = self._answer(held, posted)
        return PostResult(
            faces=results[:1] if request.largest_only else results,
            width=posted.image.width,
            height=posted.image.height,
            media_id=str(uuid.UUID(posted.image.sha256[:32])),
            account_updated=updated,
            detection_ms=detection_ms,
        )

    def _seen(self, data: bytes, request: PostRequest) -> tuple[_Posted, int]:
        """The image with its faces, without its pixels, and the milliseconds that finding them took."""
        sha256 = hashlib.sha256(data).hexdigest()
        image = self._decoder(data)
        begun = time.monotonic()
        faces = faces_of_table(self._batcher.extract(image))
        detection_ms = round((time.monotonic() - begun) * 1000)
        guids = [str(uuid.uuid4()) for _ in faces]
        about = _posted_image(data, sha256, image, request)
        return _Posted(about, faces, request, self._gate(request), guids), detection_ms

    def _gate(self, request: PostRequest) -> MatchSettings:
        given = {
            "threshold": request.threshold,
            "min_cpq": request.min_cpq,
            "min_fsq": request.min_fsq,
            "min_fcq": request.min_fcq,
        }
        return replace(self._match, **{key: value for key, value in given.items() if value is not None})

    def _answer(self, directory: Directory, posted: _Posted) -> tuple[list[FaceResult], bool]:
        matcher = make_matcher(self._client.identity, posted.gate.threshold)
        batch = posted.batch()
        decided = _decide(directory, posted, batch, matcher)
        if not (posted.request.insert or posted.request.update):
            return _results(directory, posted, decided), False
        pictures = _probable_pictures(posted, decided)
        with (
            self._client.images_ahead(directory.account_id, pictures) as ahead,
            self._directories.posting(directory) as turn,
        ):
            while True:
                if decided.view.is_outdated_for(directory.view(), batch, decided.positions.position, matcher):
                    decided = _decide(directory, posted, batch, matcher)
                changes = self._changes(directory, posted, decided)
                if not changes.records or turn.claim(self._claim(posted, batch, matcher, decided, changes)):
                    break
            if changes.records:
                self._commit(turn, directory, posted, changes, ahead)
            return _results(directory, posted, decided), changes.account_updated

    def _changes(self, directory: Directory, posted: _Posted, decided: _Decided) -> _Changes:
        """Raises PersonHeadersRequired, ExternalIdTaken; then nothing is changed."""
        changes = _Changes(utc_now())
        for ordinal, inserted in enumerate(decided.positions.inserted.tolist()):
            if inserted:
                self._insert(directory, posted, decided, ordinal, changes)
        _count(directory, decided, changes)
        if posted.request.update:
            for ordinal in _updaters(posted, decided, changes):
                self._update(directory, posted, decided, ordinal, changes)
        return changes

    def _insert(
        self, directory: Directory, posted: _Posted, decided: _Decided, ordinal: int, changes: _Changes
    ) -> None:
        request = posted.request
        name, external_id = (request.name, request.external_id) if ordinal == 0 else (None, None)
        if self._serve.person_headers == "required" and (name is None or external_id is None):
            raise PersonHeadersRequired
        self.check_external_id(directory, external_id, None)
        person_id = str(uuid.uuid4())
        decided.person_ids = [
            person_id if position == decided.positions.position[ordinal] else known
            for known, position in zip(decided.person_ids, decided.positions.position.tolist(), strict=True)
        ]
        reference = _reference(posted, decided, ordinal, person_id, "inserted")
        changes.references.append(reference)
        changes.inserted.append(person_id)
        changes.records[person_id] = PersonRecord.new(person_id, name, external_id, reference.image_guid, changes.now)
        changes.account_updated = True

    def _update(
        self, directory: Directory, posted: _Posted, decided: _Decided, ordinal: int, changes: _Changes
    ) -> None:
        """Replaces the reference of the matched record; the largest face brings the request's name and id too."""
        person_id = str(decided.person_ids[ordinal])
        record = changes.records[person_id] if person_id in changes.records else directory.get(person_id)
        assert record is not None
        old = record
        if ordinal == 0:
            request = posted.request
            if request.external_id not in (None, record.external_id):
                self.check_external_id(directory, request.external_id, person_id)
            record = replace(
                record,
                name=request.name or record.name,
                external_id=request.external_id or record.external_id,
            )
        if ordinal not in decided.identical:
            reference = _reference(posted, decided, ordinal, person_id, "matched")
            changes.references.append(reference)
            record = replace(record, image_guid=reference.image_guid)
        if record != old:
            changes.records[person_id] = replace(record, modified_at=changes.now)
            changes.account_updated = True

    def check_external_id(self, directory: Directory, external_id: str | None, mine: str | None) -> None:
        """Raises ExternalIdTaken where ids are kept unique and somebody else than person `mine` has this one."""
        if not self._serve.unique_external_ids or external_id is None:
            return
        if any(person.person_id != mine for person in directory.with_external_id(external_id)):
            raise ExternalIdTaken

    def _claim(
        self, posted: _Posted, batch: FaceBatch, matcher: Matcher, decided: _Decided, changes: _Changes
    ) -> Claim:
        matched = {person_id for person_id in decided.person_ids if person_id is not None}
        external_ids = {record.external_id for record in changes.records.values() if record.external_id is not None}
        return Claim(
            persons=frozenset(matched | set(changes.records)),
            external_ids=frozenset(external_ids if self._serve.unique_external_ids else ()),
            hashes=frozenset(posted.hashes),
            faces=batch.embeddings,
            becoming=[reference.ordinal for reference in changes.references],
            matcher=matcher,
        )

    def _commit(
        self, turn: Turn, directory: Directory, posted: _Posted, changes: _Changes, ahead: dict[str, Any]
    ) -> None:
        commit = DirectoryCommit(
            account_id=directory.account_id,
            directory=directory.name,
            inserted=[changes.records[person_id] for person_id in changes.inserted],
            updated=[record for key, record in changes.records.items() if key not in changes.inserted],
            references=changes.references,
            image=posted.image if changes.references else None,
        )
        with turn.unlocked():
            committed = self._client.commit_directory(commit, ahead)
        directory.apply(committed, references=[_in_memory(r, posted) for r in changes.references])


def _posted_image(data: bytes, sha256: str, image: DecodedImage, request: PostRequest) -> PostedImage:
    return PostedImage(
        sha256=sha256,
        pixel_sha256=image.pixel_sha256,
        bytes=len(data),
        width=image.width,
        height=image.height,
        format=image.format,
        name=request.name,
        external_id=request.external_id,
    )


def _decide(directory: Directory, posted: _Posted, batch: FaceBatch, matcher: Matcher) -> _Decided:
    """Decides every face on the directory as it is now; again where a person vanished meanwhile."""
    while True:
        view = directory.view()
        positions = group_faces(batch, view.index, matcher)
        person_ids = [view.person_ids[p] if 0 <= p < len(view.index) else None for p in positions.position.tolist()]
        identical = [view.index.find_identical(posted.hashes, face.box) for face in posted.faces]
        similar = None
        if posted.request.similar_limit:
            similar = most_similar(directory, view, batch.embeddings, identical, matcher, posted.request.similar_limit)
        if all(person_id is None or directory.get(person_id) is not None for person_id in person_ids):
            same = frozenset(k for k, position in enumerate(identical) if position is not None)
            return _Decided(view, positions, person_ids, similar, same)


def _probable_pictures(posted: _Posted, decided: _Decided) -> list[tuple[str, bytes, str]]:
    """(guid, bytes, media type) of the faces that become references, if nothing comes in before the lock."""
    found = []
    for ordinal, inserted in enumerate(decided.positions.inserted.tolist()):
        known = decided.person_ids[ordinal] is not None and ordinal not in decided.identical
        crop = posted.faces[ordinal].crop
        if crop and (inserted or (known and posted.request.update and posted.fits(ordinal))):
            found.append((posted.guids[ordinal], crop, MEDIA_TYPE))
    return found


def _count(directory: Directory, decided: _Decided, changes: _Changes) -> None:
    """One occurrence more for each person that the call shows, counted on the record that its largest face matched."""
    counted: set[str] = set()  # none of those that the call inserts: they are not in the directory yet
    for person_id in decided.person_ids:
        record = directory.get(person_id) if person_id is not None else None
        root = directory.root(record.person_id) if record is not None else None
        if record is None or root is None or root.person_id in counted:
            continue
        counted.add(root.person_id)
        changes.records[record.person_id] = replace(
            record, occurrence=record.occurrence + 1, last_occurrence_at=changes.now
        )


def _updaters(posted: _Posted, decided: _Decided, changes: _Changes) -> list[int]:
    """The faces that update the record they matched: good enough, and the best of those of the same record."""
    best: dict[str, int] = {}
    scores = decided.positions.score.tolist()
    for ordinal, person_id in enumerate(decided.person_ids):
        if person_id is None or person_id in changes.inserted or not posted.fits(ordinal):
            continue
        if person_id not in best or scores[ordinal] > scores[best[person_id]]:
            best[person_id] = ordinal
    return sorted(best.values())


def _reference(posted: _Posted, decided: _Decided, ordinal: int, person_id: str, outcome: str) -> NewReference:
    face = posted.faces[ordinal]
    assert face.crop is not None
    return NewReference(
        person_id=person_id,
        ordinal=ordinal,
        outcome=outcome,
        similarity_score=float(decided.positions.score[ordinal]),
        fields=face.fields,
        embedding=face.embedding,
        image_guid=posted.guids[ordinal],
        image=face.crop,
        media_type=MEDIA_TYPE,
    )


def _in_memory(reference: NewReference, posted: _Posted) -> ReferenceFace:
    face = posted.faces[reference.ordinal]
    return ReferenceFace(reference.person_id, face.embedding, posted.hashes, face.box)


def _results(directory: Directory, posted: _Posted, decided: _Decided) -> list[FaceResult]:
    results = []
    for ordinal, face in enumerate(posted.faces):
        person_id = decided.person_ids[ordinal]
        person = root_view(directory, person_id) if person_id is not None else None
        rejected = posted.failed(ordinal) if person is None and posted.allowed(ordinal) else ()
        results.append(
            FaceResult(
                face=face,
                person=person,
                score=float(decided.positions.score[ordinal]) if person is not None else None,
                inserted=bool(decided.positions.inserted[ordinal]),
                rejected=rejected,
                similar=decided.similar[ordinal] if decided.similar is not None else None,
            )
        )
    return results
