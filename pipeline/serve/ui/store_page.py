"""The store's overview: counts, runs with reports, and the threshold's expected effect."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final

from starlette.responses import Response

from pipeline.config import AVERAGE_LINK, MAX_THRESHOLD
from pipeline.errors import BodyInvalid, RouteUnknown
from pipeline.jobs.expectation import calibration_warning, expectation
from pipeline.matching.calibration import Calibration
from pipeline.people.records import unconfirmed
from pipeline.report.page_data import registered_page, run_numbers
from pipeline.serve.context import Json
from pipeline.serve.cursors import Key, cursor, place_after
from pipeline.serve.responses import tagged_response
from pipeline.serve.ui.answers import address, directories_json
from pipeline.serve.ui.context import Visit, stamp
from pipeline.store import RunRow
from pipeline.store import people as store_people

_RUN_COUNT: Final = 50
_ORDER: Final = "runs"
# A report is one file with its style and pictures inside, and nothing to run or to send.
_REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)


def store(visit: Visit) -> Json:
    context = visit.context
    identity, threshold, calibration = context.store.identity, visit.match.threshold, context.calibration
    rows = visit.listed.rows.values()
    photos, faces, picture_bytes = context.store.counts_of(*visit.place)
    records = sum(row.merged + 1 for row in rows)
    warning = calibration_warning(identity)
    with visit.service.directories.using(*visit.place) as directory:
        remembered = directory.remembered
        note = unconfirmed(directory.name, remembered, identity.calibration, context.store.generation)
    return {
        "people": len(rows),
        "hidden": sum(row.hidden for row in rows),
        "unnamed": sum(row.name is None for row in rows),
        "records": records,
        "photos": photos,
        "faces": sum(faces.values()),
        "named": sum(row.faces for row in rows if row.name is not None),
        "unassigned": context.store.ask(store_people.unassigned_count, *visit.place),
        "unassignedWhy": context.store.ask(store_people.unassigned_reasons, *visit.place),
        "rejected": faces.get("rejected", 0),
        "rejections": context.store.ask(store_people.rejections, *visit.place),
        "directories": directories_json(context, visit.session),
        "disk": {"picturesBytes": picture_bytes, "freeBytes": shutil.disk_usage(context.store.path).free},
        "model": {
            "embedder": identity.embedder,
            "weights": identity.weights,
            "mode": identity.mode,
            "encrypted": identity.encrypted,
            **({} if calibration.anchor is None else {"calibration": calibration.anchor}),
        },
        "threshold": threshold,
        "thresholdSet": visit.service.is_threshold_set(*visit.place),
        "remembered": str(remembered),
        "rates": calibration.thresholds,
        "expected": _expected(calibration, threshold, records),
        **({} if warning is None else {"warning": warning}),
        **({} if note is None else {"unconfirmed": note}),
    }


def regroup(visit: Visit) -> Json:
    """What another threshold would change, or with `apply` changes. Raises BodyInvalid."""
    threshold, apply = visit.body.get("threshold"), visit.body.get("apply") is True
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool) or not 0 <= threshold <= MAX_THRESHOLD:
        raise BodyInvalid(detail=f"threshold must be a number from 0 to {MAX_THRESHOLD:g}")
    gate = replace(visit.match, threshold=float(threshold), threshold_fmr=None)
    answer = visit.people.regroup(gate, dry_run=not apply)
    found = answer.regrouping
    assert found is not None
    if answer.correction_id is not None:
        visit.session.note(visit.directory, answer.correction_id, undoable=True)
        visit.context.lists.forget(visit.place)
    return {
        "correction": answer.correction_id,
        "threshold": gate.threshold,
        "averageLink": found.method == AVERAGE_LINK,
        "joined": sum(len(joined) for joined in found.joins),
        "into": len(found.joins),
        "moved": len(found.moves),
        "new": len(found.new),
        "gone": len(found.gone),
        "expected": _expected(visit.context.calibration, gate.threshold, len(visit.listed.rows)),
    }


def _expected(calibration: Calibration, threshold: float, identities: int) -> Json | None:
    """Bounds of the wrong joins per 1,000 photos of people who are not in the directory, and the threshold for one if
    it is known. None without measured rates."""
    if not calibration.thresholds:
        return None
    found = expectation(calibration, threshold, identities)
    low, high = found.threshold_for_1_in_1000
    return {"wrong": found.per_1000_photos, **({"thresholdForOne": low} if low == high else {})}


def runs(visit: Visit) -> Json:
    """The latest first."""
    count, after = visit.count(_RUN_COUNT), place_after(visit.query.text("after"), [_ORDER], (0.0, ""))
    found = visit.context.store.runs_of(visit.account_id)
    if after is not None:
        found = [run for run in found if _key(run) > after]
    return {
        "runs": [_run(visit, run) for run in found[:count]],
        **({"next": cursor([_ORDER], _key(found[count - 1]))} if len(found) > count else {}),
    }


def report(visit: Visit) -> Response:
    """A run's report as written. Raises RouteUnknown if there is none that may be shown."""
    for run in visit.context.store.runs_of(visit.account_id):
        if run.run_id == visit.request.path_params["run_id"] and (file := _report(visit, run)) is not None:
            with suppress(FileNotFoundError):  # just deleted
                data = file.read_bytes()
                answer = tagged_response(visit.request, data, "text/html; charset=utf-8", "private, no-cache")
                answer.headers["Content-Security-Policy"] = _REPORT_POLICY
                return answer
    raise RouteUnknown()


def _report(visit: Visit, run: RunRow) -> Path | None:
    """The report of a run over a folder whose photos may be shown, as it names their paths. A manifest may name photos
    anywhere."""
    return registered_page(visit.context.store, run.run_id) if _may_show_report(visit, run) else None


def _may_show_report(visit: Visit, run: RunRow) -> bool:
    return run.source_kind == "folder" and visit.context.photos.may_show(run.source)


def _run(visit: Visit, run: RunRow) -> Json:
    shown = visit.context.photos.may_show(run.source)
    return {
        "id": run.run_id,
        "source": run.source if shown else PurePath(run.source).name,
        "kind": run.source_kind,
        "state": run.state,
        "rows": run.rows,
        "directory": run.directory,
        "startedAt": stamp(run.started_at),
        **({} if run.finished_at is None else {"finishedAt": stamp(run.finished_at)}),
        **_numbers(run.summary or {}),
        "report": None if _report(visit, run) is None else address(visit, f"runs/{run.run_id}/report"),
        "reportHidden": not _may_show_report(visit, run),
    }


def _numbers(summary: Mapping[str, Any]) -> Json:
    """What a finished run did."""
    known = {name: value for name, value in run_numbers(summary).items() if value is not None}
    return {"newPeople" if name == "new_people" else name: value for name, value in known.items()}


def _key(run: RunRow) -> Key:
    return -run.started_at.timestamp(), run.run_id
