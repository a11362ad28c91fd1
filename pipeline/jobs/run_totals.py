"""What runs brought, counted where the store is: for their report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.jobs.expectation import Expectation, expectation_of_runs
from pipeline.store.local import LocalStore
from pipeline.store.records import RunCounts


@dataclass(frozen=True)
class RunTotals:
    """What runs of an account brought."""

    counts: RunCounts
    expected: Expectation | None  # None: no face was decided
    face_changes: Mapping[str, Any]  # what changed photos did to people: fields of PlanCounts


def run_totals(store: LocalStore, account_id: int, run_ids: Sequence[str]) -> RunTotals:
    """Counts the rows of these runs, so that a resumed run reports what an undisturbed one would."""
    counts = store.run_counts(account_id, run_ids)
    expected = expectation_of_runs(store, account_id, run_ids) if counts.outcomes else None
    noted = [store.run_row(run_id).summary or {} for run_id in run_ids]
    changes = [change for each in noted for change in each.get("face_changes", ())]
    names = store.names_of(sorted({change["person_id"] for change in changes}))
    # Without people who were forgotten since.
    known = names.keys() | {change["person_id"] for change in changes if change["change"] == "deleted"}
    fields: dict[str, Any] = {
        name: sum(each.get(name, 0) for each in noted) for name in ("faces_lost", "faces_gained", "people_deleted")
    }
    fields["face_changes"] = [
        {**change, "name": names.get(change["person_id"])} for change in changes if change["person_id"] in known
    ]
    return RunTotals(counts, expected, fields)
