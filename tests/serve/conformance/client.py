"""The client of the conformance tests. It speaks HTTP and knows nothing of the server's code.

A `Server` is the address of an identity service, an `Account` holds credentials for it, and a `Directory` has the calls
of the contract as methods. Methods named after an HTTP verb return the response as it is. All others assert success and
return the content.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx

Json: TypeAlias = dict[str, Any]
OCTET_STREAM = "application/octet-stream"
FORCED = {"min-cpq": "0", "min-fsq": "0", "min-fcq": "0"}  # no quality checks
READ_ONLY = {"insert": "false", "update": "false"}
UNKNOWN_ID = "00000000-0000-4000-8000-000000000000"
ANNA: dict[str, Any] = {"name": "Anna", "external_id": "A-1"}
BEA: dict[str, Any] = {"name": "Bea", "external_id": "B-2"}


@dataclass(frozen=True)
class Server:
    """Three addresses without a trailing slash. A server on one port has the same address three times."""

    base_url: str
    object_url: str
    key_url: str
    http: httpx.Client = field(repr=False)

    @classmethod
    def at(cls, base_url: str, object_url: str | None = None, key_url: str | None = None) -> Server:
        base = base_url.rstrip("/")
        objects = (object_url or base).rstrip("/")
        return cls(base, objects, (key_url or objects).rstrip("/"), httpx.Client(timeout=60, trust_env=False))

    def address(self, path: str) -> str:
        if path.startswith("/obj/imagekey"):
            return self.key_url + path
        return (self.object_url if path.startswith("/obj/") else self.base_url) + path


@dataclass(frozen=True)
class Account:
    server: Server
    user: str
    password: str = field(repr=False)

    @property
    def authorization(self) -> str:
        return f"{self.user}:{self.password}"

    def directory(self, name: str) -> Directory:
        return Directory(self, name)

    def absent_directory(self) -> Directory:
        """A directory with a random name. It holds no identity, so it does not exist."""
        return self.directory(f"c-{uuid.uuid4().hex[:16]}")

    @contextmanager
    def fresh_directory(self, name: str | None = None) -> Iterator[Directory]:
        """An absent directory that is emptied afterwards, because an account can have only ten."""
        fresh = self.directory(name) if name else self.absent_directory()
        try:
            yield fresh
        finally:
            fresh.clear()


@dataclass(frozen=True)
class Directory:
    account: Account
    name: str

    @property
    def headers(self) -> dict[str, Any]:
        """The two headers of every request (section 5), encoded as they are sent."""
        return {"X-RPC-AUTHORIZATION": self.account.authorization.encode(), "X-RPC-DIRECTORY": self.name.encode()}

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends both headers. Another value in `headers` replaces the default; None removes the header."""
        headers = {**self.headers, **options.pop("headers", {})}
        encoded = {
            key: value.encode() if isinstance(value, str) else value
            for key, value in headers.items()
            if value is not None
        }
        server = self.account.server
        return server.http.request(method, server.address(path), headers=encoded, **options)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.request("GET", path, params=query)

    def put(self, path: str, body: Json | None = None, **options: Any) -> httpx.Response:
        return self.request("PUT", path, json=body, **options)

    def delete(self, person_id: str, **query: Any) -> httpx.Response:
        return self.request("DELETE", f"/people/{person_id}", params=query)

    def post(
        self,
        image: bytes | Iterator[bytes],
        *,
        name: str | None = None,
        external_id: str | None = None,
        threshold: float | str | None = None,
        headers: Mapping[str, Any] | None = None,
        **query: Any,
    ) -> httpx.Response:
        """POST /people. A query parameter with a hyphen, like `min-cpq`, is passed as `**{"min-cpq": 0}`."""
        sent = {
            "Content-Type": OCTET_STREAM,
            "X-RPC-PERSON-NAME": name,
            "X-RPC-EXTERNAL-ID": external_id,
            "X-RPC-FACES-GROUPING-THRESHOLD": None if threshold is None else str(threshold),
            **(headers or {}),
        }
        return self.request("POST", "/people", content=image, params=query, headers=sent)

    def answer(self, image: bytes, **options: Any) -> Json:
        """Posts an image. Returns the top-level object of 2.3."""
        response = self.post(image, **options)
        assert response.status_code == 201, response.text
        return dict(response.json())

    def faces(self, image: bytes, **options: Any) -> list[Json]:
        return list(self.answer(image, **options)["identifiedFaces"])

    def recognise(self, image: bytes, **options: Any) -> list[Json]:
        """The faces of an image, without inserting or updating."""
        return self.faces(image, **READ_ONLY, **options)

    def insert(self, image: bytes, name: str = "Anna", external_id: str = "A-1", **options: Any) -> Json:
        """Inserts the only face of an image as a new identity. Returns its entry."""
        (face,) = self.faces(image, name=name, external_id=external_id, update="false", **options)
        assert face.get("newId") is True, face
        return face

    def force(self, image: bytes, name: str = "Anna", external_id: str = "A-1") -> str:
        """Inserts a face even if it matches another identity or its quality is poor (4.2 rule 5). Returns its id."""
        return str(self.insert(image, name, external_id, threshold=0, **FORCED)["personId"])

    def force_all(self, *images: bytes) -> list[str]:
        """Forces an identity from each image, named P0, P1, ... with external ids P-0, P-1, ... Returns their ids."""
        return [self.force(image, f"P{number}", f"P-{number}") for number, image in enumerate(images)]

    def people(self) -> list[Json]:
        """All records."""
        response = self.get("/people")
        assert response.status_code == 200, response.text
        return list(response.json()["people"])

    def roots(self, **query: Any) -> list[Json]:
        response = self.get("/rootpeople", **query)
        assert response.status_code == 200, response.text
        return list(response.json()["people"])

    def record(self, person_id: str) -> Json:
        response = self.get(f"/people/{person_id}")
        assert response.status_code == 200, response.text
        (record,) = response.json()["people"]
        return dict(record)

    def merge(self, *person_ids: str, path: str = "/merge") -> None:
        response = self.put(path, {"personIds": person_ids})
        assert response.status_code == 202, response.text

    def unmerge(self, *person_ids: str) -> None:
        self.merge(*person_ids, path="/unmerge")

    def face_image(self, person_id: str, **headers: Any) -> httpx.Response:
        return self.request("GET", f"/person/{person_id}/face", headers=headers)

    def stored(self, image_uri: str) -> httpx.Response:
        """Downloads the image at the address in a record from the object server (4.5)."""
        return self.get(f"/obj/{image_uri.rsplit('/', 1)[1]}")

    def clear(self) -> None:
        for person in self.people():
            self.delete(person["personId"], recursive="true")


def external_path(external_id: str) -> str:
    return f"/people/external/{quote(external_id, safe='')}"


def assert_error(response: httpx.Response, status: int, reason: str) -> None:
    assert response.status_code == status, response.text
    assert response.json()["errorReason"] == reason
