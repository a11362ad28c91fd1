"""The people of a directory, for the command line and the library: who they are, what shows them, and corrections.

What lists needs no torch. A correction is made in this process, or by the server that holds the store, whose requests
are answered accordingly from then on.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any, Final

import pyarrow as pa

from pipeline.config import MatchSettings, Settings
from pipeline.errors import (
    ManifestInvalid,
    PersonAmbiguous,
    PersonNotFound,
    ReindexMissing,
    RequestError,
    UsageError,
)
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store, Switched, part_of_command
from pipeline.jobs.store_identity import settings_of_store, settle_threshold
from pipeline.store import USER, CorrectionAnswer, CorrectionRequest, PersonChange, people
from pipeline.texts import TEXT_RULE, is_text, nfc
from pipeline.types import Progress, SilentProgress

AT_ONCE: Final = 100_000  # people that are read together: some 20 MB
_ROWS: Final = 1_000


@dataclass(frozen=True)
class PersonRow:
    """One person: a record, or the root of what is merged."""

    person_id: str
    name: str | None
    external_id: str | None
    photos: int
    faces: int
    occurrence: int
    merged: int  # records that are merged with it
    hidden: bool
    added_at: datetime


@dataclass(frozen=True)
class LoggedCorrection:
    """A correction as the log shows it."""

    correction_id: int
    made_at: datetime  # UTC
    kind: str
    origin: str  # user, api, label, run
    undoes: int | None  # of an undo or a redo: the correction that it is about
    undone: bool
    can_be_undone: bool  # as far as the log tells: a later change may be in the way
    withdrawn: int  # how many constraints it withdrew: those that a merge overrode, for one
    faces: int  # how many it changed
    person_ids: Sequence[str]  # of everybody whom it involves
    gone: int  # how many people it deleted
    names: Mapping[str, str]  # theirs, as they are now

    @property
    def overrode(self) -> bool:
        """Whether it merged people who were stated to be two."""
        return self.kind == "merge" and self.withdrawn > 0


class People:
    """The people of one directory of an account (None: of the only one)."""

    def __init__(self, store: Store, account: str | None = None, directory: str = "main") -> None:
        self._store = store
        self._directory = directory
        self._account = account

    @cached_property
    def _account_id(self) -> int:
        return find_account(self._store, self._account).account_id

    # Reading

    def all(self) -> list[PersonRow]:
        """All people, as `each` gives them."""
        return [*self.each()]

    def each(self, *, limit: int | None = None, after: str | None = None) -> Iterator[PersonRow]:
        """The people in the order in which they came into the store, a merged set with its root; read a page at a time.
        `limit`: so many; `after`: those behind this person, who may be merged since. Raises PersonNotFound,
        PersonAmbiguous."""
        last, left = people.EVERYBODY
        if after is not None:
            known = self._records([after])
            found = self._found(known, after)
            last = next(int(record["seq"]) for record in known if record["person_id"] == found)
        left = left if limit is None else limit
        while left > 0:
            count = min(left, AT_ONCE)
            table = self._store.people(self._account_id, self._directory, page=(last, count), counted=True)
            listed = 0
            for last, row in _rows(_dicts(table)):  # noqa: B007
                yield row
                listed += 1
            if listed < count:
                return
            left -= count

    def show(self, who: str) -> PersonRow:
        """One person, named as the command line names them. Raises PersonNotFound, PersonAmbiguous."""
        records = self._records([who], counted=True)
        found = self._found(records, who)
        root = next(record["root_person_id"] for record in records if record["person_id"] == found)
        return next(row for _, row in _rows(records) if row.person_id == root)

    def photos(self, who: str) -> list[dict[str, Any]]:
        """The person's faces by photo (path None: posted), with box, outcome and score."""
        return self._faces(self._records([who]), who)

    def together(self, *who: str) -> list[str]:
        """The paths of the photos that show all of these people."""
        records = self._records(who)
        paths = [{face["path"] for face in self._faces(records, one)} - {None} for one in who]
        return sorted(set.intersection(*paths)) if paths else []

    def find(self, who: str) -> str:
        """The id of a person: by the id, the name, the external id, or the first letters of id or name. Where several
        records of one merged set fit, its root. Raises PersonNotFound, PersonAmbiguous."""
        return self._found(self._records([who]), who)

    def _found(self, records: Sequence[Mapping[str, Any]], who: str) -> str:
        name, lower = nfc(who), who.casefold()
        tests: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
            lambda r: r["person_id"] == lower,
            lambda r: r["external_id"] == who or (r["name"] is not None and nfc(r["name"]) == name),
            lambda r: lower != "" and r["person_id"].startswith(lower),
            lambda r: lower != "" and nfc(r["name"] or "").casefold().startswith(name.casefold()),
        )
        for fits in tests:
            found = [record for record in records if fits(record)]
            roots = {record["root_person_id"] for record in found}
            if len(found) == 1:
                return str(found[0]["person_id"])
            if len(roots) == 1:
                return str(roots.pop())
            if found:
                listed = "; ".join(f"{r['name'] or '(no name)'} {r['person_id']}" for r in found[:20])
                raise PersonAmbiguous(who=who, count=len(roots), people=listed)
        raise PersonNotFound(who=who, directory=self._directory)

    def log(self, count: int = 50, before: int = 2**63 - 1) -> list[LoggedCorrection]:
        """The last corrections, or those before one by its number; the last first."""
        table, names = self._store.correction_log(self._account_id, self._directory, before, count)
        rows = table.to_pylist()
        return [LoggedCorrection(**row, names={p: names.get(p) or "" for p in row["person_ids"]}) for row in rows]

    # Correcting: each raises PersonNotFound, PersonAmbiguous and the RequestErrors of corrections; then nothing is done

    def name(self, who: str, name: str) -> CorrectionAnswer:
        """Names a person; an empty name takes it away."""
        return self._correct("name", [who], change=PersonChange(name=name))

    def name_all(self, rows: Iterable[tuple[str, str]]) -> tuple[int, list[tuple[str, str, str]]]:
        """Names people, each (who, name), by a correction for each. Returns how many were done, and those that were
        not: who, name and why."""
        records = self._records()
        ids = {record["person_id"] for record in records}
        done, left = 0, []
        for who, name in rows:
            try:
                person_id = who if who in ids else self._found(records, who)
                with part_of_command():
                    self.by_ids("name", [person_id], change=PersonChange(name=name))
                done += 1
            except (UsageError, RequestError) as error:
                left.append((who, name, str(error)))
        return done, left

    def merge(self, *who: str, anyway: bool = False) -> CorrectionAnswer:
        """Makes people one; all ids go on answering. `anyway`: even if they are stated to be two."""
        return self._correct("merge", who, anyway=anyway)

    def unmerge(self, *who: str) -> CorrectionAnswer:
        """Makes those who were merged with a person people of their own again."""
        return self._correct("unmerge", who)

    def split(self, who: str, faces: Sequence[int]) -> CorrectionAnswer:
        """Makes some of a person's faces a new person, the first of the answer's."""
        return self._correct("split", [who], faces)

    def move(self, face: int, who: str | None) -> CorrectionAnswer:
        """Says whose a face is; None: nobody's."""
        return self._correct("move", [] if who is None else [who], [face])

    def not_same(self, one: str, other: str) -> CorrectionAnswer:
        """Says that two people are two."""
        return self._correct("not_same", [one, other])

    def hide(self, who: str) -> CorrectionAnswer:
        """Marks a person as one to be left out of listings (`ignore` of a record)."""
        return self._correct("hide", [who])

    def unhide(self, who: str) -> CorrectionAnswer:
        """Takes that back."""
        return self._correct("unhide", [who])

    def forget(self, who: str) -> CorrectionAnswer:
        """Deletes a person with faces, vectors and pictures. No run takes the faces up again. Cannot be undone."""
        answer = self._correct("forget", [who])
        self._store.clean_up()
        return answer

    def forget_photos(self, media_ids: Sequence[int]) -> CorrectionAnswer:
        """Takes photos of runs out of the store, with faces, vectors and pictures, and the people who are left without
        face and name. No run takes the photos up again. Cannot be undone. Those that are forgotten already are left as
        they are. Raises PhotoUnknown."""
        answer = self.by_ids("forget_photos", media_ids=media_ids)
        self._store.clean_up()
        return answer

    def regroup(
        self, gate: MatchSettings | None = None, *, decode: bool | pa.Table = False, dry_run: bool = False
    ) -> CorrectionAnswer:
        """Decides all faces again by this gate (None: that of the settings), and respects constraints. The answer's
        `regrouping` says what changes, or with `dry_run` what would change.

        With `decode` rejected faces that the gate would admit are included; their photos are read and extracted again,
        unless this is what `decode_rejected` returned. Then raises ModelError and DeviceError as well.
        """
        if decode is True:
            decode = self.decode_rejected(gate)
        decoded = None if decode is False else decode
        settings = settle_threshold(self._with_gate(gate), self._store.identity)
        answer = self._store.regroup(self._request("regroup", gate=settings.match, dry_run=dry_run), decoded)
        if decoded is not None and not dry_run:
            self._store.clean_up()
        return answer

    def swap_and_regroup(self, *, dry_run: bool = False) -> Switched:
        """Answers by the store's newer index from now on, and decides all faces again by it, in one transaction; see
        `regroup`. A dry run only says what that would change. Raises ReindexMissing."""
        other = self._store.other_identity()
        if other is None:
            raise ReindexMissing(path=self._store.path, detail="there is none")
        settings = settle_threshold(self._store.settings, other)
        return self._store.switch_generation(self._request("regroup", gate=settings.match, dry_run=dry_run))

    def decode_rejected(
        self, gate: MatchSettings | None = None, progress: Progress | None = None, stop: Event | None = None
    ) -> pa.Table:
        """Extracts the rejected faces that the gate would admit from their photos, for `regroup`. Stores nothing.

        Raises Interrupted once `stop` is set, StoreMismatch, ModelError, DeviceError.
        """
        from pipeline.jobs.decode_rejected import decode_rejected

        store = self._store
        settings = settings_of_store(self._with_gate(gate), store.identity, store.path, store.other_identity())
        rejected = self._store.photos("rejected_faces", self._account_id, self._directory)
        return decode_rejected(self._store, settings, rejected, progress or SilentProgress(), stop or Event())

    def _with_gate(self, gate: MatchSettings | None) -> Settings:
        return replace(self._store.settings, match=gate) if gate else self._store.settings

    def undo(self, correction_id: int | None = None, *, origin: str = USER, dry_run: bool = False) -> CorrectionAnswer:
        """Undoes this correction, or the last one of the origin (`user`, `api`, `label`) that is not undone; with
        `dry_run` only says which one that is. Raises UndoBlocked if something changed since, and CorrectionImpossible
        if there is none or it is undone."""
        answer = self.by_ids("undo", correction_id=correction_id, undo_origin=origin, dry_run=dry_run)
        if answer.kind in ("regroup", "undo", "redo") and not dry_run:  # vectors may have been removed
            self._store.clean_up()
        return answer

    def _correct(self, kind: str, who: Sequence[str], face_ids: Sequence[int] = (), **fields: Any) -> CorrectionAnswer:
        records = self._records(who) if who else []
        return self.by_ids(kind, [self._found(records, one) for one in who], face_ids, **fields)

    def by_ids(
        self, kind: str, person_ids: Sequence[str] = (), face_ids: Sequence[int] = (), **fields: Any
    ) -> CorrectionAnswer:
        """A correction of people who are given by their ids, of any kind; `fields` are those of CorrectionRequest. A
        merge may change their root. With `seen`, what the sender knows of them, raises ChangedSince if that changed."""
        return self._store.correct(self._request(kind, person_ids, face_ids, **fields))

    def _request(
        self, kind: str, person_ids: Sequence[str] = (), face_ids: Sequence[int] = (), **fields: Any
    ) -> CorrectionRequest:
        request = CorrectionRequest(self._account_id, self._directory, kind, person_ids, list(face_ids), **fields)
        if request.change.name is not None and not is_text(request.change.name):
            raise UsageError(message=f"The name cannot be kept: it must be UTF-8 of {TEXT_RULE}.")
        return request

    def _records(self, who: Sequence[str] | None = None, *, counted: bool = False) -> list[dict[str, Any]]:
        """What each record is found by, of everybody or of those whom one of `who` may mean; `counted`: all that is
        told of it. The faces are counted for that, of which there may be many."""
        return [*_dicts(self._store.people(self._account_id, self._directory, who, counted=counted))]

    def _faces(self, records: Sequence[Mapping[str, Any]], who: str) -> list[dict[str, Any]]:
        """The faces of a merged set; of a record in it that is not its root, its own."""
        found = self._found(records, who)
        members = [r["person_id"] for r in records if found in (r["person_id"], r["root_person_id"])]
        faces: list[dict[str, Any]] = self._store.faces_of(members).to_pylist()
        return faces


