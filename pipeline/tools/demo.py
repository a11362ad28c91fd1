"""The demo: imports the sample photos and checks the result."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import Settings
from pipeline.jobs.run_report import RunReport
from pipeline.jobs.store import open_store
from pipeline.run.run import RunRequest, run
from pipeline.store import PhotoRecord
from pipeline.tools.sample_photos import Sample, write_samples
from pipeline.types import ACCEPTED_STATUSES, NO_FACE, Progress


@dataclass(frozen=True)
class DemoResult:
    """`differences` is empty if the store matches the samples' table."""

    report: RunReport
    photos: Path
    store: Path
    example: Path  # a photo to try `search` on
    images: int
    faceless: int
    faces: int
    identities: int
    rejected: Mapping[str, int]
    differences: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        figures = {name: value for name, value in vars(self).items() if name not in ("report", "example")}
        return {"equal": not self.differences, **figures, "run": self.report.as_dict()}

    def lines(self) -> list[str]:
        """For people."""
        rejected = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
        verdict = "as the samples' table says" if not self.differences else "NOT what the samples' table says:"
        return [
            f"images      {self.images} files in {self.photos}, {self.faceless} without a face",
            f"faces       {self.faces}",
            f"identities  {self.identities}",
            f"rejected    {rejected}",
            f"speed       {self._speed()}",
            f"weights     {self.report.weights}",
            f"store       {self.store}",
            f"result      {verdict}",
            *(f"            {difference}" for difference in self.differences),
            "",
            "What to try next:",
            f"  facepipe search {self.example} --store {self.store}",
            f"  facepipe check --store {self.store}",
            f"  facepipe export --store {self.store} --to {self.store}-parquet",
            "  facepipe run YOUR-PHOTOS --store YOUR-STORE",
            "",
            "To see the people in a browser and name them, as the account `default` with the password that this "
            "prints:",
            f"  facepipe account password default --store {self.store}",
            f"  facepipe serve --store {self.store} --photo-roots {self.photos}     # then open http://127.0.0.1:8080/ui",
        ]

    def _speed(self) -> str:
        work = self.report.work
        if not work.decoded:
            return f"all files were in already: no image work, {work.seconds:.1f} s"
        return f"{work.images_per_second:.1f} images/s on {work.device}, {work.seconds:.1f} s in all"


def run_demo(photos: Path, store: Path, settings: Settings, progress: Progress, stop: threading.Event) -> DemoResult:
    """Writes the samples into `photos`, imports them into `store` and compares. Repeatable. Raises what `run`
    raises."""
    samples = write_samples(photos)
    report = run(RunRequest(photos, store, settings, command="demo"), progress, stop)
    with open_store(store, command="demo") as opened:
        records = opened.photos("records").to_pylist()
        photos_of_store = {Path(record.pop("path")).name: PhotoRecord(**record) for record in records}
        identities = sum(directory.identities for account in opened.accounts() for directory in account.directories)
    return DemoResult(
        report=report,
        photos=photos,
        store=store,
        example=photos / next(s.file for s in samples if s.person and s.rejection is None),
        images=len(photos_of_store),
        faceless=sum(photo.status == NO_FACE for photo in photos_of_store.values()),
        faces=sum(photo.faces for photo in photos_of_store.values()),
        identities=identities,
        rejected=_rejected(photos_of_store.values()),
        differences=compare(samples, photos_of_store, identities),
    )


def _rejected(photos: Iterable[PhotoRecord]) -> dict[str, int]:
    """Refused faces by quality measure, refused files by status."""
    reasons = [reason for photo in photos for reason in (photo.rejection or "").split(",") if reason]
    return dict(Counter([*reasons, *(photo.status for photo in photos if photo.status not in ACCEPTED_STATUSES)]))


def compare(samples: Sequence[Sample], photos: Mapping[str, PhotoRecord], identities: int) -> list[str]:
    """Lists the differences from the samples' table: files, statuses, rejections and identities."""
    expected = {sample.file: sample for sample in samples}
    differences = [f"{name}: not in the table of samples" for name in sorted(photos.keys() - expected.keys())]
    for name, sample in expected.items():
        differences += _compare_file(sample, photos.get(name))
    persons = {sample.person for sample in samples if sample.person}
    if identities != len(persons):
        differences.append(f"{identities} identities instead of {len(persons)}")
    for person in sorted(persons):
        differences += _compare_person(person, samples, photos)
    return differences


def _compare_file(sample: Sample, photo: PhotoRecord | None) -> list[str]:
    if photo is None:
        return [f"{sample.file}: not in the store"]
    pairs = [
        ("status", sample.status, photo.status),
        ("faces", int(sample.person is not None), photo.faces),
        ("rejection", sample.rejection, photo.rejection),
    ]
    return [f"{sample.file}: {what} {is_} instead of {should}" for what, should, is_ in pairs if should != is_]


def _compare_person(person: str, samples: Sequence[Sample], photos: Mapping[str, PhotoRecord]) -> list[str]:
    """Checks that a person's accepted photos are one identity without other photos."""
    own = {s.file for s in samples if s.person == person and s.rejection is None}
    ids = {photos[name].person_id for name in own if name in photos}
    if len(ids) != 1:
        return [f"{person} is {len(ids)} identities"]
    strangers = [name for name, photo in photos.items() if photo.person_id in ids and name not in own]
    return [f"{name} was taken for {person}" for name in sorted(strangers)]
