"""The rows that a posted image brings: itself, and the faces of it that became references. Inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pipeline.store.catalog import Catalog
from pipeline.store.records import Counters, DirectoryCommit
from pipeline.store.shards import vector_bytes
from pipeline.types import OK

_BOX = ("x1", "y1", "x2", "y2")
_QUALITIES = ("confidence", "center_pose_quality", "sharpness_quality", "contrast_quality")
_DETECTION = (*_BOX, "landmarks", *_QUALITIES)


def insert_posted(
    catalog: Catalog,
    generation: int,
    commit: DirectoryCommit,
    objects: Sequence[Mapping[str, object]],
    first: Counters,
    reference_seqs: Mapping[str, int],
    now: datetime,
) -> None:
    """One media row without run, shard, row and path; a face, its detection, embedding and reference for each of
    `commit.references`. Ids count up from `first`; `reference_seqs` gives the number of each person's reference.

    The embeddings wait in core.pending_embeddings for `fold`: a Parquet file for each would cost a reader dear.
    """
    if commit.image is None:
        return
    ids = range(first.next_face_id, first.next_face_id + len(commit.references))
    faces = list(zip(ids, commit.references, strict=True))
    catalog.insert("media", [_media_row(commit, first.next_media_id, now)])
    catalog.insert(
        "faces",
        [
            {
                "face_id": face_id,
                "media_id": first.next_media_id,
                "ordinal": face.ordinal,
                "person_id": face.person_id,
                "outcome": face.outcome,
                "similarity_score": face.similarity_score,
            }
            for face_id, face in faces
        ],
    )
    catalog.insert(
        "detections",
        [
            {"generation": generation, "face_id": face_id, **{name: face.fields[name] for name in _DETECTION}}
            for face_id, face in faces
        ],
    )
    catalog.insert(
        "pending_embeddings",
        [
            {"generation": generation, "face_id": face_id, "embedding": vector_bytes(face.embedding)}
            for face_id, face in faces
        ],
    )
    catalog.insert(
        "reference_faces",
        [
            {
                "generation": generation,
                "person_id": face.person_id,
                "face_id": face_id,
                "image_guid": face.image_guid,
                "seq": reference_seqs[face.person_id],
            }
            for face_id, face in faces
        ],
    )
    catalog.insert("objects", objects)


def _media_row(commit: DirectoryCommit, media_id: int, now: datetime) -> dict[str, Any]:
    assert commit.image is not None
    image = asdict(commit.image)
    if all(face.ordinal > 0 for face in commit.references):
        # They are of the largest face. Without it among the references nobody would remove them with its person.
        image |= {"name": None, "external_id": None}
    return {
        "media_id": media_id,
        "account_id": commit.account_id,
        "directory": commit.directory,
        "status": OK,
        "added_at": now,
        **image,
    }
