"""Re-clusters the stored faces of a directory, or those of some people and whoever is near them, and plans the changes:
sequentially in the order of the store, or by average link.

Decided without the directory's lock. Photos are decoded only for new persons' pictures. Rejected faces, which have no
stored vector, take part only if the caller extracted them again.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import product
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.config import AVERAGE_LINK, FMR, MatchSettings, RegroupSettings, nearest_threshold
from pipeline.errors import CorrectionImpossible
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.once_per_photo import photos_with_rule
from pipeline.people.clustering import by_average_link, cut_of, one_by_one
from pipeline.people.contradictions import Chains, Place, contradictions, place_of
from pipeline.people.correction_plan import IS, IS_NOT, NOBODY, Plan, has_name
from pipeline.people.decide import failed_measures
from pipeline.people.directory import Directory
from pipeline.people.records import EVERYBODY, of_generation, threshold_in_use
from pipeline.people.reference_pictures import Pictures
from pipeline.people.regrouping import Changes, ClusteredFace, Group, changes
from pipeline.people.rules import NOT_SAME, two_people
from pipeline.people.suggestions import wider_threshold
from pipeline.store import (
    Contradiction,
    CorrectionRequest,
    FaceMove,
    FaceToRegroup,
    FaceVector,
    Fact,
    KeptApart,
    LocalStore,
    NotDecoded,
    PersonRecord,
    Regrouping,
    Remembered,
    StoredFace,
)
from pipeline.texts import nfc
from pipeline.types import FloatArray

_PAIRS: Final = 10_000  # of new people, that inherit one constraint; with more at once only those with older ones do
_CAME_SINCE: Final = {"embedding": None, "reason": "it came into the store after the photos were read"}
_OTHER_MODEL: Final = {"embedding": None, "reason": "the store answers by another model since its photo was read"}


def regroup(plan: Plan, request: CorrectionRequest, decoded: pa.Table | None) -> None:
    """Plans the regroup. `decoded`: faces extracted again (DECODED_SCHEMA). Raises CorrectionImpossible, StoreError."""
    client, pictures = plan.client, plan.pictures
    gate, method = _gate_of(plan, request), _method_of(plan, request)
    partial = bool(request.person_ids)
    if len(plan.directory) and not (request.spares_corrected or partial):
        plan.remember(_remembered(plan, request, method))
    asked = [record.person_id for record in plan.directory.those(request.person_ids)]
    known = _Known(client, plan.directory, with_vectors=not partial)
    admitted = [] if partial else known.admitted(gate)
    not_decoded = [] if decoded is None else known.take(admitted, decoded, pictures, plan.client.identity.model)
    plan.decoded, plan.known_vectors = known.decoded, known.vectors
    pictures.references = known.references
    groups = known.groups()
    by_precision = method.method == AVERAGE_LINK and method.cut is None
    people = max(1, len(known.people_of(groups.keys())))
    cut = cut_of(method, client.identity, people) if method.method == AVERAGE_LINK else None
    alone = {root for root, group in groups.items() if request.spares_corrected and group.corrected}
    if partial:
        alone |= groups.keys() - known.near(asked, gate.threshold if cut is None else cut)
    alone = known.leave_alone(alone)
    faces = known.faces_to_cluster(gate, groups, alone)
    vectors = [known.vectors[face.face_id] for face in faces]
    if cut is not None:
        faces = by_average_link(faces, vectors, groups, client.identity, plan.directory.device, cut, method.neighbours)
    else:
        faces = one_by_one(faces, vectors, groups, client.identity, plan.directory.device, gate.threshold)
    changed = changes(faces, groups)
    moves = dict(changed.moved)
    new: list[str] = []
    without_picture: list[int] = []
    hidden: set[str] = set()
    for face_ids in changed.new:
        if pictures.find([known.stored[face_id] for face_id in face_ids]):
            new.append(str(uuid.uuid4()))
            moves.update(dict.fromkeys(face_ids, new[-1]))
            owner = known.stored[face_ids[0]].person_id
            hidden |= {new[-1]} if owner is not None and groups[known.roots[owner]].hidden else set()
        else:
            without_picture += face_ids
    needed = known.needed(moves, set(new))
    without_picture += sorted(needed)
    moves = {face_id: person_id for face_id, person_id in moves.items() if face_id not in needed}
    getting = set(moves.values())
    new = [person_id for person_id in new if person_id in getting]
    for each in new:
        plan.insert(replace(PersonRecord.new(each, plan.now), ignored=each in hidden))
    for face_id, person_id in moves.items():
        plan.move(known.stored[face_id], person_id)
    parents, joins = known.parents(changed)
    for each, parent_id in parents.items():
        plan.update(known.records[each], parent_id=parent_id)
    parted = [person_id for person_id, parent_id in parents.items() if parent_id is None]
    for each in parted:
        plan.update(known.records[each], ignored=groups[known.roots[each]].hidden)
    inherited = known.inherited(changed, moves, new, parents)
    if inherited:
        plan.state(inherited)
    lost = {known.stored[face_id].person_id for face_id in moves}
    plan.settle([person_id for person_id in (*lost, *new) if person_id is not None])
    _, after = plan.rows()
    gone = [person_id for person_id, columns in after.persons.items() if columns is None]
    if gone and plan.leaves_nobody:
        raise CorrectionImpossible(detail="By this gate no face would make a person, and nobody would be left.")
    joined = {person_id for persons in joins for person_id in persons}
    together = {id(changed.group_of[known.roots[person_id]]) for person_id in joined}
    touched = {person_id for person_id, root in known.roots.items() if id(changed.group_of[root]) in together}
    touched |= known.records.keys() & {*lost, *moves.values(), *parents}
    touched |= known.records.keys() & {one for fact in inherited for one in (fact.person_id, fact.other_id)}
    mentioned = touched.union(*changed.kept_apart)
    report = Regrouping(
        threshold=gate.threshold,
        faces=len(faces),
        joins=joins,
        parted=parted,
        moves=[
            FaceMove(face_id, known.stored[face_id].path, known.stored[face_id].person_id, moves[face_id])
            for face_id in sorted(moves)
        ],
        new=new,
        gone=gone,
        kept_apart=[KeptApart(*pair, *how) for pair, how in changed.kept_apart.items()],
        without_picture=without_picture,
        admitted=[face.stored.face_id for face in admitted],
        decoded=decoded is not None,
        not_decoded=not_decoded,
        names={person_id: name for person_id in mentioned if (name := known.records[person_id].name)},
        method=method.method,
        cut=cut,
        precision=method.precision if by_precision else None,
        people=people if by_precision else None,
        remembered=plan.remembers,
        scope=known.people_of(groups.keys() - alone) if partial else None,
        contradictions=known.contradictions(alone if partial else set()),
    )
    plan.said = {"regrouping": report}
    plan.known = {person_id: known.records[person_id] for person_id in touched}


class _Known:
    """The stored faces, persons and constraints of a directory."""

    def __init__(self, client: LocalStore, directory: Directory, *, with_vectors: bool) -> None:
        """`with_vectors`: reads those of all faces at once, else those that are needed."""
        self._client = client
        self._directory, self._calibration = directory, Calibration.from_dict(client.identity.calibration)
        # Read before the faces: a person changed since fails the validation.
        self.records = {record.person_id: record for record in directory.everybody(at_once=EVERYBODY)}
        self._faces, self.vectors = client.faces_to_regroup(
            directory.account_id, directory.name, with_vectors=with_vectors
        )
        # Leaves out persons whose commit is not in memory yet.
        self._faces = [f for f in self._faces if f.stored.person_id is None or f.stored.person_id in self.records]
        self.stored = {face.stored.face_id: face.stored for face in self._faces}
        self.references = {str(f.stored.person_id): f.stored.face_id for f in self._faces if f.reference}
        self.decoded: dict[int, FaceVector] = {}  # of faces without a stored vector
        self._left_out: Set[int] = frozenset()  # nobody's faces
        self._merges = client.last_merges(directory.account_id, directory.name)
        parents = {person_id: record.parent_id for person_id, record in self.records.items()}
        # A regroup may split what an earlier one joined.
        self._joined = {
            person_id: str(parents[person_id])
            for person_id, (_, kind, _, after) in self._merges.items()
            if kind == "regroup" and after is not None and after == parents.get(person_id)
        }
        self._tops = {person_id: _top(person_id, parents) for person_id in self.records}
        users = {**parents, **dict.fromkeys(self._joined)}
        self.roots = {person_id: _top(person_id, users) for person_id in self.records}  # by the merges of users
        self._facts = client.facts_about(list(self.stored), list(self.records))
        self._twice_allowed = client.twice_allowed(directory.account_id, directory.name)
        self._said = self._said_of_faces()
        self._is_not: dict[int, list[str]] = {}
        # Two people, and the correction that said so; None: an unmerge.
        self._two: list[tuple[str, str, int | None]] = [
            (p, str(before), None) for p, (_, kind, before, _) in self._merges.items() if kind == "unmerge"
        ]
        for fact in self._facts:
            if fact.kind == NOT_SAME:
                self._two.append((str(fact.person_id), str(fact.other_id), fact.correction_id))
            elif fact.kind == IS_NOT and fact.face_id in self.stored and fact.person_id in self.roots:
                if self.roots[fact.person_id] == self.roots.get(self.stored[fact.face_id].person_id or ""):
                    self._said[IS].add(fact.face_id)  # a contradiction: it stays
                else:
                    self._is_not.setdefault(fact.face_id, []).append(fact.person_id)
        self._two = [pair for pair in self._two if {*pair[:2]} <= self.roots.keys()]
        self._words = self._words_of_pairs()

    def _said_of_faces(self) -> dict[str, set[int]]:
        """The faces that were said to be somebody's, and nobody's. Runs apply this to copies, which have no constraint
        of their own: those that are still this person's or nobody's count as well."""
        said: dict[str, set[int]] = {IS: set(), NOBODY: set()}
        whose: dict[Place, set[str | None]] = {}
        places = {face.stored.face_id: place_of(face) for face in self._faces}
        for fact in self._facts:
            if fact.kind in said and fact.face_id is not None:
                said[fact.kind].add(fact.face_id)
                root = self.roots.get(fact.person_id or "")
                if (place := places.get(fact.face_id)) is not None and (root is None) == (fact.kind == NOBODY):
                    whose.setdefault(place, set()).add(root)
        for face in self._faces:
            place, root = places[face.stored.face_id], self._root(face)
            if place is not None and root in whose.get(place, ()):
                said[NOBODY if root is None else IS].add(face.stored.face_id)
        return said

    def contradictions(self, outside: Set[str]) -> list[Contradiction]:
        """The constraints that contradict each other, but for those of people `outside` (roots) only."""
        faces = {face.stored.face_id: face for face in self._faces}
        chains = Chains(self._directory, self._merges)
        found = contradictions(self._facts, faces, self.roots, self.records, chains)
        return [each for each in found if not {self.roots.get(one) or "" for one in each.person_ids} <= outside]

    def groups(self) -> dict[str, Group]:
        """A group of one person each, by root."""
        records = Counter(self.roots.values())
        groups = {r: Group({r}, set(), set(), set(), held=False, merged=n > 1) for r, n in records.items()}
        parents = {record.parent_id for record in self.records.values()}
        stated = {person_id for fact in self._facts for person_id in (fact.person_id, fact.other_id)}
        for person_id, record in self.records.items():
            group = groups[self.roots[person_id]]
            name = tuple(nfc(each or "") for each in (record.name, record.first_name, record.last_name))
            group.names |= {name} if any(name) else set()
            group.external_ids |= {record.external_id} if record.external_id else set()
            kept = has_name(record) or record.ignored or record.tags or record.metadata or person_id in stated
            group.corrected |= bool(kept) or self.roots[person_id] != person_id
            group.held |= group.corrected or person_id in parents
        others = [(self.stored[face_id].person_id, one) for face_id, ones in self._is_not.items() for one in ones]
        for one, two in (*((one, two) for one, two, _ in self._two), *others):
            if one in self.roots and two in self.roots and self.roots[one] != self.roots[two]:
                groups[self.roots[one]].against.add(self.roots[two])
                groups[self.roots[two]].against.add(self.roots[one])
        for root, group in groups.items():
            group.hidden = self.records[self._tops[root]].ignored
            group.two = set(self._words[root])
        return groups

    def _words_of_pairs(self) -> dict[str, set[int]]:
        """`Group.two` of each root. The constraint n is `self._two[n - 1]`."""
        words: dict[str, set[int]] = defaultdict(set)
        joined: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for person_id, parent_id in self._joined.items():
            joined[self.roots[parent_id]].append((self._merges[person_id].correction_id, self.roots[person_id]))

        def meant(person_id: str, said: int | None) -> set[str]:
            found = [self.roots[person_id]]
            for root in found:
                found += [one for made, one in joined[root] if said is not None and made < said]
            return set(found)

        for number, (one, other, said) in enumerate(self._two, 1):
            ones, others = meant(one, said), meant(other, said)
            for root in ones - others:
                words[root].add(number)
            for root in others - ones:
                words[root].add(-number)
        return words

    def leave_alone(self, roots: Set[str]) -> set[str]:
        """These roots with all that regroups joined to them; keeps these joins."""
        found = self._with_joined(roots)
        self._joined = {person_id: p for person_id, p in self._joined.items() if self.roots[person_id] not in found}
        return found

    def _with_joined(self, roots: Set[str]) -> set[str]:
        tops = {self._tops[root] for root in roots}
        return {root for person_id, root in self.roots.items() if self._tops[person_id] in tops}

    def people_of(self, roots: Set[str]) -> list[str]:
        """The people, as roots by all merges, the oldest first."""
        return sorted({self._tops[root] for root in roots}, key=lambda top: self.records[top].seq)

    def near(self, person_ids: Sequence[str], threshold: float) -> set[str]:
        """The roots of these people and of those near them, with all that regroups joined to them: people whose
        reference matches one of their faces at this threshold, or one of their references at a wider one. Leaves out
        nobody's faces unless the nearest reference, at the wider one, is of such a person."""
        narrow = Matcher(self._calibration, nearest_threshold(threshold))
        wide = Matcher(self._calibration, wider_threshold(self._calibration, narrow.threshold))
        found = self._with_joined({self.roots[person_id] for person_id in person_ids if person_id in self.roots})
        faces = [face for face in self._faces if face.stored.has_embedding]
        own = [face for face in faces if self._root(face) in found]
        view = self._directory.view()
        for matcher, queries in ((narrow, own), (wide, [face for face in own if face.reference])):
            for position in matcher.all_matching(view.index, self._vectors_of(queries)).tolist():
                root = self.roots.get(view.person_ids[position])
                found |= set() if root is None else {root}
        found = self._with_joined(found)
        free = [face for face in faces if self._root(face) is None]
        nearest = wide.nearest(view.index, self._vectors_of(free), 1, matching=True).positions[:, 0].tolist()
        owners = [None if position < 0 else self.roots.get(view.person_ids[position]) for position in nearest]
        self._left_out = {face.stored.face_id for face, root in zip(free, owners, strict=True) if root not in found}
        return found

    def _vectors_of(self, faces: Sequence[FaceToRegroup]) -> FloatArray:
        self._read([face.stored.face_id for face in faces])
        vectors = [self.vectors[face.stored.face_id].embedding for face in faces]
        return np.stack(vectors) if vectors else np.empty((0, self._directory.view().index.embedding_size), np.float32)

    def _read(self, face_ids: Sequence[int]) -> None:
        """Reads the vectors that it has not yet. Raises CorrectionImpossible, after which it is decided again, if faces
        were deleted meanwhile."""
        missing = {face_id for face_id in face_ids if face_id not in self.vectors}
        self.vectors.update(self._client.face_vectors(sorted(missing)))
        if not missing <= self.vectors.keys():
            raise CorrectionImpossible(detail="Faces were deleted meanwhile. Try again.")

    def faces_to_cluster(
        self, gate: MatchSettings, groups: Mapping[str, Group], alone: Set[str]
    ) -> list[ClusteredFace]:
        """The faces with a vector and no "nobody" constraint (theirs or a copy's), in the order of the store, but for
        those of the roots that are left `alone` and of nobody far from the others."""
        left_out = self._said[NOBODY] | self._left_out
        faces = [f for f in self._faces if self._root(f) not in alone and f.stored.face_id not in left_out]
        self._read([f.stored.face_id for f in faces if f.stored.has_embedding])
        faces = [f for f in faces if f.stored.face_id in self.vectors]
        photos = _photos_of_several([f.stored for f in faces], self._twice_allowed)
        return [self._face_to_cluster(face, photo, gate, groups) for face, photo in zip(faces, photos, strict=True)]

    def _face_to_cluster(
        self, face: FaceToRegroup, photo: int, gate: MatchSettings, groups: Mapping[str, Group]
    ) -> ClusteredFace:
        stored, root = face.stored, self._root(face)
        held = root is not None and groups[root].held
        return ClusteredFace(
            face_id=stored.face_id,
            photo=photo,
            person_id=stored.person_id,
            root=root,
            fixed=root is not None and (stored.path is None or stored.face_id in self._said[IS]),
            reference=face.reference,
            founds=stored.path is None
            or (face.reference and held)
            or (not face.named and not failed_measures(face.qualities, gate)),
            barred=frozenset(self.roots[one] for one in self._is_not.get(stored.face_id, ())),
        )

    def _root(self, face: FaceToRegroup) -> str | None:
        person_id = face.stored.person_id
        return None if person_id is None else self.roots[person_id]

    def parents(self, changed: Changes) -> tuple[dict[str, str | None], list[list[str]]]:
        """The changed parents, by person; and the sets to merge, the new root first: one with a name, else with
        children, else the oldest."""
        parents = {person_id: record.parent_id for person_id, record in self.records.items()}
        group_of = {person_id: changed.group_of[root] for person_id, root in self.roots.items()}
        made: dict[str, str | None] = {}
        for person_id, parent_id in self._joined.items():
            if group_of[person_id] is not group_of[parent_id]:
                made[person_id] = None
        parents.update(made)
        tops: dict[int, dict[str, PersonRecord]] = {}
        for person_id, group in group_of.items():
            top = _top(person_id, parents)
            tops.setdefault(id(group), {})[top] = self.records[top]
        has_children = set(parents.values())
        joins = []
        for records in tops.values():
            if len(records) > 1:
                first, *others = sorted(
                    records.values(), key=lambda r: (not has_name(r), r.person_id not in has_children, r.seq)
                )
                made.update((other.person_id, first.person_id) for other in others)
                joins.append([first.person_id, *(other.person_id for other in others)])
        return made, joins

    def inherited(
        self, changed: Changes, moves: Mapping[int, str | None], new: Sequence[str], parents: Mapping[str, str | None]
    ) -> list[Fact]:
        """The not-same constraints of people, for `new` persons with faces of theirs and for those no longer joined
        with them: else these would be suggested again."""
        roots_of = {each: {self.roots[each]} for each in sorted(self._joined.keys() & parents.keys())}
        roots_of |= {each: set() for each in new}
        for face_id, person_id in moves.items():
            owner = self.stored[face_id].person_id
            if person_id is not None and person_id not in self.records and owner is not None:
                roots_of[person_id].add(self.roots[owner])
        sides: dict[int, list[str]] = defaultdict(list)
        for each, roots in roots_of.items():
            words = set[int]().union(*(self._words[root] for root in roots))
            for number in words - {-number for number in words}:
                sides[number].append(each)
        group_of = {person_id: id(changed.group_of[root]) for person_id, root in self.roots.items()}
        known = {(fact.person_id, fact.other_id) for fact in self._facts if fact.kind == NOT_SAME}
        found: dict[Fact, None] = {}
        for number, (one, other, said) in enumerate(self._two, 1):
            ones, others = sides[number], sides[-number]
            pairs = [*((each, other) for each in ones), *((one, each) for each in others)]
            pairs += product(ones, others) if len(ones) * len(others) <= _PAIRS else ()
            pairs = [pair for pair in pairs if pair[0] not in group_of or group_of[pair[0]] != group_of.get(pair[1])]
            found |= dict.fromkeys(two_people(*pair) for pair in pairs) if said is not None else {}
        return [fact for fact in found if (fact.person_id, fact.other_id) not in known]

    def needed(self, moves: Mapping[int, str | None], new: Set[str]) -> set[int]:
        """The faces that cannot move, because their persons would keep only faces without a vector; including those
        that must stay because others do, as all faces of a `new` person must."""
        losing = {self.stored[face_id].person_id for face_id in moves} - {None}
        own: dict[str | None, set[int]] = defaultdict(set)
        for face in self.stored.values():
            if face.person_id in losing:
                own[face.person_id].add(face.face_id)
        kept: set[int] = set()
        while True:
            getting = {person_id for face_id, person_id in moves.items() if face_id not in kept}
            more: set[int] = set()
            for person_id in losing - getting:
                leaving = {face_id for face_id in own[person_id] & moves.keys() if face_id not in kept}
                staying = own[person_id] - leaving
                if leaving and staying and not any(self.stored[face_id].has_embedding for face_id in staying):
                    more |= leaving
            if not more:
                return kept
            kept |= more
            unmade = new & {str(moves[face_id]) for face_id in kept}
            kept |= {face_id for face_id, person_id in moves.items() if person_id in unmade}

    def admitted(self, gate: MatchSettings) -> list[FaceToRegroup]:
        """The rejected faces that pass this gate and have no "nobody" constraint (theirs or a copy's)."""
        rejected = (f for f in self._faces if f.stored.outcome == "rejected")
        allowed = (f for f in rejected if f.stored.face_id not in self._said[NOBODY])
        return [f for f in allowed if not failed_measures(f.qualities, gate)]

    def take(
        self, faces: Sequence[FaceToRegroup], decoded: pa.Table, pictures: Pictures, model: str
    ) -> list[NotDecoded]:
        """Takes these faces' vectors by this model and their pictures from `decoded`. Returns the faces without."""
        by_place = {(row["sha256"], row["ordinal"]): row for row in decoded.to_pylist()}
        missed = []
        for face in faces:
            stored, row = face.stored, by_place.get((face.stored.sha256, face.ordinal), _CAME_SINCE)
            if row["embedding"] is not None and row["model"] not in (None, model):
                row = _OTHER_MODEL
            if row["embedding"] is None:
                missed.append(NotDecoded(stored.face_id, str(stored.path), row["reason"]))
                continue
            hashes = tuple(value for value in (stored.sha256, face.pixel_hash) if value is not None)
            box = (stored.x1, stored.y1, stored.x2, stored.y2)
            self.decoded[stored.face_id] = FaceVector(np.frombuffer(row["embedding"], "<f4"), hashes, box)
            self.stored[stored.face_id] = replace(stored, has_embedding=True)
            if row["crop"] is not None:
                pictures.add(stored.face_id, row["crop"])
        self.vectors.update(self.decoded)
        return missed


