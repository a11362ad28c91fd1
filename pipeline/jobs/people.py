"""Lists and corrects the people of a directory, for the command line and the library. Listing needs no torch.

Corrections are made in this process, or by a running server, whose answers reflect them immediately.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipeline.config import FMR, MatchSettings, RegroupSettings, Settings
from pipeline.errors import (
    ManifestInvalid,
    PersonAmbiguous,
    PersonNotFound,
    ReindexMissing,
    RequestError,
    UsageError,
)
from pipeline.jobs.accounts import find_account
from pipeline.jobs.receipts import written
from pipeline.jobs.store import Store, Switched, part_of_command
from pipeline.jobs.store_identity import resolve_threshold, settings_of_store
from pipeline.runtime.buckets import is_address
from pipeline.store import (
    ADD_FACE,
    RUN,
    USER,
    CorrectionAnswer,
    CorrectionRequest,
    FaceAnswer,
    PersonChange,
    Remembered,
    SearchQuery,
    Seen,
    Suggestions,
    people,
    receipts,
)
from pipeline.texts import TEXT_RULE, is_text, nfc
from pipeline.types import Progress, SilentProgress, utc_now

if TYPE_CHECKING:
    from pipeline.extraction.images.given import GivenImage

AT_ONCE: Final = 100_000  # people read at once: some 20 MB
_ROWS: Final = 1_000
WHY_TWICE: Final = {"merge": "by a merge", "faces": "you said so of these faces"}
_WHY_UNASSIGNED: Final = {
    "unmatched": "matches nobody, and its photo's name is the largest face's",
    "deleted": "has lost its person to a stricter gate or an undo",
    "nobody": "you said that it is nobody's",
}


@dataclass(frozen=True)
class PersonRow:
    """One person: a record, or the root of merged records."""

    person_id: str
    name: str | None
    external_id: str | None
    photos: int
    faces: int
    occurrence: int
    merged: int  # records merged with it
    hidden: bool
    added_at: datetime
    cover: int | None = None  # the face that the web UI shows


@dataclass(frozen=True)
class LoggedCorrection:
    """An entry of the correction log."""

    correction_id: int
    made_at: datetime  # UTC
    kind: str
    origin: str  # user, api, label, run
    undoes: int | None  # of an undo or a redo: the correction it concerns
    undone: bool
    can_be_undone: bool  # as far as the log tells: a later change may prevent it
    withdrawn: int  # constraints withdrawn, such as those that a merge overrode
    faces: int  # number changed
    person_ids: Sequence[str]  # everybody involved
    gone: int  # number of people deleted
    names: Mapping[str, str]  # their current names

    @property
    def overrode(self) -> bool:
        """Whether it overrode a cannot-link constraint."""
        return self.kind == "merge" and self.withdrawn > 0


@dataclass(frozen=True)
class UnassignedFace:
    """A face on a photo that is no person's."""

    face_id: int
    path: str
    size_px: float  # the longer side of its box
    reason: str  # in words


@dataclass(frozen=True)
class TwiceOnPhoto:
    """A person (a merged set's root) whom several faces of a photo show."""

    media_id: int
    path: str
    person_id: str
    name: str | None
    faces: Sequence[int]  # the largest first; boxes that overlap it by half are left out
    said: str | None  # why a user said so, in words; None: nobody did


