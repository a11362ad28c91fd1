"""Thirty nights over an archive that lives: after each, the store is what an independent model predicts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

import pipeline
from pipeline.config import MatchSettings
from pipeline.errors import RequestError, SourceEmpty, SourceMissing
from pipeline.jobs.people import People
from tests.cli.report import answer
from tests.people.coded_archive import ArchiveExtractor, make_store, problems
from tests.people.year.archive import Archive
from tests.people.year.compare import compare, compare_list, compare_report
from tests.people.year.grouping import regroup
from tests.people.year.model import IS_NOT, NOBODY, NOT_SAME, Model, Refused
from tests.people.year.script import THRESHOLDS, YEAR, Corrections, Day, Deed, Files, read_year

DAY_NS = 24 * 3600 * 10**9


class Year:
    """An archive, its store, and the model of it."""

    def __init__(self, folder: Path, photos: int, seed: int) -> None:
        self.store = make_store(folder / "store")
        self.archive = Archive(folder / "photos")
        self.model = Model(self.archive)
        self.corrected = 0
        self._threshold = THRESHOLDS["first"]
        random = Random(seed)
        self._files = Files(self.archive, random, photos)
        self._corrections = Corrections(self.model, random)
        self._clock, self._ahead = time.time_ns, 0

    def clock(self) -> int:
        """A day later each night."""
        return self._clock() + self._ahead

    def live(self, day: Day, *, check_each: bool = False) -> None:
        """What is done to the files, the night, and the corrections. `check_each`: compares after each of these."""
        for deed in day.files:
            self._files.do(deed)
        self._night()
        deeds = [deed for deed in day.corrections for _ in range(deed.count)]
        for together in [[deed] for deed in deeds] if check_each else [deeds]:
            with self.compared() as people:
                for deed in together:
                    self._correct(deed, people)

    @contextmanager
    def compared(self) -> Iterator[People]:
        """The people of the store, once all is as the model says."""
        compare(self.store, self.archive, self.model)
        with pipeline.open_store(self.store) as opened:
            compare_list(opened.people, self.model)
            yield opened.people

    def _night(self) -> None:
        tonight, self._files.tonight = self._files.tonight, ""
        self._ahead += -3 * DAY_NS if tonight == "clock back" else DAY_NS
        command = ("run", self.archive.root, "--store", self.store, "--threshold", self._threshold, "--device", "cpu")
        if tonight in ("away", "empty"):
            with self.archive.taken_away(empty=tonight == "empty"):
                answer(*command, exit_code=(SourceEmpty if tonight == "empty" else SourceMissing).exit_code)
            return
        options = {
            "rehash": ["--rehash"],
            "moved": ["--moved-from", self.archive.root.with_name("photos")],
            "forget missing": ["--on-missing", "forget"],
            "forget all missing": ["--on-missing", "forget", "--yes"],
        }
        report = answer(*command, *options.get(tonight, []))
        limit = 1.0 if tonight == "forget all missing" else 0.2
        night = self.model.night(self._threshold, forget=tonight.startswith("forget"), limit=limit)
        compare_report(report, night, self.archive, self.model)

    def _correct(self, deed: Deed, people: People) -> None:
        asked = self._corrections.pick(deed)
        if asked is None:
            return
        if deed.what == "regroup":
            self._threshold = THRESHOLDS[deed.which]  # of the runs from now on
        refused = self._refused(asked.predict, Refused)
        assert self._refused(lambda: asked.do(people), RequestError) == refused
        self.corrected += refused is None

    @staticmethod
    def _refused(act: Callable[[], object], error: type[Refused | RequestError]) -> int | None:
        """The exit code of a refusal."""
        try:
            act()
        except error as refused:
            return refused.exit_code
        return None


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory, full: bool) -> Iterator[Year]:
    """It is over, and each night was as predicted."""
    with pytest.MonkeyPatch.context() as patch:
        year = Year(tmp_path_factory.mktemp("year"), 1000 if full else 80, seed=1)
        patch.setattr(time, "time_ns", year.clock)
        for module in ("run.stages", "jobs.reindex"):
            patch.setattr(f"pipeline.{module}.load_extractor", ArchiveExtractor.load)
        days = read_year(YEAR)
        assert len(days) == 30
        for day in days:
            year.live(day)
        yield year


@pytest.mark.slow
def test_each_night_is_as_predicted(year: Year) -> None:
    assert year.corrected >= 40
    assert problems(year.store) == []


@pytest.mark.slow
def test_corrections_are_kept_through_three_thresholds(year: Year) -> None:
    model = year.model
    assert sum(correction.kind != "regroup" for correction in model.corrections) >= 40
    said = {p: (p.name, p.hidden) for p in model.people if p.name or p.hidden}
    merged = [(p, p.parent) for p in model.people if p.parent is not None and p.joined_by != "regroup"]
    apart = [(p, p.was_below) for p in model.people if p.joined_by == "unmerge" and p.was_below in model.people]
    facts = dict(model.facts)
    for threshold in (0.04, 0.54, 1.9):
        with year.compared() as people:
            regroup(model, threshold)
            found = people.regroup(MatchSettings(threshold=threshold)).regrouping
        assert found is not None
        with year.compared():
            assert facts.items() <= model.facts.items()
            assert {kind for kind, *_ in model.facts.keys() - facts} <= {NOT_SAME}  # of new people
        assert {p: (p.name, p.hidden) for p in said} == said
        assert said.keys() <= set(model.people)
        for kind, face, one, other in facts:
            if face is None:
                assert model.root(one) is not model.root(other)
            elif kind == IS_NOT:
                assert face.person is None or model.root(face.person) is not model.root(one)
            else:
                assert face.person is (None if kind == NOBODY else one)
        assert all(model.root(one) is model.root(other) for one, other in merged)
        assert all(model.root(one) is not model.root(other) for one, other in apart)
