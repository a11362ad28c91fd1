"""What `run`, `scan`, `extract` and `group` have in common: one request, one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import settings_from
from pipeline.cli.output import emit
from pipeline.cli.progress import LongWork

EXIT_REJECTED_INPUTS = 1


def work(command: str, source: Path | None, options: dict[str, Any]) -> None:
    """Calls the function of `pipeline.jobs.run` that is named like the command, and prints its report."""
    settings = settings_from(options)
    from pipeline.jobs import run as library

    stages = {"run": library.run, "scan": library.scan, "extract": library.extract, "group": library.group}
    request = library.RunRequest(
        source=source,
        store=options["store"],
        settings=settings,
        account=options["account"],
        directory=options.get("directory", "main"),
        command=command,
        profile=options.get("profile", False),
    )
    with LongWork() as long:
        report = stages[command](request, long.progress, long.stop)
    emit(report.as_dict(), report.lines(), options["as_json"])
    if options.get("strict") and report.rejected_inputs:
        click.echo(f"facepipe: {report.rejected_inputs} inputs were rejected (--strict).", err=True)
        raise click.exceptions.Exit(EXIT_REJECTED_INPUTS)
