"""The faces of a person, their pictures, and the photos that they are from."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from coded_faces import CodedExtractor, Shown, coded_identity, photo
from coded_store import extracted_run
from PIL import Image

from pipeline.config import UiSettings
from pipeline.people.types import PostRequest
from pipeline.serve.ui import photos as photos_module
from pipeline.serve.ui.photos import Photos
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, SIZE, make_store, run_over, write_photo
from tests.serve.coded import service_of
from tests.serve.live import LiveServer
from tests.serve.ui.browser import Browser
from tests.serve.ui.conftest import page_server
from tests.store.store_samples import execute

BrowserAt = Callable[[LiveServer], Browser]


def first(browser: Browser) -> str:
    return str(browser.people()[0]["id"])


def size_of(browser: Browser, address: str) -> tuple[int, int]:
    answer = browser.http.get(address)
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "image/jpeg"), answer.text
    return Image.open(io.BytesIO(answer.content)).size


def test_faces_with_pictures_and_photos(reader: Browser, archive: Path) -> None:
    faces = reader.get(f"people/{first(reader)}/faces")["faces"]
    assert [face["id"] for face in faces] == [1, 2, 3]
    assert [face["reference"] for face in faces] == [True, False, False]
    assert [face["photo"]["name"] for face in faces] == ["a1.png", "a2.png", "b-both.png"]
    assert faces[2]["photo"]["path"] == str(archive / "photos" / "b-both.png")
    assert (faces[2]["photo"]["width"], faces[2]["photo"]["height"]) == (128, 64)
    assert faces[2]["box"] == [0, 0, 40 / 128, 40 / 64]
    assert size_of(reader, faces[0]["picture"]) == (60, 60)  # the stored one
    assert size_of(reader, faces[1]["picture"]) == (60, 60)
    assert size_of(reader, faces[2]["photo"]["picture"]) == (128, 64)
    again = reader.http.get(faces[1]["picture"])
    known = reader.http.get(faces[1]["picture"], headers={"If-None-Match": again.headers["ETag"]})
    assert (known.status_code, known.content) == (304, b"")


def test_when_a_photo_was_taken(browser: Browser, server: LiveServer) -> None:
    execute(server.client, "UPDATE core.media SET taken_at = '1904-01-02 03:04:05' WHERE media_id = 2")
    faces = browser.get(f"people/{first(browser)}/faces")["faces"]
    assert [face["photo"].get("takenAt") for face in faces] == [None, "1904-01-02T03:04:05", None]
    assert ["takenAt" in face["photo"] for face in faces] == [False, True, False]


@pytest.mark.parametrize("sort", ["added", "score"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_faces_page_by_page(browser: Browser, sort: str, count: int) -> None:
    browser.post("corrections", {"kind": "move", "persons": [first(browser)], "faces": [6]})
    pages = browser.pages(f"people/{first(browser)}/faces", "faces", sort=sort, count=count)
    assert [len(page) for page in pages[:-1]] == [count] * (len(pages) - 1)
    faces = [face for page in pages for face in page]
    if sort == "added":
        assert [face["id"] for face in faces] == [1, 2, 3, 6]
    else:
        scores = [face["score"] for face in faces if "score" in face]
        assert scores == sorted(scores)
        assert [face["id"] for face in faces if "score" not in face] == [faces[-1]["id"]] == [6]
    assert [face["stated"] for face in faces if face["id"] == 6] == [True]


def test_a_merged_person_shows_the_faces_of_all(browser: Browser) -> None:
    one, two, _ = (person["id"] for person in browser.people())
    browser.post("corrections", {"kind": "merge", "persons": [one, two]})
    for who in (one, two):
        faces = browser.get(f"people/{who}/faces")["faces"]
        assert [(face["id"], face["person"]) for face in faces] == [(1, one), (2, one), (3, one), (4, two), (5, two)]


def test_what_is_wrong_in_a_question(reader: Browser) -> None:
    who = first(reader)
    other = reader.get(f"people/{who}/faces", count=1)["next"]
    for query in ({"sort": "name"}, {"count": 0}, {"after": "x"}, {"sort": "score", "after": other}):
        assert reader.get(f"people/{who}/faces", status=400, **query)["errorReason"] == "parameter-invalid"
    reader.get("people/00000000-0000-0000-0000-000000000000/faces", status=404)
    for path in ("faces/999/picture", "faces/x/picture", f"photos/{'9' * 5000}/picture", f"faces/{2**63}/picture"):
        assert reader.get(path, status=404)["errorReason"] == "picture-unavailable"


@pytest.mark.parametrize("roots", [None, "elsewhere"])
def test_outside_the_roots_neither_photo_nor_path_is_shown(
    store: Path, tmp_path: Path, browser_at: BrowserAt, roots: str | None
) -> None:
    with page_server(store, photo_roots=roots and str(tmp_path / roots)) as server:
        browser = browser_at(server)
        assert browser.sign_in()["photos"] == (roots is not None)
        faces = browser.get(f"people/{first(browser)}/faces")["faces"]
        assert [face["picture"] is None for face in faces] == [False, True, True]  # one is stored
        for face in faces:
            assert set(face["photo"]) == {"id", "name", "width", "height", "picture"}
            assert face["photo"]["picture"] is None
            for path in (f"faces/{face['id']}/picture", f"photos/{face['photo']['id']}/picture"):
                assert browser.get(path, status=404)["errorReason"] == "picture-unavailable"


@pytest.mark.parametrize("is_cached", [False, True])
def test_another_file_in_a_photos_place_is_not_shown(
    store: Path, archive: Path, tmp_path: Path, browser_at: BrowserAt, is_cached: bool
) -> None:
    """Nor one that a link leads to outside the roots, whatever it holds; the archive is put where the store has it."""
    photos, kept = archive / "photos", tmp_path / "kept"
    shutil.copytree(photos, kept)
    try:
        with page_server(store, photo_roots=str(photos)) as server:
            browser = browser_at(server)
            browser.sign_in()
            if is_cached:
                for face in (2, 3, 5):
                    assert browser.http.get(f"/ui/api/faces/{face}/picture").status_code == 200
            shutil.copy(photos / "a1.png", photos / "a2.png")
            (photos / "b-both.png").unlink()
            (photos / "c2.png").unlink()
            (photos / "c2.png").symlink_to(kept / "c2.png")
            for face in (2, 3, 5):
                assert browser.get(f"faces/{face}/picture", status=404)["errorReason"] == "picture-unavailable"
    finally:
        shutil.rmtree(photos)
        shutil.copytree(kept, photos)


def test_a_picture_is_made_once_whoever_the_face_is(
    server: LiveServer, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A correction changes the face's row, and not its picture; all faces of a photo share the photo's."""
    opened: list[str] = []
    real = photos_module.photo_again
    monkeypatch.setattr(photos_module, "photo_again", lambda path, *how: opened.append(path) or real(path, *how))
    photos = Photos(replace(SETTINGS, ui=UiSettings(photo_roots=str(archive / "photos"))))
    both, other = server.client.stored_faces(1, "main", [3, 5], [])
    pictures = {photos.face(both), photos.face(replace(both, person_id=None, outcome="recognised"))}
    assert (len(pictures), opened) == (1, [both.path])
    assert photos.face(other)
    assert opened == [both.path, other.path]
    opened.clear()
    assert photos.whole(both) == photos.whole(replace(both, face_id=9, x2=9.0))
    assert opened == [both.path]


