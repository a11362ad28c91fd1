"""Pairs of people to look at: may they be one?"""

from __future__ import annotations

from typing import Final

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.errors import ParameterInvalid
from pipeline.matching.match import Matcher
from pipeline.people.review import LikelyPair, review
from pipeline.serve.context import Json
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import PageContext, Visit, stamp
from pipeline.serve.ui.people_list import PeopleList, cursor_at

_COUNT: Final = 40
_FMR: Final = 1e-3
_WIDER: Final = 1.25  # times T, where no table tells the T of a rate
_ORDER: Final = "photos"  # those whom most photos show have their turn first


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
        "asOf": stamp(listed.as_of),
    }


def _wide(context: PageContext, fmr: float) -> float:
    """The T of a false match rate, as far as the calibration tells it, and never below the threshold."""
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
