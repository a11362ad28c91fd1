"""`POST /people`: recognises the faces of an image; inserts or updates on request (contract, 4.2 and 4.3)."""

from __future__ import annotations

import hashlib
import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.config import MatchSettings, Settings
from pipeline.errors import RequestError, SeveralFaces
from pipeline.extraction.images.decode import Decoder, OpenedImage
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import MODEL, ExtractedFace, as_measured_by, faces_of_table
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.batcher import MicroBatcher
from pipeline.people.changes import Changes, Post, matched_origins
from pipeline.people.decide import (
    Decision,
    DetectedFace,
    decide_faces,
    decide_person,
    failed_measures,
)
from pipeline.people.directory import Directories, Directory
from pipeline.people.types import Conflict, FaceResult, PostRequest, PostResult, SimilarPerson
from pipeline.people.views import most_similar, root_views
from pipeline.runtime.shared_lock import SharedLock
from pipeline.runtime.threads import usable_cores
from pipeline.store import LocalStore, PostedImage
from pipeline.types import DecodedImage


@dataclass(frozen=True)
class _Extracted:
    """A posted image and its selected faces."""

    image: PostedImage
    faces: Sequence[ExtractedFace]
    described: int | None  # the face that the headers describe
    model: str  # that measured the faces; "": unnamed
    detection_s: float  # the detector's, for its batch


class PostHandler:
    """Answers posts. Thread-safe."""

    def __init__(
        self,
        client: LocalStore,
        directories: Directories,
        batcher: MicroBatcher,
        decoder: Decoder,
        settings: Settings,
        generation: SharedLock,
    ) -> None:
        """`generation`: shared while a post is decided and committed, to keep the store's generation."""
        self._client = client
        self._generation = generation
        self._directories = directories
        self._batcher = batcher
        self._decoder = decoder
        self._pixel_hash = PixelHash(client.identity.pixel_key)
        self._settings = settings.serve
        self._threshold_given = "match.threshold" in settings.given
        self.take_generation(settings.match)
        # Only for decoding and models: waiting for memory, locks or the disk blocks no other post.
        self._working = threading.BoundedSemaphore(settings.serve.workers or 2 * usable_cores())

    def take_generation(self, match: MatchSettings) -> None:
        """Switches to the store's current generation, with this quality gate and threshold."""
        self._match = match
        self._calibration = Calibration.from_dict(self._client.identity.calibration)

    def post(self, account_id: int, directory: str, data: bytes, request: PostRequest) -> PostResult:
        """See `IdentityService.post`."""
        image = self._decoder.open(data)
        while True:
            with image.room(), self._working:
                extracted = self._extract(image, request)
            with self._generation.shared(), self._directories.using(account_id, directory) as opened:
                post = self._post_of(extracted, request, self.match_of(opened))
                if post is not None:  # else extracted before a switch to another model
                    return self._decided(opened, post, extracted.detection_s)

    def match_of(self, directory: Directory) -> MatchSettings:
        """The quality gate and threshold for posts to a directory that give none."""
        return directory.match(self._match, given=self._threshold_given)

    def _decided(self, directory: Directory, post: Post, detection_s: float) -> PostResult:
        request = post.request
        results: list[FaceResult] = []
        updated, correction_id = False, None
        provider = f"mtcnn, {self._client.identity.embedder}/{self._client.identity.weights}"
        for person_id in (request.update_person_id, request.merge_with):
            if person_id is not None:
                directory.record(person_id)  # raises PersonUnknown
        if post.detected_faces:
            results, updated, correction_id = self._answer(directory, post)
        return PostResult(
            faces=results,
            width=post.image.width,
            height=post.image.height,
            media_id=str(uuid.UUID(post.image.sha256[:32])),
            account_updated=updated,
            detection_ms=round(detection_s * 1000),
            provider=provider,
            correction_id=correction_id,
        )

    def _extract(self, opened: OpenedImage, request: PostRequest) -> _Extracted:
        """Extracts the faces; drops the pixels."""
        data, decoded = opened.data, opened.load()
        table, detection_s = self._batcher.extract(decoded)
        model = (table.schema.metadata or {}).get(MODEL.encode(), b"").decode()
        faces, described = select_faces(faces_of_table(table), request, decoded.width, decoded.height)
        if request.insert or request.update:
            faces = _with_pictures(decoded, faces)
        image = PostedImage(
            sha256=hashlib.sha256(data).hexdigest(),
            pixel_hash=self._pixel_hash(decoded.pixels),
            bytes=len(data),
            width=decoded.width,
            height=decoded.height,
            format=decoded.format,
            name=request.name if described is not None else None,
            external_id=request.external_id if described is not None else None,
        )
        return _Extracted(image, faces, described, model, detection_s)

    def _post_of(self, extracted: _Extracted, request: PostRequest, match: MatchSettings) -> Post | None:
        """The post for the current generation; None if its model has not measured the faces."""
        image, described, gate = extracted.image, extracted.described, _gate(request, match)
        model = self._client.identity.model
        measured = [as_measured_by(model, face, extracted.model) for face in extracted.faces]
        faces = [face for face in measured if face is not None]
        if len(faces) < len(measured):
            return None
        insertable, detected_faces = request.insert and request.update_person_id is None, []
        for ordinal, face in enumerate(faces):
            failed, (x1, y1, x2, y2) = failed_measures(face.qualities, gate), face.box
            detected_faces.append(
                DetectedFace(
                    photo=0,
                    ordinal=ordinal,
                    face=face,
                    image_hashes=(image.sha256, image.pixel_hash),
                    allowed=insertable and (ordinal == described or request.insert_all),
                    failed=failed,
                    fit=max(x2 - x1, y2 - y1) >= request.min_size_px and not failed,
                    new_id=str(uuid.uuid4()),
                )
            )
        guids = [str(uuid.uuid4()) for _ in detected_faces]
        once_per_photo = gate.once_per_photo and (request.insert or request.update)
        matcher = Matcher(self._calibration, gate.threshold)
        return Post(image, request, matcher, detected_faces, guids, described, once_per_photo)

    def _answer(self, directory: Directory, post: Post) -> tuple[list[FaceResult], bool, int | None]:
        """The answers, whether the account changed, and the number in the log. Decides and writes pictures without the
        lock; under it, decides again if validation fails."""
        view = directory.view()
        decision = _decide(directory, post)
        similar = _similar(decision, post)
        if not (post.request.insert or post.request.update):
            return _results(decision, similar, {}), False, None
        # Read before the lock: the catalog's thread may be busy.
        origins = matched_origins(self._client, post, decision)
        try:
            changes = Changes(self._client, self._settings, post, decision, origins)
        except RequestError:  # counts only under the lock: memory may be behind the catalog
            changes = None
        pictures = changes.pictures() if changes is not None else {}
        with (
            self._client.images_ahead(directory.account_id, list(pictures.values())) as ahead,
            self._directories.posting(directory) as lock,
        ):
            while True:
                if changes is None or directory.view() is not view:
                    view = directory.view()
                    if decision.is_outdated():
                        decision = _decide(directory, post)
                        similar = _similar(decision, post)
                        origins = matched_origins(self._client, post, decision)
                    changes = Changes(self._client, self._settings, post, decision, origins)
                if not changes.person_ids or lock.register(changes.read_write_set()):
                    break
            correction_id = None
            if changes.person_ids:
                change = changes.change(self._client)
                with lock.released():
                    committed = self._client.commit(change, ahead)
                directory.apply(change, committed)
                correction_id = committed.correction_id
            return _results(decision, similar, changes.conflicts), changes.account_updated, correction_id