def test_a_root_may_be_called_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    photos = Photos(replace(SETTINGS, ui=UiSettings(photo_roots=f"{tmp_path / 'link' / 'in'}, {tmp_path / 'x'}")))
    shown = [path for path in ("link/in/a.png", "real/in/a.png", "x/a.png") if photos.may_show(str(tmp_path / path))]
    assert len(shown) == 3
    for path in ("link/a.png", "link/in2/a.png", "link/in/../a.png", "xa.png"):
        assert not photos.may_show(str(tmp_path / path))
    assert not photos.may_show(None)


def test_a_posted_face_has_its_picture_and_no_photo(browser: Browser, server: LiveServer) -> None:
    account = server.client.account_id("ann")
    answer = server.service.post(account, "main", photo(Shown(30)), PostRequest(name="Zoë"))
    assert answer.faces[0].person is not None
    (face,) = browser.get(f"people/{answer.faces[0].person.root.person_id}/faces")["faces"]
    assert "photo" not in face
    assert browser.http.get(face["picture"]).status_code == 200
    browser.get(f"faces/{face['id']}/picture", status=404)


def test_another_account_sees_none(reader: Browser, shared: LiveServer, browser_at: BrowserAt) -> None:
    bob = browser_at(shared)
    bob.sign_in("bob")
    who = first(reader)
    faces = reader.get(f"people/{who}/faces")["faces"]
    bob.get(f"people/{who}/faces", status=404)
    for address in [face["picture"] for face in faces] + [face["photo"]["picture"] for face in faces]:
        assert reader.http.get(address).status_code == 200
        assert bob.http.get(address).status_code == 404


def test_forgotten_faces_are_shown_no_more(browser: Browser) -> None:
    who = first(browser)
    addresses = [face["picture"] for face in browser.get(f"people/{who}/faces")["faces"]]
    assert [browser.http.get(address).status_code for address in addresses] == [200] * 3
    browser.post("corrections", {"kind": "forget", "persons": [who], "confirm": True})
    assert [browser.http.get(address).status_code for address in addresses] == [404] * 3


