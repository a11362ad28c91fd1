"""decisions.md, "Images and hosting", and the rows of "Requests" on images and ports."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.serve.conformance.client import OCTET_STREAM, Account, Directory, Json
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import encoded, opened, other, padded, pair, photo, portrait, turned

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def inserted_image(directory: Directory, image: bytes, **how: Any) -> tuple[Json, Image.Image]:
    """The identity made of an image, and the image stored for it."""
    face = directory.insert(image, **how)
    answer = directory.face_image(face["personId"])
    assert answer.status_code == 200
    return face, opened(answer.content)


# Headers of answers


def test_images_face_has_its_true_type_a_tag_and_is_asked_for_each_time(gallery: Gallery) -> None:
    """`200`, true `Content-Type`, `ETag`, `private, no-cache`."""
    answer = gallery.directory.face_image(gallery.hopper["personId"])
    kind = opened(answer.content).format
    assert answer.headers["content-type"] == f"image/{str(kind).lower()}"
    assert answer.headers["etag"]
    assert {directive.strip() for directive in answer.headers["cache-control"].split(",")} == {"private", "no-cache"}


def test_images_face_is_not_sent_again_to_who_has_it(gallery: Gallery) -> None:
    path = f"/person/{gallery.hopper['personId']}/face"
    tag = gallery.directory.get(path).headers["etag"]
    same = gallery.directory.request("GET", path, headers={"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    assert gallery.directory.request("GET", path, headers={"If-None-Match": '"other"'}).status_code == 200


def test_images_face_gets_another_tag_when_it_is_updated(directory: Directory) -> None:
    person_id = directory.insert(photo("hopper"))["personId"]
    tag = directory.face_image(person_id).headers["etag"]
    directory.answer(other("hopper"), update="true")
    path = f"/person/{person_id}/face"
    after = directory.request("GET", path, headers={"If-None-Match": tag})
    assert after.status_code == 200
    assert after.headers["etag"] != tag


def test_images_object_never_changes(gallery: Gallery) -> None:
    """GET /obj/{guid}: immutable content, `private, immutable`."""
    uri = gallery.directory.record(gallery.hopper["personId"])["imageURI"]
    answer = gallery.directory.stored(uri)
    directives = {directive.strip() for directive in answer.headers["cache-control"].split(",")}
    assert {"private", "immutable"} <= directives


def test_images_face_of_nobody_is_404(gallery: Gallery, second_directory: Directory) -> None:
    """`404` when absent or another directory's or account's."""
    for person_id in (UNKNOWN, "not-a-uuid", str(uuid.uuid4())):
        assert gallery.directory.face_image(person_id).status_code == 404
    assert second_directory.face_image(gallery.hopper["personId"]).status_code == 404


def test_images_face_is_that_records_own(directory: Directory) -> None:
    """... that record's own current image, of a merged one too."""
    first = directory.insert(photo("hopper"))["personId"]
    second = directory.force(other("hopper"))["personId"]
    own = {person_id: directory.face_image(person_id).content for person_id in (first, second)}
    directory.merge(first, second)
    assert {person_id: directory.face_image(person_id).content for person_id in own} == own


def test_images_object_of_no_name_is_404(gallery: Gallery) -> None:
    for guid in (UNKNOWN, "CURRENT", "x" * 500):
        assert gallery.directory.stored(f"cvos://obj/{guid}").status_code == 404


# The image key


@pytest.mark.parametrize("path", ["/obj/imagekey", "/imagekey"])
def test_images_key_only_in_cloud_hosting(gallery: Gallery, path: str) -> None:
    """Only in cloud hosting, else `404`."""
    assert gallery.directory.get(path).status_code == 404


def test_images_key_at_both_addresses(cloud_directory: Directory) -> None:
    """`GET /obj/imagekey` and `GET /imagekey`."""
    answers = [cloud_directory.get(path) for path in ("/obj/imagekey", "/imagekey", "/obj/imagekey/")]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json() == answers[1].json() == answers[2].json()


# What is stored


def test_images_stored_image_is_the_box_and_half_its_size_on_each_side(directory: Directory) -> None:
    """A crop of its face (the box and half its size more on each side): twice the box, as far as the photo goes."""
    framed = padded(portrait("hopper"), 200, 200, 200, 200)
    face, image = inserted_image(directory, encoded(framed))
    dimension = face["attributes"]["dimension"]
    assert abs(image.width - 2 * dimension["width"]) <= 3
    assert abs(image.height - 2 * dimension["height"]) <= 3


