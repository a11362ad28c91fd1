"""The demo's comparison names every way in which a store can differ from the samples' table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.store.records import PhotoRecord
from pipeline.tools.demo import compare
from pipeline.tools.sample_photos import Sample

SAMPLES = [
    Sample("a-blurred.jpg", "Ann", "ok", "sharpness"),
    Sample("b-ann.jpg", "Ann", "ok"),
    Sample("c-ann.jpg", "Ann", "ok"),
    Sample("d-bea.jpg", "Bea", "ok"),
    Sample("e-cup.jpg", None, "no_face"),
    Sample("f-broken.jpg", None, "truncated"),
]
PHOTOS = {
    "a-blurred.jpg": PhotoRecord("ok", 1, None, "sharpness"),
    "b-ann.jpg": PhotoRecord("ok", 1, "1", None),
    "c-ann.jpg": PhotoRecord("ok", 1, "1", None),
    "d-bea.jpg": PhotoRecord("ok", 1, "2", None),
    "e-cup.jpg": PhotoRecord("no_face", 0, None, None),
    "f-broken.jpg": PhotoRecord("truncated", 0, None, None),
}


def test_equal() -> None:
    assert compare(SAMPLES, PHOTOS, 2) == []


@pytest.mark.parametrize(
    ("file", "change", "difference"),
    [
        ("a-blurred.jpg", {"rejection": None, "person_id": "3"}, "a-blurred.jpg: rejection None instead of sharpness"),
        ("a-blurred.jpg", {"rejection": "contrast"}, "a-blurred.jpg: rejection contrast instead of sharpness"),
        ("c-ann.jpg", {"person_id": "3"}, "Ann is 2 identities"),
        ("d-bea.jpg", {"person_id": "1"}, "d-bea.jpg was taken for Ann"),
        ("b-ann.jpg", {"faces": 2}, "b-ann.jpg: faces 2 instead of 1"),
        ("e-cup.jpg", {"faces": 1}, "e-cup.jpg: faces 1 instead of 0"),
        ("e-cup.jpg", {"status": "ok"}, "e-cup.jpg: status ok instead of no_face"),
        ("f-broken.jpg", {"status": "unreadable"}, "f-broken.jpg: status unreadable instead of truncated"),
    ],
)
def test_a_difference_is_named(file: str, change: dict[str, str], difference: str) -> None:
    assert difference in compare(SAMPLES, {**PHOTOS, file: replace(PHOTOS[file], **change)}, 2)


def test_files_and_identities_too_many_or_too_few() -> None:
    fewer = {name: photo for name, photo in PHOTOS.items() if name != "e-cup.jpg"}
    assert compare(SAMPLES, fewer, 2) == ["e-cup.jpg: not in the store"]
    more = {**PHOTOS, "z.jpg": PhotoRecord("no_face", 0, None, None)}
    assert compare(SAMPLES, more, 2) == ["z.jpg: not in the table of samples"]
    assert compare(SAMPLES, PHOTOS, 3) == ["3 identities instead of 2"]
