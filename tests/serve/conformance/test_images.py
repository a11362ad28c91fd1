"""Stored images: sections 2.4 and 4.4 to 4.6 of the contract, and the decisions about images and hosting."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7
from PIL import Image

from tests.serve.conformance.client import OCTET_STREAM, UNKNOWN_ID, Account, Directory, Json, assert_error
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.launch import Launched
from tests.serve.conformance.photos import encoded, opened, other, padded, pair, photo, portrait, turned

IV_BYTES = 16


def cache_directives(headers: Json) -> set[str]:
    return {directive.strip() for directive in headers["cache-control"].split(",")}


def inserted_image(directory: Directory, image: bytes) -> tuple[Json, Image.Image]:
    """The identity made from an image, and the image stored for it."""
    face = directory.insert(image)
    return face, opened(directory.face_image(face["personId"]).content)


# 4.4 By person id


@pytest.mark.parametrize("hosting", ["local", "cloud"])
def test_4_4_face_of_a_person(request: pytest.FixtureRequest, hosting: str) -> None:
    """GET /person/<personId>/face returns the face image of the stored identity <personId>: posted again, it is
    recognised as that one. Works for local and cloud systems, with application-level encryption of stored images.
    [decided] `200`, true `Content-Type`, `ETag`, `private, no-cache`."""
    directory: Directory = request.getfixturevalue("directory" if hosting == "local" else "cloud_directory")
    for person in ("hopper", "collins"):
        person_id = directory.insert(photo(person), person, person)["personId"]
        answer = directory.face_image(person_id)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == f"image/{str(opened(answer.content).format).lower()}"
        assert answer.headers["etag"]
        assert cache_directives(dict(answer.headers)) == {"private", "no-cache"}
        assert opened(answer.content).width > 40
        (face,) = directory.recognise(answer.content)
        assert face["personId"] == person_id


def test_images_face_is_not_sent_twice(gallery: Gallery) -> None:
    """`ETag`: a client that has the image gets `304`."""
    person_id = gallery.hopper["personId"]
    tag = gallery.directory.face_image(person_id).headers["etag"]
    same = gallery.directory.face_image(person_id, **{"If-None-Match": tag})
    assert (same.status_code, same.content) == (304, b"")
    assert gallery.directory.face_image(person_id, **{"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("person_id", [UNKNOWN_ID, "not-a-uuid", "9b2cbd6e-52cb-4bd5-a5ac-4ae5c9a5e7ba"])
def test_images_face_of_nobody_is_404(gallery: Gallery, person_id: str) -> None:
    """`404` when absent (or another directory's or account's: test_2_1)."""
    assert gallery.directory.face_image(person_id).status_code == 404


def test_images_face_is_that_records_own(directory: Directory, alike: list[str]) -> None:
    """That record's own current image, also for a merged record."""
    own = [directory.face_image(person_id).content for person_id in alike]
    directory.merge(*alike)
    assert [directory.face_image(person_id).content for person_id in alike] == own


# 2.2, 4.5 By address


@pytest.mark.parametrize("listing", ["/people", "/rootpeople"])
def test_4_5_rules_1_and_2_local_host_by_the_last_part_of_the_address(gallery: Gallery, listing: str) -> None:
    """Obtain imageURI from GET /people or GET /rootpeople; on a local host it is <object_scheme>://obj/<image_guid>
    (2.2). GET {object_url}/obj/<image_guid> returns the same image as 4.4, from the address of the object server.
    [decided] `imageURI = cvos://obj/<guid>`; immutable content, `private, immutable`."""
    for person in gallery.directory.get(listing).json()["people"]:
        assert person["imageURI"].startswith("cvos://obj/")
        assert person["imageURI"].count("/") == 3
        answer, easy = (
            gallery.directory.stored(person["imageURI"]),
            gallery.directory.face_image(person["personId"]),
        )
        assert answer.status_code == 200
        assert answer.content == easy.content
        assert answer.headers["content-type"] == easy.headers["content-type"]
        assert {"private", "immutable"} <= cache_directives(dict(answer.headers))


@pytest.mark.parametrize("guid", [UNKNOWN_ID, "CURRENT", "x" * 500])
def test_images_unknown_object_is_404(gallery: Gallery, guid: str) -> None:
    assert gallery.directory.stored(f"cvos://obj/{guid}").status_code == 404


def test_images_a_replaced_image_is_410(directory: Directory, second_directory: Directory, person: Json) -> None:
    """After an update the old guid of the reference answers `410` for a day, in its directory; `404` once the person is
    gone."""
    second_directory.insert(photo("collins"))
    directory.answer(other("hopper"), update="true")
    assert_error(directory.stored(person["imageURI"]), 410, "object-replaced")
    assert second_directory.stored(person["imageURI"]).status_code == 404
    directory.delete(person["personId"])
    assert directory.stored(person["imageURI"]).status_code == 404


