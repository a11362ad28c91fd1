"""Enrols extracted shards: decides every face in manifest order, and commits each shard as a whole.

The semantics are those of posting the images one by one (contract, section 4.2): a face matches the best identity
at or above the threshold, else becomes one if the quality gate and the contract's rules let it.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.config import MatchSettings
from pipeline.decode import Decoder
from pipeline.duplicates import DuplicateResolver, mark_changed
from pipeline.errors import ImageChanged, ImageRejected
from pipeline.extracted import FACE_COLUMNS, ExtractedFace, ExtractedRow, read_rows
from pipeline.files import read_file
from pipeline.group import group_faces
from pipeline.match import Matcher, ReferenceIndex
from pipeline.reference_image import MEDIA_TYPE, encode_reference_image
from pipeline.store.client import StoreClient
from pipeline.store.records import FACES_SCHEMA, MEDIA_SCHEMA, PERSONS_SCHEMA, RunRow, ShardCommit, embeddings_schema
from pipeline.types import CENTER_POSE, CONTRAST, SHARPNESS, FaceBatch, Outcome

_QUALITY_COLUMNS: Final = {
    CENTER_POSE: "center_pose_quality",
    SHARPNESS: "sharpness_quality",
    CONTRAST: "contrast_quality",
}
_MANIFEST_COLUMNS: Final = ("row", "path", "directory", "bytes", "name", "external_id", "extra")


@dataclass
class _Identities:
    """The identities of one directory in memory: the index, and who stands at each position."""

    index: ReferenceIndex
    person_ids: list[str]


@dataclass
class _Sighting:
    """One face of one row, and what was decided of it."""

    row: ExtractedRow
    ordinal: int
    face: ExtractedFace
    failed: tuple[str, ...]  # the quality measures below the gate
    outcome: Outcome = "recognised"
    person_id: str | None = None
    score: float | None = None

    @property
    def directory(self) -> str:
        return str(self.row.manifest["directory"])

    @property
    def allowed(self) -> bool:
        """The contract lets this face become an identity: any face of an unnamed photo, else the largest."""
        named = self.row.manifest["name"] is not None or self.row.manifest["external_id"] is not None
        return not named or self.ordinal == 0

    @property
    def hashes(self) -> tuple[str, ...]:
        return tuple(h for h in (self.row.sha256, self.row.image["pixel_sha256"]) if h)


@dataclass(frozen=True)
class EnrolSettings:
    """What decides: the matcher's calibration and threshold, and the quality gate."""

    matcher: Matcher
    gate: MatchSettings
    max_bytes: int

    def failed(self, face: ExtractedFace) -> tuple[str, ...]:
        """The quality measures of the face that are below the gate."""
        gate = self.gate
        least = ((CENTER_POSE, gate.min_cpq), (SHARPNESS, gate.min_fsq), (CONTRAST, gate.min_fcq))
        return tuple(measure for measure, low in least if face.fields[_QUALITY_COLUMNS[measure]] < low)


