"""Pairs of people who may be one, and decisions that the newer index would change."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from pipeline.errors import CorrectionImpossible, ParameterInvalid, ReindexMissing
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directory
from pipeline.people.review import WIDER_FMR, LikelyPair, compared, review, wider_threshold
from pipeline.serve.context import Json
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import Visit, stamp
from pipeline.serve.ui.people_list import PeopleList, cursor_at
from pipeline.store import Regrouping

_COUNT: Final = 40
_SHOWN: Final = 500  # pairs, and groups of faces, decided differently
_FACES: Final = 12  # shown of such a group
_ORDER: Final = "photos"  # people on most photos first


def pairs(visit: Visit) -> Json:
    context = visit.context
    count, after = visit.count(_COUNT), visit.query.text("after")
    fmr = visit.query.number("fmr", 1, has_default=False)
    if fmr == 0:
        raise ParameterInvalid(name="fmr", expected="a number above 0, and at most 1")
    threshold = visit.match.threshold
    wide = wider_threshold(context.calibration, threshold, WIDER_FMR if fmr is None else fmr)
    listed = visit.listed
    rest, place_of = listed.walk(_ORDER, after)
    with visit.service.directories.using(*visit.place) as directory:
        likely, walked = review(
            context.store,
            directory,
            [row.person_id for row in rest],
            place_of,
            narrow=Matcher(context.calibration, threshold),
            wide=Matcher(context.calibration, wide),
            count=count,
        )
    more = walked < len(rest)
    return {
        "pairs": [_pair(visit, listed, pair) for pair in likely],
        **({"next": cursor_at(_ORDER, rest[walked - 1])} if more else {}),
        "looked": walked,
        "total": len(place_of),
        "threshold": threshold,
        "wide": wide,
        **({} if context.store.newer_weights is None else {"newer": context.store.newer_weights}),
        "asOf": stamp(listed.as_of),
    }


def newer(visit: Visit) -> Json:
    """What a regroup by the newer index would change: pairs of people that would be one, and faces that would move, by
    current and new person; of people whom an earlier regroup joined and this one would part only the number. It decides
    the whole directory, which can take minutes, and changes nothing. Raises CorrectionImpossible if there is no newer
    index, or it can't be swapped in now."""
    listed = visit.listed
    try:
        client = visit.context.store.after_switch()
        identity, found = client.identity, _regrouped(visit)
    except ReindexMissing as exc:  # whose text has paths
        detail = "There is no newer index, it lacks faces, or a run is not finished."
        raise CorrectionImpossible(detail=detail) from exc
    rows = {one: row for one, row in listed.rows.items() if not row.hidden}  # people may have come since
    pairs = [(first, other) for first, *others in found.joins for other in others if first in rows and other in rows]
    matcher = Matcher(Calibration.from_dict(identity.calibration), found.threshold)
    with visit.service.directories.using(*visit.place) as directory:
        likely = compared(client, directory, pairs[:_SHOWN], matcher)
        moves = _moved(visit, listed, directory, found)
    return {
        "newer": identity.weights,
        "pairs": [_pair(visit, listed, pair) for pair in likely],
        "total": len(pairs),
        "moves": moves,
        "faces": len(found.moves),
        "parted": len(found.parted),
        "threshold": found.threshold,
        "asOf": stamp(listed.as_of),
    }


def _regrouped(visit: Visit) -> Regrouping:
    """A dry run of the regroup; the last one if nothing changed since. One thread at a time calls this."""
    with visit.service.directories.using(*visit.place) as directory:
        version = visit.place, visit.context.store.generation, directory.changed
    if version not in visit.context.regrouped:
        answer = visit.people.swap_and_regroup(dry_run=True).regrouped
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


def _pair(visit: Visit, listed: PeopleList, pair: LikelyPair) -> Json:
    one, other = people_json(visit, [listed.rows[pair.one], listed.rows[pair.other]])
    one_faces, other_faces = ([face_json(visit, row) for row in faces] for faces in pair.faces)
    return {
        "one": one,
        "other": other,
        "score": pair.score,
        "best": pair.best,
        "compared": pair.compared,
        "together": pair.together,
        "oneFaces": one_faces,
        "otherFaces": other_faces,
    }
