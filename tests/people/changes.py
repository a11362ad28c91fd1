"""What users and nights change in a store, a line each, and a store where each can be made: for the tests of faults."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
from coded_faces import Shown, photo

from pipeline.config import AVERAGE_LINK, MatchSettings, RegroupSettings
from pipeline.jobs.people import People
from pipeline.jobs.store import Store
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.files.segment_header import PAGE_BYTES, Header
from pipeline.store.local import LocalStore
from pipeline.store.records import API, NO_CHANGE, CorrectionRequest, PersonChange, ScanNotes, SourceMove
from pipeline.store.schema import TABLES
from tests.asking import ask_for
from tests.identities.planted import listed
from tests.people.coded_archive import SETTINGS, SIZE, ArchiveExtractor, make_store, run_over, serving, write_photo
from tests.store.store_samples import segments_of, small_segments

PHOTOS = {
    "a1": [Shown(1)],
    "a2": [Shown(1, 1, 0.8)],
    "b-both": [Shown(1, 2), Shown(2)],
    "c2": [Shown(2, 1)],
    "d3": [Shown(3)],
    "e4": [Shown(4)],
    "g5": [Shown(5)],
    "h6": [Shown(6)],
    "i7": [Shown(7)],
    "j7": [Shown(7, 1)],
    "k9-missed": [Shown(9, missed=True)],
}
POSTED = Shown(8)


@dataclass(frozen=True)
class Change:
    make: Callable[[People], object]
    again: bool = True  # made again it is refused, or changes nothing
    like: str = ""  # the change that writes in the same way


# Faces by number: 1 to 3 are Ann's, 4 and 5 Berta's, 6 is of somebody without a name, 7 of Dora, who is hidden,
# 8 of Eve and 9 of Fay, whom the correction 6 merged. Number 8 undid that Berta is hidden. The last correction made 10
# nobody's, so 11 is the reference. 12 was posted.
CHANGES: Mapping[str, Change] = {
    "name": Change(lambda p: p.name("Ann", "Anna")),
    "hide": Change(lambda p: p.hide("Berta"), like="name"),
    "unhide": Change(lambda p: p.unhide("Dora"), like="name"),
    "merge": Change(lambda p: p.merge("Ann", "Berta"), like="name"),
    "merge with a name": Change(
        lambda p: p.by_ids("merge", [p.find("Ann"), p.find("Berta")], change=PersonChange(name="Anna")), like="name"
    ),
    "unmerge": Change(lambda p: p.unmerge("Eve"), like="not same"),
    "update by a request": Change(
        lambda p: request(p, "update", "Ann", change=PersonChange(tags=["a"], metadata={"b": 1})), like="name"
    ),
    "merge by a request": Change(lambda p: request(p, "merge", "Ann", "Berta"), like="name"),
    "undo by number": Change(lambda p: p.undo(6)),
    "undo of an undo": Change(lambda p: p.undo(8)),
    "not same": Change(lambda p: p.not_same("Ann", "Berta"), again=False),
    "allow twice": Change(lambda p: p.allow_twice(3), like="not same"),
    "move of a reference": Change(lambda p: p.move(1, "Berta"), again=False),
    "move of a last face": Change(lambda p: p.move(6, "Ann"), again=False),
    "move to nobody": Change(lambda p: p.move(4, None), again=False, like="move of a reference"),
    "split": Change(lambda p: p.split("Ann", [1, 3])),
    "regroup": Change(lambda p: p.regroup(MatchSettings(threshold=0.01))),
    "regroup by average link": Change(
        lambda p: p.regroup(method=RegroupSettings(AVERAGE_LINK, cut=0.01)), like="regroup"
    ),
    "regroup of one": Change(lambda p: p.regroup(MatchSettings(threshold=0.01), only=["Ann"]), like="regroup"),
    "undo": Change(lambda p: p.undo()),
    "forget": Change(lambda p: p.forget("Berta")),
    "forget of a posted one": Change(lambda p: p.forget("Gus")),
    "deletion by a request": Change(lambda p: request(p, "delete", "Eve")),
    "deletion of all who are merged": Change(lambda p: request(p, "delete_merged", "Eve")),
    "deletion of the directory": Change(lambda p: p._store.delete_all(1, "main")),
    "forget of photos": Change(lambda p: p.forget_photos([1, 5])),
    "drawn face of somebody new": Change(lambda p: draw(p, (10, 10, 50, 50), name="Hans")),
    "drawn face of somebody known": Change(lambda p: draw(p, (10, 10, 50, 50), "Ann"), like="tag"),
    "tag": Change(lambda p: draw(p, (44, 44, 64, 64), "Ann")),
    "labels": Change(lambda p: follow_labels(p, (1, "Ann"), (2, "Berta"), (5, "Cid"))),
    "label that says who it is": Change(lambda p: follow_labels(p, (1, "Ann"))),
    "notes of a scan": Change(lambda p: note_scan(p._store)),
    "move of a source": Change(lambda p: move_source(p._store), like="notes of a scan"),
}


def request(people: People, kind: str, *who: str, change: PersonChange = NO_CHANGE) -> None:
    """As a `PUT` does."""
    ids = [people.find(one) for one in who]
    people._store.correct(CorrectionRequest(1, "main", kind, ids, change=change, origin=API))


def draw(people: People, box: tuple[float, float, float, float], who: str | None = None, **named: str) -> None:
    """As `people add-face` does, on the photo of a missed face; a command loads the models for it."""
    store = people._store
    photo = next(str(row["path"]) for row in store.photos("records").to_pylist() if "missed" in str(row["path"]))
    loaded = store.service is None
    try:
        with patch("pipeline.jobs.models.load_extractor", lambda *_: ArchiveExtractor(SIZE)):
            people.add_face(photo, box, who, **named)
    finally:
        if loaded:
            store.release()


def follow_labels(people: People, *said: tuple[int, str]) -> None:
    """As a run does for photos of which its source says another name."""
    labels = [(media_id, name, None, True) for media_id, name in said]
    people._store.correct(CorrectionRequest(1, "main", "label", origin="label", labels=labels))


def note_scan(store: Store) -> None:
    """A photo moved, two vanished, one is back, and one was read again."""
    source = store.sources(1)[0].source
    moved = (f"{source}/a1.png", "main", f"{source}/z1.png")
    store.end_scan(source, 1, ScanNotes([(2, 999, 10**18, 10**18, 7)], [moved], gone=[3, 4], back=[5]))


def move_source(store: Store) -> None:
    """As `run --moved-from` does."""
    source = store.sources(1)[0].source
    store.end_scan("/elsewhere", 1, ScanNotes(source=SourceMove(source, [(f"{source}/", "/elsewhere/")])))


def make(store: LocalStore, name: str, service: IdentityService | None = None) -> None:
    """Makes a change as its command does, or by the service."""
    CHANGES[name].make(People(Store(store, SETTINGS, service)))


def prepare(folder: Path) -> Path:
    """The photos, and a store where each change can be made, which is returned."""
    source, store = folder / "photos", folder / "store"
    for name, faces in PHOTOS.items():
        write_photo(source, f"{name}.png", *faces)
    with same_each_time(0):
        run_over(source, make_store(store))
        with serving(store) as service:
            ids = [view.record.person_id for view in listed(service, 1, "main")]
            for person_id, name in zip(ids, ("Ann", "Berta", None, "Dora", "Eve", "Fay"), strict=False):
                ask_for(service, "update", 1, "main", [person_id], PersonChange(name=name, ignored=name == "Dora"))
            ask_for(service, "merge", 1, "main", ids[4:6])
            service.post(1, "main", photo(POSTED), PostRequest(name="Gus"))
        with LocalStore.open(store, command="prepare") as opened:
            opened.note_scan(str(source), 1, ScanNotes(gone=[5]))
            prepared = People(Store(opened, SETTINGS))
            prepared.hide("Berta")
            prepared.undo()
            prepared.move(10, None)
            with small_segments():
                opened.fold()
            assert len(segments_of(opened)) == 1
    return store


Contents: TypeAlias = Mapping[str, object]


def contents(store: LocalStore) -> Contents:
    """All that a store holds: its tables, and the hashes of its pictures and vectors. Not its index segments, which
    follow from these."""
    tables = [table for table in TABLES if table not in ("commits", "segments", "tombstones")]
    rows = {table: store.read(f"SELECT * FROM core.{table} ORDER BY ALL").to_pylist() for table in tables}
    files = (path for name in ("objects", "embeddings") for path in (store.path / name).rglob("*") if path.is_file())
    return rows | {str(p.relative_to(store.path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def held(store: Path, size: int = SIZE) -> set[bytes | str]:
    """What the files of a store have of people: each vector of its embeddings and index segments, and the paths of
    pictures and pages."""
    kept: set[bytes | str] = set()
    for file in store.glob("embeddings/*/*"):
        kept.update(np.array(row, "<f4").tobytes() for row in pq.read_table(file)["embedding"].to_pylist())
    for file in store.glob("references/*/*"):
        data = file.read_bytes()
        vectors = Header.read(data[:PAGE_BYTES]).sections["vectors"]
        kept.update(data[start : start + 4 * size] for start in range(vectors.offset, vectors.end, 4 * size))
    files = (path for pattern in ("objects/**/*", "runs/*/*.html") for path in store.glob(pattern) if path.is_file())
    return kept | {str(path.relative_to(store)) for path in files}


@contextmanager
def same_each_time(seed: int = 1) -> Iterator[None]:
    """For the block the ids that are drawn follow from the seed, and time stands still."""
    numbers = random.Random(seed)

    class Standing(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime(2026, 1, 2, tzinfo=tz)

    with (
        patch("uuid.uuid4", lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)),
        patch("pipeline.types.datetime", Standing),
    ):
        yield
