"""`POST /people`: recognises the faces of an image, and inserts or updates as asked (contract, 4.2 and 4.3)."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pipeline.config import MatchSettings, Settings
from pipeline.errors import PersonUnknown, RequestError
from pipeline.extraction.images.decode import Decoder, OpenedImage
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import ExtractedFace, faces_of_table
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.batcher import MicroBatcher
from pipeline.people.changes import ChangeRules, Changes, DecidedPost, Post
from pipeline.people.decide import (
    Decision,
    Sighting,
    decide_faces,
    decide_person,
    failed_measures,
)
from pipeline.people.directory import Directories, Directory
from pipeline.people.locks import Footprint, SharedLock
from pipeline.people.selection import select_faces
from pipeline.people.types import Conflict, FaceResult, PostRequest, PostResult
from pipeline.people.views import most_similar, root_view
from pipeline.runtime.threads import usable_cores
from pipeline.store import LocalStore, PostedImage, ReferenceOrigin, Row, reference_origins
from pipeline.types import DecodedImage


class Poster:
    """Answers posts. Any number of threads may call it."""

    def __init__(
        self,
        client: LocalStore,
        directories: Directories,
        batcher: MicroBatcher,
        decoder: Decoder,
        settings: Settings,
        rules: ChangeRules,
    ) -> None:
        self._client = client
        self._directories = directories
        self._batcher = batcher
        self._decoder = decoder
        self._pixel_hash = PixelHash(client.identity.pixel_key)
        self._calibration = Calibration.from_dict(client.identity.calibration)
        self._match = settings.match
        self._unique_external_ids = settings.serve.unique_external_ids
        self._rules = rules
        # For decoding and models. A post that waits for memory before, or for a lock or the disk afterwards, holds up
        # no other.
        self._working = threading.BoundedSemaphore(settings.serve.workers or 2 * usable_cores())

    def post(self, account_id: int, directory: str, data: bytes, request: PostRequest) -> PostResult:
        """See `IdentityService.post`."""
        image = self._decoder.open(data)
        with image.room(), self._working:
            post, detection_s = self._extract(image, request)
        results: list[FaceResult] = []
        updated = False
        with self._directories.using(account_id, directory) as opened:
            _require_persons(opened, request)
            if post.sightings:
                results, updated = self._answer(opened, post)
        return PostResult(
            faces=results,
            width=post.image.width,
            height=post.image.height,
            media_id=str(uuid.UUID(post.image.sha256[:32])),
            account_updated=updated,
            detection_ms=round(detection_s * 1000),
        )

    def _extract(self, opened: OpenedImage, request: PostRequest) -> tuple[Post, float]:
        """The image's faces, without its pixels, and the seconds that the detector took for its batch."""
        data, decoded = opened.data, opened.load()
        extracted = self._batcher.extract(decoded)
        selected = select_faces(faces_of_table(extracted.faces), request, decoded.width, decoded.height)
        faces = _with_pictures(decoded, selected.faces) if request.insert or request.update else selected.faces
        described = selected.described is not None
        gate = self._gate(request)
        image = PostedImage(
            sha256=hashlib.sha256(data).hexdigest(),
            pixel_hash=self._pixel_hash(decoded.pixels),
            bytes=len(data),
            width=decoded.width,
            height=decoded.height,
            format=decoded.format,
            name=request.name if described else None,
            external_id=request.external_id if described else None,
        )
        sightings = [
            _sighting(image, request, gate, ordinal, face, described=ordinal == selected.described)
            for ordinal, face in enumerate(faces)
        ]
        guids = [str(uuid.uuid4()) for _ in sightings]
        matcher = Matcher(self._calibration, gate.threshold)
        return Post(image, request, matcher, sightings, guids, selected.described), extracted.detection_s

    def _gate(self, request: PostRequest) -> MatchSettings:
        asked = {
            "threshold": request.threshold,
            "min_cpq": request.min_cpq,
            "min_fsq": request.min_fsq,
            "min_fcq": request.min_fcq,
        }
        return replace(self._match, **{key: value for key, value in asked.items() if value is not None})

    def _answer(self, directory: Directory, post: Post) -> tuple[list[FaceResult], bool]:
        """The answer for each face, and whether the account changed. It is decided, and its pictures are written,
        without the lock; again under the lock if something was committed meanwhile."""
        view = directory.view()
        decided = self._decide(directory, post)
        if not (post.request.insert or post.request.update):
            return _results(decided, {}), False
        try:
            changes = self._rules.changes(directory, post, decided)
        except RequestError:  # the directory may be possibly inconsistent
            changes = None
        pictures = changes.pictures(post) if changes is not None else {}
        with (
            self._client.images_ahead(directory.account_id, list(pictures.values())) as ahead,
            self._directories.posting(directory) as lock,
        ):
            while True:
                if changes is None or directory.view() is not view:
                    view = directory.view()
                    if decided.is_outdated():
                        decided = self._decide(directory, post)
                    changes = self._rules.changes(directory, post, decided)
                if not changes.person_ids or lock.register(self._footprint(post, decided, changes)):
                    break
            if changes.person_ids:
                self._commit(lock, directory, post, changes, ahead)
            return _results(decided, changes.conflicts), changes.account_updated

    def _decide(self, directory: Directory, post: Post) -> DecidedPost:
        """Raises PersonUnknown."""
        request = post.request
        if request.update_person_id is None:
            decision = decide_faces(directory, post.sightings, post.matcher)
        else:
            decision = decide_person(directory, post.sightings[0], request.update_person_id, post.matcher)
        index = decision.view.index
        similar = None
        if request.similar_limit:
            identical = [index.find_identical(s.image_hashes, s.face.box) for s in post.sightings]
            similar = most_similar(decision, identical, request.similar_limit)
        return DecidedPost(
            decision,
            similar=similar,
            identical=frozenset(
                s.ordinal
                for s, position in zip(post.sightings, decision.positions.tolist(), strict=True)
                if index.is_of(position, s.image_hashes, s.face.box)
            ),
            origins=self._origins(decision, request),
        )

    def _origins(self, decision: Decision, request: PostRequest) -> Mapping[str, ReferenceOrigin] | None:
        """Of the references that the matched faces may replace, where the request has conditions about them."""
        if not (request.update and (request.update_if_lower_quality or request.update_if_older_days)):
            return None
        matched = [s.person_id for s in decision.sightings if s.outcome == "matched" and s.person_id is not None]
        return self._client.submit(partial(reference_origins, person_ids=matched))

    def _footprint(self, post: Post, decided: DecidedPost, changes: Changes) -> Footprint:
        matched = {sighting.person_id for sighting in decided.sightings if sighting.person_id is not None}
        said = (record.external_id for record in changes.inserted.values())
        known = (decided.decision.directory.get(person_id) for person_id in {*changes.updated, *changes.seen})
        kept = (record.external_id for record in known if record is not None)
        given = (columns.get("external_id") for columns in changes.updated.values())
        external_ids = {external_id for external_id in (*said, *kept, *given) if external_id is not None}
        return Footprint(
            person_ids=frozenset(matched | changes.person_ids | changes.merged),
            external_ids=frozenset(external_ids if self._unique_external_ids else ()),
            image_hashes=frozenset(decided.sightings[0].image_hashes),
            faces=decided.decision.faces.embeddings,
            new_references=[sighting.ordinal for sighting in changes.references],
            matcher=post.matcher,
        )

    def _commit(
        self, lock: SharedLock, directory: Directory, post: Post, changes: Changes, ahead: dict[str, Row]
    ) -> None:
        ids = self._client.reserve_ids(bool(changes.references), len(changes.references))
        change = changes.change(directory, post, ids)
        with lock.released():
            committed = self._client.commit(change, ahead)
        directory.apply(change, committed)


