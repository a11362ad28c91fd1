"""Servers killed while they insert: what was answered is there, and nothing is half there.

The models are those of `coded_faces`, because it is the store that a crash tests; the last test uses the real ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo
from coded_store import USER

from pipeline.store.checks.check import check_store
from pipeline.store.client import StoreClient
from pipeline.store.files.faults import FILE_STEPS, TRANSACTION_STEPS
from tests.serve.coded import (
    RECOGNISE,
    Client,
    Forker,
    ServerProcess,
    Unanswered,
    assert_whole,
    empty_store,
    service_of,
)
from tests.serve.conformance import photos

KILLS = int(os.environ.get("TEST_KILLS", "3"))  # 10 for the record
INSERTIONS = 500
CLIENTS = 16
# The points that come after the transaction of a request.
AFTER_THE_COMMIT = ("catalog.fsync_folder", "directory_commit.committed", "unlink", "clear_deletes.")
# What requests meet, and the end of a server, which folds what they left waiting.
MET = (
    *(f"{kind}.{step}" for kind in ("object", "embeddings") for step in FILE_STEPS),
    *(f"{name}.{step}" for name in ("directory_commit", "clear_deletes", "fold") for step in TRANSACTION_STEPS),
    "catalog.fsync_folder",
    "unlink",
)


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    made = Forker(tmp_path_factory.mktemp("points"))
    yield made
    made.close()


# Killed at a random moment


class Insertions:
    """Clients that insert persons in parallel, each its own share, until all are in or the server is gone."""

    def __init__(self, server: ServerProcess, persons: range) -> None:
        self.answered: dict[int, str] = {}
        self._shares = [persons[k::CLIENTS] for k in range(CLIENTS)]
        self._threads = [threading.Thread(target=self._insert, args=(server, share)) for share in self._shares]
        for thread in self._threads:
            thread.start()

    def _insert(self, server: ServerProcess, persons: range) -> None:
        with server.client() as client:
            for person in persons:
                try:
                    (face,) = client.post(Shown(person), update="false")["identifiedFaces"]
                except Unanswered:
                    return
                assert face["newId"] is True
                self.answered[person] = face["personId"]

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.mark.slow
def test_killed_during_parallel_insertions(forker: Forker, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    chance = random.Random(5)
    answered: dict[int, str] = {}
    for kill in range(KILLS):
        server = forker.start(store)
        insertions = Insertions(server, range(kill * INSERTIONS, (kill + 1) * INSERTIONS))
        wanted = chance.randrange(INSERTIONS)
        while len(insertions.answered) < wanted:
            time.sleep(0.001)
        server.kill()
        insertions.join()
        answered |= insertions.answered
        assert wanted <= len(insertions.answered) < INSERTIONS
        assert_all_there(store, answered)


def assert_all_there(store: Path, answered: dict[int, str]) -> None:
    with StoreClient.open(store, command="test") as client:
        account = client.account_id(USER)
        known = client.references(account, "main").persons
        ids = {int(str(person.name)): person.person_id for person in known}
        assert len(ids) == len(known), "somebody is there twice"
        assert answered.items() <= ids.items()
        assert_whole(client, {str(person): Shown(person) for person in ids})
        service = service_of(client)
        for person in sorted(ids)[-INSERTIONS // 4 :]:  # of the latest
            (face,) = service.post(account, "main", photo(Shown(person, 1)), RECOGNISE).faces
            assert face.person is not None
            assert face.person.record.person_id == ids[person]
        service.close()


# Killed at a fault point

Step = Callable[[Client], object]
# What a client does, one request after the other: everything that the store's people path knows.
STEPS: tuple[Step, ...] = (
    lambda c: c.post(Shown(1)),
    lambda c: c.post(Shown(2), Shown(3), insert_all="true"),
    lambda c: c.post(Shown(1, 1)),  # replaces the reference
    lambda c: c.post(Shown(2, 2), update="false"),  # counts only
    lambda c: c.call("PUT", f"/people/{_id_of(c, '2')}", {"name": "two"}),
    lambda c: c.call("DELETE", f"/people/{_id_of(c, '1')}", expected=204),
    lambda c: c.post(Shown(4)),
)


def _id_of(client: Client, name: str) -> str:
    return str(next(person["personId"] for person in client.people() if person.get("name") == name))


def play(server: ServerProcess) -> int:
    """The steps, until the server dies; how many were answered."""
    with server.client() as client:
        for number, step in enumerate(STEPS):
            try:
                step(client)
            except Unanswered:
                return number
    return len(STEPS)


def contents(store: Path) -> list[tuple[Any, ...]]:
    """Everything of everybody, without ids and times, by name; the store must be whole."""
    with StoreClient.open(store, command="test") as client:
        assert check_store(client).problems == []
        account = client.account_id(USER)
        known = client.references(account, "main")
        pictures = [client.read_image(account, person.image_guid) for person in known.persons]
        files = sum(path.is_file() for path in (client.path / "objects").rglob("*"))
        assert files == len(pictures)
        rows = zip(known.persons, known.vectors, known.image_hashes, pictures, strict=True)
        return sorted(
            (str(person.name), person.occurrence, vector.tobytes(), hashes, picture)
            for person, vector, hashes, picture in rows
        )


class Undisturbed:
    """What the store holds after each number of steps, and how often all of them meet each fault point."""

    def __init__(self, forker: Forker, folder: Path) -> None:
        self.contents = []
        for count in range(len(STEPS) + 1):
            store = empty_store(folder / str(count))
            server = forker.start(store)
            with server.client() as client:
                for step in STEPS[:count]:
                    step(client)
            ended = server.stop()
            assert ended["status"] == 0
            self.points: dict[str, int] = ended["points"]
            self.contents.append(contents(store))


@pytest.fixture(scope="module")
def undisturbed(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(forker, tmp_path_factory.mktemp("undisturbed"))


def test_a_server_meets_these_fault_points(undisturbed: Undisturbed) -> None:
    assert set(undisturbed.points) == set(MET)


@pytest.mark.slow
@pytest.mark.parametrize("point", MET)
def test_killed_at_a_fault_point(forker: Forker, undisturbed: Undisturbed, point: str, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    server = forker.start(store, fault=point, nth=undisturbed.points[point])
    answered = play(server)
    ended = server.stop() if answered == len(STEPS) else server.wait()
    assert ended["status"] == -signal.SIGKILL
    # The request that had no answer is in as a whole, or not at all.
    done = min(len(STEPS), answered + point.startswith(AFTER_THE_COMMIT))
    assert contents(store) == undisturbed.contents[done]
    with forker.serving(store) as again, again.client() as client:  # a server takes the store up where it stands
        for step in STEPS[done:]:
            step(client)
    assert contents(store) == undisturbed.contents[-1]


# The command itself, with its models


@pytest.mark.slow
def test_the_command_is_killed_and_started_again(tmp_path: Path, weights_cache: Path) -> None:
    environ = {**os.environ, "FACEPIPE_CACHE": str(weights_cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline"]
    store = ["--store", str(tmp_path / "store")]
    made = [*command, "account", "create", USER, *store, "--weights", "casia-webface", "--password-stdin"]
    subprocess.run(made, input="correct horse", text=True, check=True, env=environ, capture_output=True)
    served = [*command, "serve", *store, "--port", "0", "--device", "cpu"]
    served += ["--person-headers", "optional", "--quiet", "--json"]
    shown = {"hopper": photos.photo("hopper"), "collins": photos.photo("collins")}
    ids: list[dict[str, str]] = []
    for _ in range(2):
        with subprocess.Popen(served, stdout=subprocess.PIPE, text=True, env=environ) as process:
            try:
                assert process.stdout is not None
                client = Client(json.loads(process.stdout.readline())["url"])
                with closing(client):
                    faces = {name: client.send(image, name)["identifiedFaces"][0] for name, image in shown.items()}
                ids.append({name: face["personId"] for name, face in faces.items()})
            finally:
                process.kill()
    assert ids[0] == ids[1]
    with StoreClient.open(tmp_path / "store", command="test") as client_of_store:
        assert check_store(client_of_store).problems == []
