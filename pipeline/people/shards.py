"""Enrols extracted shards: decides faces in manifest order and commits each shard atomically.

Deciding and writing files take no directory locks, so a server keeps answering.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.config import MatchSettings, nearest_threshold
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import FACE_COLUMNS, REUSE_ROW, ExtractedRow, read_rows
from pipeline.extraction.stored_picture import HeldPictures, encode_reference_image, pictures_of_photo
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.changed_photos import ChangedPhotos, place_bound
from pipeline.people.correction_plan import Plan
from pipeline.people.decide import (
    Decision,
    DetectedFace,
    decide_faces,
    failed_measures,
    occurrences,
    with_priority,
)
from pipeline.people.directory import Changed, Directories, Directory
from pipeline.people.duplicate_faces import DuplicateResolver, mark_changed
from pipeline.people.reference_pictures import Pictures
from pipeline.runtime.threads import over_threads
from pipeline.store import (
    FACES_SCHEMA,
    FILES_SCHEMA,
    FOLDER_DIGITS,
    INSERT,
    MEASURED_SCHEMA,
    MEDIA_SCHEMA,
    RUN,
    Change,
    LocalStore,
    PersonRecord,
    PreparedShard,
    RunRow,
    ShardCommit,
    embedding_rows,
    forgotten,
    vector_bytes,
)
from pipeline.types import QUALITIES, ByteArray

# Attempts without the locks before one under them.
_FREE_TRIES: Final = 3
_MANIFEST_COLUMNS: Final = ("row", "path", "directory", "bytes", "name", "external_id", "extra")


@dataclass(frozen=True)
class _Shard:
    """A shard to commit."""

    number: int
    rows: Sequence[ExtractedRow]
    directories: Mapping[str, Directory]  # of its rows, by name
    media_id: int  # of its first row
    face_id: int  # of its first face
    folder: str  # prefix of its pictures' guids: one folder, made and synced once


@dataclass(frozen=True)
class _Part:
    """A shard's decided faces of one directory."""

    directory: Directory
    before: Changed  # the version before the decision
    photos: ChangedPhotos
    faces: Mapping[int, DetectedFace]  # by face id, in manifest order
    decision: Decision | None  # None: all faces were resolved already
    forgotten: Collection[int]  # photos forgotten since planning

    def is_outdated(self) -> bool:
        return (
            self.directory.changed.of_faces != self.before.of_faces
            or (self.decision is not None and self.decision.is_outdated())
            or self.photos.is_outdated()
        )

    def new_references(self) -> dict[int, DetectedFace]:
        """The shard's faces that become references."""
        chosen = set(self.photos.plan.rows()[1].references.values())
        return {n: s for n, s in self.faces.items() if s.outcome == "inserted" or n in chosen}


