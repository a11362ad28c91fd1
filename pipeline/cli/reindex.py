"""`facepipe reindex`: another model for a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from pipeline.cli.flags import (
    PATH,
    REGROUP_FLAGS,
    REINDEX_FLAGS,
    optional_store,
    place_options,
    settings_options,
    store_option,
)
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import emit, output_options, printable
from pipeline.cli.progress import LongWork
from pipeline.cli.regroup import regroup_lines
from pipeline.config import OUTPUT_SECTIONS, Settings
from pipeline.errors import UsageError

# Parameters of `swap` that are for its regroup.
_OF_REGROUP: Final = (
    *("dry_run", "account", "directory", "method", "precision", "cut"),
    *("threshold", "min_cpq", "min_fsq", "min_fcq"),
)

if TYPE_CHECKING:
    from pipeline.jobs.reindex import Estimate
    from pipeline.jobs.store import Store


@click.group(cls=CommandGroup, invoke_without_command=True)
@optional_store("The store.")
@click.option("--yes", is_flag=True, help="Build it even if many photos are missing.")
@settings_options(REINDEX_FLAGS)
@output_options
@click.pass_context
def reindex(context: click.Context, store: Path | None, yes: bool, as_json: bool, settings: Settings) -> None:
    """Index a store by another model, or by other settings.

    Builds a second index while the present one answers, and runs and posts continue. People, names, merges and
    corrections stay. No face is detected again: each is cut out of its photo, or out of its stored picture if the photo
    is missing. It can be stopped at any time; called again, it continues.

    \b
    Examples:
      facepipe reindex --weights sface --store ~/people
      facepipe reindex --set align.margin_px=16 --store ~/people
      facepipe reindex status --store ~/people
    """
    if context.invoked_subcommand is not None:
        return
    if store is None:
        raise click.UsageError("Missing option '--store'.", context)
    from pipeline.jobs.reindex import reindex as build

    named = (text.partition("=")[0].strip() for text in context.params["assignments"])
    changed = [key for key in named if key.split(".")[0] in OUTPUT_SECTIONS or key == "run.mode"]
    changed += ["run.mode"] if context.params["mode"] is not None else []
    with LongWork() as long:
        summary = build(store, settings, changed, long.progress, long.stop, missing_too=yes, say=_say)
    emit(summary, _lines(summary), as_json)


@reindex.command()
@store_option
@output_options
def status(store: Path, as_json: bool) -> None:
    """Show how far a store's second index is.

    \b
    Example:
      facepipe reindex status --store ~/people
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="reindex status", reading=True) as opened:
        other = opened.other_identity()
        summary = {} if other is None else {"weights": other.weights, **opened.generation_summary()}
        answering = opened.identity.weights
    lines = [*_lines(summary)] if summary else ["there is no second index"]
    emit({"answering": answering, "other": summary or None}, [f"answers by {answering}", *lines], as_json)