def _require_persons(directory: Directory, request: PostRequest) -> None:
    """Raises PersonUnknown, whatever the photo shows."""
    for person_id in (request.update_person_id, request.merge_with):
        if person_id is not None and directory.get(person_id) is None:
            raise PersonUnknown


def _with_pictures(image: DecodedImage, faces: Sequence[ExtractedFace]) -> list[ExtractedFace]:
    """The faces with what is stored of them if they become references."""
    cuts = cut_faces(image, np.array([face.box for face in faces], np.float32).reshape(-1, 4))
    return [replace(face, crop=face.crop or encode_reference_image(cut)) for face, cut in zip(faces, cuts, strict=True)]


def _sighting(
    image: PostedImage,
    request: PostRequest,
    gate: MatchSettings,
    ordinal: int,
    face: ExtractedFace,
    *,
    described: bool,
) -> Sighting:
    failed = failed_measures(face.qualities, gate)
    x1, y1, x2, y2 = face.box
    return Sighting(
        photo=0,
        ordinal=ordinal,
        face=face,
        image_hashes=(image.sha256, image.pixel_hash),
        allowed=request.insert and request.update_person_id is None and (described or request.insert_all),
        failed=failed,
        fit=max(x2 - x1, y2 - y1) >= request.min_size_px and not failed,
        new_id=str(uuid.uuid4()),
    )


def _results(decided: DecidedPost, conflicts: Mapping[int, Conflict]) -> list[FaceResult]:
    results = []
    for sighting in decided.sightings:
        person = root_view(decided.decision.directory, sighting.person_id) if sighting.person_id is not None else None
        results.append(
            FaceResult(
                face=sighting.face,
                person=person,
                score=sighting.score if person is not None else None,
                new_id=sighting.person_id if sighting.outcome == "inserted" else None,
                rejected=sighting.failed if sighting.outcome == "rejected" else (),
                conflict=conflicts.get(sighting.ordinal),
                similar=decided.similar[sighting.ordinal] if decided.similar is not None else None,
            )
        )
    return results