class Enrolment:
    """Decides and commits the shards of one run, in order, with the settings of its planning."""

    def __init__(
        self,
        client: LocalStore,
        run: RunRow,
        decoder: Decoder,
        directories: Directories,
        priority: Executor | None = None,
        held: HeldPictures | None = None,
    ) -> None:
        """`decoder`: for pictures that neither the extraction nor `held` has. `priority`: runs work under the locks."""
        self._client = client
        self._run, self.run_id = run, run.run_id
        planned = MatchSettings(**run.settings["match"])
        self._gate = replace(planned, threshold=nearest_threshold(planned.threshold))
        self._calibration = Calibration.from_dict(client.identity.calibration)
        self._decoder = decoder
        self._directories = directories
        self._priority = priority
        self._held = held or HeldPictures()
        self._duplicates = DuplicateResolver(client, run)

    def commit(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Decides and commits one shard. Raises StoreError."""
        rows = read_rows(manifest, extracted)
        media_id, _ = self._client.reserve_ids(len(rows), 0)
        self._duplicates.resolve(rows, media_id)
        _, face_id = self._client.reserve_ids(0, sum(len(row.faces) for row in rows))
        names = {_directory_of(row) for row in rows}
        with self._directories.using_all(self._run.account_id, names) as directories:
            folder = self._uuid_of(f"folder:{shard}")[:FOLDER_DIGITS]
            ready = _Shard(shard, rows, directories, media_id, face_id, folder)
            self._commit_decided(ready)
        self._held.forget(manifest["row"].to_pylist())
        self._client.finish_shard()
        self._directories.map_again()

    def _commit_decided(self, shard: _Shard) -> None:
        """Optimistic: decides without the locks, validates and commits under them. After _FREE_TRIES failures, decides
        under the locks, so that posts cannot starve it."""
        for _ in range(_FREE_TRIES):
            if with_priority(self._priority, self._commit_locked, shard, self._prepare(shard)):
                return
        with_priority(self._priority, self._commit_locked, shard, None)

    def _commit_locked(self, shard: _Shard, decided: tuple[Sequence[_Part], PreparedShard] | None) -> bool:
        """Commits and applies what was `decided` without the locks, or returns False if validation fails. None: decides
        under the locks."""
        with self._directories.writing(*shard.directories.values()):
            if decided is not None and self._is_outdated(shard, decided[0]):
                return False
            _, files = decided or self._prepare(shard)
            committed = self._client.commit_prepared(files)
            for change, done in zip(files.commit.changes, committed, strict=True):
                shard.directories[change.directory].apply(change, done)
        return True

    def _is_outdated(self, shard: _Shard, parts: Sequence[_Part]) -> bool:
        """Whether the decision has to be made again; also if a photo was forgotten in another directory since."""
        left_out = {photo for part in parts for photo in part.forgotten}
        return any(part.is_outdated() for part in parts) or self._forgotten_photos(shard) != left_out

    def _prepare(self, shard: _Shard) -> tuple[list[_Part], PreparedShard]:
        """Decides the shard and writes its files. If a picture's photo changed or vanished since the scan, removes its
        faces and decides again."""
        parts = self._decide(shard)
        while unreadable := self._add_pictures(shard, parts):
            for row in unreadable:
                mark_changed(row)
            parts = self._decide(shard)
        changes = [self._change(shard, part) for part in parts]
        changes = [change for change in changes if change.persons or change.leaving]
        changes.sort(key=lambda change: min(change.vectors, default=shard.face_id))  # by first face
        media = list(enumerate(shard.rows, shard.media_id))
        faces = sorted((face_id, s) for part in parts for face_id, s in part.faces.items())
        gone = [shard.media_id + photo for part in parts for photo in part.forgotten]
        files = self._client.prepare_shard(
            ShardCommit(
                run_id=self._run.run_id,
                shard=shard.number,
                account_id=self._run.account_id,
                media=pa.Table.from_pylist([_media_row(row, media_id) for media_id, row in media], MEDIA_SCHEMA),
                faces=pa.Table.from_pylist([_face_row(s, n, shard.media_id + s.photo) for n, s in faces], FACES_SCHEMA),
                embeddings=self._embeddings(faces),
                measured=_measured(faces),
                files=pa.Table.from_pylist([_file_row(row, media_id) for media_id, row in media], FILES_SCHEMA),
                changes=changes,
                finished_run_shards=self._duplicates.finished_by(shard.number),
                face_changes=[person for part in parts for person in part.photos.face_changes()],
                forgotten=gone,
            )
        )
        return parts, files

    def _decide(self, shard: _Shard) -> list[_Part]:
        """Decides each directory's faces."""
        before = {name: directory.changed for name, directory in shard.directories.items()}
        rows: dict[str, dict[int, ExtractedRow]] = {name: {} for name in shard.directories}
        for photo, row in enumerate(shard.rows):
            rows[_directory_of(row)][photo] = row
        parts, gone = [], self._forgotten_photos(shard)
        for name, faces in self._detected_faces(shard, gone).items():
            directory = shard.directories[name]
            pictures = Pictures(self._client, self._decoder, directory, required=False, locked=False)
            gate = directory.match(self._gate, given=bool(self._run.settings.get("threshold_given")))
            matcher = Matcher(self._calibration, gate.threshold)
            bound = Matcher(self._calibration, place_bound(self._calibration, gate.threshold))
            photos = ChangedPhotos(Plan(pictures), rows[name], gate, matcher, bound)
            photos.take_over(faces)
            undecided = [face_id for face_id, s in faces.items() if not s.settled]
            decision = None
            if undecided:
                decision = decide_faces(
                    directory,
                    [faces[face_id] for face_id in undecided],
                    matcher,
                    once_per_photo=gate.once_per_photo,
                    settled=[s for s in faces.values() if s.settled],
                    twice_allowed=photos.twice_allowed,
                )
                faces.update(zip(undecided, decision.detected_faces, strict=True))
            photos.settle(faces)
            parts.append(_Part(directory, before[name], photos, faces, decision, gone & rows[name].keys()))
        return parts

    def _forgotten_photos(self, shard: _Shard) -> set[int]:
        """The photos forgotten since planning."""
        photos = [(_directory_of(row), str(row.manifest["path"]), row.manifest["sha256"]) for row in shard.rows]
        paths, hashes = [path for _, path, _ in photos], [sha256 for *_, sha256 in photos if sha256]
        gone = self._client.forgotten_photos(self._run.account_id, [*shard.directories], paths, hashes)
        return (
            {number for number, photo in enumerate(photos) if gone & forgotten.photo_texts(*photo)} if gone else set()
        )

    def _detected_faces(self, shard: _Shard, gone_photos: Set[int]) -> dict[str, dict[int, DetectedFace]]:
        """All faces by directory and id, in manifest order, largest first in a photo. Constraints apply to identical
        copies. Forgotten faces, and those of forgotten photos, are "removed"."""
        account, hashes = self._run.account_id, [str(row.sha256) for row in shard.rows]
        places = [(photo, ordinal) for photo, row in enumerate(shard.rows) for ordinal in range(len(row.faces))]
        gone = self._client.forgotten_faces(account, [(hashes[photo], ordinal) for photo, ordinal in places])
        pinned = {name: self._client.pinned_faces(account, name, hashes) for name in shard.directories}
        faces: dict[str, dict[int, DetectedFace]] = {name: {} for name in shard.directories}
        for face_id, (photo, ordinal) in enumerate(places, shard.face_id):
            name = _directory_of(shard.rows[photo])
            s = self._detected(photo, shard.rows[photo], ordinal)
            known = pinned[name].get(hashes[photo], {})
            if (hashes[photo], ordinal) in gone or photo in gone_photos:
                s = replace(s, settled=True, outcome="removed")
            elif ordinal in known:
                person = known[ordinal]
                s = replace(s, settled=True, outcome="matched" if person else "recognised", person_id=person)
            faces[name][face_id] = s
        return faces

    def _detected(self, photo: int, row: ExtractedRow, ordinal: int) -> DetectedFace:
        face = row.faces[ordinal]
        named = row.manifest["name"] is not None or row.manifest["external_id"] is not None
        failed = failed_measures(face.qualities, self._gate)
        return DetectedFace(
            photo=photo,
            ordinal=ordinal,
            face=face,
            image_hashes=tuple(h for h in (row.sha256, row.image["pixel_hash"]) if h),
            allowed=ordinal == 0 or not named,
            failed=failed,
            fit=not failed,
            new_id=self._uuid("person", row, ordinal),
        )

    def _uuid(self, kind: str, row: ExtractedRow, ordinal: int) -> str:
        """A UUID fixed for a face of a run, so that a repeated commit writes the same files. The random run id makes it
        unguessable."""
        return self._uuid_of(f"{kind}:{row.manifest['row']}:{ordinal}")

    def _uuid_of(self, text: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self._run.run_id), text))

    def _change(self, shard: _Shard, part: _Part) -> Change:
        """The shard's change of a directory: new persons in manifest order, counters, and replaced photos."""
        plan, unnamed = part.photos.plan, part.photos.unnamed
        for face_id in plan.rows()[1].references.values():
            if face_id is not None and face_id not in part.faces:  # a stored face
                plan.guids[face_id] = shard.folder + self._uuid_of(f"image of face {face_id}")[FOLDER_DIGITS:]
        seen = occurrences(part.directory, list(part.faces.values()))
        for face_id, s in part.faces.items():
            if s.outcome == "inserted":
                # A labelled row inserts only its largest face.
                label = {} if s.photo in unnamed else shard.rows[s.photo].manifest
                name, external_id, count = label.get("name"), label.get("external_id"), 1 + seen.pop(s.new_id, 0)
                new = PersonRecord.new(s.new_id, plan.now, name=name, external_id=external_id, occurrence=count)
                plan.insert(new, face_id)
        plan.seen = seen
        return plan.change("replace_photos" if plan.leaving else INSERT, RUN)

    def _add_pictures(self, shard: _Shard, parts: Sequence[_Part]) -> list[ExtractedRow]:
        """Adds new references' pictures to the plans. Returns the rows with unreadable photos."""
        wanted = [(part, face_id, s) for part in parts for face_id, s in part.new_references().items()]
        pictures: list[bytes | ByteArray] = []
        unreadable = []
        for photo, faces in groupby(wanted, lambda each: each[2].photo):
            try:
                pictures += self._pictures_of(shard.rows[photo], [s for _, _, s in faces])
            except ImageRejected:
                unreadable.append(shard.rows[photo])
        if unreadable:
            return unreadable
        # Threads only here, for held pixels: in a server, reading photos in them would delay the requests' models.
        pixels = [picture for picture in pictures if not isinstance(picture, bytes)]
        encoded = iter(over_threads(encode_reference_image, pixels) if pixels else ())
        for (part, face_id, s), picture in zip(wanted, pictures, strict=True):
            file = picture if isinstance(picture, bytes) else next(encoded)
            guid = shard.folder + self._uuid("image", shard.rows[s.photo], s.ordinal)[FOLDER_DIGITS:]
            part.photos.plan.add_reference(face_id, guid, file, s.vector)
        return []

    def _pictures_of(self, row: ExtractedRow, detected_faces: Sequence[DetectedFace]) -> list[bytes] | list[ByteArray]:
        """The picture files of a photo's faces, or their pixels if `held`. Raises ImageRejected if the photo is needed
        but unreadable or changed."""
        original = row.manifest["source_row"] if row.manifest["action"] == REUSE_ROW else row.manifest["row"]
        held = self._held.of_row(original)
        if held is not None:
            return [held[s.ordinal] for s in detected_faces]
        crops = [s.face.crop for s in detected_faces if s.face.crop is not None]
        if len(crops) == len(detected_faces):
            return crops
        file = os.fsdecode(row.manifest["file"])
        return pictures_of_photo(file, row.sha256, [s.face.box for s in detected_faces], self._decoder)

    def _embeddings(self, faces: Sequence[tuple[int, DetectedFace]]) -> pa.Table:
        size = self._client.identity.embedding_size
        kept = [(face_id, s) for face_id, s in faces if s.keeps_vector]
        vectors = np.array([s.face.embedding for _, s in kept], np.float32).reshape(-1, size)
        return embedding_rows([face_id for face_id, _ in kept], vectors)