def _dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows, of which few are Python objects at a time."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


def _rows(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, PersonRow]]:
    """Each person, with its place in the order of all; the records of a merged set follow each other."""
    for root, members in groupby(records, key=itemgetter("root_person_id")):
        yield _row(root, [*members])


def _row(root: str, members: Sequence[Mapping[str, Any]]) -> tuple[int, PersonRow]:
    (own,) = (record for record in members if record["person_id"] == root)
    return own["seq"], PersonRow(
        person_id=root,
        name=own["name"],
        external_id=own["external_id"],
        photos=own["photos"],
        faces=sum(record["faces"] for record in members),
        occurrence=sum(record["occurrence"] for record in members),
        merged=len(members) - 1,
        hidden=own["hidden"],
        added_at=own["added_at"],
    )


def read_names(file: Path) -> list[tuple[str, str]]:
    """The rows of a CSV file with the columns person_id and name, as `people list --csv` writes them, that have a name.

    Raises ManifestInvalid.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            if not {"person_id", "name"} <= set(reader.fieldnames or ()):
                raise ManifestInvalid(path=file, detail="it has no columns person_id and name")
            rows = [((row["person_id"] or "").strip(), (row["name"] or "").strip()) for row in reader]
            return [row for row in rows if row[1]]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise ManifestInvalid(path=file, detail=str(exc)) from exc
