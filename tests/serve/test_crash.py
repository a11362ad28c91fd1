"""Servers killed while they insert: what was answered is there, and nothing is half there.

The models are those of `coded_faces`, because a crash tests the store; the last test uses real models. By default a few
fault points and kills are tried, with --full all of them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo, vector
from coded_store import PASSWORD, USER

from pipeline.errors import ServerUnreachable
from pipeline.jobs.store import open_or_create_store
from pipeline.store.checks.check import check_store
from pipeline.store.files.faults import FILE_STEPS, TRANSACTION_STEPS
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.conftest import ALL
from tests.forking import Child, Forker
from tests.people.changes import contents as table_contents
from tests.people.changes import held, prepare
from tests.serve.coded import RECOGNISE, SIZE, Client, Unanswered, assert_whole, client_of, empty_store, service_of
from tests.serve.conformance import photos
from tests.serve.conformance.launch import server_order
from tests.serve.live import live_settings
from tests.serve.quick_hash import quick_hash
from tests.stored import stored_people

INSERTIONS = 500
CLIENTS = 16
# The points that come after the transaction of a request.
AFTER_THE_COMMIT = (
    "catalog.fsync_folder",
    "commits.",
    "change.committed",
    "change.committed",
    "unlink",
    "clear_deletes.",
)
TRANSACTIONS = ("change", "clear_deletes", "fold")
# What requests meet, and the end of a server, which folds what they left waiting.
MET = (
    *(f"{kind}.{step}" for kind in ("object", "embeddings") for step in FILE_STEPS),
    *(f"{name}.{step}" for name in ("change", "clear_deletes", "fold") for step in TRANSACTION_STEPS),
    "catalog.fsync_folder",
    "commits.write",
    "commits.fsync",
    "unlink",
)


# Killed at a random moment


class Insertions:
    """Clients that insert persons in parallel, each its own share, until all are in or the server is gone."""

    def __init__(self, server: Child, persons: range) -> None:
        self.answered: dict[int, str] = {}
        self._shares = [persons[k::CLIENTS] for k in range(CLIENTS)]
        self._threads = [threading.Thread(target=self._insert, args=(server, share)) for share in self._shares]
        for thread in self._threads:
            thread.start()

    def _insert(self, server: Child, persons: range) -> None:
        with client_of(server) as client:
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
def test_killed_during_parallel_insertions(forked_servers: Forker, tmp_path: Path, full: bool) -> None:
    store = empty_store(tmp_path / "store")
    chance = random.Random(5)
    answered: dict[int, str] = {}
    for kill in range(10 if full else 2):
        server = forked_servers.start(store=str(store))
        insertions = Insertions(server, range(kill * INSERTIONS, (kill + 1) * INSERTIONS))
        minimum = chance.randrange(INSERTIONS)
        while len(insertions.answered) < minimum:
            time.sleep(0.001)
        server.kill()
        insertions.join()
        answered |= insertions.answered
        assert minimum <= len(insertions.answered) < INSERTIONS
        assert_all_there(store, answered)


def assert_all_there(store: Path, answered: dict[int, str]) -> None:
    with LocalStore.open(store, command="test") as client:
        account = client.account_id(USER)
        stored = stored_people(client, account, "main").persons
        ids = {int(str(person.name)): person.person_id for person in stored}
        assert len(ids) == len(stored), "somebody is there twice"
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
    lambda c: c.post(Shown(5), **{"merge-with": _id_of(c, "two")}),
    lambda c: c.call("PUT", "/unmerge", {"personIds": [_id_of(c, "two")]}),
    lambda c: c.call("PUT", "/merge", {"personIds": [_id_of(c, "two"), _id_of(c, "5")], "tags": ["a"]}),
    lambda c: c.call("DELETE", f"/people/{_id_of(c, '1')}", expected=204),
    lambda c: c.post(Shown(4)),
)


def _id_of(client: Client, name: str) -> str:
    return str(next(person["personId"] for person in client.people() if person.get("name") == name))


def play(server: Child) -> int:
    """The steps, until the server dies; how many were answered."""
    with client_of(server) as client:
        for number, step in enumerate(STEPS):
            try:
                step(client)
            except Unanswered:
                return number
    return len(STEPS)


def contents(store: Path) -> list[tuple[Any, ...]]:
    """Everything of everybody, without ids and times, by name; the store must be whole."""
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []
        account = client.account_id(USER)
        stored = stored_people(client, account, "main")
        pictures = [client.read_image(account, person.image_guid) for person in stored.persons]
        files = sum(path.is_file() for path in (client.path / "objects").rglob("*"))
        assert files == len(pictures)
        rows = zip(stored.persons, stored.vectors, stored.image_hashes, pictures, strict=True)
        names = {person.person_id: str(person.name) for person in stored.persons}
        people = sorted(
            (str(p.name), names.get(p.parent_id or ""), p.tags, p.occurrence, vector.tobytes(), hashes, picture)
            for p, vector, hashes, picture in rows
        )
        logged = client.read("SELECT kind, origin FROM core.corrections ORDER BY correction_id").to_pylist()
        return [*people, *((row["kind"], row["origin"]) for row in logged)]


class Undisturbed:
    """A server that is not killed."""

    def __init__(self, servers: Forker, folder: Path) -> None:
        self._servers, self._folder = servers, folder

    @cache  # noqa: B019  as long as the tests of this module
    def after(self, steps: int) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
        """What the store holds after so many steps, and how often they meet each fault point."""
        store = empty_store(self._folder / str(steps))
        server = self._servers.start(store=str(store))
        with client_of(server) as client:
            for step in STEPS[:steps]:
                step(client)
        ended = server.stop()
        assert ended.status == 0
        return contents(store), ended.points


@pytest.fixture(scope="module")
def undisturbed(forked_servers: Forker, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(forked_servers, tmp_path_factory.mktemp("undisturbed"))


def test_a_server_meets_these_fault_points(undisturbed: Undisturbed) -> None:
    assert set(undisturbed.after(len(STEPS))[1]) == set(MET)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        every = 1 if metafunc.config.getoption("full") else 3 if ALL in os.environ else 6
        metafunc.parametrize("point", MET[::every])


@pytest.mark.slow
def test_killed_at_a_fault_point(forked_servers: Forker, undisturbed: Undisturbed, point: str, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    whole, points = undisturbed.after(len(STEPS))
    server = forked_servers.start(store=str(store), fault=point, nth=points[point])
    answered = play(server)
    ended = server.stop() if answered == len(STEPS) else server.wait()
    assert ended.status == -signal.SIGKILL
    # The request that had no answer is in as a whole, or not at all.
    done = min(len(STEPS), answered + point.startswith(AFTER_THE_COMMIT))
    assert contents(store) == undisturbed.after(done)[0]
    with forked_servers.running(store=str(store)) as again, client_of(again) as client:
        for step in STEPS[done:]:
            step(client)
    assert contents(store) == whole


@pytest.mark.slow
def test_killed_while_it_makes_a_correction_for_a_command(forked_servers: Forker, tmp_path: Path) -> None:
    store = prepare(tmp_path)
    with LocalStore.open(store, command="test") as client:
        before = table_contents(client)
    server = forked_servers.start(store=str(store), fault="change.commit", nth=1)
    words = ["people", "move", 1, "Berta", "--store", store]
    assert facepipe(*words).exit_code == ServerUnreachable.exit_code
    assert server.wait().status == -signal.SIGKILL
    with LocalStore.open(store, command="test") as client:
        assert table_contents(client) == before
        assert check_store(client).problems == []
    with forked_servers.running(store=str(store)):
        assert answer(*words)["faces"] == [1]
        assert [face["face_id"] for face in answer("people", "photos", "Berta", "--store", store)["faces"]] == [1, 4, 5]
    with LocalStore.open(store, command="test") as client:
        assert check_store(client).problems == []


def test_what_a_killed_server_was_erasing_the_next_command_erases(forked_servers: Forker, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    with forked_servers.running(store=str(store)) as server, client_of(server) as client:
        for person in (1, 2, 3):
            client.post(Shown(person))
    vectors = {person: vector(Shown(person), SIZE).tobytes() for person in (1, 2, 3)}
    server = forked_servers.start(store=str(store))
    with client_of(server) as client:
        client.call("DELETE", f"/people/{_id_of(client, '1')}", expected=204)
        client.post(Shown(2, 1))  # replaces the reference
    server.kill()
    assert held(store, SIZE) >= set(vectors.values())
    assert facepipe("people", "list", "--store", store).exit_code == 0
    left = held(store, SIZE)
    assert left & set(vectors.values()) == {vectors[3]}
    assert sum(str(item).startswith("objects/") for item in left) == 2
    server = forked_servers.start(store=str(store))
    with client_of(server) as client:
        for person in client.people():
            client.call("DELETE", f"/people/{person['personId']}", expected=204)
    server.kill()
    assert facepipe("account", "list", "--store", store).exit_code == 0
    assert held(store, SIZE) == set()


# Killed, and what it had committed is lost


def test_a_lost_log_stops_every_command_and_deletes_no_picture(forked_servers: Forker, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    server = forked_servers.start(store=str(store))
    with client_of(server) as client:
        for person in range(25):
            client.post(Shown(person), update="false")
    server.kill()
    (store / "catalog-0001.duckdb.wal").unlink()
    pictures = {path.name: path.read_bytes() for path in (store / "objects").rglob("*") if path.is_file()}
    assert len(pictures) == 25
    for command in (["account", "list"], ["directory", "list"], ["check"], ["export", "--to", tmp_path / "to"]):
        result = facepipe(*command, "--store", store)
        assert result.exit_code == 43
        assert "25 of its last changes are gone" in result.stderr
    assert {path.name for path in (store / "objects").rglob("*") if path.is_file()} == set(pictures)
    (repaired,) = answer("check", "--repair", "--store", store)["repaired"]
    assert "25 of its last changes are gone" in repaired["detail"]
    assert "25 pictures" in repaired["detail"]
    aside = (path for path in (store / "quarantine" / "objects").rglob("*") if path.is_file())
    assert {path.name: path.read_bytes() for path in aside} == pictures
    with forked_servers.running(store=str(store)) as again, client_of(again) as client:
        (face,) = client.post(Shown(1), update="false")["identifiedFaces"]
        assert face["newId"] is True


# The command itself, with its models


@pytest.mark.slow
def test_the_command_is_killed_and_started_again(forked_servers: Forker, tmp_path: Path, weights_cache: Path) -> None:
    environ = {**os.environ, "FACEPIPE_CACHE": str(weights_cache), "OMP_NUM_THREADS": "1"}
    store, flags = tmp_path / "store", ["--device", "cpu", "--person-headers", "optional", "--quiet"]
    with open_or_create_store(store, live_settings(), "test") as made:
        made.create_account(USER, quick_hash(PASSWORD))
    portraits = {"hopper": photos.photo("hopper"), "collins": photos.photo("collins")}
    ids: list[dict[str, str]] = []
    for _ in range(2):
        server = forked_servers.start(**server_order(store, tmp_path / "log", *flags, environ=environ))
        with closing(Client(json.loads(server.ready)["url"])) as client:
            faces = {name: client.send(image, name)["identifiedFaces"][0] for name, image in portraits.items()}
        server.kill()
        ids.append({name: face["personId"] for name, face in faces.items()})
    assert ids[0] == ids[1]
    with LocalStore.open(store, command="test") as client_of_store:
        assert check_store(client_of_store).problems == []
