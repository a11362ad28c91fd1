"""`facepipe check`, `export`, `migrate` and `report`."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.flags import PATH, account_option, settings_options, store_option
from pipeline.cli.output import emit, end_with, output_options
from pipeline.cli.progress import LongWork
from pipeline.config import Settings
from pipeline.errors import StoreDamaged
from pipeline.texts import counted

if TYPE_CHECKING:
    from pipeline.store import Problem


@click.command()
@store_option
@click.option("--repair", is_flag=True, help="Repair what can be repaired without loss, then check again.")
@output_options
def check(store: Path, repair: bool, as_json: bool) -> None:
    """Read all of a store and verify it.

    Hashes and opens every file, and follows every reference between tables. Ends with exit code 43 if something is
    wrong. --repair moves files of interrupted work to the store's folder quarantine/, rebuilds derived files, deletes
    damaged reports, and lets a store that lost its last changes continue without them. It lists all this, and never
    changes a photo, a face or a person.

    \b
    Examples:
      facepipe check --store ~/people
      facepipe check --store ~/people --repair --json
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="check", repair=repair, reading=not repair) as opened, LongWork() as long:
        long.progress.start("check", None)
        report = opened.check(repair=repair, progress=long.progress)
        erase_by = opened.erase(now=False).due
    result = {
        "problems": [asdict(problem) for problem in report.problems],
        "repaired": [asdict(problem) for problem in report.repaired],
        "counts": report.counts,
        "erase_by": erase_by,
    }
    lines = [*_lines("repaired", report.repaired), *_lines("problem", report.problems)]
    if erase_by is not None:
        lines.append(f"deleted data waits to be erased from the catalog's file, by {erase_by:%F %T} UTC")
    if report.problems:
        error = StoreDamaged(
            path=store, detail=counted(len(report.problems), "problem"), cure="Each has its cure beside it."
        )
        end_with(error, result, lines, as_json)
    counts = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    emit(result, [*lines, f"{store} is sound: {counts or 'it is empty'}"], as_json)


def _lines(what: str, problems: Sequence[Problem]) -> list[str]:
    return [f"{what}: {p.kind} {p.where}: {p.detail}" + (f" {p.cure}" if what == "problem" else "") for p in problems]


@click.command()
@store_option
@click.option("--to", type=PATH, required=True, metavar="DIR", help="A new or empty folder.")
@output_options
def export(store: Path, to: Path, as_json: bool) -> None:
    """Write a store's tables as Parquet files.

    media.parquet, faces.parquet, persons.parquet, facts.parquet and embeddings.parquet, with the columns of
    FORMAT.md.

    \b
    Example:
      facepipe export --store ~/people --to ~/people-parquet
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="export", reading=True) as opened:
        rows = opened.export(to)
    lines = [f"{name + '.parquet':<20}{counted(count, 'row')}" for name, count in rows.items()]
    emit({"to": str(to), "rows": rows}, [*lines, f"in {to}"], as_json)


@click.command()
@store_option
@output_options
def migrate(store: Path, as_json: bool) -> None:
    """Upgrade a store of an earlier version now.

    Any command upgrades what it needs: the tables when it opens the store, and a directory's index at its first search
    there, which takes about half a minute for a million people. This command upgrades all at once. It can be stopped at
    any time; called again, it continues.

    \b
    Example:
      facepipe migrate --store ~/people
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="migrate") as opened, LongWork() as long:
        segments = opened.migrate(progress=long.progress)
    result = {"segments": len(segments), "references": sum(segments)}
    emit(result, [f"{store} is of this version: {sum(segments)} references in {len(segments)} index segments"], as_json)


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
@settings_options(("report.link", "security.master_key_file"))
@output_options
def report(
    store: Path, account: str | None, run_id: str | None, to: Path, show: bool, settings: Settings, as_json: bool
) -> None:
    """Write a page that shows the people of a store.

    It shows the people with most photos, who is with whom, pairs who may be one person, the weakest matches, what was
    rejected and why, the quality of the faces, and how the store was made. It is one HTML file without scripts and
    needs no network. It shows faces: keep it as you keep the photos.

    \b
    Examples:
      facepipe report --store ~/people --open
      facepipe report --store ~/people --run last --to last-night.html
      facepipe report --store ~/people --link http://127.0.0.1:8080/ui
    """
    from pipeline.jobs.store import open_store
    from pipeline.run.page import write_report_page

    with open_store(store, settings, command="report", reading=True) as opened:
        shown = write_report_page(opened, to, account=account, run_id=run_id)
    emit({"page": str(to), "run_id": shown, "bytes": to.stat().st_size}, [f"report      {to}"], as_json)
    if show:
        webbrowser.open(to.absolute().as_uri())