class People:
    """The people of one directory of an account (None: the only one)."""

    def __init__(self, store: Store, account: str | None = None, directory: str = "main") -> None:
        self._store = store
        self._directory = directory
        self._account = account

    @cached_property
    def _account_id(self) -> int:
        return find_account(self._store, self._account).account_id

    # Reading

    def all(self) -> list[PersonRow]:
        """All people, in the order of `each`."""
        return [*self.each()]

    def each(self, *, limit: int | None = None, after: str | None = None) -> Iterator[PersonRow]:
        """Yields people in the order of addition, a merged set with its root, reading in pages. `limit`: at most so
        many; `after`: those behind this person, possibly merged since. Raises PersonNotFound, PersonAmbiguous."""
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
        """Returns one person. Raises PersonNotFound, PersonAmbiguous."""
        records = self._records([who], counted=True)
        found = self._found(records, who)
        root = next(record["root_person_id"] for record in records if record["person_id"] == found)
        return next(row for _, row in _rows(records) if row.person_id == root)

    def photos(self, who: str) -> list[dict[str, Any]]:
        """Returns a person's faces by photo (path None: posted), with box, outcome, score and date of the photo."""
        return self._faces(self._records([who]), who)

    def together(self, *who: str) -> list[str]:
        """Returns the paths of photos with all of these people."""
        records = self._records(who)
        paths = [{face["path"] for face in self._faces(records, one)} - {None} for one in who]
        return sorted(set.intersection(*paths)) if paths else []

    def unassigned(
        self, *, limit: int | None = None, after: int | None = None, nobodys: bool = False
    ) -> list[UnassignedFace]:
        """Returns faces without a person, the largest first, those of equal size by id; with `nobodys` also those that
        you said are nobody's. `limit`: at most so many; `after`: those behind this face, which may have a person by
        now. Raises FaceUnknown."""
        page = (0 if after is None else after, people.EVERYBODY[1] if limit is None else limit)
        what = "all_unassigned_faces" if nobodys else "unassigned_faces"
        rows = _dicts(self._store.photos(what, self._account_id, self._directory, page=page))
        return [UnassignedFace(row["face_id"], row["path"], row["size"], why_unassigned(row)) for row in rows]

    def suggest(self, who: str | None = None) -> Suggestions:
        """Returns pairs who may be one person, the likeliest first: of this person, or of the people on most photos, as
        many as take a few seconds. Raises PersonNotFound, PersonAmbiguous."""
        root = None if who is None else self.show(who).person_id
        settings = resolve_threshold(self._store.settings, self._store.identity)
        given, threshold = "match.threshold" in settings.given, settings.match.threshold
        return self._store.suggest(self._account_id, self._directory, root, threshold, given=given)

    def twice(self) -> list[TwiceOnPhoto]:
        """Returns who is twice on a photo, unless that is allowed on it; first where no user said so, then by photo."""
        rows = _dicts(self._store.photos("twice", self._account_id, self._directory))
        entries = [[*faces] for _, faces in groupby(rows, itemgetter("entry"))]
        return [
            TwiceOnPhoto(
                **{name: faces[0][name] for name in ("media_id", "path", "person_id", "name")},
                faces=[face["face_id"] for face in faces],
                said=WHY_TWICE.get(faces[0]["said"]),
            )
            for faces in entries
        ]

    def find(self, who: str) -> str:
        """Finds a person's id by id, name, external id, or the first letters of id or name; the root if several records
        of one merged set match. Raises PersonNotFound, PersonAmbiguous."""
        return self._found(self._records([who]), who)

    def recognise(self, image: GivenImage, top: int = 5) -> list[FaceAnswer]:
        """Returns the faces of an image (a path, the bytes of a file, an array [H, W, 3] uint8 RGB or a PIL image),
        each with its identity and the `top` most similar ones. Stores nothing. Also raises ImageRejected, ModelError,
        DeviceError."""
        from pipeline.extraction.images.given import encode_given  # late: listing people needs no decoder

        settings = self._store.settled
        data = encode_given(image, settings.decode)
        given, threshold = "match.threshold" in settings.given, settings.match.threshold
        return self._store.search(SearchQuery(data, self._account_id, self._directory, top, threshold, given))

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
        """Returns the last corrections (before number `before`), latest first."""
        table, names = self._store.correction_log(self._account_id, self._directory, before, count)
        rows = table.to_pylist()
        return [LoggedCorrection(**row, names={p: names.get(p) or "" for p in row["person_ids"]}) for row in rows]

    # Correcting: raises PersonNotFound, PersonAmbiguous and the RequestErrors of corrections, changing nothing

    def name(self, who: str, name: str) -> CorrectionAnswer:
        """Names a person; an empty name removes it."""
        return self._correct("name", [who], change=PersonChange(name=name))

    def name_all(self, rows: Iterable[tuple[str, str]]) -> tuple[int, list[tuple[str, str, str]]]:
        """Names people, each (who, name) by its own correction. Returns the number done, and the failures (who, name,
        reason)."""
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
        """Merges people; all ids remain valid. `anyway`: even against a cannot-link constraint."""
        return self._correct("merge", who, anyway=anyway)

    def unmerge(self, *who: str) -> CorrectionAnswer:
        """Splits a merged person into the people who were merged."""
        return self._correct("unmerge", who)

    def split(self, who: str, faces: Sequence[int]) -> CorrectionAnswer:
        """Makes some of a person's faces a new person, the first in the answer."""
        return self._correct("split", [who], faces)

    def move(self, face: int, who: str | None) -> CorrectionAnswer:
        """Assigns a face to a person; None: to nobody."""
        return self._correct("move", [] if who is None else [who], [face])

    def add_face(
        self, photo: Path | str, box: Sequence[float], who: str | None = None, *, name: str | None = None
    ) -> CorrectionAnswer:
        """Adds a face that the detector missed, at a box (xyxy in pixels of the upright photo) of the photo at this
        path: `who`'s, or a new person's with this name. The answer's `tag` says why it has no vector (None: it has
        one). Also raises ModelError, DeviceError."""
        who_ids = [] if who is None else [self._found(self._records([who]), who)]
        x1, y1, x2, y2 = box
        media_ids, change = [self._photo(photo)], PersonChange(name=name)
        answer = self.by_ids(ADD_FACE, who_ids, media_ids=media_ids, box=(x1, y1, x2, y2), change=change)
        self._store.clean_up()
        return answer

    def not_same(self, one: str, other: str) -> CorrectionAnswer:
        """States that these are two people."""
        return self._correct("not_same", [one, other])

    def hide(self, who: str) -> CorrectionAnswer:
        """Hides a person from listings (`ignore` of a record)."""
        return self._correct("hide", [who])

    def unhide(self, who: str) -> CorrectionAnswer:
        """Reverses `hide`."""
        return self._correct("unhide", [who])

    def forget(
        self, who: str, *, photos: bool = False, no_trace: bool = False, receipt: Path | None = None
    ) -> CorrectionAnswer:
        """Deletes a person with faces, vectors and pictures. No run imports the faces again, unless `no_trace` keeps
        nothing to know them by. Cannot be undone. The answer's `kept_photos` show others, too; with `photos` they are
        deleted as well. `receipt`: a new file outside the store, which gets the pending receipt (`jobs.receipts`)
        before anything is deleted; raises UsageError if it cannot be written."""
        person_id = self.find(who)
        if receipt is None:
            return self._forget(person_id, photos=photos, no_trace=no_trace)
        seen_at = utc_now()
        planned = self.by_ids("forget", [person_id], dry_run=True)
        kept = planned.kept_photos if photos else {}
        erased = [("forget", planned.erased, len(planned.kept_photos) + planned.kept_posts)]
        if kept:
            of_photos = self.by_ids("forget_photos", media_ids=[*kept.values()], dry_run=True)
            erased.append(("forget_photos", of_photos.erased, 0))
        pending = receipts.pending(self._store.erase(now=False).public_key, erased, keeps_digests=not no_trace)
        with written(receipt, pending, self._store) as sha256:
            seen = Seen(seen_at, planned.gone)
            return self._forget(person_id, photos=photos, no_trace=no_trace, receipt=sha256, seen=seen)

    def _forget(self, person_id: str, *, photos: bool, seen: Seen | None = None, **fields: Any) -> CorrectionAnswer:
        answer = self.by_ids("forget", [person_id], seen=seen, **fields)
        if photos and answer.kept_photos:
            with part_of_command():
                self.by_ids("forget_photos", media_ids=[*answer.kept_photos.values()], **fields)
            answer = replace(answer, kept_photos={})
        self._store.clean_up()
        return answer

    def forget_photos(self, media_ids: Sequence[int]) -> CorrectionAnswer:
        """Deletes imported photos with faces, vectors and pictures, and people left without face and name. Skips
        forgotten photos. No run imports the photos again. Cannot be undone. Raises PhotoUnknown."""
        answer = self.by_ids("forget_photos", media_ids=media_ids)
        self._store.clean_up()
        return answer

    def allow_twice(self, photo: Path | str | int, *, allow: bool = True) -> CorrectionAnswer:
        """Allows that somebody is twice on a photo of a run, or takes that back. `photo`: its path as stored, or its
        number. Raises PhotoUnknown, and CorrectionImpossible if it has fewer than two faces."""
        kind = "allow_twice" if allow else "disallow_twice"
        return self.by_ids(kind, media_ids=[self._photo(photo)])

    def _photo(self, photo: Path | str | int) -> int:
        """The number of a photo. Raises UsageError."""
        text = str(photo)
        own = text if is_address(text) else os.path.normpath(Path(text).expanduser().absolute())
        at = self._store.photos("at", self._account_id, self._directory, paths=[text, own])["media_id"].to_pylist()
        if at:
            return int(at[0])
        if not re.fullmatch("[0-9]{1,18}", text):
            raise UsageError(message=f'The directory "{self._directory}" has no photo of a run at {text}.')
        return int(text)

    def regroup(
        self,
        gate: MatchSettings | None = None,
        *,
        method: RegroupSettings | None = None,
        decode: bool | pa.Table = False,
        only: Sequence[str] = (),
        dry_run: bool = False,
        of_run: bool = False,
    ) -> CorrectionAnswer:
        """Re-clusters the stored faces with this gate and method (None: the settings'), respecting constraints. The
        answer's `regrouping` lists the changes, in a `dry_run` the possible ones. `of_run` leaves out people who were
        named or corrected, and `undo` only finds it by its number.

        `only`: decides the faces of these people and of those near them, and changes nobody else; the directory then
        remembers nothing of this regroup. Raises PersonNotFound, PersonAmbiguous, and UsageError with `decode`.

        `decode` re-extracts and includes rejected faces that the gate would admit, or is the result of
        `decode_rejected`. Then raises ModelError and DeviceError as well.
        """
        if only and decode is not False:
            raise UsageError(message="Rejected faces are read again for the whole directory: leave out --only.")
        if decode is True:
            decode = self.decode_rejected(gate)
        decoded = None if decode is False else decode
        settings = resolve_threshold(self._with_gate(gate), self._store.identity)
        asked = self._regrouping(replace(settings, regroup=method or settings.regroup), gate, method)
        if only:
            records = self._records(only)
            asked = replace(asked, person_ids=[self._found(records, one) for one in only])
        origin = RUN if of_run else USER
        answer = self._store.regroup(replace(asked, dry_run=dry_run, spares_corrected=of_run, origin=origin), decoded)
        if decoded is not None and not dry_run:
            self._store.clean_up()
        return answer

    def swap_and_regroup(self, *, dry_run: bool = False) -> Switched:
        """Switches to the newer index and re-clusters all faces with it, in one transaction; see `regroup`. A dry run
        only reports the changes. Raises ReindexMissing."""
        other = self._store.other_identity()
        if other is None:
            raise ReindexMissing(path=self._store.path, detail="there is none")
        asked = self._regrouping(resolve_threshold(self._store.settings, other))
        return self._store.switch_generation(replace(asked, dry_run=dry_run))

    def _regrouping(
        self, settings: Settings, gate: MatchSettings | None = None, method: RegroupSettings | None = None
    ) -> CorrectionRequest:
        """A regroup by these settings. The directory remembers those given by flags, by `gate` and by `method`."""
        match, regroup, given = settings.match, settings.regroup, settings.given
        threshold = str(match.threshold) if match.threshold_fmr is None else f"{FMR}{match.threshold_fmr}"
        typed = Remembered(
            threshold=threshold if gate is not None or "match.threshold" in given else None,
            method=regroup.method if method is not None or "regroup.method" in given else None,
            precision=regroup.precision if (method and method.cut is None) or "regroup.precision" in given else None,
            cut=regroup.cut if method is not None or "regroup.cut" in given else None,
        )
        return self._request("regroup", gate=match, method=regroup, typed=typed)

    def decode_rejected(
        self, gate: MatchSettings | None = None, progress: Progress | None = None, stop: Event | None = None
    ) -> pa.Table:
        """Re-extracts the rejected faces that the gate would admit, for `regroup`. Stores nothing.

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
        """Undoes this correction, or the last one of the origin (`user`, `api`, `label`) that is not undone; `dry_run`
        only reports which. Raises UndoBlocked if something changed since, and CorrectionImpossible if there is none or
        it is undone."""
        answer = self.by_ids("undo", correction_id=correction_id, undo_origin=origin, dry_run=dry_run)
        if answer.kind in ("regroup", ADD_FACE, "undo", "redo") and not dry_run:  # vectors may have been removed
            self._store.clean_up()
        return answer

    def _correct(self, kind: str, who: Sequence[str], face_ids: Sequence[int] = (), **fields: Any) -> CorrectionAnswer:
        records = self._records(who) if who else []
        return self.by_ids(kind, [self._found(records, one) for one in who], face_ids, **fields)

    def by_ids(
        self, kind: str, person_ids: Sequence[str] = (), face_ids: Sequence[int] = (), **fields: Any
    ) -> CorrectionAnswer:
        """Makes a correction by person ids; `fields`: of CorrectionRequest. A merge may change the root. Raises
        ChangedSince if what the sender knows (`seen`) has changed."""
        return self._store.correct(self._request(kind, person_ids, face_ids, **fields))

    def _request(
        self, kind: str, person_ids: Sequence[str] = (), face_ids: Sequence[int] = (), **fields: Any
    ) -> CorrectionRequest:
        request = CorrectionRequest(self._account_id, self._directory, kind, person_ids, list(face_ids), **fields)
        if request.change.name is not None and not is_text(request.change.name):
            raise UsageError(message=f"The name cannot be kept: it must be UTF-8 of {TEXT_RULE}.")
        return request

    def _records(self, who: Sequence[str] | None = None, *, counted: bool = False) -> list[dict[str, Any]]:
        """Returns what records are found by, of everybody or of possible matches of `who`; `counted`: all fields, which
        counts the faces."""
        return [*_dicts(self._store.people(self._account_id, self._directory, who, counted=counted))]

    def _faces(self, records: Sequence[Mapping[str, Any]], who: str) -> list[dict[str, Any]]:
        """Returns the faces of a merged set, or of a single record if it is not the root."""
        found = self._found(records, who)
        members = [r["person_id"] for r in records if found in (r["person_id"], r["root_person_id"])]
        faces: list[dict[str, Any]] = self._store.faces_of(members).to_pylist()
        return faces


def why_unassigned(face: Mapping[str, Any]) -> str:
    """Says why a face (a row of `unassigned_faces`) has no person."""
    if face["why"] != "rejected":
        return _WHY_UNASSIGNED[face["why"]]
    return f"low {', '.join((face['rejection_reasons'] or 'quality').split(','))}"


def _dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yields the rows, few at a time as Python objects."""
    for batch in table.to_batches(max_chunksize=_ROWS):
        yield from batch.to_pylist()


def _rows(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, PersonRow]]:
    """Yields each person with its position; records of a merged set must be adjacent."""
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
        cover=own["cover"],
    )


def read_names(file: Path) -> list[tuple[str, str]]:
    """Reads the named rows of a CSV file with the columns person_id and name, as from `people list --csv`. Raises
    ManifestInvalid."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            if not {"person_id", "name"} <= set(reader.fieldnames or ()):
                raise ManifestInvalid(path=file, detail="it has no columns person_id and name")
            rows = [((row["person_id"] or "").strip(), (row["name"] or "").strip()) for row in reader]
            return [row for row in rows if row[1]]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise ManifestInvalid(path=file, detail=str(exc)) from exc