@pytest.fixture(scope="module")
def cloud(cloud_account: Account) -> Iterator[Directory]:
    """A directory in cloud hosting with three identities, the third one merged with the first, for tests that only
    read."""
    with cloud_account.fresh_directory() as directory:
        first, _, third = directory.force_all(photo("hopper"), photo("collins"), other("hopper"))
        directory.merge(first, third)
        yield directory


def downloads(directory: Directory) -> list[tuple[bytes, bytes]]:
    """The encrypted image at the own address of each record, and the image from the easy method (4.4)."""
    pairs = []
    for record in directory.people():
        uri = record.get("unmergedImageURI", record["imageURI"])
        assert uri.startswith("https://")
        answer = directory.stored(uri)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == OCTET_STREAM
        pairs.append((answer.content, directory.face_image(record["personId"]).content))
    return pairs


@pytest.mark.parametrize("listing", ["/people", "/rootpeople"])
def test_4_5_rule_1_address_in_cloud_hosting(cloud: Directory, listing: str) -> None:
    """imageURI, and each of unmergedImageURIs, in the cloud: https://<path> (2.2)."""
    records = cloud.get(listing).json()["people"]
    assert all(record["imageURI"].startswith("https://") for record in records)
    assert records[0]["unmergedImageURIs"][0].startswith("https://")


def test_images_address_has_the_public_host(cloud_process: Launched) -> None:
    """`imageURI = https://<public host>/obj/<guid>`."""
    with cloud_process.account("alice").fresh_directory() as directory:
        directory.insert(photo("hopper"))
        assert directory.people()[0]["imageURI"].startswith("https://images.example.org/obj/")


