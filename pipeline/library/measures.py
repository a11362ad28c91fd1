"""Measures on labelled photos: what the commands `evaluate` and `calibrate` do, and distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config import load_settings
from pipeline.jobs.store import Store
from pipeline.library.arguments import checked_directory, path_or_none
from pipeline.library.opened import OpenStore
from pipeline.types import Progress, SilentProgress

if TYPE_CHECKING:
    from pipeline.evaluation.calibration import CalibrationReport
    from pipeline.evaluation.clustering import ClusteringResult
    from pipeline.evaluation.pairs import PairsResult
    from pipeline.evaluation.report import Report
    from pipeline.evaluation.sweep import SweptRow


def evaluate_pairs(
    pairs: Path | str,
    *,
    images: Path | str | None = None,
    train: Path | str | None = None,
    all_pairs: bool = False,
    store: OpenStore | Path | str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report[PairsResult]:
    """Measures verification on labelled pairs: accuracy, and FNMR at FMR, as `facepipe evaluate pairs` does.

    `pairs`: a list in the format of Labeled Faces in the Wild, or CSV with the columns path_a, path_b and same (1 or
    0). `images`: the folder of the photos (None: that of the list). `train`: a list that determines the threshold.
    `all_pairs`: error rates over all pairs of photos of the people in the list. `store`: take the embeddings from it.
    Raises InputError if nothing can be measured, UsageError, StoreError, ModelError, DeviceError.

    >>> report = evaluate_pairs("pairs.csv", settings={"model.weights": "casia-webface", "run.device": "cpu"})
    >>> report.result.genuine_pairs, report.result.impostor_pairs
    (1, 1)
    """
    from pipeline.evaluation.pairs import report_pairs

    return report_pairs(
        Path(pairs),
        load_settings(flags=settings),
        progress or SilentProgress(),
        images=path_or_none(images),
        train=path_or_none(train),
        all_pairs=all_pairs,
        store=None if store is None else _place(store),
    )


def evaluate_clustering(
    source: Path | str,
    *,
    labels: str | None = None,
    store: OpenStore | Path | str | None = None,
    clusters: Path | str | None = None,
    account: str | None = None,
    directory: str = "main",
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report[ClusteringResult]:
    """Compares identities with labels: pairwise and BCubed precision, recall and F, as `facepipe evaluate clustering`
    does.

    `source`: a manifest with the columns path and name, or with `labels` = "parent" a folder with one subfolder per
    person. `store`: has the identities, or `clusters`, a table with the columns path and cluster. Raises InputError if
    nothing can be compared, UsageError, StoreError.

    >>> report = evaluate_clustering("labels.csv", store="people")
    >>> report.result.counts["people_found_exactly"], report.result.pairwise.precision
    (2, nan)
    """
    from pipeline.evaluation.clustering import report_clustering

    return report_clustering(
        Path(source),
        load_settings(flags={**(settings or {}), "source.labels": labels}),
        progress or SilentProgress(),
        store=None if store is None else _place(store),
        account=account,
        directory=checked_directory(directory),
        clusters=path_or_none(clusters),
    )


def sweep_thresholds(
    source: Path | str,
    *,
    store: OpenStore | Path | str,
    labels: str | None = None,
    methods: Sequence[str] = ("sequential", "average-link"),
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report[list[SweptRow]]:
    """Groups the labelled faces of `store` again at thresholds from 0.3 to 0.9, by each method of a regroup, as
    `facepipe evaluate clustering --sweep` does. Changes nothing.

    `source` and `labels`: as for `evaluate_clustering`. Raises InputError if there is nothing to group, UsageError,
    StoreError.

    >>> report = sweep_thresholds("labels.csv", store="people", methods=["sequential"])
    >>> row = report.result[0]
    >>> row.threshold, row.identities, row.bcubed.f
    (0.3, 2, 1.0)
    """
    from pipeline.evaluation.sweep import report_sweep

    options = load_settings(flags={**(settings or {}), "source.labels": labels})
    return report_sweep(Path(source), options, progress or SilentProgress(), store=_place(store), methods=methods)


def calibrate(
    source: Path | str | None,
    *,
    fmr: float | None = None,
    images: Path | str | None = None,
    all_pairs: bool = False,
    store: OpenStore | Path | str | None = None,
    account: str | None = None,
    directory: str = "main",
    leave_out: Path | str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> CalibrationReport:
    """Fits a calibration on labelled photos: the threshold 0.54 then has the false match rate `fmr`; None: 1e-5, or the
    lowest rate that the pairs can measure.

    `source`: a list of pairs, a manifest with the columns path and name, or with the setting `source.labels` = parent a
    folder with one subfolder per person; None: the named rows of `store`. `leave_out`: a list of photos with wrong
    labels. The report's `write(file)` writes the file for `create_store`. Raises TooLittleData with fewer than `3/fmr`
    pairs of different people; UsageError, InputError, StoreError, ModelError, DeviceError.

    >>> model = {"model.weights": "casia-webface", "run.device": "cpu"}
    >>> calibrate("pairs.csv", settings=model)  # two pairs are too few
    Traceback (most recent call last):
    pipeline.errors.TooLittleData: ...
    """
    from pipeline.evaluation.calibration import report_calibration

    return report_calibration(
        path_or_none(source),
        load_settings(flags=settings),
        progress or SilentProgress(),
        fmr=fmr,
        images=path_or_none(images),
        all_pairs=all_pairs,
        store=None if store is None else _place(store),
        account=account,
        directory=checked_directory(directory),
        leave_out=path_or_none(leave_out),
    )


def _place(store: OpenStore | Path | str) -> Store | Path:
    return store._store if isinstance(store, OpenStore) else Path(store)
