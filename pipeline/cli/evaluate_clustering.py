"""`facepipe evaluate clustering`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.evaluating import emit_results, make_folder, out_option, showing_progress
from pipeline.cli.flags import settings_from, settings_options
from pipeline.cli.options import PATH, account_option, directory_option
from pipeline.cli.output import output_options

_FLAGS = ("source.labels", "source.root")


@click.command()
@click.argument("source", type=PATH, metavar="LABELS")
@click.option("--store", type=PATH, metavar="DIR", help="Compare with the identities of this store.")
@click.option(
    "--clusters", type=PATH, metavar="FILE", help="Compare with a CSV, JSON Lines or Parquet table of path and cluster."
)
@account_option
@directory_option
@out_option
@settings_options(_FLAGS)
@output_options
def clustering(
    source: Path,
    store: Path | None,
    clusters: Path | None,
    account: str | None,
    directory: str,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare identities with labels: pairwise and BCubed precision, recall and F.

    LABELS is a manifest with the columns path and name, or a folder with one subfolder per person and --labels
    parent. Of a photo with several faces, the one nearest the centre is the labelled one. Lists the identities that
    mix people most, and the people that are split most.

    \b
    Examples:
      facepipe evaluate clustering lfw/ --labels parent --store ~/people --out figures
      facepipe evaluate clustering labels.csv --clusters clusters.parquet --json
    """
    settings = settings_from(options)
    make_folder(out)
    from pipeline.evaluation.clustering.report import ClusteringRequest, report_clustering

    request = ClusteringRequest(source, settings, store, account, directory, clusters)
    with showing_progress() as progress:
        report = report_clustering(request, progress)
    emit_results(report, out, "clustering", "Clustering", as_json)
