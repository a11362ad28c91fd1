"""Sections 4.4 to 4.6 of the contract: retrieval of stored images, and their decryption."""

from __future__ import annotations

import base64
import shutil
import subprocess
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from tests.serve.conformance.client import OCTET_STREAM, Account, Directory
from tests.serve.conformance.photos import opened, other, photo

IV_BYTES = 16
BLOCK_BITS = 128


def image_key(directory: Directory) -> bytes:
    """What {cloud_key_url}/obj/imagekey tells (4.6)."""
    server = directory.account.server
    answer = server.http.get(f"{server.key_url}/obj/imagekey", headers=directory.headers)
    assert answer.status_code == 200
    return base64.b64decode(answer.json()["key"], validate=True)


def downloaded(directory: Directory, person_id: str) -> bytes:
    """The encrypted data at the record's address, which may be another's name for the object server."""
    uri = directory.record(person_id)["imageURI"]
    assert urlsplit(uri).scheme == "https"
    answer = directory.stored(uri)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == OCTET_STREAM
    return answer.content


def decrypted(data: bytes, key: bytes) -> bytes:
    decryptor = Cipher(algorithms.AES(key), modes.CBC(data[:IV_BYTES])).decryptor()
    padded = decryptor.update(data[IV_BYTES:]) + decryptor.finalize()
    unpadder = PKCS7(BLOCK_BITS).unpadder()
    return unpadder.update(padded) + unpadder.finalize()


def test_4_4_face_of_a_person_on_a_local_system(directory: Directory) -> None:
    """GET /person/<personId>/face returns the face image of the stored identity."""
    answer = directory.face_image(directory.insert(photo("hopper"))["personId"])
    assert answer.status_code == 200
    assert opened(answer.content).size[0] > 40


def test_4_4_face_of_a_person_on_a_cloud_system(cloud_directory: Directory) -> None:
    """Works for local and cloud systems, with application-level encryption of stored images."""
    answer = cloud_directory.face_image(cloud_directory.insert(photo("hopper"))["personId"])
    assert answer.status_code == 200
    assert opened(answer.content).size[0] > 40


def test_4_4_it_is_the_face_of_that_person(directory: Directory) -> None:
    """... of the stored identity <personId>: posted again, it is recognised as that one."""
    inserted = {person: directory.insert(photo(person), person, person)["personId"] for person in ("hopper", "collins")}
    for person_id in inserted.values():
        (face,) = directory.recognise(directory.face_image(person_id).content)
        assert face["personId"] == person_id


@pytest.mark.parametrize("header", ["X-RPC-DIRECTORY", "X-RPC-AUTHORIZATION"])
def test_4_4_both_headers_are_needed(directory: Directory, header: str) -> None:
    """Headers X-RPC-DIRECTORY and X-RPC-AUTHORIZATION."""
    person_id = directory.insert(photo("hopper"))["personId"]
    answer = directory.request("GET", f"/person/{person_id}/face", headers={header: None})
    assert answer.status_code == (400 if header == "X-RPC-DIRECTORY" else 401)


def test_4_5_rule_1_both_listings_have_the_address(directory: Directory) -> None:
    """Obtain imageURI from GET /people or GET /rootpeople."""
    directory.insert(photo("hopper"))
    (person,), (root,) = directory.people(), directory.roots()
    assert person["imageURI"] == root["imageURI"]


def test_4_5_rule_2_local_host_by_the_last_part_of_the_address(directory: Directory) -> None:
    """GET {object_url}/obj/<image_guid>, <image_guid> is the last part of the address: the same image as in 4.4."""
    person_id = directory.insert(photo("hopper"))["personId"]
    answer = directory.stored(directory.record(person_id)["imageURI"])
    easy = directory.face_image(person_id)
    assert answer.status_code == 200
    assert answer.content == easy.content
    assert answer.headers["content-type"] == easy.headers["content-type"]


