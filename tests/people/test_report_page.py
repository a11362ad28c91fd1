"""The page of a run and of a store: what it shows, what it costs, and that nobody stays on one who was forgotten."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, coded_identity, photo
from coded_store import USER, plant
from PIL import Image

import pipeline
from pipeline.errors import Interrupted, StoreFull, StoreUnwritable
from pipeline.jobs.run_report import RunReport
from pipeline.jobs.store import Store
from pipeline.matching.calibration import Calibration
from pipeline.people.directory import Directory
from pipeline.people.types import PostRequest
from pipeline.report import page_data
from pipeline.report import pictures as face_pictures
from pipeline.run import page as run_page
from pipeline.store.catalog import pages
from pipeline.store.catalog.connection import Catalog
from pipeline.store.checks.check import check_store, repair_store
from pipeline.store.files.encryption import MasterKey
from pipeline.store.local import LocalStore
from pipeline.types import SilentProgress
from tests.cli.report import facepipe
from tests.people.coded_archive import SETTINGS, SIZE, make_store, problems, run_over, serving, write_photo
from tests.people.correcting import People
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server

NASTY = '<script>alert("x")</script>'


class Page(HTMLParser):
    """What is on a page: headings, all text, pictures, and whether it needs anything else."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.pictures = 0
        self.sources: list[str] = []
        self.text = ""
        self._in_heading = False
        self.feed(file.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.pictures += tag == "img"
        self.sources += [
            value or "" for name, value in attrs if name in ("src", "href") and not f"{value}".startswith("#")
        ]
        if tag in ("h2", "h3"):
            self._in_heading = True
            self.headings.append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_heading:
            self.headings[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in_heading = self._in_heading and tag not in ("h2", "h3")


def page_of(report: RunReport) -> Page:
    (page,) = report.pages
    return Page(Path(page))


def media_id_of(store: Path, name: str) -> int:
    with LocalStore.open(store, command="test") as client:
        paths = client.read("SELECT media_id, path FROM core.media WHERE path IS NOT NULL").to_pylist()
    (media_id,) = [row["media_id"] for row in paths if row["path"].endswith(name)]
    return int(media_id)


def forget(store: Path, name: str) -> None:
    media_id = media_id_of(store, name)
    with pipeline.open_store(store) as opened:
        opened.people.forget_photos([media_id])


def report_of_last(store: Path, to: Path) -> Page:
    assert facepipe("report", "--store", store, "--to", to, "--run", "last").exit_code == 0
    return Page(to)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two people, of whom one is in three photos; a poor face; a file that is no photo."""
    folder = tmp_path / "photos"
    for name, face in (("1", Shown(1)), ("2", Shown(1, 1)), ("3", Shown(1, 2)), ("4", Shown(2))):
        write_photo(folder / ("Ada" if face.person == 1 else NASTY.replace("/", "")), f"{name}.png", face)
    write_photo(folder, "poor.png", Shown(3, 0, 0.1))
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


def run_named(photos: Path, store: Path, **sections: Any) -> RunReport:
    source = dataclasses.replace(SETTINGS.source, labels="parent")
    return run_over(photos, store, settings=dataclasses.replace(SETTINGS, source=source, **sections))


def test_a_run_leaves_a_page_that_needs_nothing_else(photos: Path, tmp_path: Path) -> None:
    page = page_of(run_named(photos, make_store(tmp_path / "store")))
    assert page.headings[:2] == ["In short", "People"]
    assert page.headings[2:4] == ["Ada", NASTY.replace("/", "")]
    assert "3 photos" in page.text
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources)
    # The stored pictures of two, two more photos of one; two matches, each beside its person; the face that is poor by
    # three measures.
    assert page.pictures == 2 + 2 + 2 * 2 + 3
    assert "broken.jpg" in page.text
    assert "Turned away: 1" in page.headings
    assert page.tags.count("svg") == 5
    assert problems(tmp_path / "store") == []


def test_copies_of_a_photo_are_one_picture_of_a_person(tmp_path: Path) -> None:
    """Copies by the bytes, and by the pixels in other bytes. The first has the stored picture of Ada."""
    photos = tmp_path / "photos"
    for folder, again in (("Ada", False), ("copies", False), ("smaller files", True)):
        for name, face in (("1.png", Shown(1)), ("2.png", Shown(1, 1)), ("3.png", Shown(1, 2))):
            file = write_photo(photos / folder, name, face)
            if again:
                Image.open(file).save(file, compress_level=1)
    report = run_over(photos, make_store(tmp_path / "store"))
    assert (report.images, report.persons) == (9, 1)
    (page,) = report.pages
    sheet = Path(page).read_text("utf-8").partition('class="sheet person"')[2]
    assert "9 photos" in sheet
    assert sheet.partition("9 photos")[0].count("<img ") == 3


def test_who_is_with_whom(photos: Path, tmp_path: Path) -> None:
    """Most photos first; who is on no photo with others is in no pair."""
    for name, *faces in (("b1.png", Shown(1, 5), Shown(2, 5)), ("b2.png", Shown(1, 6), Shown(2, 6))):
        write_photo(photos, name, *faces)
    write_photo(photos, "c.png", Shown(2, 7), Shown(5))
    page = page_of(run_named(photos, make_store(tmp_path / "store")))
    first = page.headings.index("Who is with whom") + 1
    assert page.headings[first : first + 2] == ["2 photos", "1 photo"]
    assert "photo" not in page.headings[first + 2]
    section = page.text.partition("lists the photos.")[2]
    assert section.index("Ada") < section.index("No name yet")


def test_when_the_photos_were_taken(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    for number, year in enumerate((2009, 2014, 2014, None)):
        file = write_photo(tmp_path / "photos", f"{number}.png", Shown(1 + number // 3, number))
        exif = Image.Exif()
        if year:
            exif[0x8769] = {0x9003: f"{year}:05:01 10:00:00"}
        Image.open(file).save(file, exif=exif)
    text = "".join(page_of(run_over(tmp_path / "photos", store)).text.split("\n"))
    assert "yearphotos2009120142not known1" in text
    assert "3 photos, 2009 to 2014" in text


def test_names_lead_to_the_web_page(photos: Path, tmp_path: Path) -> None:
    store, to = make_store(tmp_path / "store"), tmp_path / "page.html"
    run_named(photos, store)
    with pipeline.open_store(store) as opened:
        ids = {row.name: row.person_id for row in opened.people.all()}
    link = "http://127.0.0.1:8080/ui"
    assert facepipe("report", "--store", store, "--to", to, "--link", link).exit_code == 0
    assert f"{link}#/person/{ids['Ada']}" in Page(to).sources
    refused = facepipe("report", "--store", store, "--to", to, "--link", "javascript:alert(1)//ui")
    assert refused.exit_code == 2
    assert "https://photos.example/ui" in refused.output


def test_names_lead_to_the_web_page_of_the_server_that_holds_the_store(photos: Path, tmp_path: Path) -> None:
    store, to = make_store(tmp_path / "store"), tmp_path / "page.html"
    with serving(store, "http://127.0.0.1:1234/ui"):
        of_run = page_of(run_named(photos, store))
        with pipeline.open_store(store) as opened:
            ids = {row.name: row.person_id for row in opened.people.all()}
            opened.report(to)
        assert f"http://127.0.0.1:1234/ui#/person/{ids['Ada']}" in set(of_run.sources) & set(Page(to).sources)
        link = "https://photos.example/ui"
        assert facepipe("report", "--store", store, "--to", to, "--link", link).exit_code == 0
        assert f"{link}#/person/{ids['Ada']}" in Page(to).sources
    with pipeline.open_store(store) as opened:
        opened.report(to)
    assert not [source for source in Page(to).sources if "#" in source]


def test_one_more_is_in_the_singular(tmp_path: Path) -> None:
    for number in range(25):
        write_photo(tmp_path / "photos", f"{number}.png", Shown(number))
    assert "1 more person\n" in page_of(run_over(tmp_path / "photos", make_store(tmp_path / "store"))).text


def test_the_last_runs_have_the_numbers_of_the_web_page(photos: Path, tmp_path: Path) -> None:
    store, to = make_store(tmp_path / "store"), tmp_path / "page.html"
    run_named(photos, store)
    assert facepipe("report", "--store", store, "--to", to).exit_code == 0
    with page_server(store) as server:
        browser = Browser(server.url)
        browser.sign_in(USER)
        (run,) = browser.get("runs")["runs"]
        browser.http.close()
    numbers = [run[name] for name in ("photos", "faces", "newPeople", "rejected")]
    assert numbers == [6, 5, 2, 1]
    brought = f"6 photos, 5 faces, 2 new people, 1 rejected face; {run['seconds']:.1f} s"
    assert f"{photos}{brought}{run['id']}" in Page(to).text


def test_somebody_without_a_name_has_a_heading_in_words(photos: Path, tmp_path: Path) -> None:
    page = page_of(run_over(photos, make_store(tmp_path / "store")))
    assert page.headings[2:4] == ["No name yet", "No name yet"]


def test_the_figures_of_a_store_are_those_of_the_web_page(photos: Path, tmp_path: Path) -> None:
    """With hidden, merged and unnamed people, a copy of a photo, a face taken from somebody, and a threshold that a
    regroup set."""
    shutil.copy(photos / "Ada" / "1.png", photos / "copy.png")
    write_photo(photos, "6.png", Shown(6))
    store, to = make_store(tmp_path / "store"), tmp_path / "page.html"
    run_named(photos, store)
    regrouped = facepipe("regroup", "--store", store, "--threshold", "0.5", "--yes")
    assert regrouped.exit_code == 0, regrouped.output
    with pipeline.open_store(store) as opened:
        unnamed = next(row for row in opened.people.all() if row.name is None)
        opened.people.hide(unnamed.person_id)
    assert facepipe("report", "--store", store, "--to", to).exit_code == 0
    with page_server(store) as server:
        browser = Browser(server.url)
        browser.sign_in(USER)
        of_page, people = browser.get("store"), browser.people()
        browser.http.close()
    keys = {"people": "people", "without a name": "unnamed", "hidden": "hidden", "photos": "photos"}
    keys |= {"faces": "faces", "of nobody": "unassigned", "too poor to recognise by": "rejected"}
    told = "".join(Page(to).text.partition("directory")[2].partition("The 200 whom")[0].split("\n"))
    figures = "".join(f"{what}{of_page[key]}" for what, key in keys.items())
    assert f"main{figures}threshold0.500set by regroup{of_page['remembered']}" in told
    assert [of_page[key] for key in keys.values()] == [3, 1, 1, 6, 7, 1, 1]
    assert (of_page["threshold"], of_page["remembered"]) == (0.5, "T 0.5")
    assert Page(to).headings[2 : 2 + len(people)] == [person["name"] for person in people]


def test_who_is_twice_on_a_photo_is_on_the_page_of_its_run(photos: Path, tmp_path: Path) -> None:
    """And on that of the store; not on that of another run, nor once it is allowed."""
    collage = write_photo(photos / "Ada", "collage.png", Shown(1, 3), Shown(1, 4))
    store, to = make_store(tmp_path / "store"), tmp_path / "page.html"
    first = run_named(photos, store)
    page = page_of(first)
    assert "Twice on a photo" in page.headings
    assert "one person's, 1 time;" in page.text
    with pipeline.open_store(store) as opened:
        ((first_face, second),) = (entry.faces for entry in opened.people.twice())
    section = page.text.partition("one person's, 1 time;")[2].partition("Just above the threshold")[0]
    assert all(text in section for text in (f"face {first_face}", f"face {second}", str(collage), "Ada"))
    write_photo(photos, "5.png", Shown(5))
    assert "Twice on a photo" not in page_of(run_named(photos, store)).headings
    facepipe("report", "--store", store, "--to", to)
    assert "Twice on a photo" in Page(to).headings
    assert str(collage) in Page(to).text
    with pipeline.open_store(store) as opened:
        opened.people.allow_twice(str(collage))
    facepipe("report", "--store", store, "--to", to)
    assert "Twice on a photo" not in Page(to).headings
    forget(store, "collage.png")
    assert not Path(first.pages[0]).exists()
    assert problems(store) == []


@pytest.mark.slow
def test_a_night_without_photos_leaves_what_it_found(photos: Path, tmp_path: Path) -> None:
    first = run_named(photos, store := make_store(tmp_path / "store"))
    assert run_named(photos, store).pages == first.pages  # nothing new: no run
    (photos / "poor.png").rename(photos / "still-poor.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Directory, "load")  # nobody is on the page, so nobody is compared
        report = run_named(photos, store)
    page = page_of(report)
    assert "Moved" in page.headings
    assert "still-poor.png" in page.text
    forget(store, "still-poor.png")
    assert not Path(report.pages[0]).exists()
    assert "still-poor.png" not in report_of_last(store, tmp_path / "page.html").text
    assert page_of(run_named(photos, store)).headings[0] == "In short"
    assert problems(store) == []


@pytest.mark.slow
def test_who_was_renamed_is_on_the_page_until_forgotten(photos: Path, tmp_path: Path) -> None:
    run_named(photos, store := make_store(tmp_path / "store"))
    (photos / "Ada").rename(photos / "Eda")
    run_named(photos, store)
    report = run_named(photos, store)
    with pipeline.open_store(store) as opened:
        (eda,) = (row.person_id for row in opened.people.all() if row.name == "Eda")
        opened.people.name("Eda", "")
    assert Path(report.pages[0]).exists()
    page = report_of_last(store, tmp_path / "page.html")
    assert "Renamed, because their label changed" in page.headings
    assert eda[:8] in page.text
    with pipeline.open_store(store) as opened:
        opened.people.forget(eda)
    page = report_of_last(store, tmp_path / "page.html")
    assert "Renamed, because their label changed" not in page.headings
    assert eda[:8] not in page.text


@pytest.mark.slow
def test_the_page_goes_with_the_photo_that_gave_a_stored_picture(photos: Path, tmp_path: Path) -> None:
    """Of a run that another photo of the person came with."""
    run_named(photos, store := make_store(tmp_path / "store"))
    write_photo(photos / "Ada", "5.png", Shown(1, 4))
    (page,) = map(Path, run_named(photos, store).pages)
    forget(store, "2.png")
    assert page.exists()
    forget(store, "1.png")
    assert not page.exists()


def test_the_page_goes_with_a_posted_image_that_gave_a_stored_picture(photos: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    with serving(store) as service:
        service.post(1, "main", photo(Shown(1, 8)), PostRequest())
        (page,) = map(Path, run_named(photos, store).pages)
        service.post(1, "main", photo(Shown(1, 9)), PostRequest())  # which replaces the reference
        assert not page.exists()
    assert problems(store) == []


@pytest.mark.slow
def test_a_page_shows_no_photo_that_the_same_command_forgets(photos: Path, tmp_path: Path) -> None:
    """It gave the picture of a person whom new photos of the first source show as well."""
    gone = write_photo(tmp_path / "more", "1.png", Shown(1, 6))
    run_over(tmp_path / "more", store := make_store(tmp_path / "store"))
    run_named(photos, store)
    gone.unlink()
    write_photo(tmp_path / "more", "2.png", Shown(5))
    write_photo(photos / "Ada", "6.png", Shown(1, 5))
    forgetting = dataclasses.replace(
        SETTINGS, run=dataclasses.replace(SETTINGS.run, on_missing="forget", missing_limit=1)
    )
    report = run_over(photos, store, settings=forgetting, further_sources=(tmp_path / "more",))
    assert report.forgotten_missing == 1
    assert [Path(page).exists() for page in report.pages] == [True, True]
    assert problems(store) == []


def test_the_page_goes_with_the_first_who_is_forgotten(photos: Path, tmp_path: Path) -> None:
    report = run_named(photos, store := make_store(tmp_path / "store"))
    (page,) = map(Path, report.pages)
    with LocalStore.open(store, command="test") as client:
        ids = [row["person_id"] for row in client.people(1, "main").to_pylist()]
        people = People(client, *ids, ids[0])
        people.correct("merge", *ids)
        assert page.exists()
        people.correct("forget", ids[1])
        assert not page.exists()
        people.service.close()
    assert problems(store) == []


def test_the_page_goes_with_a_photo_that_is_forgotten(photos: Path, tmp_path: Path) -> None:
    report = run_named(photos, store := make_store(tmp_path / "store"))
    (page,) = map(Path, report.pages)
    media_id = media_id_of(store, "poor.png")
    with serving(store), pipeline.open_store(store) as opened:
        opened.people.forget_photos([media_id])
    assert not page.exists()
    assert problems(store) == []


def test_who_is_forgotten_while_the_page_is_made_is_not_on_it(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody is forgotten after the page was made and before it is noted, then before it is written."""
    store = make_store(tmp_path / "store")
    write, made = LocalStore.write_report, []

    def forgetting(client: LocalStore, run_id: str, name: str, data: bytes) -> None:
        if name == pages.PAGE and not made:
            made.append(data)
            ids = {row["name"]: row["person_id"] for row in client.people(1, "main").to_pylist()}
            people = People(client, "", "", "")
            people.correct("forget", ids["Ada"])
            people.service.close()
        write(client, run_id, name, data)

    monkeypatch.setattr(LocalStore, "write_report", forgetting)
    page = page_of(run_named(photos, store))
    assert b"Ada" in made[0]
    assert "Ada" not in page.text
    assert len(page.headings) > 4


@pytest.mark.slow
def test_the_page_of_an_encrypted_store_names_and_shows_nobody(photos: Path, tmp_path: Path) -> None:
    master, store, to = MasterKey(bytes(range(32)), "a test"), tmp_path / "store", tmp_path / "page.html"
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(base64.b64encode(master.data).decode())
    identity = dataclasses.replace(coded_identity(SIZE), encrypted=True, master_key_id=master.key_id)
    with LocalStore.open_or_create(store, lambda: identity, command="make") as client:
        client.unlock(master)
        client.create_account(USER, None)
    security = dataclasses.replace(SETTINGS.security, master_key_file=tmp_path / "key")
    page = page_of(run_named(photos, store, security=security))
    assert page.pictures == 0
    assert not any(word in page.text for word in ("Ada", str(photos), ".png", "broken.jpg"))
    assert "In short" in page.headings
    options = ["report", "--store", store, "--to", to, "--run", "last"]
    nowhere = facepipe("report", "--store", store, "--to", tmp_path / "nowhere" / "page.html")
    assert nowhere.exit_code == StoreUnwritable.exit_code
    assert "there is no such folder" in nowhere.output
    assert not (tmp_path / "nowhere").exists()
    assert facepipe(*options).exit_code == 49
    assert facepipe(*options, "--master-key-file", tmp_path / "key").exit_code == 0
    assert Page(to).headings[2].startswith("Ada")
    assert Page(to).pictures == 2 + 2 + 2 * 2 + 3
    (photos / "Ada").rename(photos / "Eda")
    (photos / "broken.jpg").rename(photos / "moved.jpg")
    report = run_named(photos, store, security=security)
    assert (report.moved, report.renamed) == (4, 1)
    assert not any(
        word in Path(report.pages[0]).read_text("utf-8")
        for word in ("data:image", "Ada", "Eda", "alert", str(tmp_path), ".png", ".jpg")
    )
    assert problems(store) == []


def test_people_who_may_be_one_stand_side_by_side(tmp_path: Path) -> None:
    """At the wider threshold of this calibration most strangers match."""
    calibration = Calibration(thresholds=((1e-5, 0.3), (1e-3, 3.0))).as_dict()
    identity = dataclasses.replace(coded_identity(SIZE), calibration=calibration)
    with LocalStore.open_or_create(tmp_path / "store", lambda: identity, command="make") as client:
        client.create_account(USER, None)
    for name, faces in {"1": [Shown(1)], "2": [Shown(2)], "3": [Shown(1, 1)], "4": [Shown(2, 1)]}.items():
        write_photo(tmp_path / "photos", f"{name}.png", *faces)
    page = page_of(run_over(tmp_path / "photos", tmp_path / "store"))
    assert "Perhaps one person" in page.headings
    assert page.text.count("4 of 4 pairs of faces near, never on one photo") == 1
    with LocalStore.open(tmp_path / "store", command="test") as client:
        people = People(client, "", "", "")
        people.correct("not_same", *(row["person_id"] for row in client.people(1, "main").to_pylist()))
        people.service.close()
        run_page.write_report_page(Store(client, SETTINGS), tmp_path / "page.html")
    assert "Perhaps one person" not in Page(tmp_path / "page.html").headings


def test_pairs_have_the_order_and_scores_of_people_suggest(tmp_path: Path) -> None:
    """Also by the threshold that a regroup set for the directory."""
    store, to = tmp_path / "store", tmp_path / "page.html"
    calibration = Calibration(thresholds=((1e-5, 0.3), (1e-3, 3.0))).as_dict()
    identity = dataclasses.replace(coded_identity(SIZE), calibration=calibration)
    with LocalStore.open_or_create(store, lambda: identity, command="make") as client:
        client.create_account(USER, None)
    for person in range(1, 5):
        write_photo(tmp_path / "photos", f"{person}.png", Shown(person))
    run_over(tmp_path / "photos", store)
    told = []
    for words in ((), ("regroup", "--store", store, "--threshold", "0.4", "--yes")):
        assert not words or facepipe(*words).exit_code == 0
        assert facepipe("report", "--store", store, "--to", to).exit_code == 0
        with pipeline.open_store(store) as opened:
            expected = [f"{pair.score:.3f}: {pair.reasons}" for pair in opened.people.suggest().pairs]
        told.append(re.findall(r"\d\.\d{3}: .*never on one photo", Page(to).text))
        assert told[-1] == expected
    assert len(told[0]) > 3
    assert told[0] != told[1]


@pytest.mark.slow
def test_a_run_is_compared_with_everybody_but_hidden_people(tmp_path: Path) -> None:
    """Each run with those who came before; whom nobody is like is in the histogram only."""
    calibration = Calibration(thresholds=((1e-5, 0.3), (1e-3, 3.0))).as_dict()
    identity = dataclasses.replace(coded_identity(SIZE), calibration=calibration)
    store, photos = tmp_path / "store", tmp_path / "photos"
    with LocalStore.open_or_create(store, lambda: identity, command="make") as client:
        client.create_account(USER, None)
    write_photo(photos, "1.png", Shown(1))
    assert "Perhaps one person" not in page_of(run_over(photos, store)).headings
    with pipeline.open_store(store) as opened:
        (one,) = opened.people.all()
        opened.people.name(one.person_id, "Ada")
    for number, hidden in ((2, False), (4, True)):
        with pipeline.open_store(store) as opened:
            for row in opened.people.all() if hidden else ():
                opened.people.hide(row.person_id)
        write_photo(photos, f"{number}.png", Shown(number))
        page = page_of(run_over(photos, store))
        assert ("Perhaps one person" in page.headings, "Ada" in page.text) == (not hidden, not hidden)


@pytest.mark.parametrize("people", [50, 500])
def test_a_page_of_a_run_reads_what_the_run_brought(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, people: int
) -> None:
    """Of however many people: neither everybody's rows nor their embeddings, nor the view that follows all merges."""
    with LocalStore.open(make_store(tmp_path / "store"), command="test") as client:
        plant(client, people)
    asked, made = list[str](), page_data.page_data
    read = 0

    def noting(reading: Any) -> Any:
        def noted(catalog: Catalog, sql: str, *words: Any) -> Any:
            nonlocal read
            answer = reading(catalog, sql, *words)
            asked.append(sql)
            read += len(answer)
            return answer

        return noted

    def watched(*words: Any) -> page_data.PageData:
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "read", noting(Catalog.read))
            patch.setattr(Catalog, "rows", noting(Catalog.rows))
            return made(*words)

    monkeypatch.setattr(page_data, "page_data", watched)
    assert page_of(run_named(photos, tmp_path / "store")).headings[1] == "People"
    assert 10 < len(asked) <= 20
    assert 10 < read < 100  # with the 16 who are most similar to each new person
    assert not [sql for sql in asked if "main.persons" in sql]


@pytest.mark.slow
def test_a_command_reads_a_directory_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the photos of two sources, the missing ones that are forgotten, and the pages."""
    gone = write_photo(tmp_path / "more", "1.png", Shown(6))
    run_over(tmp_path / "more", store := make_store(tmp_path / "store"))
    gone.unlink()
    write_photo(tmp_path / "more", "2.png", Shown(5))
    loaded, load = [], Directory.load

    def counting(directory: Directory) -> None:
        loaded.append(directory.name)
        load(directory)

    monkeypatch.setattr(Directory, "load", counting)
    forgetting = dataclasses.replace(
        SETTINGS, run=dataclasses.replace(SETTINGS.run, on_missing="forget", missing_limit=1)
    )
    report = run_over(photos, store, settings=forgetting, further_sources=(tmp_path / "more",))
    assert (report.forgotten_missing, len(report.pages)) == (1, 2)
    assert loaded == ["main"]
    assert problems(store) == []


def test_without_room_for_its_page_a_run_is_done(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where its page fails for any other reason: what follows the page's run is done as well."""
    write = LocalStore.write_report

    def full(client: LocalStore, run_id: str, name: str, data: bytes) -> None:
        if name == pages.PAGE:
            raise StoreFull(path=client.path, detail="no space left on device")
        write(client, run_id, name, data)

    monkeypatch.setattr(LocalStore, "write_report", full)
    report = run_named(photos, store := make_store(tmp_path / "store"))
    assert report.pages == []
    assert f"`facepipe report --run {report.run_id}` makes it" in report.warnings[-1]
    assert "no space left" in json.loads((store / "runs" / str(report.run_id) / "run.json").read_text())["page_failure"]
    assert problems(store) == []
    monkeypatch.undo()
    again = run_named(photos, store)
    assert (again.new, again.run_id) == (0, report.run_id)
    assert "Ada" in page_of(again).text


def test_whatever_befalls_a_page_the_run_is_done(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And other sources are in as well."""
    monkeypatch.setattr(run_page, "page_bytes", lambda *_: {}["odd"])
    write_photo(tmp_path / "more", "1.png", Shown(4))
    report = run_over(photos, store := make_store(tmp_path / "store"), further_sources=(tmp_path / "more",))
    assert (report.new, report.persons, report.pages) == (7, 3, [])
    assert [warning.endswith("KeyError('odd')") for warning in report.warnings[-2:]] == [True, True]
    assert problems(store) == []


def test_a_source_that_fails_takes_no_page_from_those_before(photos: Path, tmp_path: Path) -> None:
    class Failing(SilentProgress):
        scans = 0

        def start(self, phase: str, total: int | None) -> None:
            self.scans += phase == "scan"
            if self.scans == 2:
                raise Interrupted(detail="at the second source")

    write_photo(tmp_path / "more", "z.png", Shown(9))
    with pytest.raises(Interrupted):
        run_over(photos, store := make_store(tmp_path / "store"), Failing(), further_sources=(tmp_path / "more",))
    (folder,) = (store / "runs").iterdir()
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_a_page_of_which_nothing_is_noted_is_found_and_made_anew(photos: Path, tmp_path: Path) -> None:
    """As where a kill came after somebody was forgotten who was on a page in the making."""
    report = run_named(photos, store := make_store(tmp_path / "store"))
    (page,) = map(Path, report.pages)
    stale = page.read_bytes()
    with pipeline.open_store(store) as opened:
        opened.people.forget("Ada")
    page.write_bytes(stale)
    with LocalStore.open(store, command="check") as client:
        found = check_store(client)
        assert [(problem.kind, problem.where) for problem in found.problems] == [
            ("page", page.relative_to(store).as_posix())
        ]
        repair_store(client, found)
    assert not page.exists()
    assert stale not in [file.read_bytes() for file in store.rglob("*") if file.is_file()]
    assert problems(store) == []
    page.write_bytes(stale)
    assert "Ada" not in page_of(run_named(photos, store)).text
    assert problems(store) == []


@pytest.mark.slow
def test_a_page_has_an_end(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(face_pictures, "MOST_PIXELS", 0)
    page = page_of(run_named(photos, make_store(tmp_path / "one")))
    assert page.pictures == 2 + 2  # no photo is decoded: the stored pictures of people, and beside the matches
    monkeypatch.setattr(face_pictures, "MOST_BYTES", 0)
    assert page_of(run_named(photos, make_store(tmp_path / "two"))).pictures == 0


@pytest.mark.slow
def test_report_of_a_run_and_of_the_store(photos: Path, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    options = ["report", "--store", store, "--to", tmp_path / "page.html", "--json"]
    nothing = facepipe(*options)
    assert nothing.exit_code == 0, nothing.output
    assert Page(tmp_path / "page.html").pictures == 0
    assert facepipe(*options, "--run", "last").exit_code == 2
    first = run_named(photos, store)
    shutil.rmtree(photos / "Ada")
    told = json.loads(facepipe(*options, "--run", "last").output)
    assert told["run_id"] == first.run_id
    of_run = Page(tmp_path / "page.html")
    assert of_run.headings == page_of(first).headings
    assert of_run.pictures < page_of(first).pictures  # the photos are gone; the stored pictures are not
    with serving(store):
        served = facepipe(*options)
    assert served.exit_code == 0, served.output
    assert Page(tmp_path / "page.html").headings[2].startswith("Ada")
