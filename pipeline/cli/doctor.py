"""`facepipe doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import DEMO_FLAGS, PATH, settings_from, settings_options
from pipeline.cli.output import emit, end_with, output_options
from pipeline.errors import SelfCheckFailed


@click.command()
@click.option("--store", type=PATH, metavar="DIR", help="Look at this store, too.")
@settings_options(DEMO_FLAGS)
@output_options
def doctor(store: Path | None, as_json: bool, **options: Any) -> None:
    """Find out what is wrong with this machine, and how to repair it.

    Looks at Python, torch, the device, the weights, the cache, the image formats and the disk. Ends with exit code
    8 when something would stop a run.

    \b
    Examples:
      facepipe doctor
      facepipe doctor --device cuda --store ~/people
    """
    settings = settings_from(options)
    from pipeline.jobs.doctor import FAIL, examine

    findings = examine(settings, store)
    report = {"findings": [finding.as_dict() for finding in findings]}
    lines = [line for finding in findings for line in finding.lines()]
    failed = [finding.subject for finding in findings if finding.level == FAIL]
    if failed:
        end_with(SelfCheckFailed(check="doctor", detail=", ".join(failed)), report, lines, as_json)
    emit(report, lines, as_json)
