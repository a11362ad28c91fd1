"""Applies changed labels of unchanged photos: renames persons or moves single faces (docs/decisions/labels.md). Decided
without the directory's lock."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.matching.identical_images import SAME_FACE_IOU, box_iou
from pipeline.people.correction_plan import IS, NOBODY, Plan
from pipeline.people.directory import Directory
from pipeline.people.reference_pictures import Pictures
from pipeline.store import (
    ERASED,
    CorrectionRequest,
    Fact,
    FollowedLabels,
    Label,
    LabelChange,
    LabelledPhoto,
    PersonRecord,
    StoredFace,
)
from pipeline.texts import nfc, same_name

_LISTED: Final = 1000  # per kind
# Why a label is not applied.
BY_HAND: Final = "renamed by hand"
SEVERAL_NAMES: Final = "several new names for one person"
SEVERAL_PEOPLE: Final = "several people have this name"
STATED: Final = "a correction says otherwise"
ON_PHOTO: Final = "another face of the photo is this person"
NO_PICTURE: Final = "no picture of a face can be had"


def labels_followed(request: CorrectionRequest, pictures: Pictures) -> Plan:
    """Plans the changes for `request.labels`. Raises StoreError."""
    staying: set[int] = set()  # faces that cannot move, or a person would lack a picture
    while True:
        once_per_photo = request.gate is not None and request.gate.once_per_photo
        following = _Following(pictures, request.labels, staying, once_per_photo)
        following.decide()
        failed = following.resolve()
        if not failed:
            following.said = {"labels": following.report()}
            return following
        staying |= failed


@dataclass(frozen=True)
class _Changed:
    """A new label of a photo whose largest face has a person."""

    photo: LabelledPhoto
    label: Label
    face_id: int
    root: PersonRecord


class _Following(Plan):
    """One attempt to apply the labels."""

    def __init__(
        self, pictures: Pictures, changes: Sequence[LabelChange], staying: set[int], once_per_photo: bool
    ) -> None:
        """`staying`: faces that cannot move. `once_per_photo`: no face moves to a person that another face of its photo
        shows."""
        super().__init__(pictures)
        self._once_per_photo = once_per_photo
        self._staying = staying
        self._labels = {media_id: (name, external_id) for media_id, name, external_id, _ in changes}
        self._other_bytes = {media_id for media_id, *_, same_bytes in changes if not same_bytes}
        self._digests: dict[Label, str | None] = {}
        self._new_names: dict[str, Label] = {}  # of renamed persons
        self._moves: dict[int, tuple[str | None, str]] = {}  # face id -> person before and after
        self._meant: dict[Label, set[str]] = {}  # the people that labels of single faces name
        self._renamed: list[dict[str, Any]] = []
        self._relabelled: list[dict[str, Any]] = []
        self._unsettled: list[dict[str, Any]] = []

    def decide(self) -> None:
        """Collects the changes; call `resolve` next."""
        changed: dict[str, list[_Changed]] = defaultdict(list)
        for one in self._of_somebody(self._photos(list(self._labels), [])):
            changed[one.root.person_id].append(one)
        sets = self.directory.merged_sets(changed)
        root_of = {record.person_id: root for root, records in sets.items() for record in records}
        photos = {root: {one.photo.media_id: one.photo for one in ones} for root, ones in changed.items()}
        for photo in self._photos([], list(root_of)):
            photos[root_of[str(photo.person_id)]][photo.media_id] = photo
        self.known = {record.person_id: record for records in sets.values() for record in records}
        wanted = dict.fromkeys((*self._labels.values(), *(label for root in sets.values() for label in _said(root[0]))))
        self._digests = dict(zip(wanted, self.client.digests_of_labels(list(wanted)), strict=True))
        singles = []
        for root, records in sets.items():
            others = self._of_person(records[0], changed[root], list(photos[root].values()))
            for one in others:
                if any(_agrees(record, one.label) for record in records[1:]):
                    self._settled(one.photo, one.label)
                else:
                    singles.append(one)
        self._move(sorted(singles, key=lambda one: one.photo.media_id))

    def resolve(self) -> set[int]:
        """Resolves persons who lost or got faces. Returns the faces that cannot move."""
        people = [person for pair in self._moves.values() for person in pair if person is not None]
        self.pictures.references = self.client.reference_faces(people)
        failed: set[str] = set()
        self.settle(people, failed)
        return {face_id for face_id, pair in self._moves.items() if failed & {*pair}}

    def is_outdated(self) -> bool:
        """Also if labels of single faces now name other people, such as a newly inserted one."""
        people = _PeopleByLabel(self.directory, self._new_names, self._meant)
        return super().is_outdated() or any(people.with_label(label) != found for label, found in self._meant.items())

    def report(self) -> FollowedLabels:
        """The part of the answer about labels."""
        return FollowedLabels(
            renamed=len(self._renamed),
            relabelled=len(self._relabelled),
            unsettled=len(self._unsettled),
            renamed_persons=self._renamed[:_LISTED],
            relabelled_faces=self._relabelled[:_LISTED],
            unsettled_labels=self._unsettled[:_LISTED],
        )

    def _photos(self, media_ids: Sequence[int], person_ids: Sequence[str]) -> list[LabelledPhoto]:
        return self.client.labelled_photos(self.directory.account_id, self.directory.name, media_ids, person_ids)

    def _of_somebody(self, photos: Sequence[LabelledPhoto]) -> list[_Changed]:
        """The changes that may affect a person's name. Empty labels, and those of faces without a person, are only
        stored; erased ones are ignored."""
        found: list[_Changed] = []
        nobodys: list[LabelledPhoto] = []
        roots = self.directory.roots({photo.person_id for photo in photos if photo.person_id is not None})
        for photo in photos:
            if photo.media_id in self._other_bytes or photo.label == ERASED or photo.outcome == "removed":
                continue
            label = self._labels[photo.media_id]
            root = roots.get(photo.person_id or "")
            if not any(label):
                self._settled(photo, label)
            elif photo.face_id is None or photo.person_id is None:
                nobodys.append(photo)
            elif root is not None:
                found.append(_Changed(photo, label, photo.face_id, root))
        facts = self.client.facts_about([photo.face_id for photo in nobodys if photo.face_id is not None], [])
        stated = {fact.face_id for fact in facts if fact.kind == NOBODY}
        for photo in nobodys:
            if photo.face_id in stated:
                self._not_followed(photo, self._labels[photo.media_id], None, STATED)
            else:
                self._settled(photo, self._labels[photo.media_id])
        return found

    def _of_person(
        self, root: PersonRecord, changed: Sequence[_Changed], photos: Sequence[LabelledPhoto]
    ) -> list[_Changed]:
        """Renames a person if the photos that gave the name agree on a new one. `photos`: all with an old or new label.
        Returns the changes that concern single faces."""
        changed = self._add_to(root, changed)
        if not changed:
            return []
        given = {self._digests[label] for label in _said(root)}
        givers = self._givers(root, changed, photos, given)
        now = {self._label_now(photo) for photo in givers}
        new = next((one.label for one in changed if now == {self._digests[one.label]}), None)
        if new is not None and self._gave(root, givers, new):
            self._rename(root, new)
            for one in changed:
                if _key(one.label) == _key(new):
                    self._settled(one.photo, one.label)
            return [one for one in changed if _key(one.label) != _key(new)]
        left, reason = {one.photo.media_id for one in changed}, BY_HAND
        if givers and new is None:
            left, reason = {photo.media_id for photo in givers}, SEVERAL_NAMES
            if now & given or not left <= self._labels.keys():
                left = set()
        for one in changed:
            if one.photo.media_id in left:
                self._not_followed(one.photo, one.label, root, reason)
        return [one for one in changed if one.photo.media_id not in left]

    def _add_to(self, root: PersonRecord, changed: Sequence[_Changed]) -> list[_Changed]:
        """Resolves labels that agree with the person, adding a missing part. Returns the other changes."""
        agreeing = [one for one in changed if _agrees(root, one.label)]
        completed = {one.label: _key(_completed(root, one.label)) for one in agreeing}
        adding = {new: label for label, new in completed.items() if new != _key(_label_of(root))}
        if len(adding) == 1:
            self._rename(root, *adding.values())
        for one in agreeing:
            if len(adding) > 1 and completed[one.label] in adding:
                self._not_followed(one.photo, one.label, root, SEVERAL_NAMES)
            else:
                self._settled(one.photo, one.label)
        return [one for one in changed if not _agrees(root, one.label)]

    def _givers(
        self,
        root: PersonRecord,
        changed: Sequence[_Changed],
        photos: Sequence[LabelledPhoto],
        given: set[str | None],
    ) -> list[LabelledPhoto]:
        """The photos whose old or new label is the person's; if none, and the new labels replace nothing, all."""
        labelled = [photo for photo in photos if self._label_now(photo) is not None]
        givers = [photo for photo in labelled if given & {photo.label, self._label_now(photo)}]
        return givers or ([] if any(_replaced(root, one.label) for one in changed) else labelled)

    def _gave(self, root: PersonRecord, givers: Sequence[LabelledPhoto], label: Label) -> bool:
        """Whether everything that the label replaces was given by a label of these photos."""
        replaced = _replaced(root, label)
        given = {self._digests[said] for said in _said(root) if all(said[part] for part in replaced)}
        return not replaced or any(photo.label in given for photo in givers)

    def _label_now(self, photo: LabelledPhoto) -> str | None:
        """The digest of the photo's current label."""
        label = self._labels.get(photo.media_id)
        return photo.label if label is None else self._digests[label]

    def _rename(self, root: PersonRecord, label: Label) -> None:
        name, external_id = self._new_names[root.person_id] = _completed(root, label)
        self.update(root, name=name, external_id=external_id)
        old = {"old_name": root.name, "old_external_id": root.external_id}
        self._renamed.append({"person_id": root.person_id, "name": name, "external_id": external_id, **old})

    def _move(self, changed: Sequence[_Changed]) -> None:
        """Moves each face to the only person with its label, or to a new one if there is none."""
        if not changed:
            return
        faces = {face.face_id: face for face in self.faces([one.face_id for one in changed])}
        pinned: dict[int | None, list[Fact]] = defaultdict(list)
        for fact in self.client.facts_about(list(faces), []):
            if fact.origin == "user":
                pinned[fact.face_id].append(fact)
        labels = {one.label for one in changed}
        people = _PeopleByLabel(self.directory, self._new_names, labels)
        self._meant = {label: people.with_label(label) for label in labels}
        beside = self._beside(changed)
        stated = []
        for one in changed:
            found = people.with_label(one.label)
            target = next(iter(found), None)
            if len(found) > 1:
                self._not_followed(one.photo, one.label, one.root, SEVERAL_PEOPLE)
            elif any(self._denies(fact, target) for fact in pinned[one.face_id]):
                self._not_followed(one.photo, one.label, one.root, STATED)
            elif target in beside[one.face_id]:
                self._not_followed(one.photo, one.label, one.root, ON_PHOTO)
            elif one.face_id in self._staying:
                self._not_followed(one.photo, one.label, one.root, NO_PICTURE)
            else:
                if target is None:
                    target = str(uuid.uuid4())
                    name, external_id = one.label
                    self.insert(PersonRecord.new(target, self.now, name=name, external_id=external_id))
                    people.add(target, target, one.label)
                elif (record := self.directory.get(target)) is not None:
                    self.known[target] = record
                self.move(faces[one.face_id], target)
                stated.append(Fact(IS, one.face_id, target))
                self._moves[one.face_id] = one.photo.person_id, target
                self._settled(one.photo, one.label)
                self._relabelled.append(
                    {
                        "face_id": one.face_id,
                        "path": one.photo.path,
                        "person_id": target,
                        "name": one.label[0],
                        "external_id": one.label[1],
                        "old_person_id": one.photo.person_id,
                        "old_name": one.root.name,
                    }
                )
        self.state(stated)

    def _beside(self, changed: Sequence[_Changed]) -> Mapping[int, set[str]]:
        """The people (roots) of the other faces of each face's photo, if nobody may be on it twice."""
        beside: dict[int, set[str]] = defaultdict(set)
        if not self._once_per_photo:
            return beside
        allowed = self.client.twice_allowed(self.directory.account_id, self.directory.name)
        on_photo: dict[int, list[StoredFace]] = defaultdict(list)
        for face in self.faces(media_ids=[one.photo.media_id for one in changed]):
            on_photo[face.media_id].append(face)
        for one in changed:
            faces = on_photo[one.photo.media_id]
            own = next(face for face in faces if face.face_id == one.face_id)
            if own.sha256 in allowed:
                continue
            others = (face for face in faces if box_iou(face.box, own.box) < SAME_FACE_IOU)
            beside[one.face_id] = {self.directory.root_id(f.person_id) for f in others if f.person_id is not None}
        return beside

    def _denies(self, fact: Fact, target: str | None) -> bool:
        """Whether a constraint forbids moving its face to this person (None: to a new one)."""
        same = fact.person_id is not None and self.directory.root_id(fact.person_id) == target
        return fact.kind == NOBODY or same == (fact.kind != IS)

    def _settled(self, photo: LabelledPhoto, label: Label) -> None:
        self.labels.append((photo.media_id, *label))

    def _not_followed(self, photo: LabelledPhoto, label: Label, root: PersonRecord | None, reason: str) -> None:
        person = {
            "person_id": root and root.person_id,
            "person_name": root and root.name,
            "person_external_id": root and root.external_id,
        }
        said = {"path": photo.path, "name": label[0], "external_id": label[1]}
        self._unsettled.append({**said, **person, "reason": reason})


