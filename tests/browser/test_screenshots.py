"""Pictures of each view in .screenshots/, over real faces, for somebody to look at; `--full` takes them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image, ImageFilter

from pipeline.extraction.extractor import BatchExtractor
from pipeline.run.run import RunRequest, run
from tests.browser.opened import Opened
from tests.browser.served import PASSWORD, USER, Served
from tests.serve.live import live_settings, open_service
from tests.serve.quick_hash import quick_hash

FOLDER = Path(__file__).resolve().parents[2] / ".screenshots"
PHOTOS = 5  # of a person at least, to be on the pictures
DESK, ZOOMED, PHONE = ({"width": w, "height": h} for w, h in ((1280, 800), (640, 400), (390, 844)))  # CSS pixels
LOOKS: dict[str, dict[str, object]] = {
    "": {"viewport": DESK},
    "dark-": {"viewport": DESK, "color_scheme": "dark"},
    "zoomed-": {"viewport": ZOOMED, "device_scale_factor": 2},
    "phone-": {"viewport": PHONE, "device_scale_factor": 2, "has_touch": True, "is_mobile": True},
}


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, full: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """People of many photos, half of whom have a name; the threshold is strict, so that there are pairs to review."""
    if not full:
        pytest.skip("--full takes the pictures")
    extractor, faces_dir = request.getfixturevalue("extractor"), request.getfixturevalue("faces_dir")
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "photos").mkdir()
    for person in sorted((faces_dir / "lfw-view1" / "images").iterdir()):
        if len(list(person.iterdir())) >= PHOTOS:
            (folder / "photos" / person.name).symlink_to(person)
    with real_server(folder / "store", folder / "photos", extractor) as made:
        for row in made.people.all()[::2]:
            path = made.people.photos(row.person_id)[0]["path"]
            made.people.name(row.person_id, Path(path).parent.name.replace("_", " "))
        yield made


@contextmanager
def real_server(store: Path, photos: Path, extractor: BatchExtractor) -> Iterator[Served]:
    settings = live_settings(
        ui__photo_roots=f"{photos},{Path(os.environ['FACEPIPE_TEST_FACES']).resolve()}",
        serve__person_headers="optional",
        match__threshold="fmr:1e-5",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run.stages.load_extractor", lambda *_: extractor)
        run(RunRequest(source=photos, store=store, settings=settings))
    with open_service(store, extractor, settings) as (client, service, of_store):
        (user,) = client.accounts() or (USER,)
        client.set_password(user, quick_hash(PASSWORD))
        made = Served(client, service, of_store, user)
        yield made
        made.go()


def blurred(photo: Path) -> bytes:
    """Too poor for the gate, and a face still."""
    out = io.BytesIO()
    Image.open(photo).filter(ImageFilter.GaussianBlur(6)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.faces
@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
def test_each_view(
    open_page: Callable[..., Opened], served: Served, faces_dir: Path, hopper_path: Path, look: str
) -> None:
    FOLDER.mkdir(exist_ok=True)
    page = open_page(served, **LOOKS[look])

    def shot(name: str) -> None:
        page.page.wait_for_load_state("networkidle")
        page.page.screenshot(path=FOLDER / f"{look}{name}.png")
        assert page.findings() == [], name
        wide = page.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, name  # no view scrolls sideways

    page.page.get_by_label("Account").wait_for()
    shot("sign-in")
    page.sign_in(served.user)
    page.cards().first.wait_for()
    shot("people")
    page.choose(1, 2)
    shot("people-chosen")
    page.button("Clear").click()
    page.show("unnamed")
    page.cards().first.get_by_role("link").focus()
    page.page.keyboard.press("n")
    page.page.locator(".offered [role=option]").first.wait_for()
    shot("people-naming")
    page.page.keyboard.press("Escape")
    page.show("all")
    page.cards().first.get_by_role("link").click()
    page.cards("Faces").nth(1).get_by_role("button").first.click()
    shot("person")
    page.cards("Faces").first.get_by_role("button").last.click()
    page.page.get_by_role("dialog").get_by_role("list", name="Faces on the photo").wait_for()
    shot("photo")
    page.page.keyboard.press("Escape")
    page.go("unassigned")
    page.cards("Faces without a person").first.get_by_role("button").first.click()
    shot("unassigned")
    page.go("review")
    page.page.locator(".pair").wait_for()
    shot("review")
    page.go("recognise")
    (group,) = (faces_dir / "groups-with-boxes").glob("*2008_001322.jpg")
    page.page.get_by_label("photo").set_input_files(group)
    page.page.locator(".photo .box").nth(2).wait_for()
    shot("recognised")
    page.go("changes")
    page.page.get_by_role("heading", name="Changes").wait_for()
    shot("changes")
    page.go("recognise")
    page.page.locator(".photo .box").nth(2).wait_for()  # as it was left
    page.page.locator("input[type=file]").set_input_files(
        {"name": "blurred.png", "mimeType": "image/png", "buffer": blurred(hopper_path)}
    )
    page.expect(page.page.get_by_text("cannot be enrolled")).to_be_visible()
    shot("refused")
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    shot("store")


class Keyboard:
    """Counts the keys pressed."""

    def __init__(self, page: Opened) -> None:
        self.page, self.pressed = page, 0

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.page.keyboard.press(key)
            self.pressed += 1

    def type(self, text: str) -> None:
        self.page.page.keyboard.type(text)
        self.pressed += len(text)


def true_name(served: Served, person: str) -> str:
    return Path(served.people.photos(person)[0]["path"]).parent.name.replace("_", " ")


def by_page_of_person(page: Opened, keys: Keyboard, name: str, place: int) -> None:
    """From a card of the grid to the next one: the way before one could name in the grid, where each card was two Tab
    stops and who had got a name stayed."""
    keys.press("Enter")
    page.cards("Faces").first.wait_for()
    keys.press("Tab")
    page.expect(page.name).to_be_focused()
    keys.type(name)
    keys.press("Enter")
    taken = page.page.get_by_role("dialog", name="taken")
    page.until(lambda: taken.or_(page.page.locator(".bar[aria-busy=false]")).count() > 0)
    if taken.is_visible():
        page.page.keyboard.press("Shift+Tab")  # Cancel has the focus now; then it was the first button's
        keys.press("Enter")
        page.expect(taken).to_have_count(0)
    page.done()
    page.page.go_back()
    keys.pressed += 1  # Alt+ArrowLeft, which Playwright does not give to the browser
    page.cards().first.wait_for()
    keys.press(*["Tab"] * (4 + place + 1))
    keys.pressed += place + 1  # the second Tab stops
    page.expect(page.cards().nth(place + 1).get_by_role("link")).to_be_focused()


def in_the_grid(page: Opened, keys: Keyboard, name: str, _: int) -> None:
    """The field is open: takes the offered person if it is right, after as few letters as that takes."""
    offered = page.page.locator(".offered [role=option] bdi")
    for letters in range(4):
        if letters:
            keys.type(name[letters - 1])
        page.page.wait_for_timeout(400)
        found = offered.all_inner_texts()
        if name in found:
            keys.press(*["ArrowDown"] * (found.index(name) + 1), "Enter")
            return
    keys.type(name[3:])
    keys.press("Enter")


@pytest.mark.faces
@pytest.mark.slow
def test_twenty_people_are_named_by_the_keyboard_alone(open_page: Callable[..., Opened], served: Served) -> None:
    """Parts of people half of whom have a name: in the grid it takes a third of the keys."""
    page = open_page(served)
    page.sign_in(served.user)
    counts: dict[str, list[int]] = {}
    for way in (by_page_of_person, in_the_grid):
        page.go("people")
        page.page.reload()
        page.cards().first.wait_for()
        page.show("unnamed")
        page.cards().first.get_by_role("link").focus()
        keys, before = Keyboard(page), {row.person_id: row for row in served.people.all()}
        if way is in_the_grid:
            keys.press("n")
        for place in range(20):
            named = page.page.locator("li:has(.in-grid) a")
            card = named if way is in_the_grid else page.cards().nth(place).get_by_role("link")
            name, pressed = true_name(served, str(card.get_attribute("href")).split("/")[-1]), keys.pressed
            way(page, keys, name, place)
            counts.setdefault(way.__name__, []).append(keys.pressed - pressed)
        page.done()
        while {row.person_id: row for row in served.people.all()} != before:
            served.people.undo()
    (FOLDER / "keys.txt").write_text(f"{ {way: sum(each) / len(each) for way, each in counts.items()} } {counts}\n")
    assert sum(counts["in_the_grid"]) * 3 < sum(counts["by_page_of_person"]), counts