def _photos_of_several(faces: Sequence[StoredFace], twice_allowed: Set[str]) -> list[int]:
    """[n] The photo of each face if others of it are of other people, else -1. `twice_allowed`: hashes of photos."""
    allowed = {face.media_id for face in faces if face.sha256 in twice_allowed}
    photos = photos_with_rule([face.media_id for face in faces], [face.box for face in faces], allowed)
    counting = Counter(photos)
    return [photo if counting[photo] > 1 else -1 for photo in photos]


def _gate_of(plan: Plan, request: CorrectionRequest) -> MatchSettings:
    """The gate, with the threshold that the request gives, else the directory's, else the settings'."""
    gate = request.gate or MatchSettings()
    if request.typed.threshold is not None:
        return gate
    client = plan.client
    own = threshold_in_use(plan.directory.remembered, client.identity.calibration, client.generation)
    return gate if own is None else replace(gate, threshold=own)


def _method_of(plan: Plan, request: CorrectionRequest) -> RegroupSettings:
    """As `_gate_of`. A cut replaces a precision, and the other way around."""
    typed, own = request.typed, of_generation(plan.directory.remembered, plan.client.generation)
    made = request.method or RegroupSettings()
    made = replace(made, method=typed.method or own.method or made.method)
    for target in (typed, own):
        if target.cut is not None:
            return replace(made, cut=target.cut)
        if target.precision is not None:
            return replace(made, cut=None, precision=target.precision)
    return made


def _remembered(plan: Plan, request: CorrectionRequest, method: RegroupSettings) -> Remembered:
    """What the directory remembers from now on: what the request gives, else what it did."""
    made, typed, generation = plan.directory.remembered, request.typed, plan.client.generation
    if typed.cut is not None or not (typed.threshold or FMR).startswith(FMR):
        made = replace(of_generation(made, generation), threshold_generation=generation)  # one for both numbers
    if typed.threshold is not None:
        made = replace(made, threshold=typed.threshold)
    if typed.method == AVERAGE_LINK or typed.precision is not None or typed.cut is not None:
        made = replace(made, precision=None if method.cut is not None else method.precision, cut=method.cut)
    if made.cut is None and (made.threshold or FMR).startswith(FMR):
        made = replace(made, threshold_generation=None)
    return replace(made, method=typed.method or made.method)


def _top(person_id: str, parents: Mapping[str, str | None]) -> str:
    """The root of a person with these parents."""
    while (parent := parents[person_id]) is not None:
        person_id = parent
    return person_id