class _PeopleByLabel:
    """The people that some labels may name, by name and external id."""

    def __init__(self, directory: Directory, renamed: Mapping[str, Label], labels: Iterable[Label]) -> None:
        self._roots: dict[str, str] = {}
        self._by_part: tuple[dict[str, set[str]], ...] = defaultdict(set), defaultdict(set)
        wanted = {(part, text) for label in labels for part, text in enumerate(_key(label)) if text}
        names, external_ids = ([text for part, text in wanted if part == which] for which in (0, 1))
        called = {record.person_id: _label_of(record) for record in directory.called(names, external_ids)}
        for person_id, said in {**called, **renamed}.items():
            label = _key(said)
            if not wanted.isdisjoint(enumerate(label)):
                self.add(person_id, directory.root_id(person_id), label)

    def add(self, person_id: str, root: str, label: Label) -> None:
        self._roots[person_id] = root
        for persons, part in zip(self._by_part, _key(label), strict=True):
            if part:
                persons[part].add(person_id)

    def with_label(self, label: Label) -> set[str]:
        """The roots of the people with all of the label's parts."""
        found = [persons.get(part, set()) for persons, part in zip(self._by_part, _key(label), strict=True) if part]
        return {self._roots[person_id] for person_id in set.intersection(*found)}


def _label_of(record: PersonRecord) -> Label:
    return record.name or None, record.external_id or None


def _key(label: Label) -> Label:
    """A label in its form for comparisons."""
    name, external_id = label
    return name and nfc(name), external_id


def _said(record: PersonRecord) -> list[Label]:
    """The labels that may have given the person its name or external id."""
    name, external_id = _label_of(record)
    return [label for label in dict.fromkeys(((name, external_id), (name, None), (None, external_id))) if any(label)]


def _completed(record: PersonRecord, label: Label) -> Label:
    """The person's name and external id after a label; parts that it lacks stay."""
    name, external_id = _label_of(record)
    return name if same_name(label[0], name) else label[0] or name, label[1] or external_id


def _replaced(record: PersonRecord, label: Label) -> list[int]:
    """The parts that a label replaces: 0, the name, and 1, the external id."""
    pairs = enumerate(zip(_key(_label_of(record)), _key(label), strict=True))
    return [part for part, (old, new) in pairs if old and new and old != new]


def _agrees(record: PersonRecord, label: Label) -> bool:
    """Whether a part of the label equals the person's and none differs."""
    same = any(old and old == new for old, new in zip(_key(_label_of(record)), _key(label), strict=True))
    return same and not _replaced(record, label)
