"""The HTML report of a run or of a whole store: the people, what to check first, rejections, and settings.

It shows pictures of people, so it is as private as the photos: in an encrypted store the report of a run has no
picture, no name and no path.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import DecodeSettings, MatchSettings, nearest_threshold
from pipeline.errors import StoreUnwritable, UsageError
from pipeline.jobs.accounts import find_account
from pipeline.jobs.store import Store
from pipeline.report.contents import REPORTED, PageRequest, page_bytes, subjects
from pipeline.report.page_data import page_file
from pipeline.report.pictures import FacePictures
from pipeline.store import FINISHED, Folder, RunRow, report_file


def leave_page(store: Store, run: RunRow, report: Mapping[str, Any], decode: DecodeSettings) -> Path:
    """Writes a run's report file, and registers whom it shows. Raises StoreError."""
    request = _of_run(store, run, report, with_people=not store.identity.encrypted)
    while True:  # repeated if the server deletes a person meanwhile
        content, pictures = _page(store, request, decode)
        shown = sorted(pictures.person_ids), sorted(pictures.media_ids)
        if store.keep_page(run.run_id, content, *shown):
            return store.folder.path(page_file(run.run_id))


def report_of(store: Store, run: RunRow) -> dict[str, Any]:
    """Reads run.json, else the catalog's numbers. Empty for a run that was given up, or of an earlier version."""
    try:
        report = dict(json.loads(store.folder.path(report_file(run.run_id)).read_bytes()))
    except (OSError, ValueError):
        report = dict(run.summary or {})
    return report if report.keys() >= REPORTED else {}


def write_report_page(store: Store, to: Path, *, account: str | None = None, run_id: str | None = None) -> str | None:
    """Writes a report to the file `to`: of a run ("last": the account's last one), or with None of the whole store.
    Returns the run's id.

    Raises UsageError, StoreError; StoreFull, StoreUnwritable of the file's folder.
    """
    file = to.absolute()
    if not file.parent.is_dir():  # a mistyped path, or a disk that is not mounted
        raise StoreUnwritable(path=file.parent, detail="there is no such folder")
    account_id = find_account(store, account).account_id
    run = _run(store, account_id, run_id)
    settled = store.settled
    store.unlock()
    if run is None:
        title = f"{store.path.name}: its people"
        request = PageRequest(account_id, None, title, None, {}, settled.match, True, _link(store))
    else:
        request = _of_run(store, run, report_of(store, run), with_people=True)
    content, _ = _page(store, request, settled.decode)
    Folder(file.parent).write(file.name, content, "page")
    return None if run is None else run.run_id


def _page(store: Store, request: PageRequest, decode: DecodeSettings) -> tuple[bytes, FacePictures]:
    """Returns the page and its pictures."""
    mentioned = subjects(request.report) if request.with_people else None
    run_ids = [] if request.run_id is None else [request.run_id]
    data = store.page_data(request.account_id, run_ids, request.match.threshold, mentioned)
    pictures = FacePictures(store.folder, data.key, decode)
    return page_bytes(store.identity, request, data, pictures), pictures


def _run(store: Store, account_id: int, run_id: str | None) -> RunRow | None:
    if run_id is None:
        return None
    run = store.runs(account_id=account_id, run_id=None if run_id == "last" else run_id).last
    if run is None or run.account_id != account_id or run.state != FINISHED:
        raise UsageError(message="There is no such finished run of the account.")
    return run


def _of_run(store: Store, run: RunRow, report: Mapping[str, Any], *, with_people: bool) -> PageRequest:
    title = f"{Path(run.source).name}, {run.started_at:%Y-%m-%d %H:%M} UTC" if with_people else f"Run {run.run_id}"
    planned = run.settings.get("match", {})
    known = {f.name: planned[f.name] for f in dataclasses.fields(MatchSettings) if f.name in planned}
    match = MatchSettings(**known)
    match = dataclasses.replace(match, threshold=nearest_threshold(match.threshold))
    return PageRequest(run.account_id, run.run_id, title, run.source, report, match, with_people, _link(store))


def _link(store: Store) -> str | None:
    """The web UI's address: of the settings, or else of the server that has the store open."""
    return store.settings.report.link or (store.server.page if store.server else None)