def test_a_person_of_many_faces(tmp_path: Path, browser_at: BrowserAt) -> None:
    with LocalStore.open_or_create(tmp_path / "store", lambda: coded_identity(SIZE), command="make") as client:
        client.create_account("ann", None)
        run = extracted_run(client, "many", [Shown(1, k) for k in range(300)], CodedExtractor(SIZE), 300)
        with closing(service_of(client)) as service:
            service.enrol_shard(run.run_id, 0)
        client.finish_run(run.run_id, {})
    with page_server(tmp_path / "store") as server:
        browser = browser_at(server)
        browser.sign_in()
        who = first(browser)
        assert browser.get(f"people/{who}")["person"]["faces"] == 300
        for sort in ("added", "score"):
            pages = browser.pages(f"people/{who}/faces", "faces", sort=sort, count=100)
            assert [len(page) for page in pages] == [100] * 3
            assert len({face["id"] for page in pages for face in page}) == 300


def test_a_cover_is_shown_while_it_is_the_persons(browser: Browser, archive: Path) -> None:
    one, _, three = (person["id"] for person in browser.people())
    own = browser.people()[0]["picture"]
    last = browser.get(f"people/{three}/faces")["faces"][0]["id"]
    browser.post("corrections", {"kind": "merge", "persons": [one, three]})
    made = browser.post("corrections", {"kind": "cover", "persons": [one], "faces": [last]})
    shown = browser.get(f"people/{one}")["person"]["picture"]
    assert shown != own  # the face of the one who was merged has a stored picture
    browser.post("corrections", {"kind": "cover", "persons": [one], "faces": [2]})
    assert size_of(browser, browser.get(f"people/{one}")["person"]["picture"])[0] > 0  # cut from its photo
    browser.post("corrections/undo", {"correction": made["correction"] + 1})
    assert browser.get(f"people/{one}")["person"]["picture"] == shown
    log = browser.get("corrections")["corrections"]
    assert log[1]["text"].startswith("the cover picture of ")
    browser.post("corrections", {"kind": "unmerge", "persons": [one]})
    assert browser.get(f"people/{one}")["person"]["picture"] == own  # no face of it any more
    for faces in ([], [1, 2], [99], [4]):  # the last is another's
        browser.post("corrections", {"kind": "cover", "persons": [one], "faces": faces}, status=404 if faces else 400)


def test_with_whom_and_when(tmp_path: Path, browser_at: BrowserAt) -> None:
    photos, store = tmp_path / "photos", make_store(tmp_path / "store")
    shown = {"a": [1, 2], "b": [1, 2], "copy of b": [1, 2], "c": [1, 3], "d": [1], "e": [2, 3]}
    for number, (name, people) in enumerate(shown.items()):
        file = write_photo(photos, f"{name}.png", *(Shown(person, number) for person in people))
        exif = Image.Exif()
        if name != "d":
            exif[0x8769] = {0x9003: f"{2010 + number % 2}:05:0{number + 1} 10:00:00"}
        Image.open(file).save(file, exif=exif)
    run_over(photos, store)
    with page_server(store) as server:
        browser = browser_at(server)
        browser.sign_in()
        one = next(person for person in browser.people() if person["photos"] == 5)
        around = browser.get(f"people/{one['id']}/around")
        assert [each["photos"] for each in around["with"]] == [3, 1]
        assert around["years"] == [{"year": 2010, "faces": 2}, {"year": 2011, "faces": 2}]
        assert around["undated"] == 1
        pages = browser.pages(f"people/{one['id']}/faces", "faces", sort="taken", count=2)
        dates = [face["photo"].get("takenAt") for page in pages for face in page]
        assert dates == [*sorted(filter(None, dates)), None]
        of_year = browser.get(f"people/{one['id']}/faces", sort="taken", year=2011)["faces"]
        assert [face["photo"]["takenAt"][:4] for face in of_year] == ["2011", "2011"]
        other = around["with"][0]["person"]["id"]
        together = browser.pages(f"people/{one['id']}/faces", "faces", count=2, **{"with": other})
        assert [face["photo"]["name"] for page in together for face in page] == ["a.png", "b.png", "copy of b.png"]
        browser.get(f"people/{one['id']}/faces", year="x", status=400)
        for wrong in ("x", "00000000-0000-0000-0000-000000000000"):
            browser.get(f"people/{one['id']}/faces", **{"with": wrong}, status=404)
        browser.get("people/00000000-0000-0000-0000-000000000000/around", status=404)
