"""The page of a run, or of a whole store: the people, what to look at first, what was rejected, and how it was made.

It shows stored pictures of people, and faces cut from the photos where these are as they were. So it is as private as
the photos: in an encrypted store the page that a run leaves has no picture, no name and no path.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.config import DecodeSettings, MatchSettings, Settings, nearest_threshold
from pipeline.errors import UsageError
from pipeline.jobs.accounts import find_account
from pipeline.jobs.face_pictures import FacePictures
from pipeline.jobs.page_sections import REPORTED, PageOf, PageRequest
from pipeline.jobs.stores import settings_of_store, unlock_store
from pipeline.pages.page import page_bytes, write_page
from pipeline.store.catalog.pages import PAGE
from pipeline.store.catalog.runs import FINISHED
from pipeline.store.operations import Store
from pipeline.store.records import RunRow


def page_that_stands(store: Store, run_id: str) -> Path | None:
    """The page of a run; None where there is none, or one that a crash left of which nobody knows whom it shows."""
    page = store.folder.path(_relative(run_id))
    return page if page.exists() and store.page_is_noted(_relative(run_id)) else None


def leave_page(store: Store, run: RunRow, report: Mapping[str, Any], decode: DecodeSettings) -> Path:
    """Writes the page of a run into its folder, and notes whom it shows; returns its path. Raises StoreError."""
    request = _of_run(run, report, with_people=not store.identity.encrypted)
    while True:  # again where a server forgets somebody meanwhile
        # First, so that no page is there that shows others than are noted.
        store.folder.unlink(_relative(run.run_id))
        pictures = FacePictures(store, run.account_id, decode)
        content = page_bytes(request.title, PageOf(store, request, pictures).sections())
        persons, media = sorted(pictures.person_ids), sorted(pictures.media_ids)
        if store.note_page(_relative(run.run_id), persons, media):
            store.write_report(run.run_id, PAGE, content)
            if (page := page_that_stands(store, run.run_id)) is not None:
                return page


def report_of(store: Store, run: RunRow) -> dict[str, Any]:
    """As run.json has it; where the file is gone, the numbers of the catalog. Empty for one that was given up, or that
    an earlier version did."""
    try:
        report = dict(json.loads(store.folder.path(f"runs/{run.run_id}/run.json").read_bytes()))
    except (OSError, ValueError):
        report = dict(run.summary or {})
    return report if report.keys() >= REPORTED else {}


def write_report_page(
    store: Store, settings: Settings, to: Path, *, account: str | None = None, run_id: str | None = None
) -> str | None:
    """Writes a page with people to the file `to`: of a run ("last": of the account's last one), or with None of the
    whole store. Returns the run's id.

    Raises UsageError, StoreError; StoreFull, StoreUnwritable of the file's folder.
    """
    account_id = find_account(store, account)[1]
    run = _run(store, account_id, run_id)
    settled = settings_of_store(settings, store.identity, store.path)
    unlock_store(store, settings)
    if run is None:
        title = f"{store.path.name}: its people"
        request = PageRequest(account_id, (), title, None, {}, settled.match, with_people=True)
    else:
        request = _of_run(run, report_of(store, run), with_people=True)
    page = PageOf(store, request, FacePictures(store, account_id, settled.decode))
    write_page(to.absolute(), request.title, page.sections())
    return None if run is None else run.run_id


def _relative(run_id: str) -> str:
    return f"runs/{run_id}/{PAGE}"


def _run(store: Store, account_id: int, run_id: str | None) -> RunRow | None:
    if run_id is None:
        return None
    run = store.last_run(None, account_id) if run_id == "last" else store.run_row(run_id)
    if run is None or run.account_id != account_id or run.state != FINISHED:
        raise UsageError(message="There is no such finished run of the account.")
    return run


def _of_run(run: RunRow, report: Mapping[str, Any], *, with_people: bool) -> PageRequest:
    title = f"{Path(run.source).name}, {run.started_at:%Y-%m-%d %H:%M} UTC" if with_people else f"Run {run.run_id}"
    planned = run.settings.get("match", {})
    known = {f.name: planned[f.name] for f in dataclasses.fields(MatchSettings) if f.name in planned}
    match = MatchSettings(**known)
    match = dataclasses.replace(match, threshold=nearest_threshold(match.threshold))
    return PageRequest(run.account_id, (run.run_id,), title, run.source, report, match, with_people)
