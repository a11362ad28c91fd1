"""All that a store holds of the people of a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.people.directory import Directory
from pipeline.people.records import StoredDirectory
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonRecord
from pipeline.types import FloatArray, IntArray


@dataclass(frozen=True)
class StoredPeople:
    """n persons in the order of insertion with their references, and those of whom no face is known."""

    vectors: FloatArray  # [n, d]
    seq: IntArray  # [n]
    persons: Sequence[PersonRecord]
    image_hashes: Sequence[tuple[str, ...]]
    boxes: FloatArray  # [n, 4]
    faceless: Sequence[PersonRecord]

    def __len__(self) -> int:
        return len(self.persons)


def stored_people(client: LocalStore, account_id: int, directory: str) -> StoredPeople:
    """As the catalog and the files have them now."""
    stored = Directory(StoredDirectory(client, account_id, directory))
    stored.load()
    everybody = [*stored.everybody()]
    index, places = stored.view().index, [stored.reference_of(record.person_id)[1] for record in everybody]
    known = np.array([place for place in places if place is not None], np.int64)
    faces = client.reference_faces([record.person_id for record in everybody])
    vectors = client.face_vectors(list(faces.values()))
    of_person = {person_id: vectors[face_id] for person_id, face_id in faces.items()}
    persons = [record for record, place in zip(everybody, places, strict=True) if place is not None]
    assert [record.person_id for record in persons] == [r.person_id for r in everybody if r.person_id in faces]
    assert len(known) + len(index.dead) == len(index)
    return StoredPeople(
        index.vectors_at(known),
        index.orders_at(known),
        persons,
        [of_person[record.person_id].image_hashes for record in persons],
        np.array([of_person[record.person_id].box for record in persons], np.float32).reshape(-1, 4),
        [record for record, place in zip(everybody, places, strict=True) if place is None],
    )
