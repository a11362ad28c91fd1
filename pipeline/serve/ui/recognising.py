"""Recognises a photo dropped on the web UI, and enrols one of its faces as the contract does."""

from __future__ import annotations

import math
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.config import MAX_THRESHOLD
from pipeline.errors import NameTaken
from pipeline.people.decide import failed_measures
from pipeline.people.types import FaceResult, PersonView, PostRequest, PostResult
from pipeline.serve.context import Json
from pipeline.serve.person_parsing import person_headers
from pipeline.serve.request_parsing import checked_person_id
from pipeline.serve.responses import json_response
from pipeline.serve.ui.answers import box_fractions, gate_json, people_json, picture_address
from pipeline.serve.ui.context import PageContext, Visit

_SIMILAR: Final = 24  # people listed per face, however dissimilar


async def recognise(context: PageContext, request: Request) -> Response:
    """Stores nothing. Raises ImageRejected, BodyTooLarge, Overloaded."""
    visit = await context.visit(request)
    wish = PostRequest(insert=False, update=False, similar_limit=_SIMILAR)
    async with context.bodies.image(request, visit.account_id) as data:
        return await context.answer(
            lambda: _recognised(visit, visit.service.post(*visit.place, data, wish)), context.posts
        )


async def enrol(context: PageContext, request: Request) -> Response:
    """Makes a person of the face nearest to a point, unless it matches somebody or fails the gate; with `person` merges
    the new one with this person. Raises as `recognise`, and NameTaken unless `anyway`, PersonHeadersRequired,
    ExternalIdTaken, PersonUnknown, TooManyDirectories."""
    visit = await context.visit(request)
    x, y = (visit.query.number(axis, 1, has_default=False) for axis in ("x", "y"))
    said, person = person_headers(request), visit.query.text("person")
    anyway = visit.query.flag("anyway", False)
    wish = PostRequest(
        name=said.name,
        external_id=said.external_id,
        update=False,
        closest_x=x,
        closest_y=y,
        merge_with=None if person is None else checked_person_id(person),
        by_user=True,
    )

    def enrolled() -> Response:
        if said.name and not (person or anyway) and (taken := visit.listed.named(said.name)):
            raise NameTaken(people=people_json(visit, taken))
        result = visit.service.post(*visit.place, data, wish)
        if result.correction_id is not None:
            visit.session.note(visit.directory, result.correction_id, undoable=True)
        return json_response(_enrolled(visit, result), 201)

    async with context.bodies.image(request, visit.account_id) as data:
        return await context.answer(enrolled, context.posts)


def _recognised(visit: Visit, result: PostResult) -> Json:
    return {
        "width": result.width,
        "height": result.height,
        "threshold": visit.match.threshold,
        "rates": visit.context.calibration.thresholds,
        "faces": [_face(visit, face, result) for face in result.faces],
    }


def _face(visit: Visit, face: FaceResult, result: PostResult) -> Json:
    match = visit.match
    # Contract distances: two faces match at every T of at least their squared distance.
    per_score = 2.0 - math.sqrt(min(match.threshold, MAX_THRESHOLD))
    return {
        "box": box_fractions(face.face.box, result.width, result.height),
        "confidence": face.face.fields["confidence"],
        "quality": gate_json(*face.face.qualities),
        "failed": failed_measures(face.face.qualities, match),
        **_known(visit, face),
        "similar": [
            {"person": _person(visit, one.person), "score": one.score, "distance": 2.0 - one.score * per_score}
            for one in face.similar or ()
        ],
    }


def _enrolled(visit: Visit, result: PostResult) -> Json:
    match, face = visit.match, next(iter(result.faces), None)
    gate = {"gate": gate_json(match.min_cpq, match.min_fsq, match.min_fcq)}
    if face is None:
        return {"outcome": "no-face", "failed": [], **gate}
    outcome = "inserted" if face.inserted else "known" if face.person is not None else "refused"
    quality = {"quality": gate_json(*face.face.qualities)}
    correction = {"correction": result.correction_id}
    return {"outcome": outcome, **correction, **_known(visit, face), "failed": face.rejected, **quality, **gate}


def _known(visit: Visit, face: FaceResult) -> Json:
    return {} if face.person is None else {"person": _person(visit, face.person), "score": face.score}


def _person(visit: Visit, view: PersonView) -> Json:
    pictures = (view.root.image_guid, *view.children_images)
    return {
        "id": view.root.person_id,
        **({} if view.root.name is None else {"name": view.root.name}),
        "picture": picture_address(visit, next(filter(None, pictures), None)),
    }
