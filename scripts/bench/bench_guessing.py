"""What does a crowd that guesses an account's password learn, and what does it cost the account's own client?

    python scripts/bench/bench_guessing.py

The owner's client posts photos to a server of coded faces at a constant rate (`serve_load`). In every second turn 100
connections from another address send wrong passwords of the same account, each as soon as its last answer is there, and
the right one last. All of it runs on the same processors.

Asserts every answer to the owner; that at most MAX_FAILURES guesses a window were checked, and many were made; and that
all others and the right password were answered 429.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import numpy as np
from bench_serve import NEW, SETTLED, SIZE, Generator, latencies, percentiles, serving, spread
from coded_store import AUTHORIZATION, PASSWORD, USER, copied, make_store, plant
from harness import argument_parser, settings_of, write_result
from serve_load import Load

from pipeline.serve.auth import MAX_FAILURES, WINDOW_S

CROWD = "127.0.0.2"


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, password: str) -> int:
    """The status of a request with this password."""
    head = f"GET /people?count=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-RPC-AUTHORIZATION: {USER}:{password}\r\n"
    writer.write(f"{head}X-RPC-DIRECTORY: main\r\n\r\n".encode())
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    await reader.readexactly(int(answer.partition("content-length: ")[2].partition("\r\n")[0]))
    return int(answer.split()[1])


async def guessed(url: str, seconds: float, connections: int) -> tuple[dict[int, int], int]:
    """How many guesses got each status, and the status of the right password after them."""
    parts = urlsplit(url)
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds

    async def guess(number: int) -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(CROWD, 0))
        tries = 0
        while time.monotonic() < end:
            statuses[await ask(reader, writer, f"wrong-{number}-{tries}!")] += 1
            tries += 1
        writer.close()

    await asyncio.gather(*(guess(number) for number in range(connections)))
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=(CROWD, 0))
    right = await ask(reader, writer, PASSWORD)
    writer.close()
    return dict(statuses), right


def guess(url: str, seconds: float, connections: int) -> tuple[dict[int, int], int]:
    return asyncio.run(guessed(url, seconds, connections))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--identities", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=20.0, help="the owner's requests per second")
    parser.add_argument(
        "--seconds",
        type=float,
        default=90.0,
        help="of each turn; when a window of the limit ends, the count begins again",
    )
    parser.add_argument("--turns", type=int, default=1, help="quiet ones, and as many with guesses")
    parser.add_argument("--connections", type=int, default=100)
    args = parser.parse_args()
    requests = round(args.rate * args.seconds)
    answered: dict[str, list[float]] = {"quiet": [], "guesses": []}
    statuses: Counter[int] = Counter()

    def prepare(store: object, _: object) -> None:
        with make_store(store, SIZE) as client:  # type: ignore[arg-type]
            plant(client, args.identities)

    spawned = multiprocessing.get_context("spawn")
    with copied(None, prepare) as (store, _), serving(store, 8_000) as server, ProcessPoolExecutor(1, spawned) as crowd:
        load = partial(
            Load, url=server.url, authorization=AUTHORIZATION, rate=args.rate, known=args.identities, body_bytes=20_000
        )
        generator = Generator()
        generator.begin(load(requests=SETTLED, first_new=NEW, seed=0, bursts=False))
        generator.answers()
        for turn in range(2 * args.turns):
            name = ("quiet", "guesses")[turn % 2]
            first_new = NEW + SETTLED + turn * requests
            generator.begin(load(requests=requests, first_new=first_new, seed=turn, bursts=False))
            guesses = crowd.submit(guess, server.url, args.seconds, args.connections) if name == "guesses" else None
            answered[name] += latencies(generator.answers())["all"]
            if guesses is not None:
                counts, right = guesses.result()
                assert counts.keys() == {401, 429}, counts
                assert counts[401] <= MAX_FAILURES * (1 + args.seconds // WINDOW_S), counts
                assert counts[429] > args.seconds, counts
                assert right == 429, right
                statuses.update(counts)
        generator.close()
    figures: dict[str, float] = {f"guesses_answered_{status}": count for status, count in sorted(statuses.items())}
    for name, seconds in answered.items():
        figures |= percentiles(name, {"all": seconds})
    figures["p50_ratio"], figures["p99_ratio"] = (
        float(np.percentile(answered["guesses"], p) / np.percentile(answered["quiet"], p)) for p in (50, 99)
    )
    timings = {name: spread(seconds) for name, seconds in answered.items()}
    write_result("guessing", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
