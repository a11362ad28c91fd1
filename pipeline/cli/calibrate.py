"""`facepipe calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.evaluate import (
    MODEL_FLAGS,
    all_pairs_option,
    images_option,
    make_folder,
    stored_option,
)
from pipeline.cli.flags import (
    PATH,
    account_option,
    directory_option,
    optional_source_argument,
    settings_from,
    settings_options,
)
from pipeline.cli.output import emit, output_options
from pipeline.cli.progress import showing_progress
from pipeline.errors import UsageError
from pipeline.extraction.images.files import shown


@click.command()
@optional_source_argument
@click.option(
    "--fmr", type=float, default=2e-4, show_default=True, metavar="RATE", help="The false match rate at T = 0.54."
)
@images_option
@all_pairs_option
@stored_option
@account_option
@directory_option
@click.option("--dataset", metavar="TEXT", help="Name of the data in the record; default: the source's name.")
@click.option("--out", type=PATH, metavar="FILE", help="Write the calibration to this file, for --calibration FILE.")
@settings_options(("source.labels", "source.root", *MODEL_FLAGS))
@output_options
def calibrate(source: Path | None, fmr: float, out: Path | None, as_json: bool, **options: Any) -> None:
    """Calibrate distances on labelled photos like yours.

    SOURCE is a folder with one subfolder per person (and --labels parent), a manifest with the columns path and name,
    or a list of pairs; without it, the named rows of --store are used. Finds the exponent that maps the distance at
    the false match rate --fmr to the threshold 0.54, and the thresholds at other rates. Refuses too little data: a
    rate of 1/n needs 3n pairs of different people. A new store takes the file with `facepipe run ...
    --calibration FILE`.

    \b
    Examples:
      facepipe calibrate by-person/ --labels parent --out calibration.json
      facepipe calibrate pairsDevTrain.txt --images lfw/ --all-pairs --fmr 1e-4
      facepipe calibrate --store ~/people --json
    """
    settings = settings_from(options)
    if out is not None:
        _check_file(out)
    from pipeline.evaluation.calibration.report import CalibrationRequest, check_rate, report_calibration

    inputs = {name: options[name] for name in ("images", "all_pairs", "store", "account", "directory", "dataset")}
    with showing_progress() as progress:
        report = report_calibration(CalibrationRequest(source, settings, check_rate(fmr), **inputs), progress)
    if out is not None:
        report.write(out)
    written = [] if out is None else [f"written     {out}"]
    emit(report.as_dict(), [*report.lines(), *written], as_json)


def _check_file(out: Path) -> None:
    """Raises UsageError where `out` cannot be written."""
    if out.is_dir():
        raise UsageError(message=f"--out takes a file, and {shown(out)} is a folder.")
    make_folder(out.absolute().parent)
