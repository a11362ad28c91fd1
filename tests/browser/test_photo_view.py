"""The photo of a face: all faces on it, by name, and the next one by arrow keys."""

from __future__ import annotations

import pytest

from tests.browser.opened import Opened
from tests.browser.served import Served


@pytest.mark.short
def test_arrow_keys_go_on_and_names_lead_to_people(page: Opened, served: Served) -> None:
    one, two = served.person("a1.png").person_id, served.person("c2.png").person_id
    served.people.name(two, "Grace")
    page.open_person(one)
    page.cards("Faces").first.get_by_role("button").first.focus()
    keys, dialog = page.page.keyboard, page.page.get_by_role("dialog", name="Photo")
    keys.press("p")
    page.expect(dialog).to_contain_text("a1.png")
    page.expect(dialog.get_by_role("button", name="Previous")).to_be_disabled()
    for name in ("a2.png", "a3.png", "b-both.png", "b-both.png"):  # the last one stays
        keys.press("ArrowRight")
        page.expect(dialog).to_contain_text(name)
    page.expect(dialog.get_by_role("button", name="Next")).to_be_disabled()
    listed = dialog.get_by_role("list", name="Faces on the photo").get_by_role("listitem")
    page.expect(listed).to_have_text(["1No name yet face 1", "2Grace"])
    page.expect(dialog.locator(".box[aria-pressed=true]")).to_have_attribute(
        "aria-label", "Face 1 somebody without a name"
    )
    listed.last.get_by_role("button").click()
    page.expect(dialog.locator(".box[aria-pressed=true]")).to_have_attribute("aria-label", "Face 2 Grace")
    assert page.findings() == []
    listed.last.get_by_role("link").click()
    page.expect(dialog).to_have_count(0)
    page.expect(page.page.get_by_role("heading", level=1)).to_have_text("Grace")


def test_the_photos_of_two_people_together(page: Opened, served: Served) -> None:
    one, two = served.person("a1.png").person_id, served.person("c2.png").person_id
    served.people.name(two, "Grace")
    page.open_person(one)
    page.page.get_by_role("region", name="Often with").get_by_role("button", name="1 photo with Grace").click()
    page.has(1, "Faces")
    page.expect(page.cards("Faces")).to_contain_text("b-both.png")
    heading = page.page.get_by_role("heading", level=2, name="Faces")
    page.expect(heading).to_have_text("Faces on photos with Grace")
    page.page.reload()
    page.has(1, "Faces")
    assert page.findings() == []
    page.button("All faces").click()
    page.has(4, "Faces")
    page.expect(heading).to_have_text("Faces")


def test_a_cover_picture_is_chosen(page: Opened, served: Served) -> None:
    page.open_person(served.person("a1.png").person_id)
    picture = page.page.locator(".person > .face")
    before = picture.get_attribute("src")
    page.cards("Faces").nth(1).get_by_role("button").first.click()
    page.button("Cover picture").click()
    page.said("Cover picture of somebody without a name")
    page.done()
    page.expect(picture).not_to_have_attribute("src", str(before))
    page.undo()
    page.expect(picture).to_have_attribute("src", str(before))
