"""How whole people are at each threshold: labelled faces grouped again by each method of a regroup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from pipeline.config import AVERAGE_LINK, SEQUENTIAL, Settings
from pipeline.errors import InputError
from pipeline.evaluation.clustering import Agreement, Contingency, described
from pipeline.evaluation.labels import numbered, read_labels
from pipeline.evaluation.portraits import stored_portraits
from pipeline.evaluation.report import NO_FACE, Report, Row, Section, Skipped, line_plot
from pipeline.jobs.store import Store, store_at
from pipeline.matching.average_link import FacesToLink, average_link
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import dot_at
from pipeline.texts import path_text
from pipeline.types import FaceBatch, FloatArray, IntArray, Progress

METHODS: Final = (SEQUENTIAL, AVERAGE_LINK)
THRESHOLDS: Final = tuple(round(0.3 + 0.02 * step, 2) for step in range(31))  # T from 0.3 to 0.9
_TEXT: Final = (
    "The labelled faces alone, grouped again without corrections: sequential as a run does, by one reference face of"
    " each person; average-link as `regroup --method average-link` does, by all pairs."
)


@dataclass(frozen=True)
class SweptRow:
    """One method at one threshold."""

    method: str
    threshold: float  # T: of two faces, or of the mean similarity of two clusters
    identities: int
    pairwise: Agreement
    bcubed: Agreement


def report_sweep(
    source: Path, settings: Settings, progress: Progress, *, store: Path | Store, methods: Sequence[str] = METHODS
) -> Report[list[SweptRow]]:
    """Groups the labelled photos (a manifest, or a folder with one subfolder per person) of `store` again.

    A photo counts by the face nearest its centre. Raises SourceMissing, ManifestInvalid, InputError if there are none,
    StoreError.
    """
    skipped = Skipped()
    progress.start("labels", None)
    labels = read_labels(source, settings.source, skipped, advance=progress.advance)
    with store_at(store, "evaluate clustering") as opened:
        portraits, identity = stored_portraits(opened, labels.paths), opened.identity
    for path, reason in portraits.skipped.items():
        skipped.add(reason, path)
    kept, names = [], []
    for path, name in zip(labels.paths, labels.names, strict=True):
        row = portraits.row.get(path)
        if row is not None and portraits.has_face[row]:
            kept.append(row)
            names.append(name)
        elif row is not None:
            skipped.add(NO_FACE, path)
    if not kept:
        with skipped.explaining():
            raise InputError(message="No labelled photo has a face with a stored vector, so there is nothing to group.")
    rows = sweep(portraits.embeddings[kept], names, Calibration.from_dict(identity.calibration), methods, progress)
    figures = {
        "labels": path_text(source),
        "faces": len(kept),
        "people": len(set(names)),
        "weights": identity.weights,
        "calibration": identity.calibration,
        "sweep": [asdict(row) for row in rows],
    }
    return Report(rows, {**figures, **skipped.as_dict()}, [_section(rows), skipped.section()])


def sweep(
    embeddings: FloatArray, people: Sequence[str], calibration: Calibration, methods: Sequence[str], progress: Progress
) -> list[SweptRow]:
    """Groups n faces [n, d], each of another photo, by each method and threshold. `people` [n]: who they show."""
    owners = numbered(people)[1]
    rows = []
    for method in methods:
        progress.start(method, len(THRESHOLDS))
        by_threshold = linked if method == AVERAGE_LINK else grouped
        for threshold, identities in zip(THRESHOLDS, by_threshold(embeddings, calibration, THRESHOLDS), strict=True):
            table = Contingency.of(owners, numbered([str(each) for each in identities.tolist()])[1])
            rows.append(SweptRow(method, threshold, len(table.identity_sizes), table.pairwise(), table.bcubed()))
            progress.advance(1)
    return rows


def linked(embeddings: FloatArray, calibration: Calibration, cuts: Sequence[float]) -> list[IntArray]:
    """By average link: the cluster of each face at each cut."""
    linkage = average_link(FacesToLink.without_constraints(embeddings), calibration, cut=max(cuts))
    return [linkage.clusters(dot_at(cut, calibration)) for cut in cuts]


def grouped(embeddings: FloatArray, calibration: Calibration, thresholds: Sequence[float]) -> list[IntArray]:
    """Sequentially: the identity of each face at each threshold."""
    count, size = embeddings.shape
    faces = FaceBatch(embeddings, np.ones(count, np.bool_), [()] * count, np.zeros((count, 4), np.float32))
    return [group_faces(faces, ReferenceIndex(size), Matcher(calibration, each)).position for each in thresholds]


def _section(rows: Sequence[SweptRow]) -> Section:
    """The sweep as text, and a plot for each method."""
    lines, plots = [], []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        best = max(own, key=lambda row: row.pairwise.f)
        lines.append(Row("method", method))
        for row in own:
            lines.append(Row(f"T {row.threshold:.2f}", described(row.pairwise) + ("  most F" if row is best else "")))
        curves = {name: [asdict(row.pairwise)[name] for row in own] for name in ("precision", "recall", "f")}
        at = [row.threshold for row in own]
        plots.append(line_plot(f"Pairwise, {method}", at, curves, xlabel="T", ylabel="share of pairs"))
    return Section("By threshold and method", lines, _TEXT, plots)
