"""`facepipe run`, and its stages alone: `facepipe scan`, `extract` and `group`."""

from __future__ import annotations

from typing import Any

import click

from pipeline.cli.flags import (
    ALL_FLAGS,
    EXTRACT_FLAGS,
    GROUP_FLAGS,
    account_option,
    directory_option,
    optional_source_argument,
    settings_options,
    source_argument,
    store_option,
)
from pipeline.cli.output import emit, output_options
from pipeline.cli.progress import LongWork

EXIT_REJECTED_INPUTS = 1

profile_option = click.option(
    "--profile",
    is_flag=True,
    help="Tell where the time went, also in a finished run's run.json. On CUDA each stage then waits for the device.",
)
strict_option = click.option("--strict", is_flag=True, help="End with exit code 1 when an input was rejected.")


@click.command()
@source_argument
@store_option
@account_option
@directory_option
@settings_options(ALL_FLAGS)
@profile_option
@strict_option
@output_options
def run(**options: Any) -> None:
    """Bring the photos of SOURCE into a store.

    SOURCE is a folder, or a manifest (CSV, JSON Lines or Parquet with a column `path` or `uri`). The store is made
    when there is none. The same command again takes up only what is new or changed, and goes on where a stopped
    run was.

    \b
    Examples:
      facepipe run ~/photos --store ~/people
      facepipe run people.csv --store ~/people --device cuda --strict
      facepipe run ~/photos --store ~/people --profile
      facepipe run ~/by-person --store ~/people --labels parent --json
    """
    _work("run", **options)


@click.command()
@source_argument
@store_option
@account_option
@directory_option
@settings_options(ALL_FLAGS)
@output_options
def scan(**options: Any) -> None:
    """Plan a run: find out what of SOURCE is new or changed.

    Reads and hashes the files, decodes nothing. The run keeps the thresholds that are given here.

    \b
    Example:
      facepipe scan ~/photos --store ~/people
    """
    _work("scan", **options)


@click.command()
@optional_source_argument
@store_option
@account_option
@settings_options(EXTRACT_FLAGS)
@profile_option
@output_options
def extract(**options: Any) -> None:
    """Find and embed the faces of the planned run.

    The heavy part: writes one file per shard into the store's run folder, and commits nothing. Without SOURCE it
    takes the latest unfinished run.

    \b
    Example:
      facepipe extract --store ~/people --device cuda
    """
    _work("extract", **options)


@click.command()
@optional_source_argument
@store_option
@account_option
@settings_options(GROUP_FLAGS)
@strict_option
@output_options
def group(**options: Any) -> None:
    """Group the extracted faces and commit them.

    One transaction per shard, in manifest order, with the thresholds that the run was planned with.

    \b
    Example:
      facepipe group --store ~/people
    """
    _work("group", **options)


def _work(command: str, *, as_json: bool, strict: bool = False, **inputs: Any) -> None:
    """Calls the function of `pipeline.jobs.run` that has the command's name, and prints its report."""
    from pipeline.jobs import run as library

    stages = {"run": library.run, "scan": library.scan, "extract": library.extract, "group": library.group}
    request = library.RunRequest(command=command, **inputs)
    with LongWork() as long:
        report = stages[command](request, long.progress, long.stop)
    emit(report.as_dict(), report.lines(), as_json)
    if strict and report.rejected_inputs:
        count = report.rejected_inputs
        rejected = "1 input was rejected" if count == 1 else f"{count} inputs were rejected"
        click.echo(f"facepipe: {rejected} (--strict).", err=True)
        raise click.exceptions.Exit(EXIT_REJECTED_INPUTS)
