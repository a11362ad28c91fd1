"""The contract's JSON shapes: which keys are there, and what they hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from pipeline.config import ServeSettings
from pipeline.errors import UsageError
from pipeline.extraction.rows import ExtractedFace
from pipeline.identities.types import FaceResult, PersonView, PostResult, SimilarPerson
from pipeline.identities.views import epoch_ms
from pipeline.serve.responses import json_bytes
from pipeline.serve.serializer import ImageAddresses, Serializer
from pipeline.store.records import PersonRecord

DAY = datetime(2026, 1, 1, 0, 0, 0, 999_999)
SERIALIZER = Serializer(ImageAddresses("cvos://obj/"), "models")

ROOT = PersonRecord(
    person_id="root",
    seq=1,
    name=None,
    external_id=None,
    parent_id=None,
    tags=(),
    ignored=False,
    occurrence=1,
    last_occurrence_at=DAY,
    added_at=DAY,
    modified_at=DAY + timedelta(seconds=1),
    image_guid="g1",
)
CHILD = replace(
    ROOT, person_id="child", name="Kid", external_id="e", parent_id="root", tags=("a",), ignored=True, image_guid="g2"
)
BOX = {"x1": 10.0, "y1": 20.0, "x2": 30.0, "y2": 60.0}
FACE = ExtractedFace(
    {
        **BOX,
        "landmarks": [15.0, 30.0, 25.0, 30.0, 20.0, 40.0, 10.0, 60.0, 35.0, 15.0],
        "confidence": 0.9,
        "center_pose_quality": 0.1,
        "sharpness_quality": 0.2,
        "contrast_quality": 0.3,
    },
    np.zeros(4, np.float32),
    None,
)
ALWAYS = {"mediaId", "offsetX", "offsetY", "relativeWidth", "relativeHeight", "attributes", "tags"}


def view(record: PersonRecord, children: tuple[str, ...] = ()) -> PersonView:
    return PersonView(record, ROOT, children, 5, 777)


def entry(face: FaceResult) -> dict[str, object]:
    answer = SERIALIZER.post(PostResult([face], 100, 200, "media", False, 3))
    assert json_bytes(answer)
    fields: dict[str, object] = answer["identifiedFaces"][0]
    return fields


def test_a_time_is_in_whole_milliseconds() -> None:
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1, 500_999)) == 1500
    assert epoch_ms(DAY) == 1_767_225_600_999


def test_a_root_without_names_has_no_keys_for_them() -> None:
    assert SERIALIZER.record(view(ROOT)) == {
        "personId": "root",
        "rootPersonId": "root",
        "imageURI": "cvos://obj/g1",
        "occurrence": 5,
        "lastOccurrenceDate": 777,
        "rootPersonAddDate": epoch_ms(DAY),
        "addDate": epoch_ms(DAY),
        "modDate": epoch_ms(DAY) + 1000,
        "tags": [],
        "ignore": False,
    }


def test_a_root_shows_the_images_of_its_set() -> None:
    record = SERIALIZER.record(view(ROOT, ("g2", "g3")))
    assert record["unmergedImageURIs"] == ["cvos://obj/g2", "cvos://obj/g3"]
    assert "unmergedImageURI" not in record


def test_a_child_shows_its_own_image_beside_the_roots() -> None:
    record = SERIALIZER.record(view(CHILD))
    assert (record["imageURI"], record["unmergedImageURI"]) == ("cvos://obj/g1", "cvos://obj/g2")
    assert (record["personId"], record["rootPersonId"], record["name"], record["externalId"]) == (
        "child",
        "root",
        "Kid",
        "e",
    )
    assert (record["tags"], record["ignore"]) == (["a"], True)
    assert "unmergedImageURIs" not in record


def test_an_unknown_face_has_only_its_place() -> None:
    fields = entry(FaceResult(FACE))
    assert set(fields) == ALWAYS
    assert (fields["offsetX"], fields["offsetY"]) == (0.1, 0.1)
    assert (fields["relativeWidth"], fields["relativeHeight"]) == (0.2, 0.2)
    assert fields["tags"] == []


def test_attributes_are_of_the_face() -> None:
    attributes = entry(FaceResult(FACE))["attributes"]
    assert isinstance(attributes, dict)
    assert attributes["dimension"] == {"height": 40, "width": 20}
    assert attributes["landmarks"] == {
        "left-eye-center": {"x": 0.25, "y": 0.25},
        "right-eye-center": {"x": 0.75, "y": 0.25},
        "nose-tip": {"x": 0.5, "y": 0.5},
        "left-mouth-corner": {"x": 0.0, "y": 1.0},
        "right-mouth-corner": {"x": 1.25, "y": -0.125},
    }
    assert (attributes["centerPoseQuality"], attributes["sharpnessQuality"], attributes["contrastQuality"]) == (
        0.1,
        0.2,
        0.3,
    )


@pytest.mark.parametrize("inserted", [True, False])
def test_a_known_face_is_its_roots(inserted: bool) -> None:
    fields = entry(FaceResult(FACE, view(CHILD), 1.5, inserted=inserted))
    identity = {"personId", "similarityScore", "occurrence", "lastOccurrenceDate", "rootPersonAddDate"}
    assert set(fields) == ALWAYS | identity | ({"newId"} if inserted else set())
    assert fields["personId"] == "root"
    assert fields.get("newId") is (True if inserted else None)


def test_a_rejected_face_says_why() -> None:
    assert entry(FaceResult(FACE, rejected=("sharpness",)))["rejectionReasons"] == ["sharpness"]


def test_similar_is_there_when_it_was_asked_for() -> None:
    assert entry(FaceResult(FACE, similar=[]))["similar"] == []
    assert entry(FaceResult(FACE, similar=[SimilarPerson(view(CHILD), 0.5)]))["similar"] == [
        {"personId": "root", "similarityScore": 0.5, "ignore": False, "occurrence": 5, "lastOccurrenceDate": 777}
    ]


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, "cvos://obj/g"),
        ({"object_scheme": "faces"}, "faces://obj/g"),
        ({"public_url": "http://host:81/"}, "http://host:81/obj/g"),
        ({"hosting": "cloud", "public_url": "host"}, "https://host/obj/g"),
        ({"hosting": "cloud", "public_url": "https://host/a/", "object_scheme": "ehttps"}, "ehttps://host/a/obj/g"),
    ],
)
def test_image_addresses(settings: dict[str, str], address: str) -> None:
    assert ImageAddresses.from_settings(ServeSettings(**settings)).of("g") == address


def test_cloud_hosting_needs_its_address() -> None:
    with pytest.raises(UsageError, match="--public-url"):
        ImageAddresses.from_settings(ServeSettings(hosting="cloud"))
