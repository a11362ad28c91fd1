"""Checking and exporting a store, whoever holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.checks.problems import CheckReport, Problem
from pipeline.store.connect import Store
from pipeline.store.export import export_store
from pipeline.store.remote import RemoteStore


@dataclass(frozen=True)
class Checked:
    """What is wrong with a store, and what was repaired before that was found out."""

    report: CheckReport
    repaired: Sequence[Problem]


def check(store: Store, *, repair: bool = False, progress: Callable[[str], None] | None = None) -> Checked:
    """Reads a whole store; with `repair`, mends what can be mended without loss and reads it again.

    `progress` is told what is being read, where this process does it. Raises StoreUnwritable.
    """
    if isinstance(store, RemoteStore):
        return Checked(*store.check(repair=repair))
    report = check_store(store, progress)
    repaired = repair_store(store, report) if repair else []
    return Checked(check_store(store, progress) if repaired else report, repaired)


def export(store: Store, to: Path) -> dict[str, int]:
    """Writes a store's tables as Parquet files into `to`; returns the rows of each. Raises what `export_store` does."""
    return store.export(to) if isinstance(store, RemoteStore) else export_store(store, to)
