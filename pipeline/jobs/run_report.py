"""What a run did, counted from the catalog: a resumed run reports the same as an undisturbed one."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pipeline.jobs.expectation import Expectation, calibration_warning, expectation_of_runs
from pipeline.jobs.plan_counts import FACE_COUNTS, PlanCounts, shortened
from pipeline.jobs.profile import RunProfile
from pipeline.matching.calibration import Calibration
from pipeline.report.page import listed
from pipeline.store import LocalStore, RunCounts, StoreIdentity, overview, runs
from pipeline.texts import counted
from pipeline.types import ACCEPTED_STATUSES

_COUNTS: Final = ("decoded", "detector_calls", "embedder_calls")


@dataclass(frozen=True)
class WorkDone:
    """The work of this process or of workers: counters of the decoder and the models, and the time."""

    device: str | None = None
    backend: str | None = None  # what ran the embedder: OpenVINO or torch, with its version
    seconds: float = 0.0  # of the whole command
    image_seconds: float = 0.0  # of reading, decoding and the models
    decoded: int = 0
    detector_calls: int = 0
    embedder_calls: int = 0
    profile: RunProfile | None = None  # if requested

    @property
    def images_per_second(self) -> float:
        return self.decoded / self.image_seconds if self.image_seconds else 0.0

    def and_on(self, other: WorkDone) -> WorkDone:
        """Adds concurrent work elsewhere."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return replace(self, device=other.device or self.device, backend=other.backend or self.backend, **counts)

    def __str__(self) -> str:
        if not self.decoded:
            return "no image had to be decoded"
        where = f" on {self.device}" if self.device else ""
        return f"{counted(self.decoded, 'image')} decoded, {self.images_per_second:.1f}/s over the image work{where}"


@dataclass(kw_only=True)
class RunReport(PlanCounts):
    """The answer of `run`, `scan`, `extract` and `group`, including all of the runs they continued.

    `already_in`: before these runs.
    """

    run_id: str | None  # None: the source was never run
    images: int  # committed rows of these runs: after `run`, new + changed
    faces: int
    persons: int  # of the account after the command; a merged set counts once, as in `people list`
    new_persons: int
    statuses: dict[str, int]
    outcomes: dict[str, int]
    rejected: dict[str, int]  # by reason: refused images by status, refused faces by quality measure
    label_conflicts: list[dict[str, Any]]
    shared_external_id: list[dict[str, Any]]
    weights: str
    calibration: str | None = None  # what T = 0.54 stands for; None: not measured
    wrong_joins: Expectation | None = None  # if a face was decided
    warnings: tuple[str, ...] = ()
    regrouped: dict[str, Any] | None = None  # correction_id, cut, and numbers of joins, moves, new and gone people
    pages: list[str] = field(default_factory=list)  # paths of the runs' reports
    work: WorkDone = field(default_factory=WorkDone)

    @property
    def rejected_inputs(self) -> int:
        """Rows with an unusable image."""
        return sum(count for status, count in self.statuses.items() if status not in ACCEPTED_STATUSES)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the work's fields are at the top level, the profile only if there is one."""
        fields = dataclasses.asdict(self)
        work = {name: value for name, value in fields.pop("work").items() if name != "profile" or value is not None}
        return {**fields, **work, "images_per_second": round(self.work.images_per_second, 3)}

    def _rejections(self) -> str:
        files = {reason: count for reason, count in self.rejected.items() if reason in self.statuses}
        measures = {reason: count for reason, count in self.rejected.items() if reason not in self.statuses}
        several = sum(measures.values()) > self.outcomes.get("rejected", 0)
        parts = [f"files: {listed(files)}"] if files else []
        parts += [f"faces: {listed(measures)}" + " (some for several reasons)" * several] if measures else []
        return "; ".join(parts) or "none"

    def lines(self) -> list[str]:
        """For people."""
        waiting = self.new + self.changed - self.images
        lines = [
            f"images      {self.new} new, {self.changed} changed; {self.already_in} were in already",
            *self.file_lines(),
            f"            {listed(self.statuses)}" + (f"; {waiting} not in yet" if waiting else ""),
            f"faces       {self.faces}",
            f"            {listed(self.outcomes)}",
            f"identities  {self.persons} ({self.new_persons} new)",
            *([f"regrouped   {_regrouped_line(self.regrouped)}"] if self.regrouped else []),
            *([f"expect      {self.wrong_joins}"] if self.wrong_joins else []),
            f"rejected    {self._rejections()}",
            f"time        {self.work.seconds:.1f} s; {self.work}",
            f"weights     {self.weights}" + (f"; {self.calibration}" if self.calibration else ""),
        ]
        lines += self.label_lines()
        lines += self.left_alone_lines()
        if self.label_conflicts:
            conflicts = counted(len(self.label_conflicts), "named photo matches", "named photos match")
            lines.append(f"conflicts   {conflicts} a person of another name")
            lines += shortened(map(_conflict_line, self.label_conflicts), len(self.label_conflicts))
        if self.shared_external_id:
            shared = counted(len(self.shared_external_id), "external id stands", "external ids stand")
            lines.append(f"shared ids  {shared} for several persons")
        if self.work.profile is not None:
            lines.extend(self.work.profile.lines())
        lines += [f"report      {page}" for page in self.pages]
        return lines


