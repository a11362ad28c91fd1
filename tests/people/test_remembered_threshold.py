"""The threshold and method that a regroup was given are the directory's: runs, posts and the next regroup decide by
them, until an undo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo

from pipeline.config import AVERAGE_LINK, Settings, load_settings
from pipeline.errors import CorrectionImpossible
from pipeline.jobs.store import open_store
from pipeline.matching.calibration import Calibration
from pipeline.people.records import of_generation, threshold_in_use, unconfirmed
from pipeline.people.types import PostRequest
from pipeline.store.records import Remembered, SearchQuery
from pipeline.tools import doctor
from pipeline.types import SilentProgress
from tests.cli.report import answer, facepipe
from tests.people.coded_archive import SETTINGS, fill, index_otherwise, reindex, run_over, serving, write_photo

SAME = 7, 8, 9  # variants of person 1: they match it at the default T, and nobody at T = 0


class Noting(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path) / "store"


def directory_of(store: Path) -> dict[str, Any]:
    (row,) = answer("directory", "list", "--store", store)["directories"]
    return dict(row)


def persons(store: Path) -> int:
    return int(directory_of(store)["identities"])


def regroup(store: Path, *words: object) -> dict[str, Any]:
    found: dict[str, Any] = answer("regroup", "--store", store, "--yes", *words)["regrouping"]
    return found


def run_of(variant: int, store: Path, settings: Settings = SETTINGS) -> list[str]:
    """Runs over one more photo of person 1; returns the notes."""
    progress = Noting()
    folder = store.parent / f"more-{variant}"
    write_photo(folder, "a.png", Shown(1, variant))
    run_over(folder, store, progress, settings=settings)
    return progress.notes


def test_runs_decide_by_it_until_an_undo(store: Path) -> None:
    first = persons(store)
    regroup(store, "--threshold", 0)
    assert directory_of(store)["threshold"] == "0.0"
    apart = persons(store)
    assert apart > first
    assert any("has the threshold 0," in note for note in run_of(7, store))
    assert persons(store) == apart + 1
    assert regroup(store)["threshold"] == 0  # no flag: the directory's
    in_file = store.parent / "settings.yaml"
    in_file.write_text("match: {threshold: 0.54}", "utf-8")
    assert regroup(store, "--config", in_file)["threshold"] == 0
    regroup(store, "--threshold", 0.54)
    assert persons(store) == first
    run_of(8, store)
    assert persons(store) == first


def test_an_undo_gives_the_threshold_before(store: Path) -> None:
    regroup(store, "--threshold", 0.6)  # changes nobody
    regroup(store, "--threshold", 0)
    answer("people", "undo", "--store", store, "--yes")
    assert directory_of(store)["threshold"] == "0.6"
    answer("people", "undo", "--store", store, "--yes")
    assert directory_of(store)["threshold"] is None
    first = persons(store)
    run_of(7, store)
    assert persons(store) == first


def test_a_flag_comes_first_and_says_so(store: Path) -> None:
    regroup(store, "--threshold", 0)
    apart = persons(store)
    given = load_settings(
        environ={},
        flags={"run.threads": 1, "run.device": "cpu", "serve.person_headers": "optional", "match.threshold": 0.54},
    )
    assert any("0.54 given here overrides it" in note for note in run_of(7, store, given))
    assert persons(store) == apart  # it matches


def test_a_running_server_decides_by_it_at_once(store: Path) -> None:
    def who(service: Any, **wishes: Any) -> object:
        request = PostRequest(insert=False, update=False, **wishes)
        (found,) = service.post(1, "main", photo(Shown(1, 7)), request).faces
        return found.person

    with serving(store) as service:
        assert who(service) is not None
        regroup(store, "--threshold", 0)
        assert who(service) is None
        assert who(service, threshold=0.54) is not None  # a header comes first
        for given, found in ((False, False), (True, True)):
            (face,) = service.search(SearchQuery(photo(Shown(1, 7)), 1, "main", 1, 0.54, given))
            assert (face.identity is not None) == found
        apart = persons(store)
        assert len(service.post(1, "main", photo(Shown(1, 9)), PostRequest()).faces) == 1
        assert persons(store) == apart + 1
        regroup(store, "--threshold", 0.54)
        assert who(service) is not None


def test_a_number_is_for_the_distances_of_its_index(store: Path) -> None:
    regroup(store, "--threshold", 0)
    index_otherwise(store)
    with open_store(store, SETTINGS, command="test") as opened:
        assert opened.threshold_in(opened.remembered(1, "main")) == 0
        reindex(opened, "swap")
        assert opened.threshold_in(opened.remembered(1, "main")) is None
        opened.switch_generation(back=True)
        assert opened.threshold_in(opened.remembered(1, "main")) == 0


def test_after_a_swap_a_number_must_be_confirmed(store: Path) -> None:
    regroup(store, "--threshold", 0.6)
    assert directory_of(store)["unconfirmed"] is None
    index_otherwise(store)
    swapped = facepipe("reindex", "swap", "--store", store).output
    asked = "confirm it with `facepipe regroup --directory main --threshold 0.6`, or set `--threshold fmr:RATE`"
    assert asked in swapped
    assert asked in directory_of(store)["unconfirmed"]
    assert asked in facepipe("directory", "list", "--store", store).output
    findings, _ = doctor._store(store, SETTINGS)
    assert [(found.subject, found.level) for found in findings if asked in found.detail] == [("threshold", doctor.WARN)]
    assert any(asked in note for note in notes_of_a_run(store))
    regroup(store, "--threshold", 0.6)
    assert directory_of(store)["unconfirmed"] is None
    assert not any("confirm" in found.detail for found in doctor._store(store, SETTINGS)[0])
    assert any("has the threshold 0.6" in note for note in notes_of_a_run(store))


def notes_of_a_run(store: Path) -> list[str]:
    """Over nothing new."""
    progress = Noting()
    run_over(store.parent / "photos", store, progress)
    return progress.notes


def test_so_must_a_cut(store: Path) -> None:
    regroup(store, "--method", AVERAGE_LINK, "--cut", 0.5)
    assert directory_of(store)["threshold_generation"] == 1
    regroup(store, "--threshold", 0.6)
    index_otherwise(store)
    with open_store(store, SETTINGS, command="test") as opened:
        reindex(opened, "swap")
    note = directory_of(store)["unconfirmed"]
    assert "cut 0.5 was set for another index" in note
    assert "`facepipe regroup --directory main --method average-link --cut 0.5`" in note
    refused = answer("regroup", "--store", store, "--yes", exit_code=CorrectionImpossible.exit_code)
    assert "--cut" in refused["message"]  # not by the former cut
    assert regroup(store, "--cut", 0.4)["cut"] == 0.4
    kept = directory_of(store)
    assert (kept["cut"], kept["threshold"], kept["threshold_generation"], kept["unconfirmed"]) == (0.4, None, 2, None)
    answer("people", "undo", "--store", store, "--yes")
    kept = directory_of(store)
    assert (kept["cut"], kept["threshold"], kept["threshold_generation"]) == (0.5, "0.6", 1)


def test_numbers_of_another_index_are_left_out() -> None:
    both = Remembered("0.6", 1, AVERAGE_LINK, None, 0.5)
    assert of_generation(both, 1) == both
    assert of_generation(both, 2) == Remembered(None, 1, AVERAGE_LINK)
    rate = Remembered("fmr:1e-05", 1, AVERAGE_LINK, None, 0.5)
    assert of_generation(rate, 2) == Remembered("fmr:1e-05", 1, AVERAGE_LINK)
    former = Remembered("fmr:1e-05", None, AVERAGE_LINK, None, 0.5)  # of a store of before
    assert of_generation(former, 2) == former
    assert "no rate of this index's table" in str(unconfirmed("main", former, {}, 2))
    assert unconfirmed("main", Remembered(), {}, 2) is None


def test_a_rate_is_read_from_the_calibration_in_use() -> None:
    rate = Remembered("fmr:1e-05")
    for threshold in (0.5, 0.6):
        calibration = Calibration(thresholds=((1e-6, 0.4), (1e-5, threshold)))
        assert threshold_in_use(rate, calibration.as_dict(), 2) == threshold
    assert threshold_in_use(rate, {}, 2) is None  # it has no rates
    assert threshold_in_use(Remembered("0.7", 1), {}, 1) == 0.7
    assert threshold_in_use(Remembered("0.7", 1), {}, 2) is None
    assert threshold_in_use(Remembered(), {}, 1) is None


def test_the_method_is_remembered_and_leaves_the_threshold(store: Path) -> None:
    regroup(store, "--threshold", 0.6)
    found = regroup(store, "--method", AVERAGE_LINK, "--cut", 0.5)
    assert (found["method"], found["cut"]) == (AVERAGE_LINK, 0.5)
    kept = directory_of(store)
    assert (kept["threshold"], kept["method"], kept["cut"], kept["precision"]) == ("0.6", AVERAGE_LINK, 0.5, None)
    assert regroup(store)["cut"] == 0.5
    assert regroup(store, "--cut", 0.4)["cut"] == 0.4
    assert regroup(store)["cut"] == 0.4
    assert "T 0.6, regroup by average-link, cut 0.4" in facepipe("directory", "list", "--store", store).output
    assert regroup(store, "--method", "sequential")["cut"] is None
    assert regroup(store)["method"] == "sequential"


def test_a_run_does_not_say_that_photos_have_the_threshold_of_before_a_regroup(store: Path) -> None:
    def notes(settings: Settings = SETTINGS) -> str:
        progress = Noting()
        run_over(store.parent / "photos", store, progress, settings=settings)
        return " ".join(progress.notes)

    regroup(store, "--threshold", 0.3)
    assert "decided with" not in notes()
    answer("people", "undo", "--store", store, "--yes")
    stricter = replace(SETTINGS, match=replace(SETTINGS.match, threshold=0.2))
    assert "decided with threshold = 0.54" in notes(stricter)
