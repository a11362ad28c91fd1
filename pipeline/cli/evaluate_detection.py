"""`facepipe evaluate detection`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.evaluating import emit_results, make_folder, out_option, showing_progress
from pipeline.cli.flags import settings_from, settings_options
from pipeline.cli.options import PATH, account_option, directory_option
from pipeline.cli.output import output_options

_FLAGS = ("detect.min_face_px", "detect.min_confidence", "run.device", "run.threads")


@click.command()
@click.argument("boxes", type=PATH, nargs=-1, required=True)
@click.option("--images", type=PATH, metavar="DIR", help="Where relative paths start; else the folder of BOXES.")
@click.option(
    "--min-px",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Smaller faces count neither as found nor as missed.",
)
@click.option("--store", type=PATH, metavar="DIR", help="Take the faces from this store, without detecting any.")
@account_option
@directory_option
@out_option
@settings_options(_FLAGS)
@output_options
def detection(
    boxes: tuple[Path, ...],
    images: Path | None,
    min_px: float,
    store: Path | None,
    account: str | None,
    directory: str,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare the detector's faces with annotated boxes: recall, precision, AP.

    BOXES are XML files as imglab or Pascal VOC write them, folders of these, or CSV files with the columns path, x1,
    y1, x2, y2 and perhaps ignore. AP is over the faces that the detector is sure enough of: with --min-confidence 0
    over all that it considers.

    \b
    Examples:
      facepipe evaluate detection boxes.xml --min-px 40
      facepipe evaluate detection Annotations/ --images JPEGImages/ --min-confidence 0 --out figures
    """
    settings = settings_from(options)
    make_folder(out)
    from pipeline.evaluation.detection.report import DetectionRequest, report_detection

    request = DetectionRequest(boxes, images, settings, min_px, store, account, directory)
    with showing_progress() as progress:
        report = report_detection(request, progress)
    emit_results(report, out, "detection", "Detection", as_json)
