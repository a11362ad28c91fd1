"""Options and arguments that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

PATH = click.Path(path_type=Path)

source_argument = click.argument("source", type=PATH)
# `extract` and `group` go on with the planned run where no source is named.
optional_source_argument = click.argument("source", type=PATH, required=False)
store_option = click.option("--store", type=PATH, required=True, metavar="DIR", help="The store.")
account_option = click.option("--account", metavar="USERID", help="The account; not needed while there is only one.")
directory_option = click.option(
    "--directory", default="main", show_default=True, metavar="NAME", help="Identities are matched within it."
)
profile_option = click.option(
    "--profile",
    is_flag=True,
    help="Tell where the time went, also in a finished run's run.json. On CUDA each stage then waits for the device.",
)
strict_option = click.option("--strict", is_flag=True, help="End with exit code 1 when an input was rejected.")
