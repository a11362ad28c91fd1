"""A directory in memory follows the commit of a correction, or of what photos leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pipeline.people.directory import Directory, ReferenceFace
from pipeline.store.catalog.references import FaceVector
from pipeline.store.commits.correction import CommittedCorrection
from pipeline.store.records import CorrectionCommit, PersonRecord


def follow(
    directory: Directory, commit: CorrectionCommit, done: CommittedCorrection, vectors: Mapping[int, FaceVector]
) -> None:
    """Changes the directory as the commit did; `vectors` are those of its new references. The caller has the lock."""
    after = commit.after
    records: dict[str, PersonRecord] = {}
    for person_id in dict.fromkeys((*after.persons, *after.references)):
        columns, known = after.persons.get(person_id, {}), directory.get(person_id)
        if columns is None:
            continue
        new = {"modified_at": done.at, **columns} if columns else {}
        if person_id in after.references:
            new["image_guid"], *_ = commit.pictures.get(person_id, (None,))
        if known is None:
            seq = done.seqs.get(person_id, columns.get("seq"))
            records[person_id] = PersonRecord(**{"image_guid": None, **new, "seq": seq})
        else:
            records[person_id] = replace(known, **new)
    gone = [person_id for person_id, columns in after.persons.items() if columns is None]
    chosen = {person_id: vectors[face_id] for person_id, face_id in after.references.items() if face_id is not None}
    directory.apply(
        records.values(),
        gone,
        [ReferenceFace(person_id, v.embedding, v.image_hashes, v.box) for person_id, v in chosen.items()],
        after.references.keys() - chosen.keys() - set(gone),
    )
