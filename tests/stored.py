"""All that a store holds of the people of a directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.people.directory import Directory
from pipeline.people.records import StoredDirectory
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonRecord, References
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
    found: References = client.references(account_id, directory)
    stored = StoredDirectory(client, account_id, directory)
    records = Directory(account_id, directory, client.identity.embedding_size, stored)
    records.load()
    everybody = {record.person_id: record for record in records.everybody()}
    return StoredPeople(
        found.vectors,
        found.orders,
        [everybody.pop(person_id) for person_id in found.person_ids],
        found.image_hashes,
        found.boxes,
        list(everybody.values()),
    )
