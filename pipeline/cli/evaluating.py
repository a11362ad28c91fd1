"""What the subcommands of `facepipe evaluate` and `calibrate` have in common: options, and the files they write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.options import PATH
from pipeline.cli.output import dumps, emit
from pipeline.cli.progress import CommandProgress, open_progress
from pipeline.errors import UsageError
from pipeline.extraction.images.files import shown

if TYPE_CHECKING:
    from pipeline.evaluation.pages.report import Report

# The settings that say how embeddings are made, and what their distances mean.
MODEL_FLAGS = ("run.device", "run.threads", "model.weights", "model.weights_file")
EMBEDDING_FLAGS = (*MODEL_FLAGS, "model.calibration")

out_option = click.option(
    "--out", type=PATH, metavar="DIR", help="Write the figures as JSON and a page with plots as HTML there."
)
images_option = click.option(
    "--images", type=PATH, metavar="DIR", help="Where the photos of the pairs are; else beside the list."
)
all_pairs_option = click.option(
    "--all-pairs", is_flag=True, help="Error rates over all pairs of all photos of the people whom the list names."
)
stored_option = click.option(
    "--store", type=PATH, metavar="DIR", help="Take the embeddings from this store, without computing any."
)


def make_folder(out: Path | None) -> None:
    """Makes the folder `out`, if one is given, before the work: after an hour of it is too late to hear that nothing
    can be written there. Raises UsageError."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except (OSError, ValueError) as exc:  # ValueError: NUL in a name
        reason = (exc.strerror if isinstance(exc, OSError) else None) or exc
        raise UsageError(message=f"Nothing can be written into the folder {shown(out)} of --out: {reason}.") from exc


@contextmanager
def showing_progress() -> Iterator[CommandProgress]:
    """A progress bar on standard error, gone at the end."""
    progress = open_progress()
    try:
        yield progress
    finally:
        progress.close()


def emit_results(report: Report[Any], out: Path | None, name: str, title: str, as_json: bool) -> None:
    """Writes `<name>.json` and the page `<name>.html` into the folder `out`, if there is one, and prints the report.

    Raises StoreFull or StoreUnwritable of the folder.
    """
    figures = report.as_dict()
    written: list[Path] = []
    if out is not None:
        from pipeline.evaluation.pages.page import write_page
        from pipeline.store.files.durable import Folder

        written = [out / f"{name}.json", out / f"{name}.html"]
        Folder(out).write(written[0].name, (dumps(figures) + "\n").encode(), "figures")
        write_page(written[1], title, report.sections)
    emit(figures, [*report.lines(), *(f"written     {file}" for file in written)], as_json)
