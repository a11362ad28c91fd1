"""scan -> extract -> group: the stages of a run, together or alone, resumable at every point.

A run is a row of the catalog and a frozen manifest. Extraction writes one file per shard; grouping commits each shard
in one transaction. So wherever a run was cut off, the same command finds it, goes on after its last committed shard,
and then scans the source again for what is new since.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.jobs.plan import Plan, plan_run
from pipeline.jobs.run_report import RunReport, WorkDone, make_report
from pipeline.jobs.session import RunRequest, Session, open_session
from pipeline.store.operations import Store
from pipeline.store.records import RunRow
from pipeline.types import Progress

if TYPE_CHECKING:
    from pipeline.jobs.shard_stages import ShardStages

__all__ = ["RunRequest", "extract", "group", "run", "scan"]

_SCANNING = "scanning"


def run(
    request: RunRequest,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    opened: Store | None = None,
) -> RunReport:
    """Does everything: goes on with an unfinished run of the source, then takes up what is new or changed in it.

    Once `stop` is set, the shard in hand is finished and Interrupted raised. `opened`: the request's store where it is
    open already. Raises InputError, ModelError, DeviceError, StoreError.
    """
    with open_session(request, progress, stop, opened=opened) as session:
        command = _Command(session)
        unfinished = session.unfinished_run()
        if unfinished is not None and unfinished.state != _SCANNING:
            session.progress.note(_going_on(session, unfinished))
            command.work(unfinished)
        plan = command.scan()
        if plan.run is not None:
            command.work(plan.run)
        session.store.fold()
        return command.report()


def scan(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Plans a run: hashes the source's files and writes the manifest of what is new or changed."""
    with open_session(request, progress, stop) as session:
        unfinished = session.unfinished_run()
        if unfinished is not None and unfinished.state != _SCANNING:
            raise UsageError(
                message=f"The run {unfinished.run_id} of this source is planned already. "
                "Go on with `facepipe extract` and `facepipe group`, or with `facepipe run`."
            )
        command = _Command(session)
        command.scan()
        return command.report()


def extract(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Extracts the shards of the planned run, and commits nothing."""
    with open_session(request, progress, stop, create=False) as session:
        command = _Command(session)
        command.work(_planned(session), commit=False)
        return command.report()


def group(request: RunRequest, progress: Progress | None = None, stop: threading.Event | None = None) -> RunReport:
    """Groups and commits the extracted shards of the planned run. Raises UsageError while one is missing."""
    with open_session(request, progress, stop, create=False) as session:
        command = _Command(session)
        command.work(_planned(session), extract=False)
        return command.report()


def _planned(session: Session) -> RunRow:
    """The unfinished, planned run. Raises UsageError where there is none."""
    unfinished = session.unfinished_run()
    if unfinished is None or unfinished.state == _SCANNING:
        raise UsageError(message="No run is planned. Begin with `facepipe scan SOURCE --store DIR`.")
    return unfinished


def _going_on(session: Session, run: RunRow) -> str:
    """The note on an unfinished run, which keeps the thresholds and the directory that it was planned with."""
    note = f"Going on with the unfinished run {run.run_id}."
    match = dataclasses.asdict(session.settings.match)
    planned = {key: run.settings["match"].get(key) for key in match}
    kept = [f"{key} = {value}" for key, value in planned.items() if value != match[key]]
    kept += [f"directory = {run.directory}"] if run.directory != session.request.directory else []
    return f"{note} It keeps what it was planned with: {', '.join(kept)}." if kept else note


class _Command:
    """What one command did so far, as its report tells it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._plan = Plan()
        self._run_ids: list[str] = []
        self._stages: ShardStages | None = None

    def scan(self) -> Plan:
        """Plans a run of what the store does not have."""
        self._plan = plan_run(self._session)
        return self._plan

    def work(self, run: RunRow, *, extract: bool = True, commit: bool = True) -> None:
        """Extracts and commits the shards of a planned run, and finishes it."""
        if self._stages is None:
            # Late: it loads torch, and a run that finds nothing new does without.
            from pipeline.jobs.shard_stages import ShardStages

            self._stages = ShardStages(self._session)
        self._run_ids.append(run.run_id)
        self._stages.work(run, extract=extract, commit=commit)
        if commit:
            summary = self._report([run.run_id]).without_names()
            # Written first, so that a finished run always has it.
            content = json.dumps(summary, indent=1, ensure_ascii=False).encode()
            self._session.store.write_report(run.run_id, "run.json", content)
            self._session.store.finish_run(run.run_id, summary)

    def report(self) -> RunReport:
        """The command's report; where there was nothing to do, it names the source's last run."""
        report = self._report(self._run_ids)
        if not self._run_ids:
            last = self._session.store.last_run(self._session.source, self._session.account_id)
            return dataclasses.replace(report, run_id=last.run_id if last else None)
        return report

    def _report(self, run_ids: list[str]) -> RunReport:
        work = dataclasses.replace(
            self._stages.work_done() if self._stages else WorkDone(),
            seconds=round(time.monotonic() - self._session.started, 3),
            profile=self._session.profiler.profile(),
        )
        counts = {**dataclasses.asdict(self._plan.counts), "other_files": self._plan.other_files}
        return make_report(self._session.store, self._session.account_id, run_ids, counts, work)
