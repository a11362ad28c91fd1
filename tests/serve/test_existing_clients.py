"""Clients written for the well-known service with these headers work unchanged.

Each test does what such a client does, with the standard library, and checks only what the client looks at: a status,
or whether a key is there. The server is started with `--for-existing-clients`, as docs/existing-clients.md says, and
another one with the settings that depend on its place as well.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from pipeline.config import ServeSettings
from pipeline.serve.server import for_existing_clients
from tests.forking import Forker
from tests.serve.certificate import make_certificate
from tests.serve.conformance.launch import Launched, launch
from tests.serve.conformance.photos import encoded, faceless, opened, other, pair, photo, poor, portrait

FLAGS = ["--for-existing-clients", "--object-port", "0"]  # any free port instead of the usual one
PAGE = Path(__file__).parents[2] / "docs" / "existing-clients.md"


@pytest.fixture(scope="module")
def launched(forked_servers: Forker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with launch(forked_servers, tmp_path_factory.mktemp("clients"), flags=FLAGS) as running:
        yield running


class Client:
    """As the scripts have it: an address, an object address, and the headers of every request."""

    def __init__(self, launched: Launched, directory: str, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        account = launched.account("bob")
        coded = base64.b64encode(account.password.encode()).decode()
        self.base_url = account.server.base_url
        self.object_url = account.server.object_url
        self.headers = {"X-RPC-AUTHORIZATION": f"{account.user}:{coded}", "X-RPC-DIRECTORY": directory}

    def call(
        self,
        method: str,
        address: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        **params: Any,
    ) -> tuple[int, bytes]:
        query = "?" + urlencode(params) if params else ""
        request = urllib.request.Request(address + query, data, {**self.headers, **(headers or {})}, method=method)
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as response:
            return int(response.status), bytes(response.read())

    def status(self, method: str, address: str, **options: Any) -> int:
        """Of an answer that may be an error."""
        try:
            return self.call(method, address, **options)[0]
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def post(self, image: bytes, headers: Mapping[str, str] | None = None, **params: Any) -> dict[str, Any]:
        sent = {**OCTETS, **(headers or {})}
        status, body = self.call("POST", f"{self.base_url}/people", image, sent, **params)
        assert status == 201
        return dict(json.loads(body))

    def people(self) -> list[dict[str, Any]]:
        _, body = self.call("GET", f"{self.base_url}/rootpeople/?count=0&include-expired=true")
        return list(json.loads(body)["people"])

    def delete(self, person_id: str) -> int:
        parts = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request("DELETE", f"/people/{person_id}", headers={**self.headers, "Content-Length": "0"})
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


@pytest.fixture
def client(launched: Launched) -> Iterator[Client]:
    made = Client(launched, "main")
    yield made
    for person in made.people():
        made.delete(person["personId"])


OCTETS = {"Content-Type": "application/octet-stream"}
IMPORT: dict[str, Any] = {
    "insert": "true",
    "update": "false",
    "largest-only": "true",
    "min-size": "0",
    "detect-age": "false",
}
RECOGNISE: dict[str, Any] = {
    "insert": "false",
    "update": "false",
    "min-cpq": 0.59,
    "provide-face-id": "true",
    "type": "person",
}


def test_import_with_a_name_only(client: Client) -> None:
    """`user:base64(pwd)`; a name without an external id; `largest-only`, unknown parameters."""
    answer = client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace Hopper"}, **IMPORT)
    faces = answer["identifiedFaces"]
    assert "newId" in faces[0]
    assert "personId" in faces[0]
    assert len(faces) == 1


def test_import_tells_new_known_and_refused_by_the_presence_of_keys(client: Client) -> None:
    """Keys tested by presence: `if "newId" in face`, `elif "personId" in face`, else refused."""

    def outcome(image: bytes) -> str:
        faces = client.post(image, {"X-RPC-PERSON-NAME": "Anna"}, **IMPORT)["identifiedFaces"]
        if not faces:
            return "no face"
        if "newId" in faces[0]:
            return "new"
        return "known" if "personId" in faces[0] else "refused"

    images = [photo("hopper"), other("hopper"), poor("collins", "sharpness"), faceless()]
    assert [outcome(image) for image in images] == ["new", "known", "refused", "no face"]


def test_import_retries_a_turned_photo(client: Client) -> None:
    """When no face is found, the scripts turn the photo by 90, 180 and 270 degrees."""
    lying = portrait("collins").rotate(180, expand=True)
    names = []
    for degrees in (0, 90, 180, 270):
        answer = client.post(encoded(lying.rotate(degrees, expand=True)), **IMPORT)
        names.append(degrees)
        if answer["identifiedFaces"] and "personId" in answer["identifiedFaces"][0]:
            break
    assert names[-1] == 180


def test_recognise_the_main_face(client: Client) -> None:
    """`identifiedFaces[0]` is the main face; `similarityScore` is read beside `personId`; float `min-cpq`."""
    client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
    client.post(photo("collins"), {"X-RPC-PERSON-NAME": "Eileen"}, **IMPORT)
    for left, right, name in (("hopper", "collins", "Grace"), ("collins", "hopper", "Eileen")):
        face = client.post(pair(left, right, 0.6), **RECOGNISE)["identifiedFaces"][0]
        assert face["name"] == name
        assert "personId" in face
        assert face["similarityScore"] >= 1.0


def test_analyse_a_picture_with_its_occlusion(client: Client) -> None:
    """The vendor's own `analyze-pictures` asks with `max-occlusion=0` and stores nothing."""
    client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
    before = client.people()
    query = {"insert": "false", "update": "false", "max-occlusion": "0", "detect-occlusion": "true"}
    (face,) = client.post(other("hopper"), **query)["identifiedFaces"]
    assert face["name"] == "Grace"
    assert client.people() == before
    writing = {**query, "insert": "true"}
    assert client.status("POST", f"{client.base_url}/people", data=photo("collins"), headers=OCTETS, **writing) == 400
    assert client.people() == before


