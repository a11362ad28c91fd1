"""`facepipe evaluate pairs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.evaluating import (
    EMBEDDING_FLAGS,
    all_pairs_option,
    emit_results,
    images_option,
    make_folder,
    out_option,
    showing_progress,
    stored_option,
)
from pipeline.cli.flags import settings_from, settings_options
from pipeline.cli.options import PATH
from pipeline.cli.output import output_options


@click.command()
@click.argument("pairs", type=PATH)
@images_option
@click.option(
    "--train", type=PATH, metavar="PAIRS", help="Decide at the threshold that is best on these pairs of other people."
)
@all_pairs_option
@stored_option
@out_option
@settings_options(("match.threshold", *EMBEDDING_FLAGS))
@output_options
def pairs(
    pairs: Path,
    images: Path | None,
    train: Path | None,
    all_pairs: bool,
    store: Path | None,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell pairs of one person from pairs of two: accuracy, and FNMR at FMR.

    PAIRS is a list in the format of Labeled Faces in the Wild (photo i of a person is Name/Name_000i.jpg), or CSV
    with the columns path_a, path_b and same (1 or 0). Accuracy is at the threshold that is best on --train, else on
    the other folds, where the list has folds, else at --threshold.

    \b
    Examples:
      facepipe evaluate pairs pairs.txt --images lfw/ --out figures
      facepipe evaluate pairs pairsDevTest.txt --images lfw/ --train pairsDevTrain.txt --all-pairs
      facepipe evaluate pairs pairs.csv --images photos/ --store ~/people --json
    """
    settings = settings_from(options)
    make_folder(out)
    from pipeline.evaluation.pairs.report import PairsRequest, report_pairs

    request = PairsRequest(pairs, settings, images, train, all_pairs, store)
    with showing_progress() as progress:
        report = report_pairs(request, progress)
    emit_results(report, out, "pairs", "Pairs of photos", as_json)
