"""Follows the labels that changed in a source, by a correction for each directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pipeline.jobs.plan_counts import PlanCounts
from pipeline.jobs.session import Session
from pipeline.store import CorrectionRequest, LabelChange


def count_changes(changes: Mapping[str, Sequence[LabelChange]]) -> int:
    """How many are of photos whose bytes are the same."""
    return sum(same_bytes for labels in changes.values() for *_, same_bytes in labels)


def follow_labels(session: Session, changes: Mapping[str, Sequence[LabelChange]]) -> PlanCounts:
    """What followed. Raises StoreError; what was done before that is found done by the next run."""
    followed = PlanCounts(labels_changed=count_changes(changes))
    for directory, labels in changes.items():
        request = CorrectionRequest(session.account_id, directory, "label", origin="label", labels=labels)
        answer = session.store.correct(request)
        if answer.labels is not None:
            followed += PlanCounts(**dataclasses.asdict(answer.labels))
    return followed