def test_import_with_thresholds_of_0(client: Client) -> None:
    """A public C# client sends these on every call; 0 guards nothing."""
    thresholds = {
        "X-RPC-FACES-DETECT-THRESHOLD": "0",
        "X-RPC-FACES-PROXIMITY-THRESHOLD": "0",
        "X-RPC-LIVENESS-THRESHOLD": "0",
        "X-RPC-MIN-SIZE-RATIO": "0",
        "X-RPC-EXP-DATE": "0",
    }
    assert "newId" in client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace", **thresholds})["identifiedFaces"][0]
    assert client.post(other("hopper"), thresholds, **RECOGNISE)["identifiedFaces"][0]["name"] == "Grace"
    guarded = {**OCTETS, **thresholds, "X-RPC-FACES-DETECT-THRESHOLD": "0.5"}
    assert client.status("POST", f"{client.base_url}/people", data=photo("collins"), headers=guarded) == 400
    assert [person["name"] for person in client.people()] == ["Grace"]


def test_upload_reads_the_id_of_the_root_first(client: Client) -> None:
    """`rootPersonId`, else `personId`; the new record is merged into a known person."""

    def root_id(entry: Mapping[str, Any]) -> str:
        return str(entry["rootPersonId"] if "rootPersonId" in entry else entry["personId"])

    (known,) = client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)["identifiedFaces"]
    (added,) = client.post(photo("collins"), {"X-RPC-ROOT-PERSON-ID": root_id(known)}, **IMPORT)["identifiedFaces"]
    assert root_id(added) == root_id(known) == known["personId"] != added["personId"]
    _, body = client.call("GET", f"{client.base_url}/people/{added['personId']}")
    assert json.loads(body)["people"][0]["rootPersonId"] == root_id(added)
    (found,) = client.post(other("collins"), **RECOGNISE, similar_limit=1)["identifiedFaces"]
    assert [root_id(entry) for entry in (found, *found["similar"])] == [root_id(known)] * 2


def test_the_directory_in_another_header_is_told(client: Client) -> None:
    """Old clients send `Authorization: main`: the error says what is missing."""
    headers = {"X-RPC-AUTHORIZATION": client.headers["X-RPC-AUTHORIZATION"], "Authorization": "main"}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{client.base_url}/people", headers=headers), timeout=60)
    with refused.value as error:
        message = json.loads(error.read())["message"]
    assert (error.code, "X-RPC-DIRECTORY" in message, "Authorization" in message) == (400, True, True)


def test_list_everybody_with_a_slash(client: Client) -> None:
    """`GET /rootpeople/?count=0&include-expired=true`, and no redirect."""
    client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
    status, body = client.call("GET", f"{client.base_url}/rootpeople/?count=0&include-expired=true")
    answer = json.loads(body)
    assert status == 200
    assert [person["name"] for person in answer["people"]] == ["Grace"]
    assert answer["personCollectionResponse"]["totalCount"] == 1


