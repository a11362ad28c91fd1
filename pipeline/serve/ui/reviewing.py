"""Pairs of people to look at: may they be one?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.config import EVERYBODY, MAX_THRESHOLD
from pipeline.errors import ParameterInvalid
from pipeline.matching.match import Matcher
from pipeline.people.review import LikelyPair
from pipeline.serve.request_parsing import Query
from pipeline.serve.ui.answers import face_json, people_json
from pipeline.serve.ui.context import Context, Visitor, count_of, stamp
from pipeline.serve.ui.people_list import PeopleList, cursor

_COUNT: Final = 40
_FMR: Final = 1e-3
_WIDER: Final = 1.25  # times T, where no table tells the T of a rate
_ORDER: Final = "photos"  # those whom most photos show have their turn first


@dataclass(frozen=True)
class Reviewing:
    context: Context

    async def pairs(self, request: Request) -> Response:
        visitor, query = self.context.visitor(request), Query(request)
        count, after = count_of(query, _COUNT), query.text("after")
        fmr = query.number("fmr", 1, has_default=False)
        if fmr == 0:
            raise ParameterInvalid(name="fmr", expected="a number above 0, and at most 1")
        wide = self._wide(_FMR if fmr is None else fmr)

        def work() -> dict[str, Any]:
            listed = self.context.listed(visitor)
            rest, place_of = listed.walk(_ORDER, after)
            narrow, wider = (Matcher(self.context.calibration, threshold) for threshold in (self._threshold, wide))
            found = self.context.service.review(
                *visitor.place, [row.person_id for _, row in rest], place_of, narrow=narrow, wide=wider, count=count
            )
            more = found.walked < len(rest)
            return {
                "pairs": [self._pair(visitor, listed, pair) for pair in found.pairs],
                **({"next": cursor(_ORDER, rest[found.walked - 1][0])} if more else {}),
                "looked": found.walked,
                "total": len(place_of),
                "threshold": self._threshold,
                "wide": wide,
                "asOf": stamp(listed.as_of),
            }

        return await self.context.answer(work)

    @property
    def _threshold(self) -> float:
        return self.context.settings.match.threshold

    def _wide(self, fmr: float) -> float:
        """The T of a false match rate, as far as the calibration tells it, and never below the threshold."""
        wide = self.context.calibration.threshold_near(fmr)
        if wide is None or self._threshold == EVERYBODY:
            wide = _WIDER * self._threshold
        return max(self._threshold, min(wide, MAX_THRESHOLD))

    def _pair(self, visitor: Visitor, listed: PeopleList, pair: LikelyPair) -> dict[str, Any]:
        one, other = people_json(self.context, visitor, [listed.rows[pair.one], listed.rows[pair.other]])
        one_faces, other_faces = ([face_json(self.context, visitor, row) for row in faces] for faces in pair.faces)
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
