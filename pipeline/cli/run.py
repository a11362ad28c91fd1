"""`facepipe run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.flags import ALL_FLAGS, settings_options
from pipeline.cli.options import (
    account_option,
    directory_option,
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
@profile_option
@strict_option
@output_options
def run(source: Path, **options: Any) -> None:
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
    work("run", source, options)
