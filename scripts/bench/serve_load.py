"""An open-loop load on a server, from a process of its own: requests leave when their time has come, whether or not
earlier ones were answered, so a server that stalls cannot make its clients wait politely (coordinated omission).

    echo '{"url": ..., "authorization": ..., ...}' | python scripts/bench/serve_load.py

One JSON object in (`Load`), one out (`Answered` as columns). Half of the requests insert a new person, half
recognise a planted one; their photos are those of `coded_faces`, filled up to `body_bytes`. With `reads`, about a
quarter of all asks for a planted person's record instead. With `photos` all recognise the faces of these files.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from coded_faces import Shown, photo
from coded_store import AUTHORIZATION, person_id

_CONNECTIONS = 32
_LEAD_S = 0.2  # for the threads to start
_SWITCH_S = 0.0005  # a thread whose request is due waits no longer for another's turn of the interpreter
_HEADERS = {"Content-Type": "application/octet-stream", "X-RPC-PERSON-NAME": "Somebody"}
_INSERT = "/people?update=false"
_RECOGNISE = "/people?insert=false&update=false"


@dataclass(frozen=True)
class Load:
    """`requests` arrivals, `rate` per second."""

    url: str
    rate: float
    requests: int
    known: int  # persons 0 .. known - 1 are planted
    first_new: int  # persons from here on are new to the server; also the seed
    body_bytes: int = 0
    bursts: bool = False  # a Poisson process, as of clients who know nothing of one another; else at equal intervals
    directory: str = "main"
    reads: bool = False
    photos: Sequence[str] = ()


@dataclass
class Answered:
    """One request: seconds of the monotonic clock, from when it was due to the last byte of its answer."""

    person: int
    insert: bool
    due: float
    sent: float  # when its last byte had left: what it is late by, this process or full buffers cost
    done: float
    status: int
    person_id: str | None
    new: bool
    providers: list[str]  # the models, as each face of the answer names them


class _Clients:
    """Threads with a connection each, that take the next request when they are free."""

    def __init__(self, load: Load) -> None:
        rng = np.random.default_rng(load.first_new)
        self._load = load
        waits = rng.exponential(1 / load.rate, load.requests) if load.bursts else np.full(load.requests, 1 / load.rate)
        self._insert = rng.permutation(np.arange(load.requests) % 2 == 0).tolist()
        known = rng.integers(load.known, size=load.requests).tolist()
        self._faces = [
            Shown(load.first_new + number) if insert else Shown(known[number], variant=1)
            for number, insert in enumerate(self._insert)
        ]
        self._reads = [load.reads and not insert and known[n] % 2 == 0 for n, insert in enumerate(self._insert)]
        self._photos = [photo(face).ljust(load.body_bytes, b"\0") for face in self._faces]  # now: it takes time
        if load.photos:
            files = [Path(file).read_bytes() for file in load.photos]
            self._insert = [False] * load.requests
            self._photos = [files[number % len(files)] for number in range(load.requests)]
        self._due: list[float] = (time.monotonic() + _LEAD_S + np.cumsum(waits)).tolist()
        self._lock = threading.Lock()
        self._next = 0
        self.answered: list[Answered] = []

    def work(self) -> None:
        parts = urlsplit(self._load.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        while (number := self._take()) is not None:
            self.answered.append(self._send(connection, number))
        connection.close()

    def _take(self) -> int | None:
        with self._lock:
            number, self._next = self._next, self._next + 1
        return number if number < self._load.requests else None

    def _send(self, connection: http.client.HTTPConnection, number: int) -> Answered:
        load, insert, due = self._load, self._insert[number], self._due[number]
        person = self._faces[number].person
        call = ("POST", _INSERT if insert else _RECOGNISE, self._photos[number])
        headers = {**_HEADERS, "X-RPC-AUTHORIZATION": AUTHORIZATION, "X-RPC-DIRECTORY": load.directory}
        time.sleep(max(0.0, due - time.monotonic()))
        connection.request(*(("GET", f"/people/{person_id(person)}", b"") if self._reads[number] else call), headers)
        sent = time.monotonic()
        response = connection.getresponse()
        body = response.read()
        done = time.monotonic()
        said: dict[str, Any] = json.loads(body)
        faces = said.get("identifiedFaces", [])
        found = (faces or said.get("people") or [{}])[0]
        return Answered(
            person=person,
            insert=insert,
            due=due,
            sent=sent,
            done=done,
            status=response.status,
            person_id=found.get("personId"),
            new=found.get("newId", False),
            providers=[face["attributes"]["provider"] for face in faces],
        )


def run(load: Load) -> list[Answered]:
    """All requests, in the order in which they were due."""
    clients = _Clients(load)
    threads = [threading.Thread(target=clients.work) for _ in range(_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(clients.answered, key=lambda each: each.due)


def main() -> None:
    sys.setswitchinterval(_SWITCH_S)
    for line in sys.stdin:
        print(json.dumps([asdict(each) for each in run(Load(**json.loads(line)))]), flush=True)


if __name__ == "__main__":
    main()
