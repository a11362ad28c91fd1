"""`POST /people`: recognises the faces of an image, and inserts or updates as asked (contract, 4.2 and 4.3)."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipeline.config import MatchSettings, ServeSettings, Settings
from pipeline.errors import ExternalIdTaken, PersonHeadersRequired
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import ExtractedFace, faces_of_table
from pipeline.extraction.stored_picture import MEDIA_TYPE
from pipeline.identities.batcher import MicroBatcher
from pipeline.identities.decide import Decision, Sighting, commit_decided, decide_faces, failed_measures, seen_again
from pipeline.identities.directory import Directories, Directory
from pipeline.identities.locks import Footprint, SharedLock
from pipeline.identities.person_changes import changed
from pipeline.identities.types import FaceResult, PostRequest, PostResult, SimilarPerson
from pipeline.identities.views import most_similar, root_view
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.runtime.threads import usable_cores
from pipeline.store.catalog.opening import utc_now
from pipeline.store.local import LocalStore
from pipeline.store.records import DirectoryCommit, NewReference, PersonRecord, PostedImage


@dataclass(frozen=True)
class _Post:
    """A posted image with its faces, and what is asked for."""

    image: PostedImage
    request: PostRequest
    matcher: Matcher  # with the request's threshold
    sightings: Sequence[Sighting]  # from the largest face to the smallest
    guids: Sequence[str]  # of the faces' pictures, in case they are stored


@dataclass(frozen=True)
class _Decided:
    """The decision, and what an answer shows of the directory as it was then."""

    decision: Decision
    similar: list[list[SimilarPerson]] | None
    identical: frozenset[int]  # faces that are themselves the reference they matched: the same image again

    @property
    def sightings(self) -> Sequence[Sighting]:
        return self.decision.sightings

    def is_outdated(self) -> bool:
        return self.decision.is_outdated()


@dataclass
class _Changes:
    """What a post changes, collected for its commit."""

    now: datetime
    records: dict[str, PersonRecord] = field(default_factory=dict)  # as they are afterwards
    inserted: list[str] = field(default_factory=list)
    references: list[NewReference] = field(default_factory=list)
    account_updated: bool = False


class Poster:
    """Answers posts. Any number of threads may call it."""

    def __init__(
        self,
        client: LocalStore,
        directories: Directories,
        batcher: MicroBatcher,
        decoder: Decoder,
        settings: Settings,
    ) -> None:
        self._client = client
        self._directories = directories
        self._batcher = batcher
        self._decoder = decoder
        self._calibration = Calibration.from_dict(client.identity.calibration)
        self._match = settings.match
        self._serve: ServeSettings = settings.serve
        # Bounds the images in memory. A post that waits for a lock or the disk afterwards holds up no other.
        self._working = threading.BoundedSemaphore(settings.serve.workers or 2 * usable_cores())

    def post(self, account_id: int, directory: str, data: bytes, request: PostRequest) -> PostResult:
        """See `IdentityService.post`."""
        with self._working:
            post, detection_ms = self._extract(data, request)
        results: list[FaceResult] = []
        updated = False
        if post.sightings:
            with self._directories.using(account_id, directory) as opened:
                results, updated = self._answer(opened, post)
        return PostResult(
            faces=results[:1] if request.largest_only else results,
            width=post.image.width,
            height=post.image.height,
            media_id=str(uuid.UUID(post.image.sha256[:32])),
            account_updated=updated,
            detection_ms=detection_ms,
        )

    def _extract(self, data: bytes, request: PostRequest) -> tuple[_Post, int]:
        """The image's faces, without its pixels, and the milliseconds that finding them took."""
        decoded = self._decoder(data)
        begun = time.monotonic()
        faces = faces_of_table(self._batcher.extract(decoded))
        detection_ms = round((time.monotonic() - begun) * 1000)
        gate = self._gate(request)
        image = PostedImage(
            sha256=hashlib.sha256(data).hexdigest(),
            pixel_sha256=decoded.pixel_sha256,
            bytes=len(data),
            width=decoded.width,
            height=decoded.height,
            format=decoded.format,
            name=request.name,
            external_id=request.external_id,
        )
        sightings = [_sighting(image, request, gate, ordinal, face) for ordinal, face in enumerate(faces)]
        matcher = Matcher(self._calibration, gate.threshold)
        return _Post(image, request, matcher, sightings, [str(uuid.uuid4()) for _ in faces]), detection_ms

    def _gate(self, request: PostRequest) -> MatchSettings:
        asked = {
            "threshold": request.threshold,
            "min_cpq": request.min_cpq,
            "min_fsq": request.min_fsq,
            "min_fcq": request.min_fcq,
        }
        return replace(self._match, **{key: value for key, value in asked.items() if value is not None})

    def _answer(self, directory: Directory, post: _Post) -> tuple[list[FaceResult], bool]:
        """The answer for each face, and whether the account changed."""
        if not (post.request.insert or post.request.update):
            return _results(_decide(directory, post)), False

        @contextmanager
        def lock(decided: _Decided) -> Iterator[tuple[SharedLock, dict[str, Any]]]:
            pictures = _probable_pictures(post, decided)
            with (
                self._client.images_ahead(directory.account_id, pictures) as ahead,
                self._directories.posting(directory) as shared,
            ):
                yield shared, ahead

        def commit(decided: _Decided, guard: tuple[SharedLock, dict[str, Any]]) -> tuple[list[FaceResult], bool] | None:
            shared, ahead = guard
            changes = self._changes(directory, post, decided)
            if changes.records:
                if not shared.register(self._footprint(post, decided, changes)):
                    return None
                self._commit(shared, directory, post, decided, changes, ahead)
            return _results(decided), changes.account_updated

        return commit_decided(lambda: _decide(directory, post), lock, commit)

    def _changes(self, directory: Directory, post: _Post, decided: _Decided) -> _Changes:
        """What it changes. Raises PersonHeadersRequired, ExternalIdTaken, MetadataTooLarge: nothing is changed."""
        changes = _Changes(utc_now())
        for sighting in decided.sightings:
            if sighting.outcome == "inserted":
                self._insert(directory, post, sighting, changes)
        seen = seen_again(directory, decided.decision.occurrences(), changes.now)
        changes.records.update((record.person_id, record) for record in seen)
        if post.request.update:
            for sighting in _updaters(decided.sightings):
                self._update(directory, post, decided, sighting, changes)
        return changes

    def _insert(self, directory: Directory, post: _Post, sighting: Sighting, changes: _Changes) -> None:
        request = post.request
        name, external_id = (request.name, request.external_id) if sighting.ordinal == 0 else (None, None)
        if self._serve.person_headers == "required" and (name is None or external_id is None):
            raise PersonHeadersRequired
        self.check_external_id(directory, external_id, None)
        person_id, guid = sighting.new_id, post.guids[sighting.ordinal]
        changes.references.append(_new_reference(post, sighting))
        changes.inserted.append(person_id)
        record = PersonRecord.new(person_id, name, external_id, guid, changes.now)
        changes.records[person_id] = changed(record, request.details) if sighting.ordinal == 0 else record
        changes.account_updated = True

    def _update(
        self, directory: Directory, post: _Post, decided: _Decided, sighting: Sighting, changes: _Changes
    ) -> None:
        """Replaces the reference of the matched record; the largest face brings the request's name and id too."""
        person_id = str(sighting.person_id)
        old = changes.records[person_id] if person_id in changes.records else directory.get(person_id)
        assert old is not None
        record = old
        if sighting.ordinal == 0:
            request = post.request
            if request.external_id not in (None, old.external_id):
                self.check_external_id(directory, request.external_id, person_id)
            record = changed(old, replace(request.details, name=request.name, external_id=request.external_id))
        if sighting.ordinal not in decided.identical:
            changes.references.append(_new_reference(post, sighting))
            record = replace(record, image_guid=post.guids[sighting.ordinal])
        if record != old:
            changes.records[person_id] = replace(record, modified_at=changes.now)
            changes.account_updated = True

    def check_external_id(self, directory: Directory, external_id: str | None, owner_id: str | None) -> None:
        """Raises ExternalIdTaken where ids are kept unique and somebody else than the owner has this one."""
        if not self._serve.unique_external_ids or external_id is None:
            return
        if any(person.person_id != owner_id for person in directory.with_external_id(external_id)):
            raise ExternalIdTaken

    def _footprint(self, post: _Post, decided: _Decided, changes: _Changes) -> Footprint:
        matched = {sighting.person_id for sighting in decided.sightings if sighting.person_id is not None}
        external_ids = {record.external_id for record in changes.records.values() if record.external_id is not None}
        return Footprint(
            person_ids=frozenset(matched | set(changes.records)),
            external_ids=frozenset(external_ids if self._serve.unique_external_ids else ()),
            image_hashes=frozenset(decided.sightings[0].image_hashes),
            faces=decided.decision.faces.embeddings,
            new_references=[reference.ordinal for reference in changes.references],
            matcher=post.matcher,
        )

    def _commit(
        self,
        lock: SharedLock,
        directory: Directory,
        post: _Post,
        decided: _Decided,
        changes: _Changes,
        ahead: dict[str, Any],
    ) -> None:
        commit = DirectoryCommit(
            account_id=directory.account_id,
            directory=directory.name,
            inserted=[changes.records[person_id] for person_id in changes.inserted],
            updated=[record for key, record in changes.records.items() if key not in changes.inserted],
            references=changes.references,
            image=post.image if changes.references else None,
        )
        with lock.released():
            committed = self._client.commit_directory(commit, ahead)
        new = [decided.sightings[reference.ordinal].as_reference() for reference in changes.references]
        directory.apply(committed, references=new)


