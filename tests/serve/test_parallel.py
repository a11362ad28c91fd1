"""Many clients at once: one identity per face whatever the timing, and memory that follows the catalog."""

from __future__ import annotations

import io
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from coded_faces import CodedExtractor, Shown, photo
from coded_store import USER, extracted_run, make_store
from PIL import Image

from pipeline.errors import PersonUnknown
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonChange
from tests.asking import ask_for
from tests.forking import Forker
from tests.identities.planted import listed
from tests.serve.coded import SIZE, assert_memory_equals_catalog, client_of, empty_store, service_of
from tests.serve.live import LiveServer

CLIENTS = 64
FACES = 8
TIMES = 25


def in_parallel(works: Sequence[Callable[[], object]]) -> None:
    """Runs all at once, each on its own thread; raises the first of their errors."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], object]) -> None:
        try:
            barrier.wait()
            work()
        except BaseException as exc:  # noqa: BLE001 - an assertion on a thread must fail the test
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.slow
def test_64_clients_post_8_new_faces_25_times_each(forked_servers: Forker, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store")
    posts = [Shown(face, variant) for variant in range(TIMES) for face in range(FACES)]
    random.Random(1).shuffle(posts)
    answers: list[dict[str, Any]] = []

    with forked_servers.running(store=str(store)) as server:

        def share(number: int) -> None:
            with client_of(server) as client:
                for shown in posts[number::CLIENTS]:
                    (face,) = client.post(shown, update="false")["identifiedFaces"]
                    answers.append({"person": shown.person, **face})

        in_parallel([lambda number=number: share(number) for number in range(CLIENTS)])
        with client_of(server) as client:
            people = client.people()
    assert len(answers) == len(posts)
    assert {(answer["person"], answer["personId"]) for answer in answers} == {
        (int(person["name"]), person["personId"]) for person in people
    }
    assert len(people) == FACES
    assert Counter(answer["person"] for answer in answers if answer.get("newId")) == dict.fromkeys(range(FACES), 1)
    assert [person["occurrence"] for person in people] == [TIMES] * FACES
    with LocalStore.open(store, command="test") as stored:
        first = {str(answer["person"]): answer for answer in answers if answer.get("newId")}
        assert {person["name"] for person in people} == set(first)
        assert check_store(stored).problems == []
        assert_memory_equals_catalog(stored)


def copies(path: Path, count: int) -> list[bytes]:
    """A photo in as many different files, of which none has the pixels of another."""
    files = []
    with Image.open(path) as image:
        for quality in range(95, 95 - count, -1):
            out = io.BytesIO()
            image.save(out, "JPEG", quality=quality)
            files.append(out.getvalue())
    return files


@pytest.mark.slow
@pytest.mark.faces
def test_64_clients_post_photographs_of_8_people(live: LiveServer, faces_dir: Path) -> None:
    """The same with photographs and models. TEST_CLIENT_TIMES says how often each is posted (5 by default)."""
    times = int(os.environ.get("TEST_CLIENT_TIMES", "5"))
    folders = sorted((faces_dir / "lfw-view1" / "images").iterdir())[:FACES]
    posts = [(folder.name, data) for folder in folders for data in copies(min(folder.iterdir()), times)]
    random.Random(1).shuffle(posts)
    new: Counter[tuple[str, str]] = Counter()

    def share(number: int) -> None:
        with live.http("sixty-four") as http:
            for name, data in posts[number::CLIENTS]:
                headers = {"Content-Type": "image/jpeg", "X-RPC-PERSON-NAME": name, "X-RPC-EXTERNAL-ID": name}
                answer = http.post("/people?update=false", content=data, headers=headers)
                assert answer.status_code == 201, answer.text
                face = answer.json()["identifiedFaces"][0]
                new[name, face["personId"]] += face.get("newId", False)

    in_parallel([lambda number=number: share(number) for number in range(CLIENTS)])
    with live.http("sixty-four") as http:
        people = http.get("/people").json()["people"]
    assert new == {(person["name"], person["personId"]): 1 for person in people}
    assert {person["name"]: person["occurrence"] for person in people} == {folder.name: times for folder in folders}
    assert check_store(live.client).problems == []


# Everything at once

PERSONS = 30
SHARDS = 4


@pytest.mark.slow
def test_posts_changes_merges_deletions_and_a_run_at_once(tmp_path: Path) -> None:
    with make_store(tmp_path / "store", SIZE) as client:
        account = client.account_id(USER)
        bulk = [Shown(k % (2 * PERSONS), 100 + k) for k in range(SHARDS * 20)]
        run = extracted_run(client, "photos", bulk, CodedExtractor(SIZE), 20)
        service = service_of(client)
        hand_over = [lambda: [service.enrol_shard(run.run_id, shard) for shard in range(SHARDS)]]
        in_parallel([*hand_over, *Crowd(service, account).works()])
        before = answers(service, account)
        service.close()
    with LocalStore.open(tmp_path / "store", command="test") as client:
        assert check_store(client).problems == []
        assert_memory_equals_catalog(client)
        fresh = service_of(client)
        assert answers(fresh, account) == before
        fresh.close()


def answers(service: IdentityService, account: int) -> list[object]:
    """A directory as a service shows it: its records, and who is recognised in some photos."""
    results = []
    for person in range(2 * PERSONS):
        request = PostRequest(insert=False, update=False, similar_limit=3)
        (face,) = service.post(account, "main", photo(Shown(person, 999)), request).faces
        results.append((face.person, face.score, face.similar))
    return [listed(service, account, "main"), results]


class Crowd:
    """Clients of which each does something else."""

    def __init__(self, service: IdentityService, account: int) -> None:
        self._service = service
        self._account = account

    def works(self) -> list[Callable[[], None]]:
        kinds = [(self._post, 60), (self._post, 60), (self._post, 60)]
        kinds += [(self._put, 40), (self._delete, 25), (self._merge, 25), (self._unmerge, 25)]
        return [
            lambda act=act, times=times, seed=seed: self._repeat(act, times, random.Random(seed))  # type: ignore[misc]
            for seed, (act, times) in enumerate(kinds)
        ]

    def _repeat(self, act: Callable[[random.Random], None], times: int, chance: random.Random) -> None:
        done = 0
        while done < times:
            with suppress(PersonUnknown):  # nobody is there yet, or deleted by another client just now
                act(chance)
                done += 1

    def _somebody(self, chance: random.Random) -> str:
        people = listed(self._service, self._account, "main")
        if not people:
            raise PersonUnknown
        return chance.choice(people).record.person_id

    def _post(self, chance: random.Random) -> None:
        shown = Shown(chance.randrange(PERSONS), chance.randrange(1, 50))
        request = PostRequest(name=str(shown.person), update=chance.random() < 0.5)
        self._service.post(self._account, "main", photo(shown), request)

    def _put(self, chance: random.Random) -> None:
        change = PersonChange(name=f"name {chance.random()}", tags=("seen",))
        ask_for(self._service, "update", self._account, "main", [self._somebody(chance)], change)

    def _delete(self, chance: random.Random) -> None:
        kind = "delete_merged" if chance.random() < 0.3 else "delete"
        ask_for(self._service, kind, self._account, "main", [self._somebody(chance)])

    def _merge(self, chance: random.Random) -> None:
        ask_for(self._service, "merge", self._account, "main", [self._somebody(chance), self._somebody(chance)])

    def _unmerge(self, chance: random.Random) -> None:
        ask_for(self._service, "unmerge", self._account, "main", [self._somebody(chance)])
