"""Clients of servers over stores of coded faces, and what must be true of such a store afterwards."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

import numpy as np
from coded_faces import CodedExtractor, Shown, coded_identity, photo, vector
from coded_store import AUTHORIZATION, PASSWORD, USER

from pipeline.extraction.images.decode import Decoder
from pipeline.people.directory import Directories
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from tests.forking import Child
from tests.serve.forked_server import CROP_BYTES, SETTINGS
from tests.serve.quick_hash import quick_hash
from tests.stored import stored_people

Json: TypeAlias = dict[str, Any]
SIZE = 64
DIRECTORY = "main"
EXTRACTOR = CodedExtractor(SIZE, CROP_BYTES)
RECOGNISE = PostRequest(insert=False, update=False)


class Unanswered(Exception):
    """The server died before its answer came."""


@contextmanager
def client_of(server: Child) -> Iterator[Client]:
    client = Client(server.ready)
    try:
        yield client
    finally:
        client.close()


class Client:
    """One connection; not for several threads. Methods return the answer's JSON and assert its status."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._headers = {"X-RPC-AUTHORIZATION": AUTHORIZATION, "X-RPC-DIRECTORY": DIRECTORY}

    def close(self) -> None:
        self._connection.close()

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Json]:
        """Raises Unanswered."""
        try:
            self._connection.request(method, path, body, {**self._headers, **headers})
            response = self._connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as exc:
            self._connection.close()
            raise Unanswered from exc
        return response.status, json.loads(data) if data else {}

    def send(self, image: bytes, name: str, **query: object) -> Json:
        """Posts any image; the 2.3 object."""
        headers = {"X-RPC-PERSON-NAME": name, "Content-Type": "application/octet-stream"}
        status, answer = self.request("POST", "/people?" + urlencode(query), image, **headers)
        assert status == 201, answer
        return answer

    def post(self, *faces: Shown, **query: object) -> Json:
        """Posts a photo of these; a new person is named by the first one's number."""
        return self.send(photo(*faces), str(faces[0].person), **query)

    def call(self, method: str, path: str, body: Json | None = None, expected: int = 202) -> Json:
        status, answer = self.request(method, path, None if body is None else json.dumps(body).encode())
        assert status == expected, answer
        return answer

    def people(self) -> list[Json]:
        return list(self.call("GET", "/rootpeople?count=0", expected=200)["people"])


def empty_store(path: Path) -> Path:
    with LocalStore.open_or_create(path, lambda: coded_identity(SIZE), command="make") as client:
        client.create_account(USER, quick_hash(PASSWORD))
    return path


def service_of(client: LocalStore) -> IdentityService:
    """A fresh service over an open store."""
    service = IdentityService(client, EXTRACTOR, Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
    service.load()
    return service


def assert_whole(client: LocalStore, shown: dict[str, Shown]) -> None:
    """`check` finds nothing; each person of the directory has one reference, its vector and its picture, all of the
    photo that `shown` says for the name; there is no other object; the memory of a new server equals the catalog."""
    account = client.account_id(USER)
    assert check_store(client).problems == []
    references = stored_people(client, account, DIRECTORY)
    for person, stored in zip(references.persons, references.vectors, strict=True):
        face = shown[str(person.name)]
        assert client.read_image(account, person.image_guid) == (EXTRACTOR.crop(face), "image/jpeg")
        assert stored.tobytes() == vector(face, SIZE).tobytes()
    files = {path.name for path in (client.path / "objects").rglob("*") if path.is_file()}
    assert files == {person.image_guid for person in references.persons}
    assert_memory_equals_catalog(client)


def assert_memory_equals_catalog(client: LocalStore) -> None:
    """A server that starts now has in memory what the tables say."""
    account = client.account_id(USER)
    directories = Directories(client)
    rows = client.read(
        "SELECT p.person_id::VARCHAR AS person_id, p.seq, e.embedding FROM core.persons p"
        " JOIN core.directories d ON d.directory_id = p.directory_id AND d.account_id = ? AND d.name = ?"
        " JOIN core.reference_faces r ON r.person_id = p.person_id"
        " LEFT JOIN core.pending_embeddings e ON e.face_id = r.face_id ORDER BY r.seq",
        [account, DIRECTORY],
    ).to_pylist()
    with directories.using(account, DIRECTORY) as loaded:
        view = loaded.view()
        everything = np.arange(len(view.index))
        assert list(view.person_ids) == [row["person_id"] for row in rows]
        assert view.index.order.at(everything).tolist() == [row["seq"] for row in rows]
        assert len(view.index.dead) == 0
        for row, stored in zip(rows, view.index.vectors_at(everything), strict=True):
            assert row["embedding"] in (None, np.asarray(stored, "<f4").tobytes())
        loaded.keep_all()
        assert [*loaded.everybody()] == list(stored_people(client, account, DIRECTORY).persons)
