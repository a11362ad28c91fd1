"""Section 3 of the contract: the only two changes of state that can be seen."""

from __future__ import annotations

from tests.serve.conformance.client import Directory
from tests.serve.conformance.photos import faceless, other, photo, poor


def test_3_an_identity_comes_into_existence_on_insertion_only(directory: Directory) -> None:
    """An identity comes into existence on insertion (newId true)."""
    directory.recognise(photo("hopper"))
    for image in (faceless(), poor("hopper", "sharpness")):
        directory.post(image, name="Anna", external_id="A-1")
    assert directory.people() == []
    face = directory.insert(photo("hopper"))
    assert [person["personId"] for person in directory.people()] == [face["personId"]]


def test_3_an_identity_is_updated_by_update_only(directory: Directory) -> None:
    """... or is updated (see the update parameter in 4.2)."""
    person_id = directory.insert(photo("hopper"), "Anna", "A-1")["personId"]
    image = directory.record(person_id)["imageURI"]
    changes = []
    for update in ("false", "true"):
        answer = directory.answer(other("hopper"), name="Bea", external_id="B-2", update=update)
        changes.append((answer["accountUpdated"], directory.record(person_id)["imageURI"] != image))
    assert changes == [(False, False), (True, True)]
