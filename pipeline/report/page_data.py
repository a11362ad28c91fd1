"""Gathers a report's data at the store, and keeps the runs' report files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.store import LocalStore, Suggestion, Suggestions, directories, overview, pages, people

BIN: Final = 0.025  # the width of a histogram's bins
PEOPLE: Final = 200  # shown on a page
_WITH_FACES: Final = 60  # shown with further faces
_FACES_EACH: Final = 3
_COMPARED: Final = 5000  # with everybody, to find pairs
_PAIRS: Final = 40  # of each directory
TWICE: Final = 20  # people and photos
TOGETHER: Final = 20  # pairs of people
RUNS: Final = 20
# Rows; of samples, per reason.
_MOST: Final = {"weakest_matches": 30, "rejection_samples": 12, "refused_files": 12}


Mentioned: TypeAlias = tuple[Sequence[str], Sequence[str]]  # ids of persons, paths of photos
Suggest: TypeAlias = Callable[[str, Sequence[str]], Suggestions]  # of a directory, for some of its people (roots)


@dataclass(frozen=True)
class PageData:
    """Without people, it has only the tables `totals` and `face_histograms`."""

    # by their names in `overview`; `twice`, the first of `twice_on_photos`; of a whole store `directories`: each one's
    # `people_counts`, photos, faces, those of nobody and the rejected ones, and threshold; and `last_runs`
    tables: Mapping[str, pa.Table]
    key: bytes | None = None  # of the account's pictures; None: unencrypted
    pairs: Sequence[Suggestion] = ()  # of people who may be one
    nearest: Sequence[float] = ()  # of people, the score of the most similar other
    names: Mapping[str, str | None] = field(default_factory=dict)  # of the persons
    twice: int = 0  # people who are twice on a photo, per photo

    def rows(self, table: str) -> list[dict[str, Any]]:
        return self.tables[table].to_pylist() if table in self.tables else []


def page_data(
    store: LocalStore,
    account_id: int,
    run_ids: Sequence[str],
    mentioned: Mentioned | None,
    suggest: Suggest,
) -> PageData:
    """Gathers the rows of these runs of an account, or without runs of the whole store. `mentioned`: the persons and
    photos in the run's report; None: a page without people. Raises StoreError."""

    def table(name: str, **limits: Any) -> pa.Table:
        return store.ask(overview.page_table, name, account_id, list(run_ids), **limits)

    tables = {"totals": table("totals"), "face_histograms": table("face_histograms", width=BIN)}
    if mentioned is None:
        return PageData(tables)
    seen = table("people_seen", most=_COMPARED)
    ids: list[str] = seen["person_id"].to_pylist()
    twice = store.ask(people.twice_on_photos, account_id, None, run_ids)
    tables |= {
        "people_seen": seen.slice(0, PEOPLE),
        "faces_seen": table("faces_seen", ids=ids[:_WITH_FACES], most=_FACES_EACH),
        "media_at": table("media_at", ids=mentioned[1]),
        "years": table("years"),
        "twice": twice.filter(pc.less(twice["entry"], TWICE)),
    }
    tables |= {name: table(name, most=most) for name, most in _MOST.items()}
    tables["together"] = table("together", ids=ids[:PEOPLE], most=TOGETHER)
    here = [seen.filter(pc.equal(seen["directory"], name)) for name in seen["directory"].unique()]
    found = [suggest(rows["directory"][0].as_py(), rows["person_id"].to_pylist()) for rows in here]
    if not run_ids:
        thresholds = {rows["directory"][0].as_py(): each.threshold for rows, each in zip(here, found, strict=True)}
        tables["directories"] = _directories(store, account_id, thresholds)
        tables["last_runs"] = _last_runs(store, account_id)
    pairs = [pair for each in found for pair in each.pairs[:_PAIRS]]
    tables["pictures"] = table("pictures", ids=[one for pair in pairs for one in (pair.one, pair.other)])
    return PageData(
        tables,
        store.image_key(account_id),
        pairs,
        [score for each in found for score in each.nearest],
        store.ask(overview.names_of, mentioned[0]),
        pc.count_distinct(twice["entry"]).as_py(),
    )


def _directories(store: LocalStore, account_id: int, thresholds: Mapping[str, float]) -> pa.Table:
    """The numbers that the web page has of each directory; the threshold only of those with people on photos."""
    rows = store.ask(people.people_counts, account_id).to_pylist()
    for row in rows:
        here = account_id, row["directory"]
        row["photos"], faces, _ = store.counts_of(*here)
        row |= {"faces": sum(faces.values()), "rejected": faces.get("rejected", 0)}
        row["unassigned"] = store.ask(people.unassigned_count, *here)
        row["threshold"] = thresholds.get(row["directory"])
        row["remembered"] = str(store.ask(directories.remembered, *here))
    return pa.Table.from_pylist(rows)


def _last_runs(store: LocalStore, account_id: int) -> pa.Table:
    """The latest first, with the numbers that the web page has of each; null: unknown."""
    rows = []
    for run in store.runs_of(account_id)[:RUNS]:
        numbers = run_numbers({"images": run.rows, **(run.summary or {})})
        rows.append({"started_at": run.started_at, "source": run.source, "run_id": run.run_id, **numbers})
    return pa.Table.from_pylist(rows)


def run_numbers(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a run brought, for the web page and reports; None: unknown."""
    outcomes = summary.get("outcomes")
    return {
        "photos": summary.get("images"),
        "faces": summary.get("faces"),
        "new_people": summary.get("new_persons"),
        "rejected": outcomes.get("rejected", 0) if outcomes else None,
        "seconds": summary.get("seconds"),
    }


def page_file(run_id: str) -> str:
    """A run's report file, relative to the store."""
    return f"runs/{run_id}/{pages.PAGE}"


def registered_page(store: LocalStore, run_id: str) -> Path | None:
    """The run's report file, or None if it is missing or was never registered because the process crashed while writing
    it."""
    file = page_file(run_id)
    page = store.folder.path(file)
    return page if page.exists() and store.ask(pages.is_noted, file) else None


def keep_page(
    store: LocalStore, run_id: str, content: bytes, person_ids: Sequence[str], media_ids: Sequence[int]
) -> bool:
    """Writes a run's report file and registers whom it shows. Returns False, without a file, if one of them was
    forgotten meanwhile. Raises StoreError."""
    # First, so that no file shows anyone unregistered.
    store.folder.unlink(page_file(run_id))
    if not store.ask(pages.note_page, page_file(run_id), person_ids, media_ids):
        return False
    store.write_report(run_id, pages.PAGE, content)
    return registered_page(store, run_id) is not None
