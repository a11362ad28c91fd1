"""`facepipe bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import BENCH_FLAGS, settings_from, settings_options, source_argument
from pipeline.cli.output import emit, output_options
from pipeline.cli.progress import showing_progress


@click.command()
@source_argument
@click.option("--images", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Photos to compare.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Turns of each side."
)
@settings_options(BENCH_FLAGS)
@output_options
def bench(source: Path, images: int, repeats: int, as_json: bool, **options: Any) -> None:
    """Compare the speed with facenet-pytorch's on photos of SOURCE.

    SOURCE is a folder or a manifest, as for `facepipe run`. facepipe and a reference take turns to extract an evenly
    spaced sample of its photos, with the same settings, threads and weights; then their faces are compared. The
    reference takes photos of one size together. It depends on --weights:

    \b
      casia-webface, vggface2  the loop in facenet-pytorch's README: MTCNN and InceptionResnetV1
      sface                    facenet-pytorch's MTCNN, alignment by landmarks, and SFace in plain torch

    Photos that the two decode differently, or that are too small for the reference, are left out. Only the cache of
    weights is written.

    Both run in this process with all its cores. scripts/bench/bench_extract.py also tries one process per core, and
    takes whichever is faster for the reference.

    \b
    Examples:
      facepipe bench ~/photos
      facepipe bench people.csv --images 200 --device cuda --json
    """
    settings = settings_from(options)
    from pipeline.evaluation.bench.bench import BenchRequest
    from pipeline.evaluation.bench.bench import bench as compare

    with showing_progress() as progress:
        report = compare(BenchRequest(source, settings, images, repeats), progress)
    emit(report.as_dict(), report.lines(), as_json)
