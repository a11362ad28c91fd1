"""What a run would do: the scan and the comparison with the store, and nothing written."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from pipeline.extraction.rows import EXTRACT
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source
from pipeline.jobs.accounts import DEFAULT_ACCOUNT, find_account
from pipeline.jobs.followed_labels import count_changes
from pipeline.jobs.missing import chooser
from pipeline.jobs.moved_source import moved_source
from pipeline.jobs.plan import NoStore, Planner, watcher
from pipeline.jobs.plan_counts import PlanCounts
from pipeline.jobs.session import RunRequest, require_sources, source_name
from pipeline.jobs.store import Store, open_store
from pipeline.report.page import listed
from pipeline.store import has_store
from pipeline.types import ACCEPTED_STATUSES, Progress, SilentProgress


@dataclass
class DryRunReport:
    """What a run would do now."""

    counts: PlanCounts = field(default_factory=PlanCounts)
    to_decode: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # rows that the scan refuses, by status

    @property
    def rejected_inputs(self) -> int:
        """Rows that cannot be read."""
        return self.rejected.total()

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"dry_run": True, **asdict(self.counts), "to_decode": self.to_decode, "rejected": dict(self.rejected)}

    def lines(self) -> list[str]:
        """For people."""
        counts = self.counts
        return [
            f"would take  {counts.new} new, {counts.changed} changed; {counts.already_in} are in already",
            *counts.file_lines(),
            *([f"            {counts.labels_changed} labels changed"] if counts.labels_changed else []),
            f"            {self.to_decode} would be decoded; refused: {listed(self.rejected)}",
            *counts.left_alone_lines(),
            "nothing was written",
        ]


def dry_run(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> DryRunReport:
    """Compares the files of the request's sources with its store, where there is one, as a run does.

    Raises InputError, StoreError, UsageError, and Interrupted once `stop` is set.
    """
    progress, stop = progress or SilentProgress(), stop or threading.Event()
    require_sources(request)
    report = DryRunReport()
    with _known(request) as (store, account, account_id):
        for source in request.sources:
            progress.start("scan", None)
            planner = Planner(
                store,
                account,
                account_id,
                request.directory,
                request.settings,
                watcher(progress, stop),
                moved=moved_source(store, account_id, request, progress),
                forget=chooser(dataclasses.replace(request, source=source)),
            )
            scanned = ScanCounts()
            refs = scan_source(source, request.settings.source, scanned, leave_out=request.store, stop=stop)
            for batch in planner.batches(source_name(source), refs):
                report.to_decode += batch["action"].to_pylist().count(EXTRACT)
                statuses = (status for status in batch["status"].to_pylist() if status is not None)
                report.rejected.update(status for status in statuses if status not in ACCEPTED_STATUSES)
            planner.counts.labels_changed = count_changes(planner.labels)
            planner.counts.forgotten_missing = planner.missing.count if planner.missing else 0
            report.counts += planner.counts.with_scan(scanned)
    return report


@contextmanager
def _known(request: RunRequest) -> Iterator[tuple[Store | NoStore, str, int]]:
    """The store, or what stands for one that the run would make; with the account's name and id."""
    if has_store(request.store.absolute()):
        with open_store(request.store, request.settings, command=request.command) as store:
            if store.accounts():
                yield store, *find_account(store, request.account)
                return
    yield NoStore(), request.account or DEFAULT_ACCOUNT, 0