def test_images_stored_image_ends_where_the_photo_does(directory: Directory) -> None:
    face, image = inserted_image(directory, photo("hopper"))
    picture = portrait("hopper")
    left = max(0.0, face["offsetX"] - face["relativeWidth"] / 2) * picture.width
    right = min(1.0, face["offsetX"] + face["relativeWidth"] * 1.5) * picture.width
    assert abs(image.width - (right - left)) <= 3
    assert image.height <= picture.height


def test_images_stored_image_can_be_detected_anew(directory: Directory) -> None:
    """... so that a later model can detect and align anew: it matches its own identity, on its own."""
    face, image = inserted_image(directory, photo("collins"))
    (again,) = directory.recognise(encoded(image, "PNG"))
    assert again["personId"] == face["personId"]


def test_images_stored_image_is_upright_and_has_no_exif(directory: Directory) -> None:
    """Upright, EXIF stripped."""
    face, image = inserted_image(directory, turned("hopper"))
    assert dict(image.getexif()) == {}
    raw = directory.face_image(face["personId"]).content
    assert b"EXIF-DESCRIPTION" not in raw
    eyes = face["attributes"]["landmarks"]
    assert eyes["left-eye-center"]["y"] < eyes["left-mouth-corner"]["y"]
    (again,) = directory.recognise(encoded(image, "PNG"))
    again_eyes = again["attributes"]["landmarks"]
    assert abs(again_eyes["left-eye-center"]["y"] - again_eyes["right-eye-center"]["y"]) < 0.2
    assert again_eyes["left-eye-center"]["y"] < again_eyes["left-mouth-corner"]["y"]


def test_images_fractions_are_of_the_upright_image(gallery: Gallery) -> None:
    """`offsetX/offsetY/relativeWidth/relativeHeight` are fractions of the upright image."""
    (plain,) = gallery.directory.recognise(photo("hopper"))
    (lying,) = gallery.directory.recognise(turned("hopper"))
    for key in ("offsetX", "offsetY", "relativeWidth", "relativeHeight"):
        assert abs(plain[key] - lying[key]) < 0.05


def test_images_two_people_in_one_photo_share_nothing(lenient_directory: Directory) -> None:
    """One guid per reference; so two people in one photo share nothing."""
    directory = lenient_directory
    faces = directory.faces(pair("hopper", "collins"), name="A", external_id="A-1", insert_all="true")
    records = [directory.record(face["personId"]) for face in faces]
    assert records[0]["imageURI"] != records[1]["imageURI"]
    images = [directory.face_image(face["personId"]).content for face in faces]
    assert images[0] != images[1]
    for face, image in zip(faces, images, strict=True):
        largest = directory.recognise(image)[0]
        assert largest["personId"] == face["personId"]
    directory.delete(faces[0]["personId"])
    assert directory.face_image(faces[1]["personId"]).content == images[1]


def test_images_posted_photo_is_not_kept(directory: Directory) -> None:
    """The posted photo itself is not kept by the server: what is stored is smaller."""
    framed = padded(portrait("hopper"), 300, 300, 300, 300)
    _, image = inserted_image(directory, encoded(framed))
    assert image.width < framed.width * 0.6
    assert image.height < framed.height * 0.6


def test_images_replaced_image_is_gone(directory: Directory) -> None:
    """update=true: old reference and its guid go."""
    person_id = directory.insert(photo("hopper"))["personId"]
    old = directory.record(person_id)["imageURI"]
    directory.answer(other("hopper"), update="true")
    assert directory.stored(old).status_code == 404
    assert directory.stored(directory.record(person_id)["imageURI"]).status_code == 200


# Hosting


def test_images_address_in_local_hosting(gallery: Gallery) -> None:
    """`imageURI = cvos://obj/<guid>`, `GET /obj/<guid>` returns the image."""
    uri = gallery.directory.record(gallery.hopper["personId"])["imageURI"]
    assert uri.startswith("cvos://obj/")
    assert opened(gallery.directory.stored(uri).content).width > 40


