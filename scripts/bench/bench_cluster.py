"""What does `--engine ray` cost beside `--engine local` on the same cores: to start, and per photo?

    python scripts/bench/bench_cluster.py --source FOLDER [--few 250] [--many 1000] [--repeats 3]

Runs of few and of many photos by both engines take turns, each in a process of its own. The cost of a photo is what the
further ones take; the start-up is what is left of the run of few.

Asserts that both engines leave the same tables, to the last bit, and that `check` finds nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
from bench_run import facepipe
from harness import argument_parser, settings_of, write_result

from pipeline.config import LOCAL, RAY
from pipeline.evaluation.bench.harness import Timing

_FACES = (
    "SELECT f.* EXCLUDE (face_id, media_id, person_id), first_value(path) OVER (PARTITION BY person_id ORDER BY path),"
    " embedding FROM '{0}/faces.parquet' f LEFT JOIN '{0}/embeddings.parquet' USING (face_id) ORDER BY ALL"
)
_MEDIA = "SELECT * EXCLUDE (media_id) FROM '{0}/media.parquet' ORDER BY ALL"


def digest(store: Path) -> str:
    """Of a store's photos, faces, vectors and who they are, without ids."""
    with tempfile.TemporaryDirectory() as scratch:
        facepipe("export", "--store", str(store), "--to", f"{scratch}/out")
        hashed = hashlib.sha256()
        for query in (_MEDIA, _FACES):
            for row in duckdb.sql(query.format(f"{scratch}/out")).fetchall():
                hashed.update(repr(row).encode())
    return hashed.hexdigest()


def costs(few: Timing, many: Timing, photos: tuple[int, int]) -> dict[str, float]:
    """Milliseconds of a photo, and seconds of the start, from the medians."""
    per_photo = (many.median - few.median) / (photos[1] - photos[0])
    return {"ms_per_photo": per_photo * 1000, "start_s": few.median - per_photo * photos[0]}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--few", type=int, default=250)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shard-rows", type=int, default=64)
    options = parser.parse_args()
    photos = (options.few, options.many)
    files = sorted(file for file in options.source.rglob("*") if file.suffix in (".jpg", ".png"))[: options.many]
    assert len(files) == options.many, f"{options.source} has {len(files)} photos only"
    seconds: dict[str, list[float]] = {f"{engine}_{count}": [] for engine in (LOCAL, RAY) for count in photos}
    found: dict[int, set[str]] = {count: set() for count in photos}
    with tempfile.TemporaryDirectory() as scratch:
        for count in photos:
            folder = Path(scratch) / f"photos-{count}"
            folder.mkdir()
            for file in files[:count]:
                shutil.copy(file, folder / file.name)
        settings = ("--weights", "casia-webface", "--device", options.device)
        settings += ("--set", f"run.shard_rows={options.shard_rows}")
        for repeat in range(options.repeats + 1):  # the first warms up what is cached
            for name in seconds:
                engine, _, count = name.partition("_")
                store = Path(scratch) / "store"
                source = str(Path(scratch) / f"photos-{count}")
                report, took = facepipe("run", source, "--store", str(store), "--engine", engine, *settings)
                assert report["images"] == int(count)
                facepipe("check", "--store", str(store))
                if repeat:
                    seconds[name].append(took)
                    found[int(count)].add(digest(store))
                shutil.rmtree(store)
    assert all(len(digests) == 1 for digests in found.values()), "the engines left different tables"
    timings = {name: Timing(times) for name, times in seconds.items()}
    figures: dict[str, Any] = {
        engine: costs(timings[f"{engine}_{photos[0]}"], timings[f"{engine}_{photos[1]}"], photos)
        for engine in (LOCAL, RAY)
    }
    figures["more_per_photo"] = figures[RAY]["ms_per_photo"] / figures[LOCAL]["ms_per_photo"] - 1
    figures["more_to_start_s"] = figures[RAY]["start_s"] - figures[LOCAL]["start_s"]
    figures["more_per_photo_of_turns"] = [
        (ray_many - ray_few) / (many - few) - 1
        for few, many, ray_few, ray_many in zip(*(seconds[name] for name in seconds), strict=True)
    ]
    figures["more_per_photo_median_of_turns"] = median(figures["more_per_photo_of_turns"])
    figures["tables_equal"] = True
    write_result("cluster", settings_of(options), timings, figures, options)


if __name__ == "__main__":
    main()
