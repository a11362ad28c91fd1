"""`POST /people`: recognises the faces of an image, and inserts or updates as asked (contract, 4.2 and 4.3)."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pipeline.config import MatchSettings, Settings
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import ExtractedFace, faces_of_table
from pipeline.identities.batcher import MicroBatcher
from pipeline.identities.changes import ChangeRules, Changes, DecidedPost, Post
from pipeline.identities.decide import Sighting, commit_decided, decide_faces, failed_measures
from pipeline.identities.directory import Directories, Directory
from pipeline.identities.locks import Footprint, SharedLock
from pipeline.identities.types import Conflict, FaceResult, PostRequest, PostResult
from pipeline.identities.views import most_similar, root_view
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.runtime.threads import usable_cores
from pipeline.store.local import LocalStore
from pipeline.store.records import DirectoryCommit, PostedImage


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
        self._calibration = Calibration.from_dict(client.identity.calibration)
        self._match = settings.match
        self._unique_external_ids = settings.serve.unique_external_ids
        self._rules = rules
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

    def _extract(self, data: bytes, request: PostRequest) -> tuple[Post, int]:
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
        return Post(image, request, matcher, sightings, [str(uuid.uuid4()) for _ in faces]), detection_ms

    def _gate(self, request: PostRequest) -> MatchSettings:
        asked = {
            "threshold": request.threshold,
            "min_cpq": request.min_cpq,
            "min_fsq": request.min_fsq,
            "min_fcq": request.min_fcq,
        }
        return replace(self._match, **{key: value for key, value in asked.items() if value is not None})

    def _answer(self, directory: Directory, post: Post) -> tuple[list[FaceResult], bool]:
        """The answer for each face, and whether the account changed."""
        if not (post.request.insert or post.request.update):
            return _results(_decide(directory, post), {}), False

        @contextmanager
        def lock(decided: DecidedPost) -> Iterator[tuple[SharedLock, dict[str, Any]]]:
            pictures = self._rules.new_pictures(directory, post, decided)
            with (
                self._client.images_ahead(directory.account_id, pictures) as ahead,
                self._directories.posting(directory) as shared,
            ):
                yield shared, ahead

        def commit(
            decided: DecidedPost, guard: tuple[SharedLock, dict[str, Any]]
        ) -> tuple[list[FaceResult], bool] | None:
            shared, ahead = guard
            changes = self._rules.changes(directory, post, decided)
            if changes.records:
                if not shared.register(self._footprint(post, decided, changes)):
                    return None
                self._commit(shared, directory, post, decided, changes, ahead)
            return _results(decided, changes.conflicts), changes.account_updated

        return commit_decided(lambda: _decide(directory, post), lock, commit)

    def _footprint(self, post: Post, decided: DecidedPost, changes: Changes) -> Footprint:
        matched = {sighting.person_id for sighting in decided.sightings if sighting.person_id is not None}
        external_ids = {record.external_id for record in changes.records.values() if record.external_id is not None}
        return Footprint(
            person_ids=frozenset(matched | set(changes.records)),
            external_ids=frozenset(external_ids if self._unique_external_ids else ()),
            image_hashes=frozenset(decided.sightings[0].image_hashes),
            faces=decided.decision.faces.embeddings,
            new_references=[reference.ordinal for reference in changes.references],
            matcher=post.matcher,
        )

    def _commit(
        self,
        lock: SharedLock,
        directory: Directory,
        post: Post,
        decided: DecidedPost,
        changes: Changes,
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


def _decide(directory: Directory, post: Post) -> DecidedPost:
    decision = decide_faces(directory, post.sightings, post.matcher)
    identical = [decision.view.index.find_identical(s.image_hashes, s.face.box) for s in post.sightings]
    limit = post.request.similar_limit
    similar = most_similar(decision, identical, limit) if limit else None
    same = frozenset(ordinal for ordinal, position in enumerate(identical) if position is not None)
    return DecidedPost(decision, similar, same)


def _results(decided: DecidedPost, conflicts: Mapping[int, Conflict]) -> list[FaceResult]:
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
                conflict=conflicts.get(sighting.ordinal),
                similar=decided.similar[sighting.ordinal] if decided.similar is not None else None,
            )
        )
    return results
