"""Examples for the OpenAPI description: answers of a real server, and an error for each status."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from pipeline.config import THRESHOLD_RULE
from pipeline.errors import (
    BodyTimeout,
    BodyTooLarge,
    ExternalIdTaken,
    FacepipeError,
    HeaderInvalid,
    HostUnknown,
    MediaTypeUnsupported,
    ObjectReplaced,
    Overloaded,
    PersonUnknown,
    TooManyAttempts,
    Unauthorized,
)

Json = dict[str, Any]

PERSON_ID: Final = "8a1f0a5e-1c34-4f0e-9b8e-2b7d9f6d3a10"
OTHER_ID: Final = "0d5cbd0b-6f8e-4f63-8f5e-5e0a3c1b7b42"
GUID: Final = "5f0c7bd29e6d4d0f8b1c7a3e2d9f4a61"
OTHER_GUID: Final = "c19d4b8e07f34a52a6d8e1f0b3c25d7e"
IMAGE_KEY: Final[Json] = {"key": "3q2+7wABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhs="}
PERSON_CHANGE: Final[Json] = {"name": "Rear Admiral Grace Hopper", "tags": ["navy"], "personType": "staff"}
PERSON_IDS: Final[Json] = {"personIds": [PERSON_ID, OTHER_ID]}

_TIME: Final = 1_790_000_000_000

_PLACE: Final[Json] = {
    "mediaId": "7b6fbd7e-3c5e-5f0b-0c39-64a2d5f5a3b1",
    "offsetX": 0.3481,
    "offsetY": 0.1587,
    "relativeWidth": 0.3127,
    "relativeHeight": 0.3593,
    "attributes": {
        "centerPoseQuality": 0.9021,
        "sharpnessQuality": 0.7314,
        "contrastQuality": 0.8456,
        "confidence": 0.9999,
        "detectionVersion": 1,
        "dimension": {"height": 216, "width": 160},
        "landmarks": {
            "left-eye-center": {"x": 0.3092, "y": 0.3914},
            "right-eye-center": {"x": 0.7581, "y": 0.3958},
            "nose-tip": {"x": 0.5432, "y": 0.5872},
            "left-mouth-corner": {"x": 0.3345, "y": 0.7801},
            "right-mouth-corner": {"x": 0.7266, "y": 0.7834},
        },
        "provider": "mtcnn, inception-resnet-v1/casia-webface",
    },
    "tags": [],
}
_WHO: Final[Json] = {
    "personId": PERSON_ID,
    "rootPersonId": PERSON_ID,
    "personExternalId": "employee-1815",
    "externalId": "employee-1815",
    "name": "Grace Hopper",
    "rootPersonAddDate": _TIME,
}
_SIMILAR: Final[Json] = {
    "personId": PERSON_ID,
    "rootPersonId": PERSON_ID,
    "name": "Grace Hopper",
    "externalId": "employee-1815",
    "similarityScore": 1.2816,
    "ignore": False,
    "occurrence": 2,
    "lastOccurrenceDate": _TIME + 60_000,
}


def _post(entry: Json, *, updated: bool) -> Json:
    return {"accountUpdated": updated, "detectionTime": 84, "identifiedFaces": [entry]}


POSTS: Final[Json] = {
    "inserted": _post(
        {**_WHO, **_PLACE, "newId": True, "similarityScore": 1.5809, "occurrence": 1, "lastOccurrenceDate": _TIME},
        updated=True,
    ),
    "recognised": _post(
        {
            **_WHO,
            **_PLACE,
            "similarityScore": 1.2816,
            "occurrence": 2,
            "lastOccurrenceDate": _TIME + 60_000,
            "similar": [_SIMILAR],
        },
        updated=False,
    ),
    "somebody else by name": _post(
        {**_WHO, **_PLACE, "similarityScore": 1.0712, "occurrence": 3, "lastOccurrenceDate": _TIME, "conflict": "name"},
        updated=False,
    ),
    "unknown": _post({**_PLACE, "similar": [{**_SIMILAR, "similarityScore": 0.5123}]}, updated=False),
    "quality too low": _post({**_PLACE, "rejectionReasons": ["sharpness"]}, updated=False),
    "no face": {"accountUpdated": False, "detectionTime": 61, "identifiedFaces": []},
}
_RECORD: Final[Json] = {
    "personId": PERSON_ID,
    "rootPersonId": PERSON_ID,
    "name": "Grace Hopper",
    "firstName": "Grace",
    "lastName": "Hopper",
    "externalId": "employee-1815",
    "imageURI": f"cvos://obj/{GUID}",
    "unmergedImageURIs": [f"cvos://obj/{OTHER_GUID}"],
    "occurrence": 2,
    "lastOccurrenceDate": _TIME + 60_000,
    "rootPersonAddDate": _TIME,
    "addDate": _TIME,
    "modDate": _TIME,
    "tags": [],
    "ignore": False,
    "personType": "staff",
}
PEOPLE: Final[Json] = {"people": [_RECORD]}
PEOPLE_PAGE: Final[Json] = {
    **PEOPLE,
    "personCollectionResponse": {"startIndex": 0, "countReturned": 1, "totalCount": 1},
}

_ERRORS: Final[dict[int, FacepipeError]] = {
    400: HeaderInvalid(name="X-RPC-FACES-GROUPING-THRESHOLD", expected=THRESHOLD_RULE),
    401: Unauthorized(),
    404: PersonUnknown(),
    408: BodyTimeout(timeout_s=30, bytes_per_s=1024),
    409: ExternalIdTaken(),
    410: ObjectReplaced(),
    413: BodyTooLarge(limit_bytes=33_554_432),
    415: MediaTypeUnsupported(expected="application/octet-stream or image/*"),
    421: HostUnknown(),
    429: TooManyAttempts(retry_after_s=42),
    503: Overloaded(retry_after_s=1),
}
_HIDDEN: Final = "The server could not do this. Its log says why, under 5f0c7bd29e6d4d0f."
_PRIVATE_ERRORS: Final[dict[int, tuple[str, str]]] = {
    403: ("too-many-directories", "The account holds as many directories as it may; nothing was stored."),
    431: ("headers-too-large", "The headers are larger than 65536 bytes."),
    500: ("unexpected", _HIDDEN),
    507: ("store-full", _HIDDEN),
}


def error(status: int) -> Json:
    """An error answer with this status."""
    public = _ERRORS.get(status)
    reason, message = (public.code, str(public)) if public else _PRIVATE_ERRORS[status]
    return {
        "error": HTTPStatus(status).phrase,
        "errorReason": reason,
        "message": message,
        "path": "/people",
        "status": status,
        "timestamp": _TIME,
        "verb": "POST",
    }
