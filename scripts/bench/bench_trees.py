"""How much faster is this tree than another checkout of facepipe, and does it find the same?

    python scripts/bench/bench_trees.py --before DIR --before-python DIR/.venv/bin/python --faces FOLDER --work FOLDER
        [--question run group posts] [--corpus a b] [--weights casia-webface sface] [--mode exact fast] [--repeats 5]

`before` is the other checkout with its own Python, `after` is this tree with this Python; they take turns.

run    `facepipe run` over a corpus (see corpora), the gate open, from files to the committed store: images/s
       without the start and the loading of the models, and CPU ms per image beyond a run over one photo
group  20,000 faces of 10,000 identities, streamed in shards of 512: faces/s of deciding them
posts  200 photos of LFW posted to `facepipe serve` by 8 clients, into an empty store: posts/s

Asserts that both trees find as many faces, also those of every post; and as many identities: in a run in the mode
`exact`, and in grouping. (`fast` may decide otherwise, and posts come in any order.)
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from corpora import SHARE_OF_A, make_corpus, read_sources
from harness import RESULTS, argument_parser, paired_ratio, settings_of, write_result
from tables import CORPORA

from pipeline.evaluation.bench.harness import Timing

QUESTIONS = ("run", "group", "posts")
USER, PASSWORD = "ann", "correct horse"
CLIENTS, WARM_UP_POSTS = 8, 4
GROUP_CODE = """
import json, sys, time
import numpy as np
try:
    from pipeline.matching.group import group_faces
    from pipeline.matching.match import Matcher
    from pipeline.matching.references import ReferenceIndex
    from pipeline.matching.calibration import Calibration
except ImportError:  # before modules moved into packages
    from pipeline.group import group_faces
    from pipeline.match import Calibration, Matcher, ReferenceIndex
