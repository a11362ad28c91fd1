"""What a run would do. Writes nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from pipeline.extraction.rows import EXTRACT
from pipeline.jobs.accounts import DEFAULT_ACCOUNT, find_account
from pipeline.jobs.plan_counts import PlanCounts
from pipeline.jobs.profile import Profiler
from pipeline.jobs.store import Known, Store, open_store
from pipeline.jobs.store_identity import settings_of_store
from pipeline.report.page import listed
from pipeline.run.moved_source import moved_source
from pipeline.run.plan import Plan
from pipeline.run.session import RunRequest, Session, require_sources
from pipeline.store import KNOWN_FILES_SCHEMA, AccountSummary, Label, has_store
from pipeline.types import ACCEPTED_STATUSES, Progress, SilentProgress


@dataclass
class DryRunReport(PlanCounts):
    """What a run would do now."""

    to_decode: int = 0
    rejected: dict[str, int] = field(default_factory=dict)  # rows that the scan refuses, by status

    @property
    def rejected_inputs(self) -> int:
        """The number of unreadable rows."""
        return sum(self.rejected.values())

    def as_dict(self) -> dict[str, Any]:
        return {"dry_run": True, **super().as_dict()}

    def lines(self) -> list[str]:
        """For people."""
        removed = f", {self.labels_removed} of them removed" if self.labels_removed else ""
        return [
            f"would take  {self.new} new, {self.changed} changed; {self.already_in} are in already",
            *self.file_lines(),
            *([f"            {self.labels_changed} labels changed{removed}"] if self.labels_changed else []),
            f"            {self.to_decode} would be decoded; refused: {listed(self.rejected)}",
            *self.left_alone_lines(),
            "nothing was written",
        ]


class NoStore:
    """Stands in for a store that does not exist yet."""

    def accounts(self) -> list[AccountSummary]:
        return []

    def known_files(self, _source: str, _account_id: int) -> pa.RecordBatchReader:
        return KNOWN_FILES_SCHEMA.empty_table().to_reader()

    def known(
        self,
        _account_id: int,
        _paths: Sequence[str] = (),
        _hashes: Sequence[str] = (),
        labels: Sequence[Label] = (),
        *,
        directories: Sequence[str] = (),  # noqa: ARG002
    ) -> Known:
        return Known({}, set(), [None] * len(labels))


def dry_run(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> DryRunReport:
    """Plans as a run does, and writes nothing.

    Raises InputError, StoreError, UsageError, and Interrupted once `stop` is set.
    """
    require_sources(request)
    counts, to_decode, rejected = PlanCounts(), 0, Counter[str]()
    with _session(request, progress or SilentProgress(), stop or threading.Event()) as command:
        for source in request.sources:
            session = command.of_source(source)
            plan = Plan(session, moved=moved_source(session), forgets=True)
            for batch in plan.scan():
                to_decode += batch["action"].to_pylist().count(EXTRACT)
                statuses = (status for status in batch["status"].to_pylist() if status is not None)
                rejected.update(status for status in statuses if status not in ACCEPTED_STATUSES)
            plan.counts.forgotten_missing = plan.missing.count if plan.missing else 0
            counts += plan.counts + plan.label_counts()
    return DryRunReport(**vars(counts), to_decode=to_decode, rejected=dict(rejected))


@contextmanager
def _session(request: RunRequest, progress: Progress, stop: threading.Event) -> Iterator[Session]:
    """A session that does not lock out other runs. Raises StoreMismatch, as a run does."""
    profiler = Profiler(enabled=False, settings=request.settings.run)
    with ExitStack() as opened:
        store, account = cast("Store", NoStore()), AccountSummary(0, request.account or DEFAULT_ACCOUNT, False, ())
        settings = request.settings
        if has_store(request.store.absolute()):
            store = opened.enter_context(open_store(request.store, request.settings, command=request.command))
            settings = settings_of_store(settings, store.identity, request.store, store.other_identity())
            account = find_account(store, request.account) if store.accounts() else account
        yield Session(request, progress, stop, store, settings, account.account, account.account_id, profiler)
