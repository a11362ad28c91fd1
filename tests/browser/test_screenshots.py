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
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
LOOKS: dict[str, dict[str, object]] = {
    "": {"viewport": DESK},
    "dark-": {"viewport": DESK, "color_scheme": "dark"},
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

    page.page.get_by_label("Account").wait_for()
    shot("sign-in")
    page.sign_in(served.user)
    page.cards().first.wait_for()
    shot("people")
    page.choose(1, 2)
    shot("people-chosen")
    page.cards().first.get_by_role("link").click()
    page.cards("Faces").nth(1).get_by_role("button").first.click()
    shot("person")
    page.cards("Faces").first.get_by_role("button").last.click()
    page.page.get_by_role("dialog").wait_for()
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
    page.page.get_by_label("photo").set_input_files(
        {"name": "blurred.png", "mimeType": "image/png", "buffer": blurred(hopper_path)}
    )
    page.expect(page.page.get_by_text("cannot be enrolled")).to_be_visible()
    shot("refused")
    page.go("store")
    page.page.get_by_role("heading", name="Threshold").wait_for()
    shot("store")