@reindex.command()
@store_option
@place_options
@click.option("--regroup", is_flag=True, help="Decide a directory's faces again by the new index, as `regroup` does.")
@click.option("--dry-run", is_flag=True, help="With --regroup: only show what that would change.")
@settings_options(REGROUP_FLAGS)
@output_options
def swap(
    store: Path, account: str | None, directory: str, regroup: bool, dry_run: bool, as_json: bool, settings: Settings
) -> None:
    """Answer by the new index from now on.

    People, names and corrections stay as they are. No face is decided again unless you say --regroup; `people undo`
    takes that back. The former index is kept up to date until `reindex gc`, so that `reindex rollback` can go back to
    it.

    \b
    Examples:
      facepipe reindex swap --store ~/people --regroup --dry-run
      facepipe reindex swap --store ~/people
    """
    context = click.get_current_context()
    given = [name for name in _OF_REGROUP if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if given and not regroup:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(message=f"{options}: of a regroup; give --regroup as well.")
    from pipeline.jobs.people import People

    with _opened(store, "swap", settings) as opened:
        if regroup:
            opened.unlock()
            done = People(opened, account, directory).swap_and_regroup(dry_run=dry_run)
        else:
            done = opened.switch_generation()
        lost = [] if dry_run else list(_thresholds_without_effect(opened))
    lines = [] if done.regrouped is None else regroup_lines(done.regrouped)
    emit(asdict(done), [f"{'would answer' if dry_run else 'answers'} by {done.weights}", *lines, *lost], as_json)


def _thresholds_without_effect(store: Store) -> Iterator[str]:
    """Lines about directories whose threshold or cut is a number for another index."""
    for row in (row for account in store.accounts() for row in account.directories):
        note = store.unconfirmed(row.name, row.remembered)
        if note is not None:
            yield f"threshold  of {row.user_id}: {note}"


@reindex.command()
@store_option
@output_options
def rollback(store: Path, as_json: bool) -> None:
    """Answer by the former index again. What came in since, and what was corrected, stays.

    \b
    Example:
      facepipe reindex rollback --store ~/people
    """
    with _opened(store, "rollback") as opened:
        weights = opened.switch_generation(back=True).weights
    emit({"weights": weights}, [f"answers by {weights}"], as_json)


@reindex.command()
@store_option
@output_options
def gc(store: Path, as_json: bool) -> None:
    """Delete the former index after a swap. Then there is no way back to it.

    \b
    Example:
      facepipe reindex gc --store ~/people
    """
    with _opened(store, "gc") as opened:
        weights = opened.drop_generation(older=True)
    emit({"weights": weights}, [f"deleted the index by {weights}"], as_json)


@reindex.command()
@store_option
@output_options
def abandon(store: Path, as_json: bool) -> None:
    """Delete the new index before a swap, whether it is complete or not.

    \b
    Example:
      facepipe reindex abandon --store ~/people
    """
    with _opened(store, "abandon") as opened:
        weights = opened.drop_generation()
    emit({"weights": weights}, [f"deleted the index by {weights}"], as_json)


@reindex.command()
@store_option
@place_options
@click.option("--out", type=PATH, metavar="DIR", help="Also write the figures as JSON and a page with curves there.")
@settings_options(("match.threshold",))
@output_options
def compare(out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Compare the new index with the one that answers, before a swap.

    On the people of a directory that have a name: how many pairs of one person each model misses, at the same rate of
    false matches. Only pairs count that something else than a model joined: names that came with the photos, merges,
    and faces that were moved to somebody.

    \b
    Examples:
      facepipe reindex compare --store ~/people
      facepipe reindex compare --store ~/people --out figures
    """
    from pipeline.cli.evaluate import experiment
    from pipeline.evaluation.reindexing import report_reindex

    experiment(report_reindex, inputs, out, "Two indexes of a store", as_json)


@contextmanager
def _opened(store: Path, command: str, settings: Settings | None = None) -> Iterator[Store]:
    """The store, while nobody builds its index, and no run is in progress, which embeds by the models of its start."""
    from pipeline.jobs.store import open_store

    name = f"reindex {command}"
    with open_store(store, settings, command=name) as opened, opened.lock_reindex(name), opened.lock_runs(name):
        yield opened


def _say(estimate: Estimate) -> None:
    seconds = estimate.seconds
    time = "" if seconds is None else f", about {max(1, round(seconds / 60)):,} minutes"
    lines = [
        f"{estimate.faces:,} faces in {estimate.photos:,} photos by {estimate.weights}: about "
        f"{estimate.bytes / 2**20:,.0f} MiB of {estimate.free_bytes / 2**30:,.0f} GiB free{time}"
    ]
    if estimate.missing:
        lines.append(f"{estimate.missing:,} photos are missing: the pictures that are stored of their faces serve")
    if not estimate.calibrated:
        lines.append(f"{estimate.weights} is not calibrated: what a threshold means is not known")
    for line in lines:
        click.echo(printable(f"facepipe: {line}"), err=True)


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    faces, left = summary["faces"], summary["left"]
    state = "complete" if "stand_ins" in summary else f"{left:,} left"
    yield f"{summary['weights']}: {faces - left:,} of {faces:,} faces, {summary['vectors']:,} with a vector; {state}"
    photos, pictures, without = (summary.get(name, 0) for name in ("from_photos", "from_pictures", "without"))
    if measured := photos + pictures + without:
        seconds = summary["seconds"]
        yield f"built in {seconds / 60:,.1f} minutes: {1000 * seconds / measured:,.0f} ms for each face"
    if pictures:
        yield f"{pictures:,} faces from their stored picture, because the photo is missing or has changed"
    if cosines := sorted(summary.get("cosines", ())):
        lowest, median = cosines[0], cosines[len(cosines) // 2]
        yield f"{len(cosines):,} faces have both: cosine of the two vectors {median:.4f} (median), {lowest:.4f} (least)"
    if without:
        yield f"{without:,} faces without a vector: neither their photo is there nor a picture that is large enough"
    if summary.get("stand_ins"):
        yield f"{summary['stand_ins']:,} people are known by another of their faces"
    if summary.get("without_reference"):
        yield f"{summary['without_reference']:,} people can't be recognised by it"