from pipeline.types import FaceBatch
count, rng = int(sys.argv[1]), np.random.default_rng(1)
who = rng.permutation(count) // 2
vectors = rng.standard_normal((count // 2, 512), dtype=np.float32)[who]
vectors += np.float32(0.5) * rng.standard_normal(vectors.shape, dtype=np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
index, matcher, seconds = ReferenceIndex(512), Matcher(Calibration(1.281), 0.54), 0.0
for start in range(0, count, 512):
    part = vectors[start : start + 512]
    hashes = [(f"{start + k:064x}",) for k in range(len(part))]
    boxes = np.tile(np.array([0, 0, 10, 10], np.float32), (len(part), 1))
    begun = time.perf_counter()
    made = group_faces(FaceBatch(part, np.ones(len(part), bool), hashes, boxes), index, matcher)
    new = np.flatnonzero(made.inserted)
    index.append(part[new], made.position[new], [hashes[k] for k in new.tolist()], boxes[new])
    seconds += time.perf_counter() - begun
print(json.dumps({"seconds": seconds, "faces": count, "identities": len(index)}))
"""
Outcome = dict[str, Any]  # seconds, faces, identities


@dataclass(frozen=True)
class Tree:
    """One checkout: its command line, with a cache of weights of its own."""

    folder: Path
    python: Path
    cache: Path

    def command(self, *words: object, **options: Any) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(self.folder), "FACEPIPE_CACHE": str(self.cache)}
        command = [str(word) for word in (self.python, *words)]
        return subprocess.Popen(command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, text=True, **options)

    def answer(self, *words: object, text: str = "") -> Any:
        """The JSON that a command prints. Raises AssertionError where it fails."""
        process = self.command(*words, stdin=subprocess.PIPE)
        output, _ = process.communicate(text)
        assert process.returncode == 0, (self.folder, words)
        return json.loads(output)


def run(tree: Tree, photos: Path, one: Path, options: Sequence[str]) -> Outcome:
    """A run over `photos`, beside one over the folder `one` with a single photo."""
    _, started_cpu = _run(tree, one, options)
    report, cpu = _run(tree, photos, options)
    seconds = report["seconds"] - report["profile"]["stages"]["load"]["seconds"]
    images = report["images"] - 1
    return {
        "seconds": seconds,
        "faces": report["faces"],
        "identities": report["persons"],
        "cpu_ms_per_image": 1000 * (cpu - started_cpu) / images,
    }


def _run(tree: Tree, photos: Path, options: Sequence[str]) -> tuple[dict[str, Any], float]:
    """The report and the CPU seconds of the command."""
    gate = [word for name in ("cpq", "fsq", "fcq") for word in (f"--min-{name}", "0")]
    with tempfile.TemporaryDirectory() as store:
        words = ("run", photos, "--store", Path(store) / "store", *options, *gate, "--profile", "--json")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        report = tree.answer("-m", "pipeline", *words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return report, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def posts(tree: Tree, files: Sequence[Path], options: Sequence[str]) -> Outcome:
    """Each photo once; before them a few that insert nothing."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(CLIENTS) as clients:
        store = ("--store", Path(folder) / "store")
        account = ("account", "create", USER, "--password-stdin", "--json", *store, *options)
        tree.answer("-m", "pipeline", *account, text=PASSWORD)
        with serving(tree, store) as url:
            for file in files[:WARM_UP_POSTS]:
                post(url, file, "?insert=false&update=false")
            begun = time.perf_counter()
            faces = list(clients.map(lambda file: post(url, file), files))
            return {"seconds": time.perf_counter() - begun, "faces": faces, "identities": None}


@contextmanager
def serving(tree: Tree, store: Sequence[object]) -> Iterator[str]:
    """The address of a server, which must stop cleanly."""
    options = ("--port", "0", "--person-headers", "optional", "--quiet", "--json")
    process = tree.command("-m", "pipeline", "serve", *store, *options)
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()


def post(url: str, file: Path, query: str = "") -> int:
    """How many faces the answer has; the negative status where the photo was refused."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    headers = {"Content-Type": "application/octet-stream", "X-RPC-AUTHORIZATION": f"{USER}:{PASSWORD}"}
    headers |= {"X-RPC-DIRECTORY": "main", "X-RPC-PERSON-NAME": "Somebody"}
    connection.request("POST", f"/people{query}", file.read_bytes(), headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.status < 500, body
    return len(json.loads(body).get("identifiedFaces", [])) if response.status == 201 else -response.status


def compare(
    trees: Sequence[Tree], turn: Callable[[Tree], Outcome], items: int, repeats: int, same_identities: bool
) -> tuple[list[Timing], dict[str, Any]]:
    """Both trees in turns, after one warm-up each: the timings, and items/s and ratio by their medians.

    Raises AssertionError where they find something else.
    """
    outcomes = [[turn(tree) for tree in trees] for _ in range(repeats + 1)][1:]
    for both in outcomes:
        for key in ("faces", "identities") if same_identities else ("faces",):
            assert both[0][key] == both[1][key], (key, both)
    before, after = (Timing([both[place]["seconds"] for both in outcomes]) for place in (0, 1))
    identities = [outcome["identities"] for outcome in outcomes[0]]
    rates = {"before": items / before.median, "after": items / after.median, "ratio": paired_ratio(before, after)}
    figures = {**rates, "identities": identities}
    if "cpu_ms_per_image" in outcomes[0][0]:
        figures["cpu_ms_per_image"] = [median(both[place]["cpu_ms_per_image"] for both in outcomes) for place in (0, 1)]
    return [before, after], figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--before-python", type=Path, required=True, help="its Python")
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--work", type=Path, required=True, help="where corpora and caches are made, and found again")
    parser.add_argument("--question", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    parser.add_argument("--corpus", nargs="+", choices=list(CORPORA), default=["a", "b"])
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--mode", nargs="+", default=["exact", "fast"])
    parser.add_argument("--images", type=int, default=800, help="photos of a; an eighth of that of b")
    parser.add_argument("--posts", type=int, default=200)
    parser.add_argument("--grouped", type=int, default=20_000, help="faces")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--result", default="trees", help="name of the result")
    arguments = parser.parse_args()
    work, sources = arguments.work.resolve(), read_sources(arguments.faces.resolve())
    trees = (
        Tree(arguments.before.resolve(), arguments.before_python.absolute(), work / "cache-before"),
        Tree(RESULTS.parents[2], Path(sys.executable), work / "cache-after"),
    )
    posted = make_corpus("a", sources, work, arguments.posts)
    timings: dict[str, Timing] = {}
    figures: dict[str, Any] = {}

    def measure(what: str, turn: Callable[[Tree], Outcome], items: int, same_identities: bool = False) -> None:
        both, figures[what] = compare(trees, turn, items, arguments.repeats, same_identities)
        timings.update({f"{what}, {name}": timing for name, timing in zip(("before", "after"), both, strict=True)})
        print(what, figures[what], flush=True)

    if "group" in arguments.question:
        code = ("-c", GROUP_CODE, arguments.grouped)
        measure(f"group {arguments.grouped:,}: faces/s", lambda tree: tree.answer(*code), arguments.grouped, True)
    for weights, mode in ((weights, mode) for weights in arguments.weights for mode in arguments.mode):
        options, named = ("--weights", weights, "--mode", mode), f"`{weights}`, `{mode}`"
        for corpus in arguments.corpus if "run" in arguments.question else ():
            count = max(2, round(arguments.images * SHARE_OF_A[corpus]))
            photos = make_corpus(corpus, sources, work, count)[0].parent
            one = make_corpus(corpus, sources, work, 1)[0].parent
            what = f"run, {CORPORA[corpus]}, {named}: images/s"
            measure(what, lambda tree, p=photos, s=one, o=options: run(tree, p, s, o), count, mode == "exact")
        if "posts" in arguments.question:
            measure(f"posts, {named}: posts/s", lambda tree, o=options: posts(tree, posted, o), len(posted))
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=trees[0].folder, capture_output=True, text=True, check=False)
    settings = {**settings_of(arguments), "before": git.stdout.strip()}
    write_result(arguments.result, settings, timings, figures, arguments)


if __name__ == "__main__":
    main()
