"""`facepipe evaluate`: one subcommand for each kind of experiment."""

from __future__ import annotations

import click

from pipeline.cli.evaluate_clustering import clustering
from pipeline.cli.evaluate_detection import detection
from pipeline.cli.evaluate_identification import identification
from pipeline.cli.evaluate_pairs import pairs


@click.group()
def evaluate() -> None:
    """Measure accuracy on labelled photos.

    Each subcommand prints its figures; with --out DIR it also writes them as JSON, and a page with plots as HTML.
    """


for command in (pairs, identification, clustering, detection):
    evaluate.add_command(command)
