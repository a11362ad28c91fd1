"""The rows that a posted image brings: itself, and the faces of it that became references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from pipeline.store.files.shards import vector_bytes
from pipeline.store.records import DirectoryCommit
from pipeline.types import OK

_BOX = ("x1", "y1", "x2", "y2")
_QUALITIES = ("confidence", "center_pose_quality", "sharpness_quality", "contrast_quality")
_DETECTION = (*_BOX, "landmarks", *_QUALITIES)


POSTED_TABLES: Final = ("media", "faces", "detections", "pending_embeddings", "reference_faces", "objects")

Rows = list[dict[str, Any]]


def posted_rows(
    commit: DirectoryCommit,
    objects: Sequence[Mapping[str, object]],
    *,
    generation: int,
    media_id: int,
    face_id: int,
    seqs: Mapping[str, int],
    now: datetime,
) -> dict[str, Rows]:
    """By table of POSTED_TABLES: one media row without run, shard, row and path; a face, its detection, embedding and
    reference for each of `commit.references`. Face ids count up from `face_id`; `seqs` gives the number of each
    person's reference.

    The embeddings wait in core.pending_embeddings for `fold`: a Parquet file for each would cost a reader dear.
    """
    faces = list(enumerate(commit.references, face_id))
    return {
        "media": [_media_row(commit, media_id, now)],
        "faces": [
            {
                "face_id": number,
                "media_id": media_id,
                "ordinal": face.ordinal,
                "person_id": face.person_id,
                "outcome": face.outcome,
                "similarity_score": face.similarity_score,
            }
            for number, face in faces
        ],
        "detections": [
            {"generation": generation, "face_id": number, **{name: face.fields[name] for name in _DETECTION}}
            for number, face in faces
        ],
        "pending_embeddings": [
            {"generation": generation, "face_id": number, "embedding": vector_bytes(face.embedding)}
            for number, face in faces
        ],
        "reference_faces": [
            {
                "generation": generation,
                "person_id": face.person_id,
                "face_id": number,
                "image_guid": face.image_guid,
                "seq": seqs[face.person_id],
            }
            for number, face in faces
        ],
        "objects": [dict(row) for row in objects],
    }


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
