"""What do commands cost in a large store?

    python scripts/bench/bench_open.py --people 1000 100000 1000000

Each command is a process of its own with real weights, on a store of planted people: a change must cost what it
changes, not what the store has grown to. Processor seconds are those of the process and all its threads. Stores and
commands take turns. A first turn fills the caches of files and compiled loops, and is not counted; before the last one
the store's files leave the page cache. A server is measured until it is ready. Asserts each answer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
from coded_store import USER, copied, person_id, plant
from harness import argument_parser, settings_of, write_result

from pipeline.config import load_settings
from pipeline.evaluation.bench.harness import Timing
from pipeline.jobs.store_identity import make_identity
from pipeline.store.local import LocalStore
from pipeline.tools.sample_photos import write_samples

HERE: Final = Path(__file__).resolve().parent
PHOTO: Final = "10-hopper.jpg"  # of the samples: one good face
SERVE: Final = "serve, until ready"
_READY_S: Final = 600.0
_PORT: Final = 18_741


@dataclass
class Place:
    """A store, and a folder of photos that it knows."""

    store: Path
    photos: Path
    people: int
    turn: int = 0

    @property
    def photo(self) -> bytes:
        """One more photo of a face, with bytes of its own."""
        self.turn += 1
        return (self.photos.parent / "samples" / PHOTO).read_bytes() + str(self.turn).encode()


Command: TypeAlias = Callable[[Place], tuple[Sequence[str], Callable[[Any], bool]]]


def prepared(store: Path, photos: Path, people: int) -> None:
    settings = load_settings(environ={})
    with LocalStore.open_or_create(store, lambda: make_identity(settings), command="make") as client:
        client.create_account(USER, None)
        plant(client, people)
    photos.mkdir()
    write_samples(photos.parent / "samples")


# Commands: their words, and whether an answer is right


def _name(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    place.turn += 1
    who = person_id(place.turn)
    return ("people", "name", who, f"Name {place.turn}"), lambda answer: answer["persons"] == [who]


def _show(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    who = person_id(place.people - 1)
    return ("people", "show", who), lambda answer: answer["person_id"] == who


def _search(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    photo = place.photos.parent / "samples" / PHOTO
    return ("search", str(photo)), lambda answer: len(answer["faces"]) == 1


def _run(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    photo = place.photo
    (place.photos / f"{place.turn}.jpg").write_bytes(photo)
    return ("run", str(place.photos)), lambda answer: answer["new"] == answer["faces"] == 1


def _run_again(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    known = len(list(place.photos.iterdir()))
    return ("run", str(place.photos)), lambda answer: answer["already_in"] == known and not answer["new"]


def _list(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    return ("people", "list"), lambda answer: len(answer["people"]) >= place.people


def _report(place: Place) -> tuple[Sequence[str], Callable[[Any], bool]]:
    page = place.photos.parent / "report.html"
    return ("report", "--to", str(page)), lambda answer: answer["bytes"] == page.stat().st_size


COMMANDS: Final[Mapping[str, Command]] = {
    "people name": _name,
    "people show": _show,
    "search": _search,
    "run, one new photo": _run,
    "run, nothing new": _run_again,
    "people list": _list,
    "report": _report,
}


@dataclass(frozen=True)
class Cost:
    """Of one process."""

    processor: float  # seconds
    wall: float  # seconds
    memory: int = 0  # RssAnon of a server, bytes


def cost_of(command: str, place: Place) -> Cost:
    words, is_right = COMMANDS[command](place)
    line = [sys.executable, "-m", "pipeline", *words, "--store", str(place.store), "--json"]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert is_right(json.loads(done.stdout)), done.stdout[:1000]
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def cost_of_server(place: Place) -> Cost:
    """Until it says that it is ready."""
    line = [sys.executable, "-m", "pipeline", "serve", "--store", str(place.store), "--port", str(_PORT)]
    begun = time.perf_counter()
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE.parents[1])
    try:
        while not _is_ready():
            assert server.poll() is None
            assert time.perf_counter() < begun + _READY_S
            time.sleep(0.02)
        wall = time.perf_counter() - begun
        stat = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        processor = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        return Cost(processor, wall, own_memory(server.pid))
    finally:
        server.terminate()
        server.wait()


def _is_ready() -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{_PORT}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def own_memory(process: int | str) -> int:
    """RssAnon of a process, in bytes: what it shares with no file."""
    status = Path(f"/proc/{process}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def evict(folder: Path) -> None:
    """Takes the files of a folder out of the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(places: Iterable[Place], args: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    warm: dict[str, list[Cost]] = {}
    cold: dict[str, Cost] = {}
    for turn in range(args.repeats + 2):
        for place in places:
            for command in args.commands:
                is_cold = turn == args.repeats + 1
                if is_cold:
                    evict(place.store)
                cost = cost_of_server(place) if command == SERVE else cost_of(command, place)
                key = f"{command} @ {place.people}"
                if is_cold:
                    cold[key] = cost
                elif turn:
                    warm.setdefault(key, []).append(cost)
    figures: dict[str, Any] = {"load_average_after": os.getloadavg()[0]}
    for key, costs in warm.items():
        command, _, people = key.rpartition(" @ ")
        figures.setdefault(command, {})[people] = {
            "processor_s": statistics.median(cost.processor for cost in costs),
            "wall_s": statistics.median(cost.wall for cost in costs),
            "cold_wall_s": cold[key].wall,
            "cold_processor_s": cold[key].processor,
            **({"rss_anon_bytes": costs[-1].memory} if costs[-1].memory else {}),
        }
    return {key: Timing([cost.processor for cost in costs]) for key, costs in warm.items()}, figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--commands", nargs="+", choices=(*COMMANDS, SERVE), default=(*COMMANDS, SERVE))
    parser.add_argument("--templates", type=Path, help="keeps the prepared stores here, or takes them from here")
    args = parser.parse_args()
    with ExitStack() as stack:
        places = []
        for people in args.people:
            template = args.templates and args.templates / str(people)
            store, photos = stack.enter_context(copied(template, lambda s, p, n=people: prepared(s, p, n)))  # type: ignore[misc]
            own = store.parent / "photos"
            shutil.copytree(photos, own)
            shutil.copytree(photos.parent / "samples", store.parent / "samples")
            places.append(Place(store, own, people))
        timings, figures = measure(places, args)
    write_result("open", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