def test_4_5_rule_3_cloud_downloads_are_encrypted(cloud: Directory) -> None:
    """Cloud: the data is encrypted and must be decrypted. [decided] The answer is `application/octet-stream`:
    `IV (16) || AES-256-CBC(PKCS#7)`."""
    for data, plain in downloads(cloud):
        assert plain[:64] not in data
        assert plain[-64:] not in data
        assert len(data) == IV_BYTES + (len(plain) // 16 + 1) * 16


# 2.4, 4.6 Decryption


def image_key(directory: Directory, path: str = "/obj/imagekey") -> bytes:
    """The account's key (2.4): {"key": base64 of 32 bytes}."""
    answer = directory.get(path)
    assert answer.status_code == 200
    assert set(answer.json()) == {"key"}
    key = base64.b64decode(answer.json()["key"], validate=True)
    assert len(key) == 32
    return key


def test_2_4_key(cloud: Directory) -> None:
    """key: base64 form of the account-specific decryption key, the same in all its directories. [decided]
    `GET /obj/imagekey` and `GET /imagekey`. Both headers are required (4.6)."""
    keys = {image_key(cloud, path) for path in ("/obj/imagekey", "/imagekey", "/obj/imagekey/")}
    assert keys == {image_key(cloud.account.directory("another"))}
    for header, status in (("X-RPC-DIRECTORY", 400), ("X-RPC-AUTHORIZATION", 401)):
        assert cloud.request("GET", "/obj/imagekey", headers={header: None}).status_code == status


def test_2_4_each_account_has_its_own_key(cloud_process: Launched) -> None:
    alice, bob = (cloud_process.account(user).directory("main") for user in ("alice", "bob"))
    assert image_key(alice) != image_key(bob)


@pytest.mark.parametrize("path", ["/obj/imagekey", "/imagekey"])
def test_images_key_only_in_cloud_hosting(gallery: Gallery, path: str) -> None:
    """Only in cloud hosting, else `404`."""
    assert gallery.directory.get(path).status_code == 404


def test_4_6_rules_1_to_4_decrypt_the_image(cloud: Directory) -> None:
    """IV = the first 16 bytes; the body from byte 17 on is AES-256-CBC with PKCS padding under the key. An entry of
    unmergedImageURIs (4.5) is decrypted the same way."""
    key = image_key(cloud)
    for data, plain in downloads(cloud):
        decryptor = Cipher(algorithms.AES(key), modes.CBC(data[:IV_BYTES])).decryptor()
        unpadder = PKCS7(128).unpadder()
        decrypted = decryptor.update(data[IV_BYTES:]) + decryptor.finalize()
        assert unpadder.update(decrypted) + unpadder.finalize() == plain


def test_4_6_openssl_decrypts_byte_identically(cloud: Directory) -> None:
    """Interop: `openssl enc -d -aes-256-cbc` gives what GET /person/<personId>/face gives."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    (data, plain), *_ = downloads(cloud)
    command = [openssl, "enc", "-d", "-aes-256-cbc", "-K", image_key(cloud).hex(), "-iv", data[:IV_BYTES].hex()]
    assert subprocess.run(command, input=data[IV_BYTES:], capture_output=True, check=True).stdout == plain


def test_4_6_rule_1_every_image_has_an_iv_of_its_own(cloud: Directory) -> None:
    """The IV is random per object."""
    ivs = {data[:IV_BYTES] for data, _ in downloads(cloud)}
    assert len(ivs) == 3
    assert bytes(IV_BYTES) not in ivs


def test_images_are_encrypted_at_rest(cloud_process: Launched) -> None:
    """The answer is the bytes as they are at rest; an encrypted store encrypts all images at rest."""
    with cloud_process.account("alice").fresh_directory() as directory:
        person_id = directory.insert(photo("hopper"))["personId"]
        uri = directory.record(person_id)["imageURI"]
        (file,) = [path for path in (cloud_process.store / "objects").rglob("*") if path.name == uri.rsplit("/", 1)[1]]
        assert file.read_bytes() == directory.stored(uri).content
        assert directory.face_image(person_id).content[:32] not in file.read_bytes()


# What is stored


def test_images_stored_image_is_the_box_and_half_its_size_on_each_side(directory: Directory) -> None:
    """A crop of its face (the box and half its size more on each side), so twice the box. The posted photo itself is
    not kept by the server."""
    framed = padded(portrait("hopper"), 300, 300, 300, 300)
    face, image = inserted_image(directory, encoded(framed))
    dimension = face["attributes"]["dimension"]
    assert abs(image.width - 2 * dimension["width"]) <= 3
    assert abs(image.height - 2 * dimension["height"]) <= 3
    assert image.width < framed.width * 0.6
    assert image.height < framed.height * 0.6


def test_images_stored_image_ends_where_the_photo_does(directory: Directory) -> None:
    face, image = inserted_image(directory, photo("hopper"))
    picture = portrait("hopper")
    left = max(0.0, face["offsetX"] - face["relativeWidth"] / 2) * picture.width
    right = min(1.0, face["offsetX"] + face["relativeWidth"] * 1.5) * picture.width
    assert abs(image.width - (right - left)) <= 3
    assert image.height <= picture.height


def test_images_stored_image_is_upright_and_has_no_exif(directory: Directory) -> None:
    """Upright, EXIF stripped. A later model can detect and align the face in it."""
    face, image = inserted_image(directory, turned("hopper"))
    assert dict(image.getexif()) == {}
    assert b"EXIF-DESCRIPTION" not in directory.face_image(face["personId"]).content
    (detected,) = directory.recognise(encoded(image, "PNG"))
    assert detected["personId"] == face["personId"]
    for landmarks in (face["attributes"]["landmarks"], detected["attributes"]["landmarks"]):
        assert landmarks["left-eye-center"]["y"] < landmarks["left-mouth-corner"]["y"]
    assert abs(landmarks["left-eye-center"]["y"] - landmarks["right-eye-center"]["y"]) < 0.2


def test_images_two_people_in_one_photo_share_nothing(lenient_directory: Directory) -> None:
    """One guid per reference; so two people in one photo share nothing."""
    directory = lenient_directory
    faces = directory.faces(pair("hopper", "collins"), name="A", external_id="A-1", insert_all="true")
    first, second = (face["personId"] for face in faces)
    assert directory.record(first)["imageURI"] != directory.record(second)["imageURI"]
    images = {person_id: directory.face_image(person_id).content for person_id in (first, second)}
    assert images[first] != images[second]
    for person_id, image in images.items():
        assert directory.recognise(image)[0]["personId"] == person_id
    directory.delete(first)
    assert directory.face_image(second).content == images[second]


# Boxes and pixels


def test_images_fractions_are_of_the_upright_image(gallery: Gallery) -> None:
    """`offsetX/offsetY/relativeWidth/relativeHeight` are fractions of the upright image."""
    (plain,) = gallery.directory.recognise(photo("hopper"))
    (lying,) = gallery.directory.recognise(turned("hopper"))
    for key in ("offsetX", "offsetY", "relativeWidth", "relativeHeight"):
        assert abs(plain[key] - lying[key]) < 0.05


def test_images_boxes_are_clipped_to_the_image(directory: Directory) -> None:
    """Boxes are clipped to the image."""
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
    (face,) = directory.recognise(encoded(white, "PNG"))
    assert face["personId"] == person_id
    assert face["similarityScore"] > 1.55  # almost no distance


def test_images_the_first_frame_of_an_animation_counts(gallery: Gallery) -> None:
    """The first frame of an animation counts."""
    second = portrait("collins").resize(portrait("hopper").size)
    animation = encoded(portrait("hopper"), "WEBP", save_all=True, append_images=[second], lossless=True)
    (face,) = gallery.directory.recognise(animation)
    assert face["personId"] == gallery.hopper["personId"]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_images_formats(gallery: Gallery, kind: str) -> None:
    """4.1: the raw image file, in any format that the pipeline reads."""
    (face,) = gallery.directory.recognise(encoded(portrait("collins"), kind))
    assert face["personId"] == gallery.collins["personId"]