def test_download_every_image_from_the_object_server(client: Client) -> None:
    """`unmergedImageURI` else `imageURI`, fetched with the headers from the second port."""
    made = []
    for number in range(2):
        answer = client.post(other("hopper", number), {"X-RPC-FACES-GROUPING-THRESHOLD": "0"}, **IMPORT)
        made.append(answer["identifiedFaces"][0]["personId"])
    body = json.dumps({"personIds": made}).encode()
    assert client.call("PUT", f"{client.base_url}/merge", body, {"Content-Type": "application/json"})[0] == 202
    assert client.object_url != client.base_url
    images = set()
    for person in json.loads(client.call("GET", f"{client.base_url}/people")[1])["people"]:
        uri = person["unmergedImageURI"] if "unmergedImageURI" in person else person["imageURI"]
        guid = uri.split("/")[-1]
        status, image = client.call("GET", f"{client.object_url}/obj/{guid}")
        assert status == 200
        assert opened(image).width > 40
        images.add(image)
    assert len(images) == 2


def test_change_a_person_with_json(client: Client) -> None:
    """`PUT /people/{id}` with JSON."""
    person_id = client.post(photo("hopper"), **IMPORT)["identifiedFaces"][0]["personId"]
    change = json.dumps({"name": "Grace", "externalId": "N-1906", "personType": "staff"}).encode()
    address = f"{client.base_url}/people/{person_id}"
    assert client.call("PUT", address, change, {"Content-Type": "application/json;charset=UTF-8"})[0] == 202
    (person,) = client.people()
    assert (person["name"], person["externalId"]) == ("Grace", "N-1906")


def test_delete_ten_at_a_time(client: Client) -> None:
    """Ten parallel `DELETE` with `Content-Length: 0`, expecting 204."""
    unchecked: dict[str, Any] = {"min-cpq": 0, "min-fsq": 0, "min-fcq": 0, "insert": "true", "update": "false"}
    images = [other(person, number) for person in ("hopper", "collins") for number in range(5)]
    made = [
        client.post(image, {"X-RPC-FACES-GROUPING-THRESHOLD": "0"}, **unchecked)["identifiedFaces"][0]["personId"]
        for image in images
    ]
    assert len(set(made)) == 10
    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(client.delete, made)) == [204] * 10
    assert client.people() == []


def test_both_ports_answer_every_call(client: Client) -> None:
    """`--object-port` serves the same app on a second port."""
    client.post(photo("hopper"), **IMPORT)
    (person,) = client.people()
    for address in (client.base_url, client.object_url):
        assert client.call("GET", f"{address}/people/{person['personId']}")[0] == 200
        assert client.call("GET", f"{address}/person/{person['personId']}/face")[0] == 200


def test_import_with_curls_default_content_type_and_a_latin1_name(client: Client) -> None:
    """`curl --data-binary` without a type; a name in the bytes of latin-1."""
    sent = {"Content-Type": "application/x-www-form-urlencoded", "X-RPC-PERSON-NAME": "Jürgen"}
    client.post(photo("hopper"), sent, **IMPORT)
    assert [person["name"] for person in client.people()] == ["Jürgen"]


def test_download_from_a_cloud_and_decrypt(forked_servers: Forker, tmp_path: Path) -> None:
    """`ehttps://` is taken for https, and what it gives is decrypted with the key from the object server. (The public
    host is the second port here.)"""
    with launch(forked_servers, tmp_path, hosting="cloud", flags=FLAGS) as cloud:
        client = Client(cloud, "main")
        client.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
        (person,) = client.people()
        scheme, _, place = person["imageURI"].partition("://")
        host, _, path = place.partition("/")
        assert (scheme, host) == ("ehttps", "images.example.org")
        _, data = client.call("GET", f"{client.object_url}/{path}")
        key = json.loads(client.call("GET", f"{client.object_url}/obj/imagekey")[1])["key"]
        _, plain = client.call("GET", f"{client.base_url}/person/{person['personId']}/face")
    decryptor = Cipher(algorithms.AES(base64.b64decode(key)), modes.CBC(data[:16])).decryptor()
    unpadder = PKCS7(128).unpadder()
    assert unpadder.update(decryptor.update(data[16:]) + decryptor.finalize()) + unpadder.finalize() == plain


# Settings that depend on the server's place

ORIGIN = "https://album.example.org"
PLACE = {
    "--cors-origins": ORIGIN,
    "--trusted-proxies": "10.0.0.0/8, 127.0.0.1",
    "--allowed-hosts": "album.example.org, localhost, 127.0.0.1",
    "--max-body-bytes": str(64 << 20),
    "--update-conflicts": "apply",
    "--object-scheme": "http",
    "--public-url": "images.example.org:8086",
}


