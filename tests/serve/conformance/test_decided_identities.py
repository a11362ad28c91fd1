"""decisions.md, "Identity semantics": order, identical images, similar, media."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.serve.conformance.client import Directory, Json
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import encoded, other, pair, photo, portrait, retouched


def patiently(directory: Directory, image: bytes, **how: Any) -> Json:
    """A post that comes again when the server is busy."""
    for _ in range(200):
        answer: httpx.Response = directory.post(image, **how)
        if answer.status_code != 503:
            break
        time.sleep(0.2)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


# Order


def test_identities_equal_scores_go_to_the_earlier_one(directory: Directory) -> None:
    """Match = the highest score over all references; equal scores go to the earlier identity."""
    first = directory.force(retouched("hopper", 0), "First", "F-1")["personId"]
    second = directory.force(retouched("hopper", 255), "Second", "S-2")["personId"]
    (face,) = directory.recognise(other("hopper"), similar_limit=2)
    scores = [similar["similarityScore"] for similar in face["similar"]]
    if scores[0] != scores[1]:
        pytest.skip("this server's model tells the two images apart")
    assert [similar["personId"] for similar in face["similar"]] == [first, second]
    assert face["personId"] == first


def test_identities_one_new_face_posted_at_once_makes_one_identity(directory: Directory) -> None:
    """Decision and insertion are one atomic step: 100 concurrent posts of one new face make one identity."""
    images = [photo("hopper"), *(other("hopper", which) for which in range(4))] * 20
    with ThreadPoolExecutor(16) as threads:
        answers = list(
            threads.map(
                lambda image: patiently(directory, image, name="Anna", external_id="A-1", update="false"), images
            )
        )
    faces = [answer["identifiedFaces"][0] for answer in answers]
    assert len({face["personId"] for face in faces}) == 1
    assert sum(face.get("newId", False) for face in faces) == 1
    (person,) = directory.people()
    assert person["occurrence"] == 100


# Identical image


def _still_identical(directory: Directory, image: bytes, person_id: str) -> None:
    (face,) = directory.recognise(image, threshold=0)
    assert face["personId"] == person_id
    assert face["similarityScore"] == 1.0  # d = 0, so 2 / (2 - 0)


def test_identities_same_bytes_are_identical(directory: Directory) -> None:
    """Same bytes ... and the same face is a current reference. Then d = 0, at any T."""
    person_id = directory.insert(photo("hopper"))["personId"]
    _still_identical(directory, photo("hopper"), person_id)


def test_identities_same_upright_pixels_are_identical(directory: Directory) -> None:
    """... or same SHA-256 of the upright RGB pixels: the same picture in other formats, and turned by EXIF."""
    image = portrait("hopper")
    person_id = directory.insert(encoded(image, "PNG"))["personId"]
    exif = Image.Exif()
    exif[0x0112] = 3
    lying = encoded(image.transpose(Image.Transpose.ROTATE_180), "PNG", exif=exif.tobytes())
    for same in (encoded(image, "BMP"), encoded(image, "TIFF"), encoded(image, "PNG", compress_level=1), lying):
        _still_identical(directory, same, person_id)


def test_identities_another_image_is_never_identical(directory: Directory) -> None:
    """No distance rule: another image of the face with a tiny distance is not identical."""
    directory.insert(encoded(portrait("hopper"), "PNG"))
    for image in (retouched("hopper", 0), photo("hopper"), other("hopper", 3)):
        assert "personId" not in directory.recognise(image, threshold=0)[0]
        assert directory.insert(image, threshold=0)["newId"] is True


def test_identities_identical_comes_before_any_other_ranking(directory: Directory) -> None:
    """d = 0 before any other ranking: the later of two identities with the same vector, by its own image."""
    directory.force(retouched("hopper", 0), "First", "F-1")
    second = directory.force(retouched("hopper", 255), "Second", "S-2")["personId"]
    (face,) = directory.recognise(retouched("hopper", 255), similar_limit=2)
    assert face["personId"] == second
    assert face["similar"][0]["personId"] == second


def test_identities_identical_needs_the_same_face(directory: Directory) -> None:
    """... and the same face (IoU >= 0.5): in a photo of two, the one that is a reference is, the other is not."""
    image = pair("hopper", "collins")
    first, _ = directory.faces(image, name="Anna", external_id="A-1")
    again = directory.recognise(image, threshold=0)
    assert [face.get("personId") for face in again] == [first["personId"], None]


def test_identities_identical_needs_a_current_reference(directory: Directory) -> None:
    """... is a current reference: a replaced one is not, in the same directory and in another."""
    directory.insert(photo("hopper"))
    directory.answer(other("hopper"), update="true")
    (face,) = directory.recognise(photo("hopper"), threshold=0)
    assert "personId" not in face


# similar


def test_identities_similar_is_computed_before_the_calls_own_writes(directory: Directory) -> None:
    """`similar` is computed before the call's own writes."""
    (face,) = directory.faces(photo("hopper"), name="Anna", external_id="A-1", similar_limit=5)
    assert face["newId"] is True
    assert face["similar"] == []


def test_identities_similar_includes_the_best_match(gallery: Gallery) -> None:
    """... the best match included."""
    (face,) = gallery.directory.recognise(other("hopper"), similar_limit=1)
    assert face["similar"][0]["personId"] == face["personId"]


def test_identities_similar_has_one_entry_per_root(directory: Directory) -> None:
    """... one entry per root, with the score of its best record; a limit counts roots."""
    inserted = [directory.force(other("hopper", n), f"P{n}", f"P-{n}")["personId"] for n in range(3)]
    collins = directory.insert(photo("collins"), "Bea", "B-2")["personId"]
    (before,) = directory.recognise(photo("hopper"), similar_limit=10)
    directory.merge(*inserted)
    (after,) = directory.recognise(photo("hopper"), similar_limit=2)
    assert [similar["personId"] for similar in after["similar"]] == [inserted[0], collins]
    assert after["similar"][0]["similarityScore"] == before["similar"][0]["similarityScore"]
    assert after["similar"][0]["occurrence"] == 3


# mediaId, detectionVersion, provider


def test_identities_media_id_is_derived_from_the_image(directory: Directory, second_directory: Directory) -> None:
    """`mediaId`: derived from the posted image's SHA-256: the same for the same bytes, anywhere and at any time."""
    ids = {
        directory.recognise(photo("hopper"))[0]["mediaId"],
        directory.insert(photo("hopper"))["mediaId"],
        second_directory.recognise(photo("hopper"))[0]["mediaId"],
    }
    assert len(ids) == 1
    assert directory.recognise(other("hopper"))[0]["mediaId"] not in ids
    first, second = directory.recognise(pair("hopper", "collins"))
    assert first["mediaId"] == second["mediaId"]


def test_identities_provider_and_version_are_the_models(gallery: Gallery) -> None:
    """One model for all faces of a server."""
    faces = [*gallery.directory.recognise(photo("hopper")), *gallery.directory.recognise(photo("collins"))]
    assert len({(face["attributes"]["provider"], face["attributes"]["detectionVersion"]) for face in faces}) == 1
