"""The routes over a real socket: status, shape, headers. What the answers mean is the service's tests'."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from PIL import Image

from pipeline.config import ServeSettings
from pipeline.errors import UsageError
from pipeline.serve.app import make_app, make_authenticator
from pipeline.serve.serializer import ImageAddresses
from tests.serve.live import PASSWORD, LiveServer, live_settings
from tests.serve.quick_hash import quick_hash

OCTETS = {"Content-Type": "application/octet-stream"}
GRACE = {"X-RPC-PERSON-NAME": "Grace", "X-RPC-EXTERNAL-ID": "id/1"}
ERROR_KEYS = {"error", "errorReason", "message", "path", "status", "timestamp", "verb"}
NOBODY = str(uuid.UUID(int=1))


@pytest.fixture
def http(live: LiveServer) -> Iterator[httpx.Client]:
    """A client of an empty directory, which is emptied afterwards."""
    with live.http(f"d-{uuid.uuid4().hex[:8]}") as client:
        yield client
        for person in client.get("/people").json()["people"]:
            client.delete(f"/people/{person['personId']}")


@pytest.fixture
def grace(http: httpx.Client, hopper: bytes) -> str:
    """The id of a person inserted into the directory of `http`."""
    answer = http.post("/people", content=hopper, headers=GRACE)
    assert answer.status_code == 201
    person: str = answer.json()["identifiedFaces"][0]["personId"]
    return person


def changed_picture(picture: bytes, number: int) -> bytes:
    """The same picture but for one pixel in a corner."""
    image, out = Image.open(io.BytesIO(picture)), io.BytesIO()
    image.putpixel((number, 0), (0, 255, 0))
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def refused(answer: httpx.Response, status: int, reason: str) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["errorReason"], body["status"]) == (status, reason, status)
    assert set(body) == ERROR_KEYS
    assert body["verb"] == answer.request.method
    assert body["path"] == answer.request.url.raw_path.partition(b"?")[0].decode()
    assert abs(body["timestamp"] / 1000 - 1.7e9) < 1e9
    return body


def test_insertion_recognition_and_deletion(http: httpx.Client, hopper: bytes, grace: str) -> None:
    answer = http.post("/people", params={"insert": "false", "update": "false", "similar_limit": 1}, content=hopper)
    assert answer.status_code == 201
    (face,) = answer.json()["identifiedFaces"]
    assert face["personId"] == face["similar"][0]["personId"] == grace
    assert (face["name"], face["personExternalId"], face["externalId"]) == ("Grace", "id/1", "id/1")
    assert "newId" not in face
    assert http.delete(f"/people/{grace}").status_code == 204
    refused(http.delete(f"/people/{grace}"), 404, "person-unknown")
    again = http.post("/people", params={"insert": "false", "update": "false", "similar_limit": 1}, content=hopper)
    (face,) = again.json()["identifiedFaces"]
    assert face["similar"] == []
    assert not {"personId", "name", "occurrence", "newId", "lastOccurrenceDate"} & set(face)


def test_a_record_has_no_empty_keys(http: httpx.Client, grace: str) -> None:
    (record,) = http.get(f"/people/{grace}").json()["people"]
    assert record["imageURI"].startswith("cvos://obj/")
    assert record == http.get("/people").json()["people"][0] == http.get("/rootpeople").json()["people"][0]
    assert None not in record.values()
    assert not {"unmergedImageURI", "unmergedImageURIs"} & set(record)


@pytest.mark.parametrize("path", ["/people", "/rootpeople", "/people/external/id%2F1", "/healthz", "/docs"])
def test_a_slash_at_the_end_is_the_same_route(http: httpx.Client, grace: str, path: str) -> None:
    with_slash = http.get(path + "/", follow_redirects=False)
    assert (with_slash.status_code, with_slash.content) == (200, http.get(path).content)


@pytest.mark.parametrize("part", ["..%2F..%2Fetc", "%2e%2e", "..%5C..", "%00", "a" * 2000, "%FF%FE", NOBODY])
def test_paths_that_lead_elsewhere_are_not_found(http: httpx.Client, grace: str, part: str) -> None:
    for method, path in (
        ("GET", "/people/{}"),
        ("PUT", "/people/{}"),
        ("DELETE", "/people/{}"),
        ("GET", "/people/external/{}"),
        ("GET", "/person/{}/face"),
        ("GET", "/obj/{}"),
    ):
        answer = http.request(method, path.format(part))
        assert answer.status_code == 404, (method, path)
        assert set(answer.json()) == ERROR_KEYS


def test_put_changes_and_removes(http: httpx.Client, grace: str) -> None:
    change = {"name": "Amazing Grace", "externalId": "", "tags": ["navy"], "ignore": True, "other": [1]}
    answer = http.put(f"/people/{grace}", json=change)
    assert (answer.status_code, answer.json()) == (202, {})
    (record,) = http.get(f"/people/{grace}").json()["people"]
    assert (record["name"], record["tags"], record["ignore"]) == ("Amazing Grace", ["navy"], True)
    assert "externalId" not in record
    assert http.put(f"/people/{grace}", headers={"X-RPC-EXTERNAL-ID": "e2"}).status_code == 202
    (record,) = http.get("/people/external/e2").json()["people"]
    assert record["name"] == "Amazing Grace"
    http.put(f"/people/{grace}", json={"name": "N"}, headers={"X-RPC-PERSON-NAME": "ignored"})
    assert http.get(f"/people/{grace}").json()["people"][0]["name"] == "N"


def test_merge_and_unmerge(http: httpx.Client, grace: str, astronaut: bytes) -> None:
    eileen = http.post("/people", content=astronaut, headers=GRACE).json()["identifiedFaces"][0]["personId"]
    assert http.put("/merge", json={"personIds": [eileen, grace]}).status_code == 202
    (root,) = http.get("/rootpeople").json()["people"]
    child = http.get(f"/people/{eileen}").json()["people"][0]
    assert (root["personId"], child["rootPersonId"]) == (grace, grace)
    assert root["unmergedImageURIs"] == [child["unmergedImageURI"]]
    assert child["imageURI"] == root["imageURI"]
    assert http.put("/unmerge", json={"personIds": [eileen]}).status_code == 202
    assert http.get("/rootpeople").json()["personCollectionResponse"]["totalCount"] == 2


@pytest.mark.parametrize("path", ["/merge", "/unmerge"])
@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "body-invalid"),
        (b"[]", 400, "body-invalid"),
        (b'{"personIds": "x"}', 400, "body-invalid"),
        (b'{"personIds": ["../x"]}', 404, "person-unknown"),
        (json.dumps({"personIds": [NOBODY]}).encode(), 404, "person-unknown"),
        (b"{" + b" " * 2**20 + b"}", 413, "body-too-large"),
    ],
)
def test_what_cannot_be_merged(http: httpx.Client, path: str, body: bytes, status: int, reason: str) -> None:
    refused(http.put(path, content=body), status, reason)


def test_images_have_tags(http: httpx.Client, grace: str) -> None:
    face = http.get(f"/person/{grace}/face")
    guid = http.get(f"/people/{grace}").json()["people"][0]["imageURI"].rpartition("/")[2]
    stored = http.get(f"/obj/{guid}")
    assert face.content == stored.content
    assert face.content.startswith(b"\xff\xd8")
    assert face.headers["Content-Type"] == stored.headers["Content-Type"] == "image/jpeg"
    assert face.headers["Cache-Control"] == "private, no-cache"
    assert {"private", "immutable"} <= set(stored.headers["Cache-Control"].split(", "))
    assert face.headers["ETag"] == stored.headers["ETag"] == f'"{guid}"'
    for condition in (f'"{guid}"', f'W/"{guid}"', f'"x", "{guid}"', "*"):
        for path in (f"/person/{grace}/face", f"/obj/{guid}"):
            again = http.get(path, headers={"If-None-Match": condition})
            assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", f'"{guid}"')
    assert http.get(f"/obj/{guid}", headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize("path", ["/people", "/rootpeople", "/person/{}/face", "/people/{}", "/healthz", "/metrics"])
def test_head_is_get_without_a_body(http: httpx.Client, grace: str, path: str) -> None:
    head, get = http.head(path.format(grace)), http.get(path.format(grace))
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    if path != "/metrics":
        assert int(head.headers["Content-Length"]) == len(get.content)


def test_another_account_and_directory_see_nothing(live: LiveServer, http: httpx.Client, grace: str) -> None:
    directory = http.headers["X-RPC-DIRECTORY"]
    guid = http.get(f"/people/{grace}").json()["people"][0]["imageURI"].rpartition("/")[2]
    for stranger in (live.http(directory, "bob"), live.http("elsewhere", "alice")):
        with stranger:
            assert stranger.get("/people").json() == {"people": []}
            for path in (f"/people/{grace}", f"/person/{grace}/face", f"/obj/{guid}", "/people/external/id%2F1"):
                unknown = path.replace(grace, NOBODY).replace(guid, "0" * 32).replace("id%2F1", "none")
                theirs, none = stranger.get(path), stranger.get(unknown)
                assert theirs.status_code == none.status_code == 404
                assert theirs.json()["message"] == none.json()["message"]
            assert stranger.delete(f"/people/{grace}").status_code == 404
            assert stranger.put(f"/people/{grace}", json={"name": "x"}).status_code == 404
            assert stranger.put("/merge", json={"personIds": [grace]}).status_code == 404


def test_the_image_key_is_for_the_cloud(http: httpx.Client) -> None:
    refused(http.get("/obj/imagekey"), 404, "object-unknown")
    refused(http.get("/imagekey"), 404, "object-unknown")
    refused(httpx.get(f"{http.base_url}/imagekey"), 401, "unauthorized")


def test_cloud_hosting(cloud: LiveServer, hopper: bytes) -> None:
    with cloud.http() as http:
        face = http.post("/people", content=hopper, headers={"X-RPC-EXTERNAL-ID": "e"}).json()["identifiedFaces"][0]
        uri = http.get(f"/people/{face['personId']}").json()["people"][0]["imageURI"]
        assert uri.startswith("https://photos.example/base/obj/")
        stored = http.get(f"/obj/{uri.rpartition('/')[2]}")
        assert stored.headers["Content-Type"] == "application/octet-stream"
        picture = http.get(f"/person/{face['personId']}/face")
        assert picture.headers["Content-Type"] == "image/jpeg"
        assert len(stored.content) == 16 + len(picture.content) // 16 * 16 + 16
        key = http.get("/obj/imagekey")
        assert key.json() == http.get("/imagekey").json()
        assert len(base64.b64decode(key.json()["key"])) == 32
        assert key.headers["Cache-Control"] == "no-store"
        with cloud.http(user="bob") as bob:
            assert bob.get("/imagekey").json() != key.json()


def test_a_taken_external_id_is_a_conflict_where_they_are_unique(
    cloud: LiveServer, astronaut: bytes, hopper: bytes
) -> None:
    with cloud.http("unique") as http:
        http.post("/people", content=hopper, headers={"X-RPC-EXTERNAL-ID": "taken"})
        answer = http.post("/people", content=astronaut, headers={"X-RPC-EXTERNAL-ID": "taken"})
        refused(answer, 409, "external-id-taken")


def test_cloud_hosting_needs_its_address_and_an_encrypted_store(live: LiveServer, cloud: LiveServer) -> None:
    for server, settings in (
        (live, live_settings(serve__hosting="cloud", serve__public_url="h")),
        (cloud, live_settings(serve__hosting="cloud")),
    ):
        with pytest.raises(UsageError):
            make_app(server.service, server.client, settings, auth=make_authenticator(server.client))


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


# Errors


def test_the_order_of_checks(live: LiveServer, hopper: bytes) -> None:
    """401, directory, parameters, 415, 413, decoding: a request with every fault shows them one by one."""
    wrong = {
        "X-RPC-FACES-GROUPING-THRESHOLD": "nan",
        "Content-Type": "text/plain",
    }
    auth = {"X-RPC-AUTHORIZATION": f"alice:{base64.b64encode(PASSWORD.encode()).decode()}"}
    large = b"x" * (33 * 2**20)
    with httpx.Client(base_url=live.url, timeout=60) as http:
        refused(http.post("/people", headers=wrong, content=large), 401, "unauthorized")
        wrong |= auth
        refused(http.post("/people", headers=wrong, content=large), 400, "directory-required")
        wrong["X-RPC-DIRECTORY"] = "a/b"
        refused(http.post("/people", headers=wrong, content=large), 400, "directory-invalid")
        wrong["X-RPC-DIRECTORY"] = "main"
        refused(http.post("/people", headers=wrong, content=large), 400, "header-invalid")
        del wrong["X-RPC-FACES-GROUPING-THRESHOLD"]
        refused(http.post("/people?insert=1", headers=wrong, content=large), 400, "parameter-invalid")
        refused(http.post("/people", headers=wrong, content=large), 415, "media-type-unsupported")
        del wrong["Content-Type"]
        refused(http.post("/people", headers=wrong, content=large), 413, "body-too-large")
        refused(http.post("/people", headers=wrong, content=b"no image"), 400, "image-unsupported")


def test_an_unknown_user_and_a_wrong_password_look_the_same(live: LiveServer) -> None:
    bodies = []
    for user in ("bob", "unknown-user"):
        headers = {"X-RPC-AUTHORIZATION": f"{user}:wrong", "X-RPC-DIRECTORY": "main"}
        answer = httpx.get(f"{live.url}/people", headers=headers)
        assert answer.headers["WWW-Authenticate"]
        body = refused(answer, 401, "unauthorized")
        bodies.append({key: value for key, value in body.items() if key != "timestamp"})
    assert bodies[0] == bodies[1]


def test_too_many_failures_are_told_to_wait(live: LiveServer) -> None:
    live.client.create_account("guessed", quick_hash("right"))
    headers = {"X-RPC-AUTHORIZATION": "guessed:wrong", "X-RPC-DIRECTORY": "main"}
    with httpx.Client(base_url=live.url, timeout=60) as http:
        answers = [http.get("/people", headers=headers) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    refused(answers[-1], 429, "too-many-attempts")
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60


@pytest.mark.parametrize(
    ("method", "path", "status", "reason", "allow"),
    [
        ("GET", "/", 404, "route-unknown", None),
        ("GET", "/nothing/here", 404, "route-unknown", None),
        ("PATCH", "/people", 405, "method-unknown", "GET, HEAD, POST"),
        ("POST", f"/people/{NOBODY}", 405, "method-unknown", "DELETE, GET, HEAD, PUT"),
        ("DELETE", "/merge", 405, "method-unknown", "PUT"),
        ("POST", "/healthz", 405, "method-unknown", "GET, HEAD"),
    ],
)
def test_unknown_routes_and_methods(
    live: LiveServer, method: str, path: str, status: int, reason: str, allow: str | None
) -> None:
    answer = httpx.request(method, live.url + path)
    refused(answer, status, reason)
    assert answer.headers.get("Allow") == allow


def test_an_unexpected_error_tells_nothing(
    live: LiveServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /srv/store")

    monkeypatch.setattr(live.service, "people", broken)
    answer = http.get("/people")
    monkeypatch.undo()
    body = refused(answer, 500, "unexpected")
    assert "secret" not in answer.text
    assert "/srv" not in answer.text
    assert answer.headers["X-Request-Id"] in body["message"]
    errors = [record for record in caplog.records if record.name == "facepipe.errors"]
    assert len(errors) == 1
    assert answer.headers["X-Request-Id"] in errors[0].getMessage()
    assert "secret" in str(errors[0].exc_info)


# What is open to all


def test_health_and_readiness(live: LiveServer) -> None:
    assert httpx.get(f"{live.url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{live.url}/readyz").json() == {"status": "ready"}
    live.ready.clear()
    refused(httpx.get(f"{live.url}/readyz"), 503, "not-ready")
    live.ready.set()


def samples(live: LiveServer) -> dict[str, float]:
    lines = httpx.get(f"{live.url}/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def test_metrics_count_and_name_nobody(live: LiveServer, http: httpx.Client, hopper: bytes) -> None:
    before = samples(live)
    http.post("/people", content=hopper, headers=GRACE)
    http.post("/people", content=hopper, headers=GRACE)
    http.get(f"/people/{NOBODY}")
    after = samples(live)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown("facepipe_faces_total") == 2
    assert grown("facepipe_insertions_total") == 1
    assert grown("facepipe_matches_total") == 1
    assert grown("facepipe_identities") == 1
    assert grown('facepipe_requests_total{method="POST",route="/people",status="201"}') == 2
    assert grown('facepipe_requests_total{method="GET",route="/people/{person_id}",status="404"}') == 1
    assert after["facepipe_body_bytes"] == 0
    text = httpx.get(f"{live.url}/metrics").text
    assert NOBODY not in text
    assert http.headers["X-RPC-DIRECTORY"] not in text
    assert "alice" not in text


def test_the_access_log_has_one_line_and_no_secret(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "facepipe.access"):
        request_id = http.get(f"/people/{NOBODY}?name=secret").headers["X-Request-Id"]
        http.get("/healthz")  # the line of a request may be written after its answer is sent, but before the next one
    (line,) = [r.getMessage() for r in caplog.records if request_id in r.getMessage()]
    assert "method=GET route=/people/{person_id} status=404 ms=" in line
    assert not {"secret", NOBODY, "alice"} & set(line.replace("=", " ").split())


# Existing clients


def test_ten_parallel_deletes_with_an_empty_body(http: httpx.Client, hopper: bytes) -> None:
    forced = {**GRACE, "X-RPC-FACES-GROUPING-THRESHOLD": "0"}
    ids = []
    for number in range(10):
        answer = http.post("/people", content=changed_picture(hopper, number), headers=forced)
        ids.append(answer.json()["identifiedFaces"][0]["personId"])
    assert len(set(ids)) == 10

    def delete(person: str) -> int:
        return http.delete(f"/people/{person}", headers={"Content-Length": "0"}).status_code

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(delete, ids)) == [204] * len(ids)
    assert http.get("/rootpeople/?count=0&include-expired=true").json()["people"] == []
