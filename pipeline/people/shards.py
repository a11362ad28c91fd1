"""Enrols extracted shards: decides every face in manifest order, and commits each shard as a whole.

A server goes on answering meanwhile: a shard is decided, and its files are written, without the locks of its
directories (`decide.commit_decided`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.config import MatchSettings, nearest_threshold
from pipeline.errors import ImageRejected
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import FACE_COLUMNS, REUSE_ROW, ExtractedFace, ExtractedRow, read_rows
from pipeline.extraction.stored_picture import MEDIA_TYPE, HeldPictures, encode_reference_image, pictures_of_photo
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.changed_photos import ChangedPhotos
from pipeline.people.decide import (
    Decision,
    Sighting,
    commit_decided,
    decide_faces,
    failed_measures,
    occurrences,
)
from pipeline.people.directory import Directories, Directory
from pipeline.people.duplicate_faces import DuplicateResolver, mark_changed
from pipeline.people.reference_pictures import PictureReader
from pipeline.people.rules import row_of
from pipeline.people.same_faces import place_bound
from pipeline.runtime.threads import over_threads
from pipeline.store import (
    FACES_SCHEMA,
    FILES_SCHEMA,
    FOLDER_DIGITS,
    INSERT,
    MEDIA_SCHEMA,
    RUN,
    Change,
    LocalStore,
    PersonRecord,
    PreparedShard,
    RunRow,
    ShardCommit,
    embedding_rows,
    utc_now,
)
from pipeline.types import ByteArray

# Times a shard is decided without the locks before it is decided under them.
_FREE_TRIES: Final = 3
_MANIFEST_COLUMNS: Final = ("row", "path", "directory", "bytes", "name", "external_id", "extra")


@dataclass(frozen=True)
class _Shard:
    """A shard to be committed."""

    number: int
    rows: Sequence[ExtractedRow]
    directories: Mapping[str, Directory]  # of its rows, by name
    media_id: int  # of its first row
    face_id: int  # of its first face
    folder: str  # what the guids of its pictures begin with: one folder holds them all, made and synced once


@dataclass(frozen=True)
class _Prepared:
    """A decided shard whose files are written."""

    decisions: Sequence[Decision]  # one for each directory
    files: PreparedShard
    corrections: Sequence[tuple[Directory, int]]  # each directory, and how many were made before it was decided
    changed: Sequence[ChangedPhotos]

    def is_outdated(self) -> bool:
        return (
            any(directory.face_corrections != made for directory, made in self.corrections)
            or any(decision.is_outdated() for decision in self.decisions)
            or any(photos.is_outdated() for photos in self.changed)
        )


class Enroller:
    """Groups and commits the shards of one run, in order.

    It decides with the settings that the run was planned with, so that a resumed run is one run.
    """

    def __init__(
        self,
        client: LocalStore,
        run: RunRow,
        decoder: Decoder,
        directories: Directories,
        max_bytes: int,
        urgent: Executor | None = None,
        held: HeldPictures | None = None,
    ) -> None:
        """`max_bytes`: of an image file that is read again, for pictures that neither the extraction made nor `held`
        has. `urgent`: as in `commit_decided`."""
        self._client = client
        self._run = run
        planned = MatchSettings(**run.settings["match"])
        self._gate = replace(planned, threshold=nearest_threshold(planned.threshold))
        calibration = Calibration.from_dict(client.identity.calibration)
        self._matcher = Matcher(calibration, self._gate.threshold)
        self._bound = Matcher(calibration, place_bound(calibration, self._gate.threshold))
        self._reader = PictureReader(client, decoder, max_bytes)
        self._decoder = decoder
        self._directories = directories
        self._max_bytes = max_bytes
        self._urgent = urgent
        self._held = held or HeldPictures()
        self._duplicates = DuplicateResolver(client, run)

    def commit(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Decides the faces of one shard and commits it. Raises StoreError."""
        rows = read_rows(manifest, extracted)
        media_id, _ = self._client.reserve_ids(len(rows), 0)
        self._duplicates.resolve(rows, media_id)
        _, face_id = self._client.reserve_ids(0, sum(len(row.faces) for row in rows))
        names = {_directory_of(row) for row in rows}
        with self._directories.using_all(self._run.account_id, names) as directories:
            folder = self._uuid_of(f"folder:{shard}")[:FOLDER_DIGITS]
            ready = _Shard(shard, rows, directories, media_id, face_id, folder)
            committed = commit_decided(
                lambda: self._prepare(ready),
                lambda: self._directories.writing(*directories.values()),
                self._commit,
                free_tries=_FREE_TRIES,
                urgent=self._urgent,
            )
        self._held.forget(manifest["row"].to_pylist())
        self._client.settle_shard(committed)

    def _prepare(self, shard: _Shard) -> _Prepared:
        """Decides the shard and writes its files."""
        rows = shard.rows
        corrections = [(directory, directory.face_corrections) for directory in shard.directories.values()]
        while True:
            sightings = self._sightings(shard)
            changed = self._changed_photos(shard)
            for photos in changed:
                photos.take_over(sightings)
            decisions = self._decide(shard, [s for s in sightings if not s.settled])
            sightings = [s for s in sightings if s.settled] + [s for d in decisions for s in d.sightings]
            sightings.sort(key=lambda s: (s.photo, s.ordinal))
            face_ids = range(shard.face_id, shard.face_id + len(sightings))
            for photos in changed:
                own = [(n, s) for n, s in zip(face_ids, sightings, strict=True) if self._is_in(shard, s, photos)]
                photos.settle(own, self._reader)
            chosen = {(s.photo, s.ordinal) for photos in changed for s in photos.chosen}
            try:
                objects = self._pictures(
                    shard, [s for s in sightings if s.outcome == "inserted" or (s.photo, s.ordinal) in chosen]
                )
                break
            except _ImagesGone as gone:
                for row in gone.rows:
                    mark_changed(row)
        made = {guid: picture for guid, picture, _ in objects}
        unnamed = {photo for photos in changed for photo in photos.unnamed}
        replaced = {
            photos.directory.name: photos.change(partial(self._reference_guid, shard), made) for photos in changed
        }
        numbered = list(zip(face_ids, sightings, strict=True))
        changes = [
            self._change(shard, directory, numbered, made, unnamed, replaced.get(name))
            for name, directory in shard.directories.items()
        ]
        changes = [change for change in changes if change.persons or change.leaving]
        changes.sort(key=lambda change: min(change.vectors, default=shard.face_id))  # directories by their first face
        media = [_media_row(row, media_id) for media_id, row in enumerate(rows, shard.media_id)]
        faces = [_face_row(s, face_id, shard.media_id + s.photo) for face_id, s in numbered]
        files = self._client.prepare_shard(
            ShardCommit(
                run_id=self._run.run_id,
                shard=shard.number,
                account_id=self._run.account_id,
                media=pa.Table.from_pylist(media, MEDIA_SCHEMA),
                faces=pa.Table.from_pylist(faces, FACES_SCHEMA),
                embeddings=self._embeddings(sightings, face_ids),
                files=pa.Table.from_pylist([_file_row(r, n) for n, r in enumerate(rows, shard.media_id)], FILES_SCHEMA),
                changes=changes,
                finished_run_shards=self._duplicates.finished_by(shard.number),
                face_changes=[person for photos in changed for person in photos.face_changes()],
            )
        )
        return _Prepared(decisions, files, corrections, changed)

    def _changed_photos(self, shard: _Shard) -> list[ChangedPhotos]:
        """Of each directory in which photos are replaced."""
        rows = {
            name: {photo: row for photo, row in enumerate(shard.rows) if _directory_of(row) == name}
            for name in shard.directories
        }
        rules = self._gate, self._matcher, self._bound
        changed = [ChangedPhotos(self._client, shard.directories[name], own, *rules) for name, own in rows.items()]
        return [photos for photos in changed if photos]

    @staticmethod
    def _is_in(shard: _Shard, sighting: Sighting, photos: ChangedPhotos) -> bool:
        return _directory_of(shard.rows[sighting.photo]) == photos.directory.name

    def _sightings(self, shard: _Shard) -> list[Sighting]:
        """All faces in manifest order, those of a photo from the largest. What was stated of a face holds for the same
        face of a copy; a forgotten one is not taken up again, nor one of a photo that was forgotten since it was
        planned."""
        faces = [
            self._sighting(photo, row, ordinal, face)
            for photo, row in enumerate(shard.rows)
            for ordinal, face in enumerate(row.faces)
        ]
        account, hashes = self._run.account_id, [str(row.sha256) for row in shard.rows]
        gone = self._client.forgotten_faces(account, [(hashes[s.photo], s.ordinal) for s in faces])
        photos = [str(row.manifest["path"]) for row in shard.rows]
        gone_photos = self._client.forgotten_photos(account, photos, hashes)
        pinned = {name: self._client.pinned_faces(account, name, hashes) for name in shard.directories}
        for k, s in enumerate(faces):
            known = pinned[_directory_of(shard.rows[s.photo])].get(hashes[s.photo], {})
            if (hashes[s.photo], s.ordinal) in gone or gone_photos & {photos[s.photo], hashes[s.photo]}:
                faces[k] = replace(s, settled=True, outcome="removed")
            elif s.ordinal in known:
                person = known[s.ordinal]
                faces[k] = replace(s, settled=True, outcome="matched" if person else "recognised", person_id=person)
        return faces

    def _decide(self, shard: _Shard, sightings: Sequence[Sighting]) -> list[Decision]:
        """Decides every face, each directory for itself."""
        groups: dict[str, list[Sighting]] = {}
        for sighting in sightings:
            groups.setdefault(_directory_of(shard.rows[sighting.photo]), []).append(sighting)
        return [decide_faces(shard.directories[name], faces, self._matcher) for name, faces in groups.items()]

    def _sighting(self, photo: int, row: ExtractedRow, ordinal: int, face: ExtractedFace) -> Sighting:
        named = row.manifest["name"] is not None or row.manifest["external_id"] is not None
        failed = failed_measures(face.qualities, self._gate)
        return Sighting(
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
        """A UUID that the same face of the same run always gets: a commit that was cut off and repeated writes the
        same files again. The run's own random id keeps it unguessable."""
        return self._uuid_of(f"{kind}:{row.manifest['row']}:{ordinal}")

    def _uuid_of(self, text: str) -> str:
        return str(uuid.uuid5(uuid.UUID(self._run.run_id), text))

    def _image_guid(self, shard: _Shard, sighting: Sighting) -> str:
        return shard.folder + self._uuid("image", shard.rows[sighting.photo], sighting.ordinal)[FOLDER_DIGITS:]

    def _reference_guid(self, shard: _Shard, face_id: int, sighting: Sighting | None) -> str:
        """Of the picture of a face that becomes a person's reference; without a sighting it is one that is stored."""
        if sighting is not None:
            return self._image_guid(shard, sighting)
        return shard.folder + self._uuid_of(f"image of face {face_id}")[FOLDER_DIGITS:]

    def _change(
        self,
        shard: _Shard,
        directory: Directory,
        numbered: Sequence[tuple[int, Sighting]],
        made: Mapping[str, bytes],
        unnamed: Set[int],
        replaced: Change | None,
    ) -> Change:
        """What the shard changes in a directory: new persons, in the order of the manifest, and who was seen again;
        with what follows from `replaced` photos. `unnamed`: photos whose labels name nobody."""
        own = [(n, s) for n, s in numbered if _directory_of(shard.rows[s.photo]) == directory.name]
        new = {n: s for n, s in own if s.outcome == "inserted"}
        seen = occurrences(directory, [s for _, s in own])
        persons, pictures, now = {}, {}, utc_now()
        for s in new.values():
            row, guid = shard.rows[s.photo], self._image_guid(shard, s)
            label = {} if s.photo in unnamed else row.manifest  # a named row inserts its largest face only
            count = 1 + seen.pop(s.new_id, 0)
            record = PersonRecord.new(
                s.new_id, label.get("name"), label.get("external_id"), guid, now, occurrence=count
            )
            persons[s.new_id] = row_of(record)
            pictures[s.new_id] = guid, made[guid], MEDIA_TYPE
        known = {person_id: directory.get(person_id) for person_id in seen}
        change = replaced or Change(directory.account_id, directory.name, INSERT, RUN)
        before, after = change.before, change.after
        return replace(
            change,
            before=replace(before, persons={**before.persons, **dict.fromkeys(persons)}),
            after=replace(
                after,
                persons={**after.persons, **persons},
                references={**after.references, **{s.new_id: face_id for face_id, s in new.items()}},
            ),
            seen=seen,
            seqs={**change.seqs, **{p: record.seq for p, record in known.items() if record is not None}},
            pictures={**change.pictures, **pictures},
            vectors={**change.vectors, **{face_id: s.vector for face_id, s in new.items()}},
        )

    def _pictures(self, shard: _Shard, inserted: Sequence[Sighting]) -> list[tuple[str, bytes, str]]:
        """(guid, bytes, media type) of the picture to store of each face; faces of a photo follow one another. Raises
        _ImagesGone."""
        pictures: list[bytes | ByteArray] = []
        gone = []
        for photo, faces in groupby(inserted, lambda sighting: sighting.photo):
            try:
                pictures += self._pictures_of(shard.rows[photo], list(faces))
            except ImageRejected:
                gone.append(shard.rows[photo])
        if gone:
            raise _ImagesGone(gone)
        # Only here on several threads, and only where the pixels are held: in a server, the threads that reading photos
        # would keep are those that the requests' models wait for.
        pixels = [picture for picture in pictures if not isinstance(picture, bytes)]
        encoded = iter(over_threads(encode_reference_image, pixels) if pixels else ())
        files = [picture if isinstance(picture, bytes) else next(encoded) for picture in pictures]
        guids = (self._image_guid(shard, s) for s in inserted)
        return [(guid, file, MEDIA_TYPE) for guid, file in zip(guids, files, strict=True)]

    def _pictures_of(self, row: ExtractedRow, sightings: Sequence[Sighting]) -> list[bytes] | list[ByteArray]:
        """The files of what is stored of a photo's faces, or their pixels where these are held. Raises ImageRejected
        where the photo is needed, and not what it was."""
        original = row.manifest["source_row"] if row.manifest["action"] == REUSE_ROW else row.manifest["row"]
        held = self._held.of_row(original)
        if held is not None:
            return [held[s.ordinal] for s in sightings]
        crops = [s.face.crop for s in sightings if s.face.crop is not None]
        if len(crops) == len(sightings):
            return crops
        file = os.fsdecode(row.manifest["file"])
        return pictures_of_photo(file, row.sha256, [s.face.box for s in sightings], self._decoder, self._max_bytes)

    def _embeddings(self, sightings: Sequence[Sighting], face_ids: range) -> pa.Table:
        size = self._client.identity.embedding_size
        kept = [(face_id, s) for face_id, s in zip(face_ids, sightings, strict=True) if s.keeps_vector]
        vectors = np.array([s.face.embedding for _, s in kept], np.float32).reshape(-1, size)
        return embedding_rows([face_id for face_id, _ in kept], vectors)

    def _commit(self, prepared: _Prepared) -> PreparedShard:
        """The transaction, and then the same in memory. Under the directories' locks."""
        committed = self._client.commit_prepared(prepared.files)
        directories = {directory.name: directory for directory, _ in prepared.corrections}
        for change, done in zip(prepared.files.commit.changes, committed, strict=True):
            directories[change.directory].apply(change, done)
        return prepared.files


class _ImagesGone(Exception):
    """Files changed or vanished between the scan and the moment their pixels were needed again."""

    def __init__(self, rows: Sequence[ExtractedRow]) -> None:
        self.rows = rows


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
    names = (
        FILES_SCHEMA.names[1:] if row.sha256 is not None else ()
    )  # of a file that changed since nobody knows a state
    return {"media_id": media_id, **{name: row.manifest.get(name) for name in names}}


def _face_row(sighting: Sighting, face_id: int, media_id: int) -> dict[str, Any]:
    return {
        "face_id": face_id,
        "media_id": media_id,
        "ordinal": sighting.ordinal,
        "person_id": sighting.person_id,
        "outcome": sighting.outcome,
        "rejection_reasons": ",".join(sighting.failed) if sighting.outcome == "rejected" else None,
        "similarity_score": sighting.score,
        **{name: sighting.face.fields[name] for name in FACE_COLUMNS},
    }