def _sighting(
    image: PostedImage, request: PostRequest, gate: MatchSettings, ordinal: int, face: ExtractedFace
) -> Sighting:
    failed = failed_measures(face, gate)
    x1, y1, x2, y2 = face.box
    return Sighting(
        photo=0,
        ordinal=ordinal,
        face=face,
        image_hashes=(image.sha256, image.pixel_sha256),
        allowed=request.insert and (ordinal == 0 or request.insert_all),
        failed=failed,
        fit=max(x2 - x1, y2 - y1) >= request.min_size_px and not failed,
        new_id=str(uuid.uuid4()),
    )


def _decide(directory: Directory, post: _Post) -> _Decided:
    decision = decide_faces(directory, post.sightings, post.matcher)
    identical = [decision.view.index.find_identical(s.image_hashes, s.face.box) for s in post.sightings]
    limit = post.request.similar_limit
    similar = most_similar(decision, identical, limit) if limit else None
    same = frozenset(ordinal for ordinal, position in enumerate(identical) if position is not None)
    return _Decided(decision, similar, same)


def _probable_pictures(post: _Post, decided: _Decided) -> list[tuple[str, bytes, str]]:
    """(guid, bytes, media type) of the faces that become references if nothing comes in before the lock."""
    new = [sighting for sighting in decided.sightings if sighting.outcome == "inserted"]
    if post.request.update:
        new += [sighting for sighting in _updaters(decided.sightings) if sighting.ordinal not in decided.identical]
    return [(post.guids[s.ordinal], s.face.crop, MEDIA_TYPE) for s in new if s.face.crop]


