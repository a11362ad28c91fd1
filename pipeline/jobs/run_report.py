"""What a run did, counted from the catalog, so that a resumed run reports what an undisturbed one would."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.jobs.profile import RunProfile
from pipeline.store.operations import Store
from pipeline.types import ACCEPTED_STATUSES


@dataclass(frozen=True)
class WorkDone:
    """What this process itself did: the counters of the decoder and the models, and the time they took."""

    device: str | None = None
    backend: str | None = None  # what ran the embedder: OpenVINO or torch, with its version
    seconds: float = 0.0  # of the whole command
    image_seconds: float = 0.0  # of reading, decoding and the models
    decoded: int = 0
    detector_calls: int = 0
    embedder_calls: int = 0
    profile: RunProfile | None = None  # where it was asked for

    @property
    def images_per_second(self) -> float:
        return self.decoded / self.image_seconds if self.image_seconds else 0.0

    def __str__(self) -> str:
        if not self.decoded:
            return "no image had to be decoded"
        where = f" on {self.device}" if self.device else ""
        return f"{self.decoded:,} images decoded, {self.images_per_second:.1f}/s over the image work{where}"


@dataclass(frozen=True)
class RunReport:
    """What `run`, `scan`, `extract` and `group` answer."""

    run_id: str | None  # None: the source was never run
    images: int  # rows of the runs that this command worked on
    new: int
    changed: int
    already_in: int
    other_files: int  # no images: the scan ignores them
    faces: int
    persons: int  # identities of the account's directories, after the command
    new_persons: int
    statuses: dict[str, int]
    outcomes: dict[str, int]
    rejected: dict[str, int]  # by reason: refused images by status, refused faces by quality measure
    label_conflicts: list[dict[str, Any]]
    shared_external_id: list[dict[str, Any]]
    weights: str
    work: WorkDone = field(default_factory=WorkDone)

    @property
    def rejected_inputs(self) -> int:
        """Rows whose image could not be used."""
        return sum(count for status, count in self.statuses.items() if status not in ACCEPTED_STATUSES)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the work's fields stand beside the others, the profile only where there is one."""
        fields = dataclasses.asdict(self)
        work = {name: value for name, value in fields.pop("work").items() if name != "profile" or value is not None}
        return {**fields, **work, "images_per_second": round(self.work.images_per_second, 3)}

    def without_names(self) -> dict[str, Any]:
        """`as_dict` as the store keeps it: a person who is deleted later is not named there."""
        unnamed = {"path", "person_id", "directory", "persons"}
        report = self.as_dict()
        for key in ("label_conflicts", "shared_external_id"):
            report[key] = [{name: entry[name] for name in entry if name in unnamed} for entry in report[key]]
        return report

    def lines(self) -> list[str]:
        """For people."""
        rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items())) or "none"
        lines = [
            f"images      {self.images} ({self.new} new, {self.changed} changed; {self.already_in} were in already)",
            f"            {', '.join(f'{count} {status}' for status, count in sorted(self.statuses.items())) or '-'}",
            f"faces       {self.faces}",
            f"            {', '.join(f'{count} {outcome}' for outcome, count in sorted(self.outcomes.items())) or '-'}",
            f"identities  {self.persons} ({self.new_persons} new)",
            f"rejected    {rejected}",
            f"time        {self.work.seconds:.1f} s; {self.work}",
            f"weights     {self.weights}",
        ]
        if self.other_files:
            lines.append(f"left alone  {self.other_files:,} files that are no images")
        if self.label_conflicts:
            lines.append(f"conflicts   {len(self.label_conflicts)} named photos match a person of another name")
        if self.shared_external_id:
            lines.append(f"shared ids  {len(self.shared_external_id)} external ids stand for several persons")
        if self.work.profile is not None:
            lines.extend(self.work.profile.lines())
        return lines


def make_report(
    store: Store, account_id: int, run_ids: Sequence[str], counts: dict[str, int], work: WorkDone
) -> RunReport:
    """Counts the rows of `run_ids`. `counts`: new, changed, already_in and other_files of the scan."""
    rows = store.run_counts(account_id, run_ids)
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
        weights=store.identity.weights,
        work=work,
        **counts,
    )
