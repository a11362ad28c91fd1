#!/usr/bin/env python
"""What an archive takes of time, machines, disk and memory, by the formula of docs/capacity.md, whose tables it makes.

python scripts/capacity.py --photos 1000000 --faces-per-person 20 --directories 4

Every constant is a figure of a benchmark in scripts/bench/results/; what none measured is not there.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bench.tables import CORPORA, RESULTS, Table, writings
from bench.writer_model import SIZE, Model

_LAYOUT: Final = "facepipe_"  # and processes x threads
WEIGHTS: Final = "casia-webface"
PHOTOS: Final = (10**5, 10**6, 10**8)
MACHINES: Final = (1, 10, 100)
FACES_PER_PERSON: Final = 20.0
DIRECTORIES: Final = 100
CROP_BYTES: Final = 6_000  # of the pictures of `bench_writer`
BLOCK: Final = 4096  # bytes: a picture is a file of its own, in whole blocks
HOUR: Final = 3600.0
MILLION: Final = 1_000_000
KNOWN: Final = "50000:1000000"  # what `bench_writer` wrote beside a million references


@dataclass(frozen=True)
class Constants:
    """Seconds and bytes on one machine."""

    photos_per_s: float
    faces_per_photo: float
    writer: Model
    picture_bytes: float
    process_bytes: float  # with models, before any reference
    bytes_per_reference: float
    search_s_per_reference: float


@dataclass(frozen=True)
class Archive:
    """Photos whose faces come in any order, their people in directories of equal size."""

    photos: float
    faces_per_photo: float
    faces_per_person: float = FACES_PER_PERSON
    directories: int = 1

    @property
    def faces(self) -> float:
        return self.photos * self.faces_per_photo

    @property
    def persons(self) -> float:
        return self.faces / self.faces_per_person

    @property
    def products(self) -> float:
        """Multiply-adds of the grouping. A person of k faces is there before k / (k + 1) of all faces, in the mean."""
        k = self.faces_per_person
        return self.faces * self.persons / self.directories * k / (k + 1) * SIZE


@dataclass(frozen=True)
class Needs:
    """What an archive takes: seconds of one machine, bytes."""

    extraction_s: float
    writer_s: float
    disk_bytes: float
    server_bytes: float
    search_s: float

    def seconds(self, machines: int) -> float:
        """The work is shared but for the writer's, which is one machine's."""
        return max((self.extraction_s + self.writer_s) / machines, self.writer_s)


def needs(archive: Archive, one: Constants) -> Needs:
    picture = BLOCK * math.ceil(one.picture_bytes / BLOCK)
    return Needs(
        extraction_s=archive.photos / one.photos_per_s,
        writer_s=one.writer.seconds(archive.faces, archive.persons, archive.products),
        disk_bytes=one.writer.bytes(archive.faces, archive.persons, picture),
        server_bytes=one.process_bytes + one.bytes_per_reference * archive.persons,
        search_s=one.search_s_per_reference * archive.persons / archive.directories,
    )


def constants(corpus: str) -> Constants:
    """For photos as those of a corpus of `bench_extract`. Raises FileNotFoundError where something was not measured."""
    extracted = _figures(f"extract-{WEIGHTS}")[corpus]["facepipe_1x2"]
    writer, search = _figures("writer"), _figures("search")
    return Constants(
        photos_per_s=extracted["images_per_s"],
        faces_per_photo=extracted["faces_per_s"] / extracted["images_per_s"],
        writer=Model(**writer["model"]),
        picture_bytes=_figures("run")["picture_bytes_mean"],
        process_bytes=_figures("memory")["rss_mib"][-1] * 2**20,
        bytes_per_reference=writer[KNOWN]["load_rss_bytes"] / MILLION + search["bytes_int8_copy_per_reference"],
        search_s_per_reference=search["ms_facepipe_1"] / 1000 / MILLION,
    )


def constants_table() -> Table:
    one, model = constants("b"), constants("b").writer
    rates = (f"{constants(corpus).photos_per_s:.1f} ({CORPORA[corpus]})" for corpus in "abc")
    rows = [
        ("photos per second, extracted by one machine", ", ".join(rates), f"`extract-{WEIGHTS}`"),
        ("the same on a GPU", _on_a_gpu(), f"`extract-{WEIGHTS}-cuda`"),
        ("`a`: writer, ms per face", f"{(model.group_s_per_face + model.rest_s_per_face) * 1e3:.2f}", "`writer`"),
        ("`b`: writer, ms per new person", f"{model.rest_s_per_person * 1e3:.2f}", "`writer`"),
        ("`c`: writer, s per 10^12 multiply-adds", f"{model.s_per_multiply_add * 1e12:.1f}", "`writer`"),
        ("`d`: bytes on disk per face", f"{model.bytes_per_face:,.0f}", "`writer`"),
        ("`e`: bytes on disk per person, besides the picture", f"{model.bytes_per_person:,.0f}", "`writer`"),
        ("`p`: bytes of a stored picture, of photos of 250 x 250", f"{one.picture_bytes:,.0f}", "`run`"),
        ("memory of a process with its models, GB", f"{one.process_bytes / 1e9:.1f}", "`memory`"),
        ("`m`: memory per person, bytes", f"{one.bytes_per_reference:,.0f}", "`writer`, `search`"),
        ("exact search of one face, ms per million people", f"{one.search_s_per_reference * 1e9:.0f}", "`search`"),
    ]
    return ("constant", "measured", "by"), rows


def _on_a_gpu() -> str:
    try:
        figures = _figures(f"extract-{WEIGHTS}", "cuda")
    except FileNotFoundError:
        return "not measured"
    rates = (
        f"{one['images_per_s']:.1f} ({CORPORA[corpus]}, {name.removeprefix(_LAYOUT).replace('x', ' x ')} threads)"
        for corpus in "abc"
        for name, one in figures.get(corpus, {}).items()
        if name.startswith(_LAYOUT)
    )
    return ", ".join(rates)


def checks() -> Table:
    """The formula beside what was measured of the same faces."""
    run, one = _figures("run"), constants("a")
    rows = []
    for name, measured in writings():
        if name.startswith("fit"):
            continue
        faces, known = measured["faces"], measured["references"]
        archive = Archive(faces, 1, 2)
        products, new = (faces * known * SIZE, 0.0) if known else (archive.products, archive.persons)
        what = f"{faces:,} faces of people among {known:,} known" if known else f"{faces:,} faces, two of each person"
        made = one.writer.seconds(faces, new, products), one.writer.bytes(faces, new, CROP_BYTES) / 1e6
        rows.append(_check(f"writer, {what}: seconds", made[0], measured["seconds"]))
        rows.append(_check(f"writer, {what}: MB on disk", made[1], measured["bytes_written"] / 1e6))
    lfw = Archive(run["images"], run["faces"] / run["images"], run["faces"] / run["persons"])
    need = needs(lfw, one)
    what = f"`facepipe run`, {run['images']:,} photos of 250 x 250"
    rows.append(_check(f"{what}: seconds", need.seconds(1), run["image_seconds"]))
    rows.append(_check(f"{what}: MB on disk", need.disk_bytes / 1e6, run["store_bytes"] / 1e6))
    return ("what", "by the formula", "measured", "formula / measured"), rows


def _check(what: str, made: float, measured: float) -> tuple[str, ...]:
    return what, f"{made:,.1f}", f"{measured:,.1f}", f"{made / measured:.2f}"


def archives() -> Table:
    """All extrapolated."""
    head = (
        *("photos", "faces", "people", "machine-hours of extraction", "hours of the writer"),
        *(f"hours with {n} machine{'s' * (n > 1)}" for n in MACHINES),
        *(f"hours of the writer, {DIRECTORIES} directories", "disk, GB", "memory of a server, GB"),
        "exact search of one face",
    )
    rows = []
    for photos in PHOTOS:
        for corpus in "bc":
            one = constants(corpus)
            archive = Archive(photos, one.faces_per_photo)
            need = needs(archive, one)
            apart = needs(replace(archive, directories=DIRECTORIES), one)
            hours = (need.extraction_s, need.writer_s, *map(need.seconds, MACHINES), apart.writer_s)
            rows.append(
                (
                    *(f"{photos:,} of {CORPORA[corpus]}", _short(archive.faces), _short(archive.persons)),
                    *(_short(s / HOUR) for s in hours),
                    *(_short(b / 1e9) for b in (need.disk_bytes, need.server_bytes)),
                    f"{_short(need.search_s * 1000)} ms",
                )
            )
    return head, rows


def _short(number: float) -> str:
    """To two digits."""
    digits = 1 - math.floor(math.log10(number))
    return f"{round(number, digits):,.{max(0, digits)}f}"


def _figures(benchmark: str, device: str = "cpu") -> Any:
    return json.loads((RESULTS / f"{benchmark}-{device}.json").read_text("utf-8"))["figures"]


TABLES: Final[dict[str, Callable[[], Table]]] = {
    "capacity constants": constants_table,
    "capacity checks": checks,
    "capacity": archives,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=float, required=True)
    parser.add_argument("--like", choices="abcd", default="b", help=str(CORPORA))
    parser.add_argument("--faces-per-photo", type=float, help="as in the photos of --like")
    parser.add_argument("--faces-per-person", type=float, default=FACES_PER_PERSON)
    parser.add_argument("--directories", type=int, default=1)
    parser.add_argument("--machines", type=int, default=1)
    args = parser.parse_args()
    one = constants(args.like)
    archive = Archive(args.photos, args.faces_per_photo or one.faces_per_photo, args.faces_per_person, args.directories)
    need = needs(archive, one)
    print(json.dumps({**asdict(archive), **asdict(need), "run_s": need.seconds(args.machines)}, indent=1))


if __name__ == "__main__":
    main()
