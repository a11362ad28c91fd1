"""scan -> extract -> group: the stages of a run, together or alone, resumable at every point.

A run is a row of the catalog and a frozen manifest. Extraction writes one file per shard; grouping commits each shard
in one transaction. After an interruption, the same command continues after the last committed shard, then scans the
source again.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pipeline.config import AVERAGE_LINK, MAX_THRESHOLD, THRESHOLD_RULE, MatchSettings, nearest_threshold
from pipeline.errors import FacepipeError, StoreError, UsageError
from pipeline.jobs.accounts import find_account
from pipeline.jobs.people import People
from pipeline.jobs.plan_counts import PlanCounts
from pipeline.jobs.run_report import RunReport, RunTotals, WorkDone, make_report
from pipeline.jobs.store import Runs, Store, open_store, part_of_command
from pipeline.report.contents import subjects
from pipeline.report.page_data import page_file
from pipeline.run.changed_files import RowKey
from pipeline.run.missing import forget_missing
from pipeline.run.moved_source import moved_source
from pipeline.run.page import leave_page, report_of
from pipeline.run.plan import Plan, counts_of, rows_of
from pipeline.run.session import RunRequest, Session, open_session, source_name
from pipeline.run.stages import ShardStages
from pipeline.store import FINISHED, SCANNING, RunRow, damaged_file, manifest_file, report_file
from pipeline.types import Progress, Source

__all__ = ["RunRequest", "abandon", "extract", "group", "run", "scan"]

_log = logging.getLogger(__name__)
_LOGGED: Final = 1000  # corrections read


def run(
    request: RunRequest,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    opened: Store | None = None,
) -> RunReport:
    """Processes each source: continues its unfinished run, then imports what is new or changed.

    Once `stop` is set, finishes the shard in progress and raises Interrupted. `opened`: the request's store, if already
    open. Raises InputError, ModelError, DeviceError, StoreError.
    """
    with open_session(request, progress, stop, opened=opened) as session:
        command = _Command(session)
        try:
            with part_of_command():
                for source in request.sources:
                    command.bring_in(session.of_source(source))
                command.forget_missing()
                command.regroup()
                command.finish()
            session.store.clean_up()
        except Exception:
            command.leave_pages()  # of finished sources: the next command does not write them
            raise
        return command.report()


def scan(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Plans a run: hashes the source's files and writes a manifest of the changes."""
    with open_session(request, progress, stop) as session:
        planned = _sound_run(session)
        if planned is not None:
            raise UsageError(
                message=f"The run {planned.run_id} of this source is planned already. Go on with `facepipe extract` "
                "and `facepipe group`, or with `facepipe run`; `facepipe abandon` gives it up."
            )
        command = _Command(session)
        plan = Plan(session)
        plan.write()
        command.counts = plan.counts
        if plan.run is not None and not plan.run.rows:
            command.work(plan.run, plan.counts)
        return command.report()


