"""Servers over stores of coded faces, what clients do to them, and what must hold of a store afterwards."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode, urlsplit

import numpy as np
from coded_faces import CodedExtractor, Shown, photo, vector
from coded_store import AUTHORIZATION, USER, make_store

from pipeline.extraction.images.decode import Decoder
from pipeline.identities.directory import Directories
from pipeline.identities.service import IdentityService
from pipeline.identities.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.client import StoreClient
from tests.serve.forker import CROP_BYTES, SETTINGS

Json: TypeAlias = dict[str, Any]
ROOT = Path(__file__).parents[2]
SIZE = 64
EXTRACTOR = CodedExtractor(SIZE, CROP_BYTES)
RECOGNISE = PostRequest(insert=False, update=False)


class Forker:
    """`forker.py`, running. `prefix`: a command that runs it."""

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        command = [*prefix, sys.executable, "-W", "ignore", "-m", "tests.serve.forker", str(folder)]
        environ = {**os.environ, "PYTHONPATH": str(ROOT / "scripts/bench"), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
        )

    def order(self, **order: Any) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the forker died"
        return dict(json.loads(line))

    def start(self, store: Path, **how: Any) -> ServerProcess:
        said = self.order(store=str(store), **how)
        server = ServerProcess(self, said["pid"], said["url"])
        assert server.url, f"the server ended with {server.wait()['status']} before it listened"
        return server

    @contextmanager
    def serving(self, store: Path, **how: Any) -> Iterator[ServerProcess]:
        """A server that is stopped in the end, and must stop cleanly."""
        server = self.start(store, **how)
        try:
            yield server
        except BaseException:
            server.kill()
            raise
        assert server.stop()["status"] == 0

    def close(self) -> None:
        with self._process as process:  # closes the pipes: the forker ends with its input
            assert process.stdin is not None


@dataclass(frozen=True)
class ServerProcess:
    forker: Forker
    pid: int
    url: str

    @contextmanager
    def client(self, directory: str = "main") -> Iterator[Client]:
        client = Client(self.url, directory)
        try:
            yield client
        finally:
            client.close()

    def wait(self) -> Json:
        """How it ended."""
        return self.forker.order(wait=self.pid)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.wait()["status"] == -signal.SIGKILL

    def stop(self) -> Json:
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()


class Unanswered(Exception):
    """The server died before its answer came."""


class Client:
    """One connection; not for several threads. Methods return the answer's JSON and assert its status."""

    def __init__(self, url: str, directory: str = "main") -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._headers = {"X-RPC-AUTHORIZATION": AUTHORIZATION, "X-RPC-DIRECTORY": directory}

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
        status, said = self.request("POST", "/people?" + urlencode(query), image, **headers)
        assert status == 201, said
        return said

    def post(self, *faces: Shown, **query: object) -> Json:
        """Posts a photo of these; a new person is named by the first one's number."""
        return self.send(photo(*faces), str(faces[0].person), **query)

    def call(self, method: str, path: str, body: Json | None = None, expected: int = 202) -> Json:
        status, said = self.request(method, path, None if body is None else json.dumps(body).encode())
        assert status == expected, said
        return said

    def people(self) -> list[Json]:
        return list(self.call("GET", "/rootpeople?count=0", expected=200)["people"])


def empty_store(path: Path) -> Path:
    make_store(path, SIZE).close()
    return path


def service_of(client: StoreClient) -> IdentityService:
    """A fresh service over an open store."""
    made = IdentityService(client, EXTRACTOR, Decoder(SETTINGS.decode), SETTINGS)  # type: ignore[arg-type]
    made.load()
    return made


def assert_whole(client: StoreClient, shown: dict[str, Shown], directory: str = "main") -> None:
    """`check` finds nothing; each person of the directory has one reference, its vector and its picture, all of the
    photo that `shown` says for the name; there is no other object; memory, read anew, equals the catalog."""
    account = client.account_id(USER)
    assert check_store(client).problems == []
    known = client.references(account, directory)
    for person, stored in zip(known.persons, known.vectors, strict=True):
        face = shown[str(person.name)]
        assert client.read_image(account, person.image_guid) == (EXTRACTOR.crop(face), "image/jpeg")
        assert stored.tobytes() == vector(face, SIZE).tobytes()
    files = {path.name for path in (client.path / "objects").rglob("*") if path.is_file()}
    assert files == {person.image_guid for person in known.persons}
    assert_memory_equals_catalog(client, directory)


def assert_memory_equals_catalog(client: StoreClient, directory: str = "main") -> None:
    """What a server that starts now has in memory is what the tables say."""
    account = client.account_id(USER)
    directories = Directories(client)
    rows = client.read(
        "SELECT p.person_id::VARCHAR AS person_id, p.seq, e.embedding FROM core.persons p"
        " JOIN core.directories d ON d.directory_id = p.directory_id AND d.account_id = ? AND d.name = ?"
        " JOIN core.reference_faces r ON r.person_id = p.person_id"
        " LEFT JOIN core.pending_embeddings e ON e.face_id = r.face_id ORDER BY p.seq",
        [account, directory],
    ).to_pylist()
    with directories.using(account, directory) as held:
        view = held.view()
        assert list(view.person_ids) == [row["person_id"] for row in rows]
        assert view.index.order.tolist() == [row["seq"] for row in rows]
        assert len(view.index.dead) == 0
        for row, stored in zip(rows, view.index.host_vectors, strict=True):
            assert row["embedding"] in (None, np.asarray(stored, "<f4").tobytes())
        assert held.records() == list(client.references(account, directory).persons)