def test_images_address_in_cloud_hosting(cloud_process: Any) -> None:
    """`imageURI = https://<public host>/obj/<guid>`."""
    account: Account = cloud_process.account("alice")
    with account.fresh_directory() as directory:
        uri = directory.record(directory.insert(photo("hopper"))["personId"])["imageURI"]
    assert uri.startswith("https://images.example.org/obj/")


def test_images_cloud_answer_is_iv_and_whole_blocks(cloud_directory: Directory) -> None:
    """The answer is `application/octet-stream`: `IV (16) || AES-256-CBC(PKCS#7)`."""
    person_id = cloud_directory.insert(photo("hopper"))["personId"]
    answer = cloud_directory.stored(cloud_directory.record(person_id)["imageURI"])
    plain = cloud_directory.face_image(person_id)
    assert answer.headers["content-type"] == OCTET_STREAM
    assert len(answer.content) == 16 + (len(plain.content) // 16 + 1) * 16


def test_images_face_decrypts_in_cloud_hosting(cloud_directory: Directory) -> None:
    """`GET /person/{id}/face` decrypts in both."""
    answer = cloud_directory.face_image(cloud_directory.insert(photo("hopper"))["personId"])
    assert answer.headers["content-type"] == "image/jpeg"
    assert opened(answer.content).format == "JPEG"


def test_images_are_encrypted_at_rest(cloud_process: Any) -> None:
    """The bytes as they are at rest; an encrypted store encrypts all images at rest."""
    account: Account = cloud_process.account("alice")
    with account.fresh_directory() as directory:
        person_id = directory.insert(photo("hopper"))["personId"]
        uri = directory.record(person_id)["imageURI"]
        served = directory.stored(uri).content
        (file,) = [path for path in (cloud_process.store / "objects").rglob("*") if path.name == uri.rsplit("/", 1)[1]]
        assert file.read_bytes() == served
        assert directory.face_image(person_id).content[:32] not in served


# Boxes and pixels


def test_images_boxes_are_clipped_to_the_image(directory: Directory) -> None:
    """Boxes are clipped to the image; landmarks are fractions of the clipped face box."""
    image = portrait("hopper")
    cut = image.crop((80, 0, image.width, image.height))
    (face,) = directory.recognise(encoded(cut))
    assert face["offsetX"] >= 0
    assert face["offsetX"] + face["relativeWidth"] <= 1 + 1e-9
    assert abs(face["attributes"]["dimension"]["width"] - face["relativeWidth"] * cut.width) <= 1


def test_images_alpha_is_flattened_on_white(directory: Directory) -> None:
    """Alpha is flattened on white: transparent pixels of any colour are white ones."""
    image = portrait("hopper")
    mask = Image.linear_gradient("L").resize(image.size).point(lambda value: min(255, 2 * (255 - value)))
    clear = image.copy()
    clear.putalpha(mask)
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=mask)
    person_id = directory.insert(encoded(clear, "PNG"))["personId"]
    (face,) = directory.recognise(encoded(white, "PNG"), similar_limit=1)
    assert face["personId"] == person_id
    assert face["similar"][0]["similarityScore"] > 1.55  # hardly a distance


def test_images_the_first_frame_of_an_animation_counts(gallery: Gallery) -> None:
    """The first frame of an animation counts."""
    second = portrait("collins").resize(portrait("hopper").size)
    animation = encoded(portrait("hopper"), "WEBP", save_all=True, append_images=[second], lossless=True)
    (face,) = gallery.directory.recognise(animation)
    assert face["personId"] == gallery.hopper["personId"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_images_formats(gallery: Gallery, kind: str) -> None:
    """4.1: the raw image file, of any of the formats that the pipeline reads."""
    (face,) = gallery.directory.recognise(encoded(portrait("collins"), kind))
    assert face["personId"] == gallery.collins["personId"]


# Ports


def test_ports_objects_have_an_address_of_their_own(local_process: Any, gallery: Gallery) -> None:
    """`--object-port` serves the same app on a second port (see test_existing_clients for two of them)."""
    server = local_process.server
    uri = gallery.directory.record(gallery.hopper["personId"])["imageURI"]
    answer: httpx.Response = server.http.get(
        f"{server.object_url}/obj/{uri.rsplit('/', 1)[1]}", headers=gallery.directory.headers
    )
    assert answer.status_code == 200
