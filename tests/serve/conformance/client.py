"""A client of the contract: HTTP and nothing else. What the conformance tests talk through.

A `Server` is where an identity service answers; an `Account` is credentials there; a `Directory` is one named set of
identities of an account, with the calls of the contract as methods. Methods named as a verb of HTTP return the
response as it came; the others assert that it succeeded and return what it holds.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import httpx

Json: TypeAlias = dict[str, Any]
OCTET_STREAM = "application/octet-stream"
FORCED = {"min-cpq": "0", "min-fsq": "0", "min-fcq": "0"}  # no check of quality


@dataclass(frozen=True)
class Server:
    """Addresses without a slash at the end. On one port, all three are one."""

    base_url: str
    object_url: str
    key_url: str
    http: httpx.Client = field(repr=False)

    @classmethod
    def at(cls, base_url: str, object_url: str | None = None, key_url: str | None = None) -> Server:
        base = base_url.rstrip("/")
        objects = (object_url or base).rstrip("/")
        return cls(base, objects, (key_url or objects).rstrip("/"), httpx.Client(timeout=60, trust_env=False))


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

    @contextmanager
    def fresh_directory(self) -> Iterator[Directory]:
        """One that does not exist yet, and that is emptied in the end: an account has but ten."""
        fresh = self.directory(f"c-{uuid.uuid4().hex[:16]}")
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
        """The two of every request (5), as they go over the wire."""
        return {"X-RPC-AUTHORIZATION": self.account.authorization.encode(), "X-RPC-DIRECTORY": self.name.encode()}

    def request(self, method: str, path: str, **how: Any) -> httpx.Response:
        """Any call of the identity API, with both headers unless `headers` has others, or None for one of them."""
        headers = {**self.headers, **how.pop("headers", {})}
        wire = {key: _wire(value) for key, value in headers.items() if value is not None}
        return self.account.server.http.request(method, self.account.server.base_url + path, headers=wire, **how)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.request("GET", path, params=query)

    def put(self, path: str, body: Json | None = None, **how: Any) -> httpx.Response:
        return self.request("PUT", path, json=body, **how)

    def delete(self, person_id: str, **query: Any) -> httpx.Response:
        return self.request("DELETE", f"/people/{person_id}", params=query)

    def post(
        self,
        image: bytes,
        *,
        name: str | None = None,
        external_id: str | None = None,
        threshold: float | str | None = None,
        headers: Mapping[str, Any] | None = None,
        **query: Any,
    ) -> httpx.Response:
        """POST /people. A parameter like `min-cpq` is given as `**{"min-cpq": 0}`."""
        sent = {
            "Content-Type": OCTET_STREAM,
            "X-RPC-PERSON-NAME": name,
            "X-RPC-EXTERNAL-ID": external_id,
            "X-RPC-FACES-GROUPING-THRESHOLD": None if threshold is None else str(threshold),
            **(headers or {}),
        }
        return self.request("POST", "/people", content=image, params=query, headers=sent)

    # What the tests do most

    def answer(self, image: bytes, **how: Any) -> Json:
        """The object of 2.3 that a post gives, which must be a success."""
        response = self.post(image, **how)
        assert response.status_code == 201, response.text
        return dict(response.json())

    def faces(self, image: bytes, **how: Any) -> list[Json]:
        return list(self.answer(image, **how)["identifiedFaces"])

    def recognise(self, image: bytes, **how: Any) -> list[Json]:
        """The faces of an image; nothing is inserted or updated."""
        return self.faces(image, insert="false", update="false", **how)

    def insert(self, image: bytes, name: str = "Anna", external_id: str = "A-1", **how: Any) -> Json:
        """The one identity that the image of one face must make."""
        (face,) = self.faces(image, name=name, external_id=external_id, update="false", **how)
        assert face.get("newId") is True, face
        return face

    def force(self, image: bytes, name: str = "Anna", external_id: str = "A-1") -> Json:
        """As `insert`, of a face that matches another identity or is too poor (4.2 rule 5)."""
        return self.insert(image, name, external_id, threshold=0, **FORCED)

    def people(self, **query: Any) -> list[Json]:
        """All records."""
        response = self.get("/people", **query)
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

    def merge(self, *person_ids: str) -> None:
        response = self.put("/merge", {"personIds": list(person_ids)})
        assert response.status_code == 202, response.text

    def unmerge(self, *person_ids: str) -> None:
        response = self.put("/unmerge", {"personIds": list(person_ids)})
        assert response.status_code == 202, response.text

    def face_image(self, person_id: str) -> httpx.Response:
        return self.get(f"/person/{person_id}/face")

    def stored(self, image_uri: str) -> httpx.Response:
        """What the object server has at the address of a record (4.5)."""
        guid = image_uri.rsplit("/", 1)[1]
        return self.account.server.http.get(f"{self.account.server.object_url}/obj/{guid}", headers=self.headers)

    def clear(self) -> None:
        for person in self.people():
            self.delete(person["personId"], recursive="true")


def _wire(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def external_path(external_id: str) -> str:
    return f"/people/external/{quote(external_id, safe='')}"


@dataclass(frozen=True)
class RawAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        return dict(json.loads(self.body))


def raw(url: str, method: str, path: str, headers: Mapping[str, str | bytes], body: bytes | None = None) -> RawAnswer:
    """One request whose path and headers are sent as they are: httpx would take `..` out of a path."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request(method, parts.path + path, body=body, headers=dict(headers))
        response = connection.getresponse()
        return RawAnswer(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()
