"""Pairs of people who may be one, and decisions that the newer index would change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Final

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.errors import CorrectionImpossible, ParameterInvalid, ReindexMissing
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.people.directory import Directory
from pipeline.people.review import LikelyPair, compared, review
from pipeline.serve.context import Json
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import PageContext, Visit, stamp
from pipeline.serve.ui.people_list import PeopleList, cursor_at
from pipeline.store import FaceMove

_COUNT: Final = 40
_FMR: Final = 1e-3
_WIDER: Final = 1.25  # times T, if no table has the rate
_SHOWN: Final = 500  # pairs, and groups of faces, decided differently
_FACES: Final = 12  # of such a group
_ORDER: Final = "photos"  # people on most photos first


def pairs(visit: Visit) -> Json:
    context = visit.context
    count, after = visit.count(_COUNT), visit.query.text("after")
    fmr = visit.query.number("fmr", 1, has_default=False)
    if fmr == 0:
        raise ParameterInvalid(name="fmr", expected="a number above 0, and at most 1")
    threshold, wide = context.service.match.threshold, _wide(context, _FMR if fmr is None else fmr)
    listed = visit.listed
    rest, place_of = listed.walk(_ORDER, after)
    with visit.service.directories.using(*visit.place) as directory:
        found = review(
            context.store,
            directory,
            [row.person_id for row in rest],
            place_of,
            narrow=Matcher(context.calibration, threshold),
            wide=Matcher(context.calibration, wide),
            count=count,
        )
    more = found.walked < len(rest)
    return {
        "pairs": [_pair(visit, listed, pair) for pair in found.pairs],
        **({"next": cursor_at(_ORDER, rest[found.walked - 1])} if more else {}),
        "looked": found.walked,
        "total": len(place_of),
        "threshold": threshold,
        "wide": wide,
        **({} if context.store.newer_weights is None else {"newer": context.store.newer_weights}),
        "asOf": stamp(listed.as_of),
    }


def newer(visit: Visit) -> Json:
    """What a regroup by the newer index would change: pairs of people that would be one, and faces that would move, by
    current and new person. It decides the whole directory, which can take minutes, and changes nothing. Raises
    CorrectionImpossible if there is no newer index, or it lacks faces."""
    listed = visit.listed
    try:
        switched = visit.people.swap_and_regroup(dry_run=True)
    except ReindexMissing as exc:
        raise CorrectionImpossible(detail=str(exc)) from exc
    assert switched.regrouped is not None
    found = switched.regrouped.regrouping
    assert found is not None
    client = visit.context.store.after_switch()
    matcher = Matcher(Calibration.from_dict(client.identity.calibration), found.threshold)
    rows = listed.rows  # some may be newer than the list
    pairs = [(first, other) for first, *others in found.joins for other in others if first in rows and other in rows]
    with visit.service.directories.using(*visit.place) as directory:
        likely = compared(client, directory, pairs[:_SHOWN], matcher)
        moves = [_moved(visit, directory, found.new, part) for part in islice(_by_people(found.moves), _SHOWN)]
    return {
        "newer": switched.weights,
        "pairs": [_pair(visit, listed, pair) for pair in likely],
        "total": len(pairs),
        "moves": moves,
        "faces": len(found.moves),
        "threshold": found.threshold,
        "asOf": stamp(listed.as_of),
    }


def _by_people(moves: Sequence[FaceMove]) -> list[list[FaceMove]]:
    """The moves grouped by (before, after) person, the largest group first."""
    groups: dict[tuple[str | None, str | None], list[FaceMove]] = defaultdict(list)
    for move in moves:
        groups[move.before, move.after].append(move)
    return sorted(groups.values(), key=len, reverse=True)


def _moved(visit: Visit, directory: Directory, new: Sequence[str], moves: Sequence[FaceMove]) -> Json:
    """Faces that would move together. `to` is absent if it would be somebody new, or nobody."""
    first, rows = moves[0], visit.listed.rows
    before, after = (None if one is None else rows.get(directory.root_id(one)) for one in (first.before, first.after))
    faces = visit.context.store.faces_by_id([move.face_id for move in moves[:_FACES]]).to_pylist()
    return {
        **({} if before is None else {"from": people_json(visit, [before])[0], "record": first.before}),
        **({} if after is None else {"to": people_json(visit, [after])[0]}),
        "new": first.after in new,
        "ids": [move.face_id for move in moves],
        "faces": [face_json(visit, row) for row in faces],
    }


def _wide(context: PageContext, fmr: float) -> float:
    """The T of a false match rate, as far as the calibration has it, and at least the threshold."""
    threshold, wide = context.service.match.threshold, context.calibration.threshold_near(fmr)
    if wide is None or threshold == EVERYBODY:
        wide = _WIDER * threshold
    return max(threshold, min(wide, MAX_THRESHOLD))


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