def _gate(request: PostRequest, match: MatchSettings) -> MatchSettings:
    asked = {key: getattr(request, key) for key in ("threshold", "min_cpq", "min_fsq", "min_fcq")}
    return replace(match, **{key: value for key, value in asked.items() if value is not None})


def _decide(directory: Directory, post: Post) -> Decision:
    """Raises PersonUnknown."""
    person_id = post.request.update_person_id
    if person_id is None:
        return decide_faces(directory, post.detected_faces, post.matcher, once_per_photo=post.once_per_photo)
    return decide_person(directory, post.detected_faces[0], person_id, post.matcher)


def _similar(decision: Decision, post: Post) -> list[list[SimilarPerson]] | None:
    """The most similar people of each face, on the decision's view; None unless requested."""
    if not post.request.similar_limit:
        return None
    return most_similar(decision, post.request.similar_limit)


def select_faces(
    faces: Sequence[ExtractedFace], request: PostRequest, width: int, height: int
) -> tuple[Sequence[ExtractedFace], int | None]:
    """The faces that a post processes, and the index of the one that the headers describe (None: one that is left out).
    Input and output are sorted from the largest face.

    The headers describe the face nearest to a given point, else the largest. Raises SeveralFaces if the request needs
    one face and several remain.
    """
    kept = [face for face in faces if face.box[3] - face.box[1] >= request.larger_than * height]
    by_place = request.closest_x is not None or request.closest_y is not None
    if by_place:
        kept = sorted(kept, key=lambda face: _distance(face, request, width, height))[:1]
    elif request.largest_only:
        kept = [face for face in kept if face is faces[0]]
    if len(kept) > 1 and (request.update_person_id is not None or request.merge_with is not None):
        raise SeveralFaces()
    return kept, 0 if kept and (by_place or kept[0] is faces[0]) else None


def _distance(face: ExtractedFace, request: PostRequest, width: int, height: int) -> float:
    """Pixels from the face's centre to the point; along one axis if only that is given."""
    x1, y1, x2, y2 = face.box
    dx = 0.0 if request.closest_x is None else (x1 + x2) / 2 - request.closest_x * width
    dy = 0.0 if request.closest_y is None else (y1 + y2) / 2 - request.closest_y * height
    return math.hypot(dx, dy)


def _with_pictures(image: DecodedImage, faces: Sequence[ExtractedFace]) -> list[ExtractedFace]:
    """The faces with the pictures that references need."""
    cuts = cut_faces(image, np.array([face.box for face in faces], np.float32).reshape(-1, 4))
    return [replace(face, crop=face.crop or encode_reference_image(cut)) for face, cut in zip(faces, cuts, strict=True)]


def _results(
    decision: Decision, similar: Sequence[Sequence[SimilarPerson]] | None, conflicts: Mapping[int, Conflict]
) -> list[FaceResult]:
    results = []
    views = root_views(decision.directory, {s.person_id for s in decision.detected_faces if s.person_id is not None})
    for detected in decision.detected_faces:
        person = views.get(detected.person_id or "")
        results.append(
            FaceResult(
                face=detected.face,
                person=person,
                score=detected.score if person is not None else None,
                new_id=detected.person_id if detected.outcome == "inserted" else None,
                rejected=detected.failed if detected.outcome == "rejected" else (),
                conflict=conflicts.get(detected.ordinal),
                similar=similar[detected.ordinal] if similar is not None else None,
            )
        )
    return results
