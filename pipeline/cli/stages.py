"""`facepipe scan`, `extract` and `group`: the stages of `facepipe run`, alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import ALL_FLAGS, EXTRACT_FLAGS, GROUP_FLAGS, settings_options
from pipeline.cli.options import (
    account_option,
    directory_option,
    optional_source_argument,
    profile_option,
    source_argument,
    store_option,
    strict_option,
)
from pipeline.cli.output import output_options
from pipeline.cli.working import work


@click.command()
@source_argument
@store_option
@account_option
@directory_option
@settings_options(ALL_FLAGS)
@output_options
def scan(source: Path, **options: Any) -> None:
    """Plan a run: find out what of SOURCE is new or changed.

    Reads and hashes the files, decodes nothing. The thresholds of the run are settled here.

    \b
    Example:
      facepipe scan ~/photos --store ~/people
    """
    work("scan", source, options)


@click.command()
@optional_source_argument
@store_option
@account_option
@settings_options(EXTRACT_FLAGS)
@profile_option
@output_options
def extract(source: Path | None, **options: Any) -> None:
    """Find and embed the faces of the planned run.

    The heavy part: writes one file per shard into the store's run folder, and commits nothing. Without SOURCE it
    takes the latest unfinished run.

    \b
    Example:
      facepipe extract --store ~/people --device cuda
    """
    work("extract", source, options)


@click.command()
@optional_source_argument
@store_option
@account_option
@settings_options(GROUP_FLAGS)
@strict_option
@output_options
def group(source: Path | None, **options: Any) -> None:
    """Group the extracted faces and commit them.

    One transaction per shard, in manifest order, with the thresholds that the run was planned with.

    \b
    Example:
      facepipe group --store ~/people
    """
    work("group", source, options)