class Enroller:
    """Groups and commits the shards of one run, in order."""

    def __init__(
        self, client: StoreClient, run: RunRow, settings: EnrolSettings, decoder: Decoder, device: str
    ) -> None:
        self._client = client
        self._run = run
        self._settings = settings
        self._decoder = decoder
        self._device = device
        self._duplicates = DuplicateResolver(client, run)
        self._directories: dict[str, _Identities] = {}

    def commit(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Decides the faces of one shard and commits it. Raises StoreError."""
        counters = self._client.counters()
        rows = read_rows(manifest, extracted)
        self._duplicates.resolve(rows, counters.next_media_id)
        while True:
            sightings = self._decide(rows)
            try:
                objects = [self._object(s) for s in sightings if s.outcome == "inserted"]
                break
            except _ImageGone as gone:
                mark_changed(gone.row)
        media = {id(row): counters.next_media_id + k for k, row in enumerate(rows)}
        face_ids = {id(s): counters.next_face_id + k for k, s in enumerate(sightings)}
        persons, seqs = self._persons(sightings, face_ids, counters.next_person_seq)
        occurrences = _count_occurrences(rows, sightings, persons)
        kept = [s for s in sightings if s.outcome != "rejected"]
        self._client.commit_shard(
            ShardCommit(
                run_id=self._run.run_id,
                shard=shard,
                account_id=self._run.account_id,
                media=pa.Table.from_pylist([_media_row(r, media[id(r)]) for r in rows], MEDIA_SCHEMA),
                faces=pa.Table.from_pylist(
                    [_face_row(s, face_ids[id(s)], media[id(s.row)]) for s in sightings], FACES_SCHEMA
                ),
                embeddings=self._embeddings(kept, [face_ids[id(s)] for s in kept]),
                persons=pa.Table.from_pylist(list(persons.values()), PERSONS_SCHEMA),
                objects=objects,
                occurrences=occurrences,
                finished_run_shards=self._duplicates.finished_by(shard),
            )
        )
        self._remember(sightings, seqs)

    def _decide(self, rows: Sequence[ExtractedRow]) -> list[_Sighting]:
        """Every face in manifest order, from the largest to the smallest of a photo, each directory for itself."""
        sightings = [
            _Sighting(row, ordinal, face, self._settings.failed(face))
            for row in rows
            for ordinal, face in enumerate(row.faces)
        ]
        for directory in dict.fromkeys(s.directory for s in sightings):
            self._decide_directory(directory, [s for s in sightings if s.directory == directory])
        return sightings

    def _decide_directory(self, directory: str, sightings: Sequence[_Sighting]) -> None:
        identities = self._identities(directory)
        faces = FaceBatch(
            embeddings=np.stack([s.face.embedding for s in sightings]),
            insertable=np.array([s.allowed and not s.failed for s in sightings]),
            image_hashes=[s.hashes for s in sightings],
            boxes=np.array([s.face.box for s in sightings], dtype=np.float32),
        )
        decided = group_faces(faces, identities.index, self._settings.matcher)
        person_ids = list(identities.person_ids)
        for sighting, position, inserted, score in zip(
            sightings, decided.position.tolist(), decided.inserted.tolist(), decided.score.tolist(), strict=True
        ):
            if inserted:
                person_ids.append(self._name_of("person", sighting))
            if position < 0:
                sighting.outcome = "rejected" if sighting.allowed else "recognised"
                continue
            sighting.outcome = "inserted" if inserted else "matched"
            sighting.person_id, sighting.score = person_ids[position], score

    def _identities(self, directory: str) -> _Identities:
        if directory not in self._directories:
            known = self._client.references(self._run.account_id, directory)
            index = ReferenceIndex(self._client.identity.embedding_size, self._device)
            index.append(known.vectors, known.seq, known.image_hashes, known.boxes)
            self._directories[directory] = _Identities(index, list(known.person_ids))
        return self._directories[directory]

    def _name_of(self, kind: str, sighting: _Sighting) -> str:
        """A UUID that the same face of the same run always gets: a commit that was cut off and repeated writes
        the same files again, and the run's own random id keeps it unguessable."""
        return str(uuid.uuid5(uuid.UUID(self._run.run_id), f"{kind}:{sighting.row.manifest['row']}:{sighting.ordinal}"))

    def _persons(
        self, sightings: Sequence[_Sighting], face_ids: dict[int, int], next_seq: int
    ) -> tuple[dict[str, dict[str, Any]], dict[str, int]]:
        """The new persons by id, and their sequence numbers."""
        persons: dict[str, dict[str, Any]] = {}
        for seq, s in enumerate((s for s in sightings if s.outcome == "inserted"), next_seq):
            described = s.row.manifest if s.ordinal == 0 else {"name": None, "external_id": None}
            persons[str(s.person_id)] = {
                "person_id": s.person_id,
                "seq": seq,
                "directory": s.directory,
                "name": described["name"],
                "external_id": described["external_id"],
                "face_id": face_ids[id(s)],
                "image_guid": self._name_of("image", s),
                "occurrence": 1,
            }
        return persons, {person_id: p["seq"] for person_id, p in persons.items()}

    def _object(self, sighting: _Sighting) -> tuple[str, bytes, str]:
        crop = sighting.face.crop
        return self._name_of("image", sighting), self._cut(sighting) if crop is None else crop, MEDIA_TYPE

    def _cut(self, sighting: _Sighting) -> bytes:
        """The image to store of a face that the store knew from another sighting, without a crop."""
        try:
            data = read_file(Path(os.fsdecode(sighting.row.manifest["file"])), self._settings.max_bytes)
            if hashlib.sha256(data).hexdigest() != sighting.row.sha256:
                raise ImageChanged
            image = self._decoder(data)
        except ImageRejected as exc:
            raise _ImageGone(sighting.row) from exc
        return encode_reference_image(image.pixels, np.array(sighting.face.box, dtype=np.float32))

    def _embeddings(self, sightings: Sequence[_Sighting], face_ids: list[int]) -> pa.Table:
        size = self._client.identity.embedding_size
        numbers = np.concatenate([s.face.embedding for s in sightings]) if sightings else np.zeros(0, np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers), size)
        return pa.table([pa.array(face_ids, pa.int64()), lists], schema=embeddings_schema(size))

    def _remember(self, sightings: Sequence[_Sighting], seqs: dict[str, int]) -> None:
        """Follows the commit in memory."""
        for directory, identities in self._directories.items():
            new = [s for s in sightings if s.directory == directory and s.outcome == "inserted"]
            if new:
                identities.index.append(
                    np.stack([s.face.embedding for s in new]),
                    np.array([seqs[str(s.person_id)] for s in new], dtype=np.int64),
                    [s.hashes for s in new],
                    np.array([s.face.box for s in new], dtype=np.float32),
                )
                identities.person_ids.extend(str(s.person_id) for s in new)


class _ImageGone(Exception):
    """The file of a duplicate changed or vanished between the scan and the moment its pixels were needed."""

    def __init__(self, row: ExtractedRow) -> None:
        self.row = row


def _count_occurrences(
    rows: Sequence[ExtractedRow], sightings: Sequence[_Sighting], new: dict[str, dict[str, Any]]
) -> dict[str, int]:
    """One per photo and person it shows; new persons are counted in their own rows, which start at 1."""
    seen = {id(row): set[str]() for row in rows}
    first = {s.person_id: id(s.row) for s in sightings if s.outcome == "inserted"}
    for s in sightings:
        if s.person_id is not None and first.get(s.person_id) != id(s.row):
            seen[id(s.row)].add(s.person_id)
    counts = Counter(person for persons in seen.values() for person in persons)
    for person_id in new:
        new[person_id]["occurrence"] += counts.pop(person_id, 0)
    return dict(counts)


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


def _face_row(sighting: _Sighting, face_id: int, media_id: int) -> dict[str, Any]:
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
