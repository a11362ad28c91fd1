"""Enrols extracted shards: decides every face in manifest order, and commits each shard as a whole.

The semantics are those of posting the images one by one (contract, section 4.2): a face matches the best identity
at or above the threshold, else becomes one if the quality gate and the contract's rules let it.

A server goes on answering meanwhile: a shard is decided, and its files are written, on a view of its directories
without a lock; under the lock it is committed if nothing that came in since could change a decision, and decided
anew otherwise.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.config import MatchSettings
from pipeline.errors import ImageChanged, ImageRejected
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.rows import FACE_COLUMNS, ExtractedFace, ExtractedRow, read_rows
from pipeline.extraction.stored_picture import MEDIA_TYPE, encode_reference_image, surroundings
from pipeline.identities.decide import make_matcher
from pipeline.identities.directory import Directories, Directory, DirectoryView, ReferenceFace
from pipeline.identities.duplicates import DuplicateResolver, mark_changed
from pipeline.identities.quality_gate import failed_measures
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.store.client import StoreClient
from pipeline.store.commits.shard import CommittedShard, PreparedShard
from pipeline.store.records import (
    FACES_SCHEMA,
    MEDIA_SCHEMA,
    PERSONS_SCHEMA,
    PersonRecord,
    RunRow,
    ShardCommit,
    embeddings_schema,
)
from pipeline.types import FaceBatch, IntArray, Outcome

T = TypeVar("T")

_MANIFEST_COLUMNS: Final = ("row", "path", "directory", "bytes", "name", "external_id", "extra")


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


# Times a shard is decided anew without the lock before it is decided under it.
_FREE_TRIES: Final = 3


@dataclass(frozen=True)
class _Shard:
    """A shard that is to be committed."""

    number: int
    rows: Sequence[ExtractedRow]
    directories: Mapping[str, Directory]  # of its rows, by name
    media_id: int  # of its first row
    face_id: int  # of its first face


@dataclass(frozen=True)
class _Decision:
    """The faces of one directory in a shard, and on what they were decided."""

    directory: Directory
    view: DirectoryView
    faces: FaceBatch
    positions: IntArray

    def is_outdated(self, matcher: Matcher) -> bool:
        return self.view.is_outdated_for(self.directory.view(), self.faces, self.positions, matcher)


@dataclass(frozen=True)
class _Prepared:
    """A decided shard whose files are written."""

    sightings: Sequence[_Sighting]
    decisions: Sequence[_Decision]
    persons: Mapping[str, dict[str, Any]]  # the new ones, as PERSONS_SCHEMA, in the order of insertion
    files: PreparedShard


class Enroller:
    """Groups and commits the shards of one run, in order."""

    def __init__(
        self,
        client: StoreClient,
        run: RunRow,
        settings: EnrolSettings,
        decoder: Decoder,
        directories: Directories,
        urgent: Executor | None = None,
    ) -> None:
        """`urgent` does what others wait for; None: the caller's thread does."""
        self._client = client
        self._run = run
        self._settings = settings
        self._decoder = decoder
        self._all = directories
        self._urgent = urgent
        self._duplicates = DuplicateResolver(client, run)

    def commit(self, shard: int, manifest: pa.Table, extracted: pa.Table) -> None:
        """Decides the faces of one shard and commits it. Raises StoreError."""
        rows = read_rows(manifest, extracted)
        media_id = self._client.promise_ids(len(rows), 0).next_media_id
        self._duplicates.resolve(rows, media_id)
        face_id = self._client.promise_ids(0, sum(len(row.faces) for row in rows)).next_face_id
        names = {str(row.manifest["directory"]) for row in rows}
        with self._all.using_all(self._run.account_id, names) as directories:
            prepared = self._commit_decided(_Shard(shard, rows, directories, media_id, face_id))
        self._client.settle_shard(prepared.files)

    def _commit_decided(self, shard: _Shard) -> _Prepared:
        def commit_if_current(prepared: _Prepared) -> bool:
            with self._all.writing(*shard.directories.values()):
                if any(decision.is_outdated(self._settings.matcher) for decision in prepared.decisions):
                    return False
                self._commit(prepared, shard.directories)
                return True

        def prepare_and_commit() -> _Prepared:
            with self._all.writing(*shard.directories.values()):
                prepared = self._prepare(shard)
                self._commit(prepared, shard.directories)
                return prepared

        for _ in range(_FREE_TRIES):
            prepared = self._prepare(shard)
            if self._urgently(partial(commit_if_current, prepared)):
                return prepared
        return self._urgently(prepare_and_commit)  # others write so often that only being alone brings it in

    def _urgently(self, work: Callable[[], T]) -> T:
        return work() if self._urgent is None else self._urgent.submit(work).result()

    def _prepare(self, shard: _Shard) -> _Prepared:
        while True:
            sightings, decisions = self._decide(shard.rows, shard.directories)
            try:
                objects = [self._object(s) for s in sightings if s.outcome == "inserted"]
                break
            except _ImageGone as gone:
                mark_changed(gone.row)
        media = {id(row): shard.media_id + k for k, row in enumerate(shard.rows)}
        face_ids = {id(s): shard.face_id + k for k, s in enumerate(sightings)}
        persons = self._persons(sightings, face_ids)
        occurrences = _count_occurrences(shard.rows, sightings, persons, shard.directories)
        kept = [s for s in sightings if s.outcome != "rejected"]
        files = self._client.prepare_shard(
            ShardCommit(
                run_id=self._run.run_id,
                shard=shard.number,
                account_id=self._run.account_id,
                media=pa.Table.from_pylist([_media_row(r, media[id(r)]) for r in shard.rows], MEDIA_SCHEMA),
                faces=pa.Table.from_pylist(
                    [_face_row(s, face_ids[id(s)], media[id(s.row)]) for s in sightings], FACES_SCHEMA
                ),
                embeddings=self._embeddings(kept, [face_ids[id(s)] for s in kept]),
                persons=pa.Table.from_pylist(list(persons.values()), PERSONS_SCHEMA),
                objects=objects,
                occurrences=occurrences,
                finished_run_shards=self._duplicates.finished_by(shard.number),
            )
        )
        return _Prepared(sightings, decisions, persons, files)

    def _decide(
        self, rows: Sequence[ExtractedRow], directories: Mapping[str, Directory]
    ) -> tuple[list[_Sighting], list[_Decision]]:
        """Every face in manifest order, from the largest to the smallest of a photo, each directory for itself."""
        sightings = [
            _Sighting(row, ordinal, face, failed_measures(face, self._settings.gate))
            for row in rows
            for ordinal, face in enumerate(row.faces)
        ]
        decisions = [
            self._decide_directory(directories[name], [s for s in sightings if s.directory == name])
            for name in dict.fromkeys(s.directory for s in sightings)
        ]
        return sightings, decisions

    def _decide_directory(self, directory: Directory, sightings: Sequence[_Sighting]) -> _Decision:
        view = directory.view()
        faces = FaceBatch(
            embeddings=np.stack([s.face.embedding for s in sightings]),
            insertable=np.array([s.allowed and not s.failed for s in sightings]),
            image_hashes=[s.hashes for s in sightings],
            boxes=np.array([s.face.box for s in sightings], dtype=np.float32),
        )
        decided = group_faces(faces, view.index, self._settings.matcher)
        new: list[str] = []
        for sighting, position, inserted, score in zip(
            sightings, decided.position.tolist(), decided.inserted.tolist(), decided.score.tolist(), strict=True
        ):
            if inserted:
                new.append(self._name_of("person", sighting))
            if position < 0:
                sighting.outcome = "rejected" if sighting.allowed else "recognised"
                continue
            known = position < len(view.index)
            sighting.outcome = "inserted" if inserted else "matched"
            sighting.person_id = view.person_ids[position] if known else new[position - len(view.index)]
            sighting.score = score
        return _Decision(directory, view, faces, decided.position)

    def _name_of(self, kind: str, sighting: _Sighting) -> str:
        """A UUID that the same face of the same run always gets: a commit that was cut off and repeated writes
        the same files again, and the run's own random id keeps it unguessable."""
        return str(uuid.uuid5(uuid.UUID(self._run.run_id), f"{kind}:{sighting.row.manifest['row']}:{sighting.ordinal}"))

    def _persons(self, sightings: Sequence[_Sighting], face_ids: dict[int, int]) -> dict[str, dict[str, Any]]:
        """The new persons by id, numbered from 0: the store draws their sequence numbers in this order."""
        persons: dict[str, dict[str, Any]] = {}
        for seq, s in enumerate(s for s in sightings if s.outcome == "inserted"):
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
        return persons

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
        box = np.array(sighting.face.box, dtype=np.float32)
        x0, y0, x1, y1 = surroundings(box, image.width, image.height)
        return encode_reference_image(image.pixels[y0:y1, x0:x1])

    def _embeddings(self, sightings: Sequence[_Sighting], face_ids: list[int]) -> pa.Table:
        size = self._client.identity.embedding_size
        numbers = np.concatenate([s.face.embedding for s in sightings]) if sightings else np.zeros(0, np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers), size)
        return pa.table([pa.array(face_ids, pa.int64()), lists], schema=embeddings_schema(size))

    def _commit(self, prepared: _Prepared, directories: Mapping[str, Directory]) -> None:
        """The transaction, and then the same in memory. Under the directories' locks."""
        committed = self._client.commit_prepared(prepared.files)
        records = _records(prepared.persons.values(), committed)
        for name, directory in directories.items():
            new = [s for s in prepared.sightings if s.directory == name and s.outcome == "inserted"]
            counted = _counted(directory, prepared.files.commit.occurrences, committed)
            mine = [records[str(s.person_id)] for s in new]
            directory.apply([*mine, *counted], references=[_reference(s) for s in new])


