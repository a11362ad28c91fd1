"""What the page tells of the store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.cli.report import answer
from tests.people.coded_archive import index_otherwise, make_store, run_over, write_photo
from tests.serve.live import LiveServer
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server

BrowserAt = Callable[[LiveServer], Browser]


def test_counts_and_what_to_expect(browser: Browser) -> None:
    one, two, three = (person["id"] for person in browser.people())
    browser.post("corrections", {"kind": "merge", "persons": [one, two]})
    browser.post("corrections", {"kind": "name", "persons": [one], "name": "Ann"})
    browser.post("corrections", {"kind": "hide", "persons": [three]})
    store = browser.get("store")
    assert [store[key] for key in ("people", "hidden", "unnamed", "records", "photos")] == [2, 1, 1, 3, 6]
    assert [store[key] for key in ("faces", "named", "unassigned", "rejected")] == [7, 5, 1, 1]
    assert sum(store["rejections"].values()) >= 1
    assert store["directories"] == [{"name": "main", "identities": 2}]
    assert store["disk"]["picturesBytes"] > 0
    assert store["disk"]["freeBytes"] > 0
    assert (store["model"]["embedder"], store["model"]["encrypted"]) == ("coded", False)
    assert store["unassignedWhy"] == {"rejected": 1}
    assert store["expected"] is None  # nobody calibrated coded faces
    assert "not calibrated" in store["warning"]


def test_a_threshold_of_another_index_is_to_be_confirmed(store: Path, browser_at: BrowserAt) -> None:
    confirm = ("regroup", "--account", "ann", "--store", store, "--threshold", 0.6, "--yes")
    answer(*confirm)
    index_otherwise(store)
    for words, is_set in ((None, True), (("reindex", "swap", "--store", store), False), (confirm, True)):
        if words is not None:
            answer(*words)
        with page_server(store) as server:
            browser = browser_at(server)
            browser.sign_in()
            told = browser.get("store")
            assert told["thresholdSet"] == is_set
            assert told["remembered"] == "T 0.6"
            assert ("--threshold 0.6`" in told.get("unconfirmed", "")) == (not is_set)


def test_runs_and_their_reports(tmp_path: Path, archive: Path, store: Path, browser_at: BrowserAt) -> None:
    write_photo(tmp_path / "later", "z.png", Shown(9))
    run_over(tmp_path / "later", store)
    with page_server(store, photo_roots=str(archive / "photos")) as server:
        browser = browser_at(server)
        browser.sign_in()
        late, early = browser.get("runs")["runs"]
        assert (late["rows"], early["rows"]) == (1, 6)
        assert (late["source"], early["source"]) == ("later", str(archive / "photos"))
        assert early["state"] == "finished"
        assert early["startedAt"] < early["finishedAt"] < late["startedAt"]
        pages = browser.pages("runs", "runs", count=1)
        assert [page[0]["id"] for page in pages] == [late["id"], early["id"]]
        browser.get("runs", after="x", status=400)
        browser.get(f"runs/{early['id'][:-1]}x/report", status=404)
        browser.get("runs/../report", status=404)
        report = store / "runs" / early["id"] / "report.html"
        report.parent.mkdir(exist_ok=True)
        report.write_text("<!doctype html><style>p { color: red }</style><p>Ann")
        (address,) = [run["report"] for run in browser.get("runs")["runs"] if run["id"] == early["id"]]
        answer = browser.http.get(address)
        assert (answer.text, answer.headers["Content-Type"]) == (report.read_text(), "text/html; charset=utf-8")
        policy = answer.headers["Content-Security-Policy"]
        assert "sandbox" in policy
        assert "script" not in policy
        bob = browser_at(server)
        bob.sign_in("bob")
        assert bob.get("runs")["runs"] == []
        assert bob.http.get(address).status_code == 404
        everybody = [person["id"] for person in browser.people()]
        browser.post("corrections", {"kind": "forget", "persons": everybody, "confirm": True})
        assert browser.people() == []
        report.write_text("<p>Ann, left by a crash")
        browser.get(address.removeprefix("/ui/api/"), status=404)


@pytest.mark.slow
def test_a_report_that_names_other_paths_is_not_shown(tmp_path: Path, browser_at: BrowserAt) -> None:
    below, elsewhere = tmp_path / "below", tmp_path / "elsewhere"
    store = make_store(tmp_path / "store")
    run_over(write_photo(below / "a", "a.png", Shown(1)).parent, store)
    run_over(write_photo(elsewhere, "b.png", Shown(2)).parent, store)
    manifest = below / "c.csv"
    manifest.write_text(f"path\n{write_photo(elsewhere, 'c.png', Shown(3))}\n")
    run_over(manifest, store)
    for roots, shown in ((str(below), [False, False, True]), (None, [False] * 3)):
        with page_server(store, photo_roots=roots) as server:
            browser = browser_at(server)
            browser.sign_in()
            runs = browser.get("runs")["runs"]
            assert all((store / "runs" / run["id"] / "report.html").is_file() for run in runs)
            assert [run["report"] is not None for run in runs] == shown
            assert [not run["reportHidden"] for run in runs] == shown
            for run, may in zip(runs, shown, strict=True):
                answer = browser.http.get(f"/ui/api/runs/{run['id']}/report")
                assert answer.status_code == (200 if may else 404)
                assert str(elsewhere) not in answer.text


def test_the_source_of_a_run_is_told_below_the_roots(reader: Browser, archive: Path) -> None:
    (run,) = reader.get("runs")["runs"]
    assert run["source"] == str(archive / "photos")


def test_a_store_without_people(tmp_path: Path, browser_at: BrowserAt) -> None:
    with page_server(make_store(tmp_path / "store")) as server:
        browser = browser_at(server)
        browser.sign_in()
        store = browser.get("store")
        assert [store[key] for key in ("people", "photos", "faces", "directories")] == [0, 0, 0, []]
        assert browser.get("runs") == {"runs": []}


def test_another_threshold_is_tried_and_applied(browser: Browser) -> None:
    """At T = 0.01 the faces of one person are no longer one."""
    before = browser.get("store")
    tried = browser.post("regroup", {"threshold": 0.01})
    assert tried["correction"] is None
    assert (tried["threshold"], tried["moved"] > 0, tried["new"] > 0) == (0.01, True, True)
    assert browser.get("store")["threshold"] == before["threshold"]
    applied = browser.post("regroup", {"threshold": 0.01, "apply": True})
    assert applied["correction"] is not None
    assert {**applied, "correction": None} == tried
    after = browser.get("store")
    assert (after["threshold"], after["thresholdSet"], after["people"]) == (0.01, True, before["people"] + tried["new"])
    browser.post("corrections/undo", {"correction": applied["correction"]})
    undone = browser.get("store")
    assert (undone["threshold"], undone["people"]) == (before["threshold"], before["people"])
    for wrong in (None, True, -0.1, 99, "0.5"):
        browser.post("regroup", {"threshold": wrong}, status=400)


def test_runs_tell_what_they_did(browser: Browser) -> None:
    (run,) = browser.get("runs")["runs"]
    assert (run["photos"], run["faces"], run["newPeople"], run["rejected"]) == (6, 7, 3, 1)
    assert run["seconds"] > 0