@pytest.fixture(scope="module")
def placed(forked_servers: Forker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("placed")
    certificate = make_certificate(folder)
    flags = {**PLACE, "--tls-cert": str(certificate.cert), "--tls-key": str(certificate.key)}
    with launch(forked_servers, folder, flags=[*FLAGS, *(word for flag in flags.items() for word in flag)]) as running:
        yield Client(running, "main", certificate.client())


def test_https_only(placed: Client) -> None:
    assert placed.base_url.startswith("https://")
    assert placed.object_url.startswith("https://")
    for address in (placed.base_url, placed.object_url):
        assert placed.call("GET", f"{address}/people")[0] == 200


def test_a_photo_of_more_than_32_mib(placed: Client, client: Client) -> None:
    large = photo("collins") + bytes(33 << 20)  # what follows a picture means nothing
    assert len(placed.post(large, **RECOGNISE)["identifiedFaces"]) == 1
    assert client.status("POST", f"{client.base_url}/people", data=large, headers=OCTETS) == 413


def test_download_from_the_address_as_it_is(placed: Client) -> None:
    """An image-retrieval client that knows http alone, not `cvos`. (The public host is the second port here.)"""
    placed.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
    (person,) = placed.people()
    address = urlsplit(person["imageURI"])
    assert (address.scheme, address.netloc) == ("http", "images.example.org:8086")
    assert opened(placed.call("GET", placed.object_url + address.path)[1]).width > 40
    assert placed.status("DELETE", f"{placed.base_url}/people/{person['personId']}") == 204


def test_rename_by_posting_another_name(placed: Client, client: Client) -> None:
    for server, name in ((placed, "Anna"), (client, "Grace")):
        server.post(photo("hopper"), {"X-RPC-PERSON-NAME": "Grace"}, **IMPORT)
        (face,) = server.post(other("hopper"), {"X-RPC-PERSON-NAME": "Anna"}, update="true")["identifiedFaces"]
        assert ("conflict" in face) is (server is client)
        assert [person["name"] for person in server.people()] == [name]


def test_a_page_of_another_origin_asks_first_and_then_posts(placed: Client) -> None:
    wanted = "content-type,x-rpc-authorization,x-rpc-directory,x-rpc-person-name"
    question = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    address = f"{placed.base_url}/people"
    for origin, allowed in ((ORIGIN, 200), ("https://elsewhere.example.org", 400)):
        assert placed.status("OPTIONS", address, headers={"Origin": origin, **question}) == allowed
    sent = {**placed.headers, **OCTETS, "Origin": ORIGIN, "X-RPC-PERSON-NAME": "Eileen"}
    request = urllib.request.Request(f"{address}?insert=false&update=false", photo("collins"), sent)
    with urllib.request.urlopen(request, timeout=60, context=placed.tls) as response:
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (201, ORIGIN)


def test_a_wrong_password_behind_a_proxy_locks_out_its_sender_alone(placed: Client) -> None:
    def ask(sender: str, headers: Mapping[str, str] | None = None) -> int:
        sent = {"X-Forwarded-For": sender, **(headers or {})}
        return placed.status("GET", f"{placed.base_url}/people", headers=sent)

    wrong = {"X-RPC-AUTHORIZATION": "bob:wrong"}
    assert [ask("198.51.100.1", wrong) for _ in range(12)][-1] == 429
    assert (ask("198.51.100.2", wrong), ask("198.51.100.2")) == (401, 200)


def test_the_name_that_a_proxy_sends(placed: Client) -> None:
    for host, status in (("album.example.org", 200), ("elsewhere.example.org", 421)):
        assert placed.status("GET", f"{placed.base_url}/people", headers={**placed.headers, "Host": host}) == status


# The page


def test_the_page_names_what_depends_on_the_place() -> None:
    """What is not in PLACE is tried above: TLS by `placed`, the rest by the test of the cloud."""
    rows = "\n".join(line for line in PAGE.read_text().splitlines() if line.startswith("|") and "serve." not in line)
    elsewhere = {"--tls-cert", "--tls-key", "--hosting"}
    assert set(re.findall(r"--[a-z-]+[a-z]", rows)) == {*PLACE, *elsewhere}


def test_the_page_names_what_the_switch_sets() -> None:
    named = dict(re.findall(r"^\| .* \| `serve\.(\w+)` \| `(\w+)`", PAGE.read_text(), re.MULTILINE))
    assert set(named) == {"person_headers", "object_port", "object_scheme"}
    for hosting in ("local", "cloud"):
        before = ServeSettings(hosting=hosting)
        after = for_existing_clients(before)
        changed = {name: str(getattr(after, name)) for name in named if getattr(after, name) != getattr(before, name)}
        assert changed == (named if hosting == "cloud" else {k: v for k, v in named.items() if k != "object_scheme"})
        assert replace(after, **{name: getattr(before, name) for name in named}) == before


def test_a_setting_with_another_value_keeps_it() -> None:
    chosen = ServeSettings(hosting="cloud", object_port=0, object_scheme="https")
    assert for_existing_clients(chosen) == replace(chosen, person_headers="optional")
