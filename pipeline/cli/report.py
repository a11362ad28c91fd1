"""`facepipe report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from pipeline.cli.flags import PATH, account_option, settings_options, store_option
from pipeline.cli.output import emit, output_options
from pipeline.config import Settings


@click.command()
@store_option
@account_option
@click.option("--run", "run_id", metavar="ID", help="Only what this run brought; `last`: the last run.")
@click.option(
    "--to",
    type=PATH,
    default=Path("facepipe-report.html"),
    show_default=True,
    metavar="FILE",
    help="The page to write.",
)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@settings_options(("security.master_key_file",))
@output_options
def report(
    store: Path, account: str | None, run_id: str | None, to: Path, show: bool, settings: Settings, as_json: bool
) -> None:
    """Write a page that shows the people of a store.

    Whom most photos show, who may be one person, the weakest matches, what was rejected and why, how good the faces
    are, and how it was made. One HTML file without scripts, which needs no network. It shows faces: keep it as you
    keep the photos.

    \b
    Examples:
      facepipe report --store ~/people --open
      facepipe report --store ~/people --run last --to last-night.html
    """
    from pipeline.jobs.run_page import write_report_page
    from pipeline.jobs.store import open_store

    with open_store(store, settings, command="report", reading=True) as opened:
        shown = write_report_page(opened, to, account=account, run_id=run_id)
    emit({"page": str(to), "run_id": shown, "bytes": to.stat().st_size}, [f"report      {to}"], as_json)
    if show:
        webbrowser.open(to.absolute().as_uri())