def _measured(faces: Sequence[tuple[int, DetectedFace]]) -> tuple[str, pa.Table] | None:
    """Another model's name and its measurements of the faces."""
    rows = [
        {
            **_face_row(s, face_id, 0),
            **dict(zip(QUALITIES, other.qualities, strict=True)),
            "embedding": vector_bytes(other.embedding) if s.keeps_vector and other.embedding is not None else None,
        }
        for face_id, s in faces
        if (other := s.face.other) is not None and s.outcome != "removed"
    ]
    models = {s.face.other.model for _, s in faces if s.face.other is not None}
    if len(models) != 1:  # if two, a later build measures the faces
        return None
    return models.pop(), pa.Table.from_pylist(rows, MEASURED_SCHEMA)


def _directory_of(row: ExtractedRow) -> str:
    return str(row.manifest["directory"])


def _media_row(row: ExtractedRow, media_id: int) -> dict[str, Any]:
    return {
        "media_id": media_id,
        **{name: row.manifest[name] for name in _MANIFEST_COLUMNS},
        "sha256": row.sha256,
        **row.image,
        "status": row.status,
        "reason": row.reason,
        "duplicate_of": row.duplicate_of,
    }


def _file_row(row: ExtractedRow, media_id: int) -> dict[str, Any]:
    # Without a hash the file changed since the scan.
    names = FILES_SCHEMA.names[1:] if row.sha256 is not None else ()
    return {"media_id": media_id, **{name: row.manifest.get(name) for name in names}}


def _face_row(detected: DetectedFace, face_id: int, media_id: int) -> dict[str, Any]:
    return {
        "face_id": face_id,
        "media_id": media_id,
        "ordinal": detected.ordinal,
        "person_id": detected.person_id,
        "outcome": detected.outcome,
        "rejection_reasons": ",".join(detected.failed) if detected.outcome == "rejected" else None,
        "similarity_score": detected.score,
        **{name: detected.face.fields[name] for name in FACE_COLUMNS},
    }
