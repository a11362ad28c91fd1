"""The contract's JSON, exactly: times, places, addresses. The conformance tests prove which keys are there."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from pipeline.config import ServeSettings
from pipeline.errors import UsageError
from pipeline.extraction.rows import ExtractedFace
from pipeline.people.types import FaceResult, PersonView, PostResult
from pipeline.people.views import epoch_ms
from pipeline.serve.serializer import DETECTION_VERSION, Serializer, image_prefix
from tests.store.store_samples import person

DAY = datetime(2026, 1, 1, 0, 0, 0, 999_999)
DAY_MS = 1_767_225_600_999
SERIALIZER = Serializer("cvos://obj/")


def test_a_time_is_in_whole_milliseconds() -> None:
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1, 500_999)) == 1500
    assert epoch_ms(DAY) == DAY_MS


def test_the_record_of_a_root_without_names() -> None:
    times = {"last_occurrence_at": DAY, "added_at": DAY, "modified_at": DAY + timedelta(seconds=1)}
    root = replace(person("root"), person_id="root", name=None, external_id=None, image_guid="g1", **times)
    assert SERIALIZER.record(PersonView(root, root, (), 5, 777)) == {
        "personId": "root",
        "rootPersonId": "root",
        "imageURI": "cvos://obj/g1",
        "occurrence": 5,
        "lastOccurrenceDate": 777,
        "rootPersonAddDate": DAY_MS,
        "addDate": DAY_MS,
        "modDate": DAY_MS + 1000,
        "tags": [],
        "ignore": False,
    }


def test_the_entry_of_an_unknown_face() -> None:
    fields = {
        "x1": 10.0,
        "y1": 20.0,
        "x2": 30.0,
        "y2": 60.0,
        "confidence": 0.9,
        "landmarks": [15.0, 30.0, 25.0, 30.0, 20.0, 40.0, 10.0, 60.0, 35.0, 15.0],
        "center_pose_quality": 0.1,
        "sharpness_quality": 0.2,
        "contrast_quality": 0.3,
    }
    face = FaceResult(ExtractedFace(fields, np.zeros(4, np.float32), None))
    (entry,) = SERIALIZER.post(PostResult([face], 100, 200, "media", False, 3, "models"))["identifiedFaces"]
    assert entry == {
        "mediaId": "media",
        "offsetX": 0.1,
        "offsetY": 0.1,
        "relativeWidth": 0.2,
        "relativeHeight": 0.2,
        "attributes": {
            "centerPoseQuality": 0.1,
            "sharpnessQuality": 0.2,
            "contrastQuality": 0.3,
            "confidence": 0.9,
            "detectionVersion": DETECTION_VERSION,
            "dimension": {"height": 40, "width": 20},
            "landmarks": {
                "left-eye-center": {"x": 0.25, "y": 0.25},
                "right-eye-center": {"x": 0.75, "y": 0.25},
                "nose-tip": {"x": 0.5, "y": 0.5},
                "left-mouth-corner": {"x": 0.0, "y": 1.0},
                "right-mouth-corner": {"x": 1.25, "y": -0.125},
            },
            "provider": "models",
        },
        "tags": [],
    }


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        ({}, "cvos://obj/"),
        ({"object_scheme": "faces"}, "faces://obj/"),
        ({"public_url": "http://host:81/"}, "http://host:81/obj/"),
        ({"hosting": "cloud", "public_url": "host"}, "https://host/obj/"),
        ({"hosting": "cloud", "public_url": "https://host/a/", "object_scheme": "ehttps"}, "ehttps://host/a/obj/"),
    ],
)
def test_addresses_of_images(settings: dict[str, str], prefix: str) -> None:
    assert image_prefix(ServeSettings(**settings)) == prefix


def test_cloud_hosting_needs_its_address() -> None:
    with pytest.raises(UsageError, match="--public-url"):
        image_prefix(ServeSettings(hosting="cloud"))