def make_enroller(
    client: StoreClient,
    run: RunRow,
    decoder: Decoder,
    directories: Directories,
    max_bytes: int,
    urgent: Executor | None = None,
) -> Enroller:
    """Decides with the settings the run was planned with, so that a resumed run is one run."""
    gate = MatchSettings(**run.settings["match"])
    settings = EnrolSettings(make_matcher(client.identity, gate.threshold), gate, max_bytes)
    return Enroller(client, run, settings, decoder, directories, urgent)


class _ImageGone(Exception):
    """The file of a duplicate changed or vanished between the scan and the moment its pixels were needed."""

    def __init__(self, row: ExtractedRow) -> None:
        self.row = row


def _records(persons: Iterable[Mapping[str, Any]], committed: CommittedShard) -> dict[str, PersonRecord]:
    """The new persons as the store now has them."""
    return {
        person["person_id"]: PersonRecord.new(
            person["person_id"],
            person["name"],
            person["external_id"],
            person["image_guid"],
            committed.at,
            seq=committed.first_seq + person["seq"],
            occurrence=person["occurrence"],
        )
        for person in persons
    }


def _counted(directory: Directory, added: Mapping[str, int], committed: CommittedShard) -> list[PersonRecord]:
    """The persons of the directory that were there before and were seen again."""
    seen = [(record, count) for key, count in added.items() if (record := directory.get(key)) is not None]
    return [replace(r, occurrence=r.occurrence + count, last_occurrence_at=committed.at) for r, count in seen]


def _reference(sighting: _Sighting) -> ReferenceFace:
    face = sighting.face
    return ReferenceFace(str(sighting.person_id), face.embedding, sighting.hashes, face.box)


def _count_occurrences(
    rows: Sequence[ExtractedRow],
    sightings: Sequence[_Sighting],
    new: dict[str, dict[str, Any]],
    directories: Mapping[str, Directory],
) -> dict[str, int]:
    """One per photo and person it shows, of a merged person on the record that the largest face matched; new persons
    are counted in their own rows, which start at 1."""
    seen: dict[int, dict[str, str]] = {id(row): {} for row in rows}
    first = {s.person_id: id(s.row) for s in sightings if s.outcome == "inserted"}
    for s in sightings:
        if s.person_id is not None and first.get(s.person_id) != id(s.row):
            root = directories[s.directory].root(s.person_id)  # none of a new person
            seen[id(s.row)].setdefault(root.person_id if root else s.person_id, s.person_id)
    counts = Counter(person for persons in seen.values() for person in persons.values())
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
