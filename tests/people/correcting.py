"""Corrections of a store, as a server in this process makes them, and what they leave."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from coded_faces import Shown, photo

from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionAnswer, CorrectionRequest, PersonChange, PersonRecord
from tests.people.coded_archive import SETTINGS, SIZE, CodedExtractor, Decoder
from tests.stored import stored_people

LOOK = PostRequest(insert=False, update=False)


class People:
    """Corrections of one store, which must be whole before each undo and in the end."""

    def __init__(self, client: LocalStore, *persons: str, kept: bool = True) -> None:
        """`persons`: who the first three are, where their first faces do not tell any more. `kept`: all records are, as
        a server keeps them."""
        self.client = client
        self._closed = False
        self.service = IdentityService(client, CodedExtractor(SIZE), Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
        if kept:
            self.service.directories.load_all()
        self.account = client.account_id("ann")
        owners = {face.face_id: str(face.person_id) for face in self.faces()}
        self.one, self.two, self.three = persons or (owners[1], owners[4], owners[6])

    def close(self) -> None:
        """A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.assert_whole()
            self.service.close()
            self.client.close()

    def assert_whole(self) -> None:
        assert check_store(self.client).problems == []
        kept = 'SELECT before || after AS "rows", person_ids::VARCHAR[] AS shown FROM core.corrections'
        kept += " WHERE merges_only IS NULL OR contains(after, 'parent_id')"  # of a deletion the rows are not kept
        for row in self.client.read(kept).to_pylist():
            assert set(row["shown"]) >= set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", row["rows"]))

    def correct(self, kind: str, *persons: str, faces: tuple[int, ...] = (), **more: Any) -> CorrectionAnswer:
        if kind == "undo":  # it would take back what is wrong
            self.assert_whole()
        if "name" in more:
            more["change"] = PersonChange(name=more.pop("name"))
        return self.service.correct(CorrectionRequest(self.account, "main", kind, persons, faces, **more))

    def record(self, person: str) -> PersonRecord:
        return self.service.person(self.account, "main", person).record

    def faces(self) -> list[Any]:
        return self.client.stored_faces(self.account, "main", range(1, 99), [])

    def owners(self) -> dict[int, str | None]:
        return {face.face_id: face.person_id for face in self.faces()}

    def reference(self, person: str) -> int | None:
        return self.client.reference_faces([person]).get(person)

    def facts(self) -> set[tuple[Any, ...]]:
        rows = self.client.read_table("facts").read_all().to_pylist()
        return {(row["kind"], *(row[key] for key in ("face_id", "person_id", "other_id") if row[key])) for row in rows}

    def who(self, face: Shown) -> str | None:
        """Whom the running service recognises."""
        (found,) = self.service.post(self.account, "main", photo(face), LOOK).faces
        return found.person.root.person_id if found.person else None

    def state(self) -> dict[str, Any]:
        """All that corrections may change, in the store and in memory; without pictures' names and times."""
        with self.service.directories.using(self.account, "main") as opened:
            records = [replace(record, modified_at=record.added_at, image_guid=None) for record in opened.everybody()]
            index = {p: opened.reference_of(p)[1] is not None for p in (record.person_id for record in records)}
        stored = stored_people(self.client, self.account, "main")
        persons = sorted((*stored.persons, *stored.faceless), key=lambda record: record.seq)
        assert [replace(p, modified_at=p.added_at, image_guid=None) for p in persons] == records
        pictures = {
            p.person_id: p.image_guid and self.client.read_image(self.account, p.image_guid) for p in stored.persons
        }
        references = self.client.reference_faces(list(index))
        assert {p for p, known in index.items() if known} == set(references) == set(pictures)
        facts = self.client.read_table("facts").read_all().to_pylist()
        return {
            "faces": self.faces(),
            "records": records,
            "references": references,
            "facts": facts,
            "pictures": pictures,
        }