def extract(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Extracts the planned run's shards, and commits nothing."""
    return _work_on_planned(request, progress, stop, commit=False)


def group(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Groups and commits the planned run's shards. Raises UsageError if one is not extracted."""
    return _work_on_planned(request, progress, stop, extract=False)


def _work_on_planned(
    request: RunRequest, progress: Progress | None, stop: threading.Event | None, **stages: bool
) -> RunReport:
    with open_session(request, progress, stop, create=False) as session:
        planned = _unfinished(session)
        if planned is None:
            raise UsageError(message="No run is planned. Begin with `facepipe scan SOURCE --store DIR`.")
        damage = session.store.manifest_damage(planned)
        if damage is not None:
            raise damaged_file(session.store.folder, manifest_file(planned.run_id), damage)
        command = _Command(session)
        command.counts = counts_of(planned)
        with part_of_command():
            command.work(planned, command.counts, **stages)
        return command.report()


def abandon(store: Path, source: Source | None = None, account: str | None = None) -> RunRow:
    """Gives up the unfinished run of a source and an account, or the latest; returns it as it ended.

    Committed shards stay, and the next run plans the rest again. Raises UsageError if there is none.
    """
    with open_store(store, command="abandon") as opened, opened.lock_runs("abandon"):
        account_id = None if account is None else find_account(opened, account).account_id
        unfinished = opened.runs(None if source is None else source_name(source), account_id).unfinished
        if unfinished is None:
            raise UsageError(message="There is no unfinished run.")
        return opened.end_run(unfinished.run_id)


def _unfinished(session: Session) -> RunRow | None:
    """The source's unfinished, planned run; without a source, the latest."""
    run = session.store.runs(session.source, session.account_id).unfinished
    return None if run is None or run.state == SCANNING else run


def _sound_run(session: Session) -> RunRow | None:
    """The source's planned, unfinished run. If its manifest is damaged, gives the run up."""
    unfinished = _unfinished(session)
    if unfinished is None:
        return None
    damage = session.store.manifest_damage(unfinished)
    if damage is None:
        return unfinished
    ended = session.store.end_run(unfinished.run_id)
    session.progress.note(
        f"The manifest of the unfinished run {ended.run_id} cannot be used ({damage}): {ended.shards} of its"
        f" {unfinished.shards} shards are in, the rest is planned anew."
    )
    return None


def _going_on(session: Session, run: RunRow) -> str:
    """The note on an unfinished run, which keeps its thresholds and directory."""
    note = f"Going on with the unfinished run {run.run_id}."
    kept = _other_settings(session, run)
    kept += [f"directory = {run.directory}"] if run.directory != session.request.directory else []
    return f"{note} It keeps what it was planned with: {', '.join(kept)}." if kept else note


def _other_settings(session: Session, run: RunRow, leave_out: Collection[str] = ()) -> list[str]:
    """The run's threshold and gate, if they differ from the command's; of those not to `leave_out`."""
    match = dataclasses.asdict(session.settings.match)
    planned = {**dataclasses.asdict(MatchSettings()), **run.settings["match"]}  # older plans lack keys
    left_out = {"threshold_fmr", *leave_out}  # the threshold contains it
    return [f"{key} = {planned[key]}" for key, value in match.items() if key not in left_out and value != planned[key]]


def _note_for_new_photos_only(session: Session, last: RunRow | None) -> None:
    """Notes that committed photos keep decisions made with other settings. A later regroup had a threshold of its
    own."""
    others = [] if last is None else _other_settings(session, last)
    if last is not None and others:
        log = People(session.store, session.account, last.directory).log(_LOGGED)
        if any(each.kind == "regroup" and not each.undone and each.made_at > last.started_at for each in log):
            others = _other_settings(session, last, ["threshold"])
    if others:
        session.progress.note(
            f"The threshold and the gate that are asked for hold for new photos only: those that are in were decided "
            f"with {', '.join(others)}, and stay so."
        )


class _Command:
    """What one command did so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.counts = PlanCounts()
        self._run_ids: list[str] = []
        self._finished: list[tuple[RunRow, dict[str, Any]]] = []  # with their reports
        self._pages: list[Path] = []
        self._warnings: list[str] = []
        self._stages: ShardStages | None = None
        self._regrouped: dict[str, Any] | None = None
        self._to_regroup = False  # photos were committed since the last regroup
        self._to_finish: list[tuple[Session, Plan, RunRow]] = []

    def bring_in(self, session: Session) -> None:
        """Processes the session's source."""
        moved = moved_source(session)
        planned = _sound_run(session)
        found, counted = PlanCounts(), set[RowKey]()
        if planned is not None:
            session.progress.note(_going_on(session, planned))
            found, counted = counts_of(planned), rows_of(session.store, planned)
            self._extract_and_commit(planned)
            self.regroup()
            self._finish(planned, found)
        last = session.store.runs(moved.old if moved else session.source, session.account_id).last
        plan = Plan(session, counted, moved, forgets=True)
        plan.write()
        if plan.counts.already_in:
            _note_for_new_photos_only(session, last)
        if plan.run is not None:
            self._extract_and_commit(plan.run)
            if plan.missing is None and not self._average_link:
                self._finish(plan.run, plan.counts)
            else:
                self._to_finish.append((session, plan, plan.run))
        self.counts += found.then(plan.counts)

    def forget_missing(self) -> None:
        """Forgets the missing photos after all sources are committed: this keeps people on new photos, and photos moved
        between sources."""
        for session, plan, _ in self._to_finish:
            if plan.missing is not None:
                plan.counts.forgotten_missing = forget_missing(session, plan.missing)
                self.counts.forgotten_missing += plan.counts.forgotten_missing

    @property
    def _average_link(self) -> bool:
        return self._session.settings.regroup.method == AVERAGE_LINK

    def regroup(self) -> None:
        """By average-link, if asked for: the directory's people, but for those named or corrected. Before the run is
        finished: after a crash the next command goes on with it, and regroups."""
        session = self._session
        if not (self._average_link and self._to_regroup):
            return
        session.progress.start("grouping all faces", None)
        people = People(session.store, session.account, session.request.directory)
        answer = people.regroup(method=session.settings.regroup, of_run=True)
        self._to_regroup = False
        found = answer.regrouping
        assert found is not None
        counts = {name: len(getattr(found, name)) for name in ("joins", "moves", "new", "gone")}
        self._regrouped = {"correction_id": answer.correction_id, "cut": found.cut, **counts}

    def finish(self) -> None:
        """Finishes the runs whose photos are committed, and forgotten if missing."""
        for _, plan, run in self._to_finish:
            self._finish(run, plan.counts)

    def work(self, run: RunRow, found: PlanCounts, *, extract: bool = True, commit: bool = True) -> None:
        """Extracts, commits and finishes a planned run. `found`: the counts of its scan."""
        self._extract_and_commit(run, extract=extract, commit=commit)
        if commit:
            self._finish(run, found)

    def _finish(self, run: RunRow, found: PlanCounts) -> None:
        totals = self._session.store.count_runs(self._session.account_id, [run.run_id])
        for name, value in totals.face_changes.items():
            setattr(found, name, value)
        summary = self._report([run.run_id], totals, found).kept()
        self._write_summary(run, summary)  # first, so that a finished run always has it
        # Only numbers: paths in the catalog would outlive photos forgotten later.
        numbers = {name: value for name, value in summary.items() if not isinstance(value, list)}
        self._session.store.end_run(run.run_id, numbers, subjects(summary))
        self._finished.append((run, summary))

    def _write_summary(self, run: RunRow, summary: dict[str, Any]) -> None:
        content = json.dumps(summary, indent=1, ensure_ascii=False).encode()
        self._session.store.write_report(run.run_id, "run.json", content)

    def _leave_page(self, run: RunRow, summary: dict[str, Any]) -> None:
        """Writes the run's report, which may fail."""
        try:
            self._pages.append(leave_page(self._session.store, run, summary, self._session.settings.decode))
        except Exception as error:  # noqa: BLE001 - the photos are committed, and nothing depends on the page
            _log.debug("the page of run %s", run.run_id, exc_info=True)
            reason = str(error) if isinstance(error, FacepipeError) else repr(error)
            warning = f"The run is in. Its page is not written; `facepipe report --run {run.run_id}` makes it: {reason}"
            self._warnings.append(warning)
            self._session.progress.note(f"warning: {warning}")
            if (
                summary and self._session.store.folder.path(report_file(run.run_id)).exists()
            ):  # else somebody was deleted
                with suppress(StoreError):
                    self._write_summary(run, {**summary, "page_failure": warning})

    def _extract_and_commit(self, run: RunRow, *, extract: bool = True, commit: bool = True) -> None:
        self._run_ids.append(run.run_id)
        self._to_regroup = True
        if not run.rows:
            return
        if self._stages is None:
            self._stages = ShardStages(self._session)
        threshold = run.settings["match"]["threshold"]
        if threshold != nearest_threshold(threshold):  # planned by an earlier version
            self._session.progress.note(
                f"Run {run.run_id} was planned with the threshold {threshold:g}, which is taken as {MAX_THRESHOLD:g}: "
                f"T is {THRESHOLD_RULE}."
            )
        self._stages.work(run, extract=extract, commit=commit)

    def leave_pages(self) -> None:
        """Writes the finished runs' reports: last, after all forgetting."""
        while self._finished:
            self._leave_page(*self._finished.pop(0))

    def report(self) -> RunReport:
        """Makes the command's report. Without anything to do, it names the last run."""
        self.leave_pages()
        totals = self._session.store.count_runs(self._session.account_id, self._run_ids)
        report = self._report(self._run_ids, totals, self.counts)
        if not self._run_ids:
            found = self._session.store.runs(self._session.source, self._session.account_id)
            report.run_id = found.last.run_id if found.last else None
            self._show_last(found)
        report.pages = [str(page) for page in self._pages]
        report.warnings += tuple(self._warnings)
        report.regrouped = self._regrouped
        return report

    def _show_last(self, found: Runs) -> None:
        """Names the report file of the source's last finished run, or writes it if missing, as after a crash."""
        if found.last is None or found.last.state != FINISHED:
            return
        if found.has_page:
            self._pages.append(self._session.store.folder.path(page_file(found.last.run_id)))
        else:
            self._leave_page(found.last, report_of(self._session.store, found.last))

    def _report(self, run_ids: list[str], totals: RunTotals, counts: PlanCounts) -> RunReport:
        work = dataclasses.replace(
            self._stages.work_done() if self._stages else WorkDone(),
            seconds=round(time.monotonic() - self._session.started, 3),
            profile=self._session.profiler.profile(),
        )
        return make_report(self._session.store.identity, run_ids, totals, counts, work)
