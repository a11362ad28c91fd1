"""How fast is `facepipe run` over a folder of photos, and is the same command again free of work?

    python scripts/bench/bench_run.py --source FOLDER [--store DIR] [--device cpu] [--config FILE] [--mode fast]

The second run gets an empty cache of weights, and must leave it empty: it needs none.

Asserts that all files are in and `check` finds nothing, and that the second run decoded nothing, called no model and
left the tables as they were.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
from harness import argument_parser, write_result

from pipeline.config import EXACT, FAST
from pipeline.evaluation.bench.harness import Timing

_TABLES = ("core.media", "core.faces", "core.persons", "core.reference_faces", "core.embeddings", "core.runs")


def facepipe(*arguments: str, **environment: str) -> tuple[dict[str, Any], float]:
    """Runs the command line in a process of its own: its JSON, and the seconds from start to exit."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments, "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        check=True,
    )
    return json.loads(done.stdout), time.perf_counter() - begun


def tables(store: Path) -> str:
    """A digest of the tables' rows."""
    digest = hashlib.sha256()
    with duckdb.connect(str(store / (store / "CURRENT").read_text().strip()), read_only=True) as con:
        for table in _TABLES:
            for row in con.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall():
                digest.update(repr(row).encode())
    return digest.hexdigest()


def disk_use(store: Path) -> dict[str, float]:
    """Bytes of all files of a store, and of a picture in the mean."""
    pictures = [file.stat().st_size for file in (store / "objects").rglob("*") if file.is_file()]
    return {
        "store_bytes": sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
        "picture_bytes_mean": sum(pictures) / len(pictures),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--config", type=Path, help="facepipe's settings; its defaults if it is not given")
    parser.add_argument("--mode", choices=(EXACT, FAST), default=EXACT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        store = options.store or Path(scratch) / "store"
        run = ("run", str(options.source), "--store", str(store), "--device", options.device, "--mode", options.mode)
        run += ("--config", str(options.config)) if options.config else ()
        first, first_s = facepipe(*run, "--weights", "casia-webface")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        before = tables(store)
        again, again_s = facepipe(*run, FACEPIPE_CACHE=str(Path(scratch) / "no-weights"))
        check, check_s = facepipe("check", "--store", str(store))
        assert first["images"] == first["new"] == again["already_in"], (first["images"], again["already_in"])
        assert (again["decoded"], again["detector_calls"], again["embedder_calls"]) == (0, 0, 0)
        assert not (Path(scratch) / "no-weights").exists()
        assert tables(store) == before
        kept = ("images", "faces", "persons", "statuses", "outcomes", "rejected", "images_per_second", "image_seconds")
        figures = {
            **{name: first[name] for name in kept},
            "peak_rss_mib": round(peak, 1),
            "again_already_in": again["already_in"],
            "again_decoded": again["decoded"],
            "again_model_calls": again["detector_calls"] + again["embedder_calls"],
            "check": check,
            **disk_use(store),
        }
        timings = {"run": Timing([first_s]), "again": Timing([again_s]), "check": Timing([check_s])}
        settings = {"source": options.source.name, "weights": "casia-webface", "mode": options.mode}
        settings |= {"config": options.config.name} if options.config else {}
        write_result("run", settings, timings, figures, options)


if __name__ == "__main__":
    main()