def _regrouped_line(found: Mapping[str, Any]) -> str:
    moved = counted(found["moves"], "face moved", "faces moved")
    new = counted(found["new"], "new person", "new people")
    counts = f"{counted(found['joins'], 'join')}, {moved}, {new}, {found['gone']} gone"
    undo = "" if found["correction_id"] is None else f"; `people undo {found['correction_id']}` takes it back"
    return f"by average link, cut at T = {found['cut']:.4g}: {counts}{undo}"


def _conflict_line(entry: Mapping[str, Any]) -> str:
    said = entry["name"] or entry["external_id"]
    return f"{entry['path']}: {said}, but the person is called {entry['person_name'] or entry['person_external_id']}"


@dataclass(frozen=True)
class RunTotals:
    """What runs of an account imported."""

    counts: RunCounts
    expected: Expectation | None  # None: no face was decided
    face_changes: Mapping[str, Any]  # of changed photos on people: fields of PlanCounts


def run_totals(store: LocalStore, account_id: int, run_ids: Sequence[str]) -> RunTotals:
    """Counts the rows of these runs."""
    counts = store.ask(runs.run_counts, account_id, run_ids)
    expected = expectation_of_runs(store, account_id, run_ids) if counts.outcomes else None
    noted = [store.run_row(run_id).summary or {} for run_id in run_ids]
    changes = [change for each in noted for change in each.get("face_changes", ())]
    names = store.ask(overview.names_of, sorted({change["person_id"] for change in changes}))
    # Without people forgotten since.
    known = names.keys() | {change["person_id"] for change in changes if change["change"] == "deleted"}
    listed = [{**change, "name": names.get(change["person_id"])} for change in changes if change["person_id"] in known]
    sums = {name: sum(each.get(name, 0) for each in noted) for name in FACE_COUNTS}
    return RunTotals(counts, expected, {**sums, "face_changes": listed})


def make_report(
    identity: StoreIdentity, run_ids: Sequence[str], totals: RunTotals, counts: PlanCounts, work: WorkDone
) -> RunReport:
    """`totals`: of these runs; `counts`: of their scans."""
    rows = totals.counts
    warnings = (calibration_warning(identity), counts.missing_warning())
    rejected = Counter(rows.rejections)
    rejected.update({status: n for status, n in rows.statuses.items() if status not in ACCEPTED_STATUSES})
    return RunReport(
        run_id=run_ids[-1] if run_ids else None,
        images=sum(rows.statuses.values()),
        faces=sum(rows.outcomes.values()),
        persons=rows.persons,
        new_persons=rows.outcomes.get("inserted", 0),
        statuses=rows.statuses,
        outcomes=rows.outcomes,
        rejected=dict(rejected),
        label_conflicts=rows.label_conflicts,
        shared_external_id=rows.shared_external_ids,
        weights=identity.weights,
        calibration=Calibration.from_dict(identity.calibration).anchor,
        wrong_joins=totals.expected,
        warnings=tuple(warning for warning in warnings if warning),
        work=work,
        **dataclasses.asdict(counts),
    )