@pytest.mark.parametrize("header", ["X-RPC-DIRECTORY", "X-RPC-AUTHORIZATION"])
def test_4_5_rule_2_both_headers_are_needed(directory: Directory, header: str) -> None:
    """... with X-RPC-DIRECTORY and X-RPC-AUTHORIZATION."""
    uri = directory.record(directory.insert(photo("hopper"))["personId"])["imageURI"]
    headers = {key: value for key, value in directory.headers.items() if key != header}
    server = directory.account.server
    answer = server.http.get(f"{server.object_url}/obj/{uri.rsplit('/', 1)[1]}", headers=headers)
    assert answer.status_code == (400 if header == "X-RPC-DIRECTORY" else 401)


def test_4_5_rule_3_cloud_downloads_are_encrypted(cloud_directory: Directory) -> None:
    """Cloud: the address uses https; the data is encrypted and must be decrypted."""
    person_id = cloud_directory.insert(photo("hopper"))["personId"]
    data, plain = downloaded(cloud_directory, person_id), cloud_directory.face_image(person_id).content
    assert plain[:64] not in data
    assert plain[-64:] not in data


def test_4_6_the_key_needs_both_headers(cloud_directory: Directory) -> None:
    """Headers X-RPC-DIRECTORY, X-RPC-AUTHORIZATION."""
    assert cloud_directory.request("GET", "/obj/imagekey", headers={"X-RPC-DIRECTORY": None}).status_code == 400
    assert cloud_directory.request("GET", "/obj/imagekey", headers={"X-RPC-AUTHORIZATION": None}).status_code == 401


def test_4_6_the_key_is_the_accounts_own(cloud_process: object, cloud_directory: Directory) -> None:
    """2.4: the account-specific decryption key. Another account's is another."""
    other_account: Account = cloud_process.account("bob")  # type: ignore[attr-defined]
    assert image_key(cloud_directory) != image_key(other_account.directory(cloud_directory.name))
    assert image_key(cloud_directory) == image_key(cloud_directory.account.directory("another"))


def test_4_6_rules_1_to_4_decrypt_the_image(cloud_directory: Directory) -> None:
    """IV = the first 16 bytes; the body from byte 17 on is AES-256-CBC with PKCS padding under the key."""
    person_id = cloud_directory.insert(photo("hopper"))["personId"]
    data, key = downloaded(cloud_directory, person_id), image_key(cloud_directory)
    assert decrypted(data, key) == cloud_directory.face_image(person_id).content


def test_4_6_rule_1_every_image_has_an_iv_of_its_own(cloud_directory: Directory) -> None:
    """The IV is random per object."""
    first = cloud_directory.insert(photo("hopper"), "A", "A-1")["personId"]
    second = cloud_directory.insert(photo("collins"), "B", "B-1")["personId"]
    ivs = {downloaded(cloud_directory, person_id)[:IV_BYTES] for person_id in (first, second)}
    assert len(ivs) == 2
    assert bytes(IV_BYTES) not in ivs


def test_4_6_openssl_decrypts_byte_identically(cloud_directory: Directory) -> None:
    """Interop: `openssl enc -d -aes-256-cbc` gives what GET /person/<personId>/face gives."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    person_id = cloud_directory.insert(photo("collins"))["personId"]
    data, key = downloaded(cloud_directory, person_id), image_key(cloud_directory)
    command = [openssl, "enc", "-d", "-aes-256-cbc", "-K", key.hex(), "-iv", data[:IV_BYTES].hex()]
    plain = subprocess.run(command, input=data[IV_BYTES:], capture_output=True, check=True).stdout
    assert plain == cloud_directory.face_image(person_id).content


def test_4_6_modality_images_are_decrypted_the_same_way(cloud_directory: Directory) -> None:
    """4.5: ... or an entry of unmergedImageURIs."""
    first = cloud_directory.insert(photo("hopper"), "A", "A-1")["personId"]
    second = cloud_directory.force(other("hopper"), "B", "B-1")["personId"]
    cloud_directory.merge(first, second)
    (root,) = cloud_directory.roots()
    data = cloud_directory.stored(root["unmergedImageURIs"][0]).content
    assert decrypted(data, image_key(cloud_directory)) == cloud_directory.face_image(second).content
