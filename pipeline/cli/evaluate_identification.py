"""`facepipe evaluate identification`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.evaluating import (
    EMBEDDING_FLAGS,
    emit_results,
    make_folder,
    out_option,
    showing_progress,
    stored_option,
)
from pipeline.cli.flags import settings_from, settings_options
from pipeline.cli.options import PATH
from pipeline.cli.output import output_options

_FLAGS = ("source.labels", "source.root", "match.threshold", *EMBEDDING_FLAGS)


@click.command()
@click.argument("source", type=PATH, metavar="LABELS")
@click.option(
    "--gallery-per-person",
    type=click.IntRange(min=1),
    metavar="N",
    help="Everybody's first N photos are the gallery, instead of those that the column set names.",
)
@stored_option
@out_option
@settings_options(_FLAGS)
@output_options
def identification(
    source: Path, gallery_per_person: int | None, store: Path | None, out: Path | None, as_json: bool, **options: Any
) -> None:
    """Search probes in a gallery of known people: rank 1, and FNIR at FPIR.

    LABELS is a manifest with the columns path, name and set (gallery or probe), or a folder with one subfolder per
    person and --labels parent. With --gallery-per-person N, people with more than N photos are the gallery with
    their first N, their other photos are mated probes, and the photos of all other people are non-mated probes.

    \b
    Examples:
      facepipe evaluate identification labels.csv --store ~/people
      facepipe evaluate identification lfw/ --labels parent --gallery-per-person 1 --out figures
    """
    settings = settings_from(options)
    make_folder(out)
    from pipeline.evaluation.identification.report import IdentificationRequest, report_identification

    request = IdentificationRequest(source, settings, gallery_per_person or 0, store)
    with showing_progress() as progress:
        report = report_identification(request, progress)
    emit_results(report, out, "identification", "Identification", as_json)