def _updaters(sightings: Sequence[Sighting]) -> list[Sighting]:
    """The faces that update the record they matched: good enough, and the best of those of the same record."""
    inserted = {sighting.person_id for sighting in sightings if sighting.outcome == "inserted"}
    best: dict[str | None, Sighting] = {}
    for sighting in sightings:
        if sighting.outcome == "matched" and sighting.fit and sighting.person_id not in inserted:
            rival = best.setdefault(sighting.person_id, sighting)
            if (sighting.score or 0.0) > (rival.score or 0.0):
                best[sighting.person_id] = sighting
    return sorted(best.values(), key=lambda sighting: sighting.ordinal)


def _new_reference(post: _Post, sighting: Sighting) -> NewReference:
    face = sighting.face
    assert face.crop is not None
    assert sighting.score is not None
    return NewReference(
        person_id=str(sighting.person_id),
        ordinal=sighting.ordinal,
        outcome=sighting.outcome,
        similarity_score=sighting.score,
        fields=face.fields,
        embedding=face.embedding,
        image_guid=post.guids[sighting.ordinal],
        image=face.crop,
        media_type=MEDIA_TYPE,
    )


def _results(decided: _Decided) -> list[FaceResult]:
    results = []
    for sighting in decided.sightings:
        person = root_view(decided.decision.directory, sighting.person_id) if sighting.person_id is not None else None
        results.append(
            FaceResult(
                face=sighting.face,
                person=person,
                score=sighting.score if person is not None else None,
                inserted=sighting.outcome == "inserted",
                rejected=sighting.failed if person is None and sighting.allowed else (),
                similar=decided.similar[sighting.ordinal] if decided.similar is not None else None,
            )
        )
    return results
