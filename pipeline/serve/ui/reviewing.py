"""Pairs of people who may be one, and what a regroup would change, by this index or a newer one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from pipeline.errors import CorrectionImpossible, ParameterInvalid, ReindexMissing
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directory
from pipeline.people.suggestions import compared, suggestions, wider_threshold
from pipeline.serve.context import Json
from pipeline.serve.cursors import Key, cursor, place_after
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import Visit, stamp
from pipeline.serve.ui.people_list import PeopleList, cursor_at
from pipeline.store import CorrectionAnswer, LocalStore, Regrouping, Suggestion

_COUNT: Final = 40
_SHOWN: Final = 500  # pairs, and groups of faces, decided differently
_FACES: Final = 12  # shown of such a group
_ORDER: Final = "photos"  # people on most photos first
_CURSOR: Final = ["review"]
_FIRST: Final[Key] = ("", -1.0, 0.0, "", "")  # a cursor of people, and the rank of a pair among theirs


def pairs(visit: Visit) -> Json:
    """Suggestions, page by page: of as many people as take a few seconds, the likeliest first, then of the next ones.
    With `person`, of this person and everybody. Raises ParameterInvalid."""
    count, context, listed = visit.count(_COUNT), visit.context, visit.listed
    fmr = visit.query.number("fmr", 1, has_default=False)
    if fmr == 0:
        raise ParameterInvalid(name="fmr", expected="a number above 0, and at most 1")
    people, *rank = place_after(visit.query.text("after"), _CURSOR, _FIRST) or _FIRST
    rest, places = listed.walk(_ORDER, str(people) or None)
    person = visit.query.text("person")
    looked_at = [row.person_id for row in rest] if person is None else [one for one in [person] if one in places]
    with visit.service.directories.using(*visit.place) as directory:
        found = suggestions(
            context.store,
            directory,
            visit.match.threshold,
            looked_at,
            places if person is None else None,
            fmr=fmr,
        )
    likely = [pair for pair in found.pairs if {pair.one, pair.other} <= listed.rows.keys() and _rank(pair) > (*rank,)]
    shown, after = likely[:count], None
    if count < len(likely):
        after = cursor(_CURSOR, (people, *_rank(shown[-1])))
    elif found.looked_at < len(looked_at):
        after = cursor(_CURSOR, (cursor_at(_ORDER, rest[found.looked_at - 1]), *_FIRST[1:]))
    return {
        "pairs": _pairs_json(visit, listed, shown),
        **({} if after is None else {"next": after}),
        "left": len(likely) - len(shown),  # of those looked at
        "looked": found.looked_at,
        "total": len(places),
        "threshold": found.threshold,
        "wide": found.wider,
        **({} if context.store.newer_weights is None else {"newer": context.store.newer_weights}),
        "asOf": stamp(listed.as_of),
    }


def _rank(pair: Suggestion) -> Key:
    return float(not pair.same_name), -pair.score, pair.one, pair.other


def newer(visit: Visit) -> Json:
    """What a regroup by the newer index would change. Raises CorrectionImpossible if there is none, or it can't be
    swapped in now."""
    store = visit.context.store
    try:
        client = store.after_switch()
        found = _regrouping(visit, client, "newer", lambda: visit.people.swap_and_regroup(dry_run=True).regrouped)
    except ReindexMissing as exc:  # whose text has paths
        detail = "There is no newer index, it lacks faces, or a run is not finished."
        raise CorrectionImpossible(detail=detail) from exc
    return {"newer": client.identity.weights, **found}


def regroup(visit: Visit) -> Json:
    """What a regroup would change, also of people who were named or corrected, whom that of a run leaves alone. Raises
    CorrectionImpossible."""
    return _regrouping(visit, visit.context.store, "now", lambda: visit.people.regroup(dry_run=True))


def _regrouping(visit: Visit, client: LocalStore, by: str, decide: Callable[[], CorrectionAnswer | None]) -> Json:
    """Pairs of people that would be one, and faces that would move, by current and new person; of people whom an
    earlier regroup joined and this one would part only the number. `client`: of the vectors by which it decides."""
    listed = visit.listed  # before it is decided: what is corrected meanwhile is later than `asOf`
    found = _regrouped(visit, by, decide)
    rows = {one: row for one, row in listed.rows.items() if not row.hidden}  # people may have come since
    pairs = [(first, other) for first, *others in found.joins for other in others if first in rows and other in rows]
    matcher = Matcher(calibration := Calibration.from_dict(client.identity.calibration), found.threshold)
    wide = wider_threshold(calibration, found.threshold)
    with visit.service.directories.using(*visit.place) as directory:
        likely = compared(client, directory, pairs[:_SHOWN], matcher, wide)
        moves = _moved(visit, listed, directory, found)
    return {
        "pairs": _pairs_json(visit, listed, likely),
        "total": len(pairs),
        "moves": moves,
        "faces": len(found.moves),
        "parted": len(found.parted),
        "method": found.method,
        "asOf": stamp(listed.as_of),
    }


def _regrouped(visit: Visit, by: str, decide: Callable[[], CorrectionAnswer | None]) -> Regrouping:
    """A dry run of a regroup, which takes minutes for a large directory; the last one if nothing changed since. One
    thread at a time calls this."""
    with visit.service.directories.using(*visit.place) as directory:
        version = by, visit.place, visit.context.store.generation, directory.changed
    if version not in visit.context.regrouped:
        answer = decide()
        assert answer is not None
        assert answer.regrouping is not None
        visit.context.regrouped.clear()
        visit.context.regrouped[version] = answer.regrouping
    return visit.context.regrouped[version]


def _moved(visit: Visit, listed: PeopleList, directory: Directory, found: Regrouping) -> list[Json]:
    """The faces that would move together, the most first: `from` a person or nobody `to` a person, with the record
    that they are in and would be in; or to somebody new, `new` being equal for the same one; or to nobody."""
    groups: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for move in found.moves:
        groups[move.before, move.after].append(move.face_id)
    roots = {one: directory.root_id(one) for pair in groups for one in pair if one is not None}
    apart = [(*pair, faces) for pair, faces in groups.items() if roots.get(pair[0] or "") != roots.get(pair[1] or "")]
    shown = sorted(apart, key=lambda group: -len(group[2]))[:_SHOWN]
    wanted = {roots[one] for before, after, _ in shown for one in (before, after) if one is not None}
    rows = [listed.rows[one] for one in wanted if one in listed.rows]
    people = {row.person_id: each for row, each in zip(rows, people_json(visit, rows), strict=True)}
    first = [face_id for *_, faces in shown for face_id in faces[:_FACES]]
    faces_of = {row["face_id"]: row for row in visit.context.store.faces_by_id(first).to_pylist()}
    new = set(found.new)

    def end(name: str, record: str | None) -> Json:
        if record in new:
            return {"new": record}
        who = None if record is None else people.get(roots[record])
        return {} if who is None else {name: who, f"{name}Record": record}

    return [
        {
            **end("from", before),
            **end("to", after),
            "ids": faces,
            "faces": [face_json(visit, faces_of[one]) for one in faces[:_FACES] if one in faces_of],
        }
        for before, after, faces in shown
    ]


def _pairs_json(visit: Visit, listed: PeopleList, pairs: Sequence[Suggestion]) -> list[Json]:
    shown = [*dict.fromkeys(one for pair in pairs for one in (pair.one, pair.other))]
    people = dict(zip(shown, people_json(visit, [listed.rows[one] for one in shown]), strict=True))
    wanted = {face for pair in pairs for faces in pair.faces for face in faces}
    rows = visit.context.store.faces_by_id(sorted(wanted)).to_pylist()
    faces = {row["face_id"]: face_json(visit, row) for row in rows}
    return [
        {
            "one": people[pair.one],
            "other": people[pair.other],
            "score": pair.score,
            "reasons": pair.reasons,
            "oneFaces": [faces[one] for one in pair.faces[0] if one in faces],
            "otherFaces": [faces[one] for one in pair.faces[1] if one in faces],
        }
        for pair in pairs
    ]
