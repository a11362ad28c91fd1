"""Sections 7 and 8 of the contract: errors and limits."""

from __future__ import annotations

import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.serve.conformance.client import Account, Directory
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import other, photo, poor

MOST_DIRECTORIES = 10


def test_7_rule_1_an_insertion_of_poor_quality_is_rejected(directory: Directory) -> None:
    """An insertion whose face fails the quality criteria is rejected (see 4.2 rule 4)."""
    (face,) = directory.faces(poor("collins", "contrast"), name="Anna", external_id="A-1")
    assert "newId" not in face
    assert directory.people() == []


def test_7_rule_2_an_insertion_of_a_known_face_is_not_made(directory: Directory) -> None:
    """An insertion of a face matching an existing identity is not made; that one is returned, newId is not true."""
    person_id = directory.insert(photo("collins"))["personId"]
    (face,) = directory.faces(other("collins"), name="Bea", external_id="B-2", update="false")
    assert face["personId"] == person_id
    assert face.get("newId") is not True
    assert len(directory.people()) == 1


def test_8_at_most_10_directories_per_account(other_account: Account) -> None:
    """Directories per account: 10 maximum. [decided] 403, nothing stored; count and insertion are atomic."""
    directories = [other_account.directory(f"c-{uuid.uuid4().hex[:16]}") for _ in range(MOST_DIRECTORIES + 4)]
    person: dict[str, Any] = {"name": "Anna", "external_id": "A-1"}
    try:
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda entry: entry.post(photo("hopper"), **person), directories))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {201, 403}
        assert statuses.count(201) <= MOST_DIRECTORIES  # fewer where the account has others
        assert [bool(entry.people()) for entry in directories] == [status == 201 for status in statuses]
        refused = directories[statuses.index(403)]
        refusal = refused.post(photo("hopper"), **person)
        assert refusal.status_code == 403
        assert refusal.json()["errorReason"] == "too-many-directories"
        # A directory exists while it holds an identity: the place of an emptied one is free.
        directories[statuses.index(201)].clear()
        assert refused.post(photo("hopper"), **person).status_code == 201
    finally:
        for entry in directories:
            entry.clear()


def test_8_the_limit_holds_for_insertions_only(other_account: Account) -> None:
    """[decided] Reading an absent directory gives an empty result, and makes none."""
    for _ in range(MOST_DIRECTORIES + 2):
        absent = other_account.directory(f"c-{uuid.uuid4().hex[:16]}")
        assert absent.people() == []
        assert absent.roots() == []
    with other_account.fresh_directory() as made:
        made.insert(photo("hopper"))


def test_8_bounds_of_the_similarity_score(gallery: Gallery) -> None:
    """similarityScore: lower bound 0, upper bound 2 / (2 - sqrt(T)); 1.581 at default T 0.54."""
    (face,) = gallery.directory.recognise(photo("collins"), similar_limit=2)
    scores = [entry["similarityScore"] for entry in face["similar"]]
    assert scores[0] == 2 / (2 - math.sqrt(0.54))
    assert 0 <= scores[1] < 1.0


def test_8_default_threshold(directory: Directory) -> None:
    """Default X-RPC-FACES-GROUPING-THRESHOLD: 0.54. A pair between 0.5 and 0.58 tells it from others."""
    directory.insert(photo("hopper"))
    (face,) = directory.recognise(other("hopper"), similar_limit=1)
    (match,) = directory.recognise(other("hopper"), similar_limit=1, threshold="0.54")
    assert face["similarityScore"] == match["similarityScore"] == face["similar"][0]["similarityScore"]
