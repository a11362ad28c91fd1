"""How long do requests wait while a server erases deleted people from the catalog's file?

    python scripts/bench/bench_erase.py --identities 100000 --rate 50

The load is that of `serve_load` on the server of `bench_serve`, over a store of planted identities: half of the
requests insert somebody, half recognise a planted one. Phases: nothing else happens; one person is forgotten, and
`facepipe erase --now`; 1,000 are, and erased.

Asserts every answer, that each erasing leaves a new catalog in use and no other, and after the server has stopped that
everybody else is in the store, and nobody who was forgotten. Writes erase-<device>.json: the waits, the seconds of
forgetting and of erasing, the size of the catalog, the bytes that the server wrote meanwhile, and at the end the
catalog's blocks: free ones may be of the load that followed the erasing.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from bench_serve import NEW, SIZE, Generator, Server, ask, serving, spread
from coded_store import make_store, person_id, plant
from harness import argument_parser, settings_of, write_result
from serve_load import Load

from pipeline.evaluation.bench.harness import Timing
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from pipeline.store.local import LocalStore

LEAD_S = 2.0  # of load before something happens
MANY = 1_000


class Phases:
    """The load, phase by phase."""

    def __init__(self, server: Server, store: Path, known: int, rate: float, seconds: float) -> None:
        self._server, self._store, self._known, self._rate, self._seconds = server, store, known, rate, seconds
        self._generator = Generator()
        self._first_new = NEW
        self.inserted: list[str] = []
        self.timings: dict[str, Timing] = {}
        self.figures: dict[str, Any] = {}

    def live(self, name: str, forgotten: range = range(0)) -> None:
        """Load, and these people are forgotten and erased in it."""
        requests = round(self._rate * self._seconds)
        load = Load(self._server.url, self._rate, requests, known=self._known, first_new=self._first_new)
        self._generator.begin(load)
        self._first_new += requests
        time.sleep(LEAD_S)
        if forgotten:
            self._erase(name, forgotten)
        ended = time.monotonic()
        answers = self._generator.answers()
        assert not forgotten or answers[-1]["due"] > ended, "the load ended before the erasing: give it more seconds"
        self.inserted += [each["person_id"] for each in answers if each["insert"]]
        waits = [each["done"] - each["due"] for each in answers]
        self.timings[name] = spread(waits)
        for p in (50, 99, 100):
            self.figures[f"{name}_wait_p{p}_ms"] = float(np.percentile(waits, p)) * 1000

    def _erase(self, name: str, forgotten: range) -> None:
        begun = time.monotonic()
        with open_store(self._store, command="bench") as opened:
            People(opened).by_ids("forget", [person_id(person) for person in forgotten])
        before, forgot, old = self._written(), time.monotonic(), self.catalog()
        said = ask(self._store, "erase", "--now")
        assert said["erased"], said
        assert self.catalog() != old
        self.figures |= {
            f"{name}_forget_seconds": forgot - begun,
            f"{name}_erase_seconds": time.monotonic() - forgot,
            f"{name}_bytes_written": self._written() - before,
            f"{name}_catalog_bytes": self.catalog().stat().st_size,
        }

    def _written(self) -> int:
        lines = Path(f"/proc/{self._server.process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))

    def catalog(self) -> Path:
        """The only one."""
        (file,) = self._store.glob("catalog-*.duckdb")
        assert file.name == (self._store / "CURRENT").read_text().strip()
        return file

    def close(self) -> None:
        self._generator.close()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--identities", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=50.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=40.0, help="of load in each phase")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        with make_store(store, SIZE) as client:
            plant(client, args.identities)
        known = args.identities - MANY - 1
        with serving(store, 300) as server:
            phases = Phases(server, store, known, args.rate, args.seconds)
            phases.live("alone")
            phases.live("one", range(known, known + 1))
            phases.live("thousand", range(known + 1, args.identities))
            phases.close()
        with duckdb.connect(str(phases.catalog()), read_only=True) as opened:
            free = opened.execute("SELECT free_blocks, used_blocks FROM pragma_database_size()").fetchall()
        with LocalStore.open(store, command="bench") as client:
            found = client.read("SELECT person_id::VARCHAR AS person_id FROM core.persons")["person_id"].to_pylist()
        assert sorted(found) == sorted([*map(person_id, range(known)), *phases.inserted])
    figures = {**phases.figures, "failed": 0, "blocks": free, "load_average_after": os.getloadavg()[0]}
    write_result("erase", settings_of(args), phases.timings, figures, args)


if __name__ == "__main__":
    main()
