"""The JSON schemas of answers and bodies for the OpenAPI description."""

from __future__ import annotations

from typing import Any, Final

from pipeline.serve.person_parsing import MAX_TAGS
from pipeline.serve.request_parsing import MAX_MERGED
from pipeline.serve.serializer import LANDMARK_NAMES
from pipeline.texts import MAX_TEXT

Json = dict[str, Any]

_TEXT: Final[Json] = {"type": "string"}
_ID: Final[Json] = {"type": "string", "format": "uuid"}
_WHOLE: Final[Json] = {"type": "integer"}
_FLAG: Final[Json] = {"type": "boolean"}
_TIME: Final[Json] = {"type": "integer", "description": "Epoch milliseconds."}
_SCORE: Final[Json] = {"type": "number", "minimum": 0, "description": "1.0 or more is a match."}
_UNIT: Final[Json] = {"type": "number", "minimum": 0, "maximum": 1}
_NUMBER: Final[Json] = {"type": "number"}
_TAGS: Final[Json] = {"type": "array", "items": _TEXT}
_GIVEN_TEXT: Final[Json] = {"type": ["string", "null"], "maxLength": MAX_TEXT}


def _object(required: str, **properties: Json) -> Json:
    """An object with these properties and no others. `required` lists the names of those that are always there."""
    return {
        "type": "object",
        "properties": {name.replace("_", "-"): schema for name, schema in properties.items()},
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(name: str) -> Json:
    return {"type": "array", "items": _ref(name)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_REASON: Final[Json] = {"type": "string", "enum": ["center-pose", "sharpness", "contrast"]}
_POINT: Final = _object("x y", x=_NUMBER, y=_NUMBER)
_CHANGES: Final[Json] = {
    "name": _GIVEN_TEXT,
    "firstName": _GIVEN_TEXT,
    "lastName": _GIVEN_TEXT,
    "externalId": _GIVEN_TEXT,
    "tags": {"type": ["array", "null"], "items": {"type": "string", "maxLength": MAX_TEXT}, "maxItems": MAX_TAGS},
    "ignore": {"type": ["boolean", "null"]},
}
_IDS: Final[Json] = {"type": "array", "items": _ID, "minItems": 1, "maxItems": MAX_MERGED}

SCHEMAS: Final[dict[str, Json]] = {
    "PostAnswer": _object(
        "accountUpdated detectionTime identifiedFaces",
        accountUpdated=_FLAG,
        detectionTime=_WHOLE,
        identifiedFaces=_list("IdentifiedFace"),
    ),
    "IdentifiedFace": _object(
        "attributes mediaId offsetX offsetY relativeWidth relativeHeight tags",
        personId={**_ID, "description": "Of the record that was inserted, else of the root."},
        rootPersonId=_ID,
        personExternalId=_TEXT,
        externalId=_TEXT,
        name=_TEXT,
        firstName=_TEXT,
        lastName=_TEXT,
        similarityScore=_SCORE,
        newId={"type": "boolean", "description": "Only ever true."},  # generators stumble over a const
        attributes=_ref("Attributes"),
        lastOccurrenceDate=_TIME,
        mediaId=_TEXT,
        occurrence=_WHOLE,
        offsetX=_UNIT,
        offsetY=_UNIT,
        relativeWidth=_UNIT,
        relativeHeight=_UNIT,
        rootPersonAddDate=_TIME,
        similar=_list("Similar"),
        tags=_TAGS,
        rejectionReasons={"type": "array", "items": _REASON},
        conflict={
            "type": "string",
            "enum": ["external-id", "name", "person", "stated-two-people"],
            "description": "Nobody was updated: the headers call the match somebody else, or it is not the one named."
            " Or `merge-with` merged nobody, because a user stated that these are two people.",
        },
    ),
    "Attributes": _object(
        "centerPoseQuality sharpnessQuality contrastQuality confidence detectionVersion dimension landmarks provider",
        centerPoseQuality=_UNIT,
        sharpnessQuality=_UNIT,
        contrastQuality=_UNIT,
        confidence=_UNIT,
        detectionVersion=_WHOLE,
        dimension=_object("height width", height=_WHOLE, width=_WHOLE),
        landmarks={
            "type": "object",
            "properties": dict.fromkeys(LANDMARK_NAMES, _POINT),
            "required": list(LANDMARK_NAMES),
        },
        provider=_TEXT,
    ),
    "Similar": _object(
        "similarityScore ignore occurrence lastOccurrenceDate",
        personId=_ID,
        rootPersonId=_ID,
        name=_TEXT,
        firstName=_TEXT,
        lastName=_TEXT,
        externalId=_TEXT,
        similarityScore=_SCORE,
        ignore=_FLAG,
        occurrence=_WHOLE,
        lastOccurrenceDate=_TIME,
    ),
    "Person": _object(
        "personId rootPersonId imageURI occurrence lastOccurrenceDate rootPersonAddDate addDate modDate tags ignore",
        personId=_ID,
        rootPersonId=_ID,
        name=_TEXT,
        firstName=_TEXT,
        lastName=_TEXT,
        externalId=_TEXT,
        imageURI=_TEXT,
        unmergedImageURIs={"type": "array", "items": _TEXT, "minItems": 1},
        unmergedImageURI=_TEXT,
        occurrence=_WHOLE,
        lastOccurrenceDate=_TIME,
        rootPersonAddDate=_TIME,
        addDate=_TIME,
        modDate=_TIME,
        tags=_TAGS,
        ignore=_FLAG,
    )
    | {"additionalProperties": True, "description": "With what else clients keep of the person."},
    "People": _object("people", people=_list("Person")),
    "PeoplePage": _object(
        "people personCollectionResponse", people=_list("Person"), personCollectionResponse=_ref("Page")
    ),
    "Page": _object(
        "startIndex countReturned totalCount",
        startIndex=_WHOLE,
        nextIndexState={"type": "string", "description": "Absent on the last page."},
        countReturned=_WHOLE,
        totalCount=_WHOLE,
    ),
    "PersonChange": {
        "type": "object",
        "properties": _CHANGES,
        "additionalProperties": True,
        "description": "Fields that the server computes are ignored; any other is kept as it was sent.",
    },
    "PersonIds": {"type": "object", "properties": {"personIds": _IDS}, "required": ["personIds"]},
    "Merge": {
        "type": "object",
        "properties": {"personIds": _IDS, **_CHANGES},
        "required": ["personIds"],
        "additionalProperties": True,
        "description": "Other fields than the ids change the root, as in PersonChange.",
    },
    "Accepted": _object(""),
    "ImageKey": _object("key", key={"type": "string", "description": "32 bytes in base64."}),
    "Status": _object("status", status=_TEXT),
    "Ready": _object(
        "status",
        status=_TEXT,
        calibration={
            "type": "string",
            "enum": ["none"],
            "description": "Only where the store's distances are not calibrated, as `warning`.",
        },
        warning=_TEXT,
    ),
    "Error": _object(
        "error errorReason message path status timestamp verb",
        error=_TEXT,
        errorReason={"type": "string", "description": "The stable name of the error."},
        message=_TEXT,
        path=_TEXT,
        status=_WHOLE,
        timestamp=_TIME,
        verb=_TEXT,
    ),
}
