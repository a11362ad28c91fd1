"""Recognising a photo that is dropped on the page, and enrolling one of its faces as the contract does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.config import MAX_THRESHOLD
from pipeline.people.decide import failed_measures
from pipeline.people.types import FaceResult, PersonView, PostRequest, PostResult
from pipeline.serve.person_parsing import person_headers
from pipeline.serve.request_parsing import Query
from pipeline.serve.responses import json_response
from pipeline.serve.ui.answers import box_fractions, gate_json, picture_address
from pipeline.serve.ui.context import Context, Visitor

_SIMILAR: Final = 24  # people that are told of each face, however little they are like it


@dataclass(frozen=True)
class Recognising:
    context: Context

    async def recognise(self, request: Request) -> Response:
        """Stores nothing. Raises ImageRejected, BodyTooLarge, Overloaded."""
        visitor = self.context.visitor(request)
        result = await self._posted(request, visitor, PostRequest(insert=False, update=False, similar_limit=_SIMILAR))
        return await self.context.answer(lambda: self._recognised(visitor, result))

    async def enrol(self, request: Request) -> Response:
        """Makes a person of the face nearest to a point, unless it is somebody's or too poor. Raises as `recognise`,
        and PersonHeadersRequired, ExternalIdTaken, TooManyDirectories."""
        visitor, query = self.context.visitor(request), Query(request)
        x, y = (query.number(axis, 1, has_default=False) for axis in ("x", "y"))
        said = person_headers(request)
        wish = PostRequest(name=said.name, external_id=said.external_id, update=False, closest_x=x, closest_y=y)
        result = await self._posted(request, visitor, wish)
        self.context.lists.forget(visitor.place)  # who came shows at once
        face = result.faces[0] if result.faces else None
        return json_response(self._enrolled(visitor, face), 201)

    async def _posted(self, request: Request, visitor: Visitor, wish: PostRequest) -> PostResult:
        async with self.context.bodies.image(request, visitor.session.account_id) as data:
            return await self.context.posts.run(lambda: self.context.service.post(*visitor.place, data, wish))

    def _recognised(self, visitor: Visitor, result: PostResult) -> dict[str, Any]:
        return {
            "width": result.width,
            "height": result.height,
            "threshold": self.context.settings.match.threshold,
            "rates": self.context.calibration.thresholds,
            "faces": [self._face(visitor, face, result) for face in result.faces],
        }

    def _face(self, visitor: Visitor, face: FaceResult, result: PostResult) -> dict[str, Any]:
        return {
            "box": box_fractions(face.face.box, result.width, result.height),
            "confidence": face.face.fields["confidence"],
            "quality": gate_json(*face.face.qualities),
            "failed": failed_measures(face.face.qualities, self.context.settings.match),
            **self._known(visitor, face),
            "similar": [
                {"person": _person(visitor, one.person), "score": one.score, "distance": self._distance(one.score)}
                for one in face.similar or ()
            ],
        }

    def _known(self, visitor: Visitor, face: FaceResult) -> dict[str, Any]:
        return {} if face.person is None else {"person": _person(visitor, face.person), "score": face.score}

    def _distance(self, score: float) -> float:
        """The contract distance of a score: two match at every T of at least its square."""
        return 2.0 - score * (2.0 - math.sqrt(min(self.context.settings.match.threshold, MAX_THRESHOLD)))

    def _enrolled(self, visitor: Visitor, face: FaceResult | None) -> dict[str, Any]:
        match = self.context.settings.match
        gate = {"gate": gate_json(match.min_cpq, match.min_fsq, match.min_fcq)}
        if face is None:
            return {"outcome": "no-face", "failed": [], **gate}
        outcome = "inserted" if face.inserted else "known" if face.person is not None else "refused"
        quality = {"quality": gate_json(*face.face.qualities)}
        return {"outcome": outcome, **self._known(visitor, face), "failed": face.rejected, **quality, **gate}


def _person(visitor: Visitor, view: PersonView) -> dict[str, Any]:
    pictures = (view.root.image_guid, *view.children_images)
    return {
        "id": view.root.person_id,
        **({} if view.root.name is None else {"name": view.root.name}),
        "picture": picture_address(visitor, next(filter(None, pictures), None)),
    }
