"""`facepipe run`, its stages alone (`scan`, `extract` and `group`), and `abandon`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.flags import (
    ALL_FLAGS,
    EXTRACT_FLAGS,
    GROUP_FLAGS,
    RUN_FLAGS,
    SOURCE,
    account_option,
    optional_source_argument,
    place_options,
    settings_options,
    source_argument,
    store_option,
)
from pipeline.cli.output import emit, output_options, printable
from pipeline.cli.progress import LongWork
from pipeline.texts import counted

if TYPE_CHECKING:
    from pipeline.jobs.run_report import RunReport
    from pipeline.run.dry_run import DryRunReport
    from pipeline.types import Source

EXIT_REJECTED_INPUTS = 1

profile_option = click.option(
    "--profile",
    is_flag=True,
    help="Tell where the time went, also in a finished run's run.json. On CUDA each stage then waits for the device.",
)
strict_option = click.option("--strict", is_flag=True, help="End with exit code 1 if an input was rejected.")


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=SOURCE)
@store_option
@place_options
@settings_options(RUN_FLAGS)
@click.option(
    "--moved-from",
    type=SOURCE,
    metavar="OLD",
    help="SOURCE was at OLD before, and its photos were imported from there.",
)
@click.option("--yes", "forget_many", is_flag=True, help="With --on-missing forget: even if many are missing.")
@click.option("--dry-run", is_flag=True, help="Only tell what a run would do; write nothing.")
@profile_option
@strict_option
@output_options
def run(sources: tuple[Source, ...], **options: Any) -> None:
    """Import the photos of each SOURCE into a store.

    SOURCE is a folder, a prefix of a bucket (s3://bucket/photos), or a manifest (CSV, JSON Lines or Parquet with a
    column `path` or `uri`). The store is created if it does not exist. The same command again imports only what is new
    or changed, and continues a stopped run.

    Hidden files and folders, thumbnail folders, RAW, video and sidecar files are skipped and counted. Patterns of
    --include and --exclude may have * and ?; with a slash they match the path below SOURCE. `--include @eaDir` includes
    such a folder.

    With --method average-link the directory's people are then grouped again by all pairs of faces, as `regroup` does,
    but for those that were named or corrected; `people undo` with its number takes that back.

    \b
    Examples:
      facepipe run ~/photos --store ~/people
      facepipe run ~/photos /mnt/scans --store ~/people --exclude '*.gif' --exclude private --dry-run
      facepipe run s3://bucket/photos --store ~/people
      facepipe run people.csv --store ~/people --device cuda --strict
      facepipe run ~/photos --store ~/people --profile
      facepipe run ~/by-person --store ~/people --labels parent --json
      facepipe run /mnt/archive --store ~/people --moved-from ~/photos
      facepipe run ~/photos --store ~/people --method average-link
    """
    source, *further = sources
    _work("run", source=source, further_sources=tuple(further), **options)


@click.command()
@source_argument
@store_option
@place_options
@settings_options(ALL_FLAGS)
@output_options
def scan(**options: Any) -> None:
    """Plan a run: find what is new or changed in SOURCE.

    Reads and hashes the files, and decodes none. The thresholds given here are those of the run.

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

    Takes most of the time. Writes one file per shard into the store's run folder, and commits nothing. Without SOURCE
    it takes the latest unfinished run.

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

    One transaction per shard, in manifest order, with the thresholds of the plan.

    \b
    Example:
      facepipe group --store ~/people
    """
    _work("group", **options)


@click.command()
@optional_source_argument
@store_option
@account_option
@output_options
def abandon(source: Source | None, store: Path, account: str | None, as_json: bool) -> None:
    """Give up an unfinished run.

    What it has committed stays. The next run of the source plans the rest again, with its own settings. Without SOURCE
    it takes the latest unfinished run.

    \b
    Example:
      facepipe abandon ~/photos --store ~/people
    """
    from pipeline.run import run as library

    ended = library.abandon(store, source, account)
    line = f"gave up the run {ended.run_id} of {ended.source}; {ended.rows} of its photos stay in the store"
    emit({"run_id": ended.run_id, "source": ended.source, "images": ended.rows}, [line], as_json)


def _work(command: str, *, as_json: bool, strict: bool = False, dry_run: bool = False, **inputs: Any) -> None:
    """Calls the function of `pipeline.run.run` that has the command's name, and prints its report."""
    from pipeline.run import run as library
    from pipeline.run.dry_run import dry_run as try_run

    request = library.RunRequest(command=command, **inputs)
    with LongWork() as long:
        work: Callable[..., RunReport | DryRunReport] = try_run if dry_run else getattr(library, command)
        report = work(request, long.progress, long.stop)
    emit(report.as_dict(), report.lines(), as_json)
    if (line := report.face_change_line()) is not None:
        click.echo(printable(f"facepipe: {line}"), err=True)
    if strict and report.rejected_inputs:
        rejected = counted(report.rejected_inputs, "input was rejected", "inputs were rejected")
        click.echo(f"facepipe: {rejected} (--strict).", err=True)
        raise click.exceptions.Exit(EXIT_REJECTED_INPUTS)
