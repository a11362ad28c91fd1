"""What a report page needs of a store, gathered where the store is, and where the page of a run is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa

from pipeline.jobs.doubtful_pairs import NO_DOUBTS, Doubts, doubtful_pairs
from pipeline.store import PAGE, LocalStore, overview, pages

BIN: Final = 0.025  # the width of a histogram's bins
_SAMPLES: Final = 12  # for each reason
PEOPLE: Final = 200  # shown on a page
_WITH_FACES: Final = 60  # shown with further faces
_FACES_EACH: Final = 3
_COMPARED: Final = 5000  # compared with each other to find pairs: a second
_PAIRS: Final = 40
_WEAKEST: Final = 30
_RUNS: Final = 20


Mentioned: TypeAlias = tuple[Sequence[str], Sequence[str]]  # ids of persons, paths of photos


def _no_rows() -> pa.Table:
    return pa.table({})


@dataclass(frozen=True)
class PageData:
    """The rows of a page, as `overview` describes them. Without people all but the first two are empty."""

    totals: pa.Table
    histograms: pa.Table
    key: bytes | None = None  # of the account's pictures; None: they are not encrypted
    people: pa.Table = field(default_factory=_no_rows)
    faces: pa.Table = field(default_factory=_no_rows)  # of the first people
    doubts: Doubts = NO_DOUBTS
    weakest: pa.Table = field(default_factory=_no_rows)
    rejected: pa.Table = field(default_factory=_no_rows)
    refused: pa.Table = field(default_factory=_no_rows)
    runs: pa.Table = field(default_factory=_no_rows)
    media: pa.Table = field(default_factory=_no_rows)  # at the paths
    names: Mapping[str, str | None] = field(default_factory=dict)  # of the persons


def page_data(
    store: LocalStore, account_id: int, run_ids: Sequence[str], threshold: float, mentioned: Mentioned | None
) -> PageData:
    """Gathers the rows of these runs of an account, or with none of all that is in the store. `threshold`: by which
    pairs of people may be one. `mentioned`: whom and what the run's report names; None: a page without people. Raises
    StoreError."""
    these, ask = (account_id, list(run_ids)), store.ask
    totals, histograms = ask(overview.totals, *these), ask(overview.face_histograms, *these, BIN)
    if mentioned is None:
        return PageData(totals, histograms)
    people = ask(overview.people_seen, *these, _COMPARED)
    ids: list[str] = people["person_id"].to_pylist()
    return PageData(
        totals,
        histograms,
        key=store.image_key(account_id),
        people=people.slice(0, PEOPLE),
        faces=ask(overview.faces_seen, *these, ids[:_WITH_FACES], _FACES_EACH),
        doubts=doubtful_pairs(store, account_id, ids, threshold, most=_COMPARED, limit=_PAIRS),
        weakest=ask(overview.weakest_matches, *these, _WEAKEST),
        rejected=ask(overview.rejection_samples, *these, _SAMPLES),
        refused=ask(overview.refused_files, *these, _SAMPLES),
        runs=ask(overview.last_runs, account_id, _RUNS),
        names=ask(overview.names_of, mentioned[0]),
        media=ask(overview.media_at, account_id, mentioned[1]),
    )


def page_file(run_id: str) -> str:
    """The page of a run, relative to the store."""
    return f"runs/{run_id}/{PAGE}"


def registered_page(store: LocalStore, run_id: str) -> Path | None:
    """The run's page, or None if it is missing or was never registered because the process crashed while writing it."""
    file = page_file(run_id)
    page = store.folder.path(file)
    return page if page.exists() and store.ask(pages.is_noted, file) else None


def keep_page(
    store: LocalStore, run_id: str, content: bytes, person_ids: Sequence[str], media_ids: Sequence[int]
) -> bool:
    """Writes the page of a run into its folder and registers whom it shows. Returns False, and keeps no page, if one of
    them was forgotten since the page was made. Raises StoreError."""
    # First, so that no page is there that shows others than are registered.
    store.folder.unlink(page_file(run_id))
    if not store.ask(pages.note_page, page_file(run_id), person_ids, media_ids):
        return False
    store.write_report(run_id, PAGE, content)
    return registered_page(store, run_id) is not None
