"""Listings: nameless people, ties and wrong cursors. The conformance tests prove the rest."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ParameterInvalid
from pipeline.serve.cursors import _checksum
from pipeline.serve.listing import page as page_of
from pipeline.serve.request_parsing import Query
from pipeline.store import PersonRecord
from tests.serve.asking import make_request
from tests.store.store_samples import person

DAY = datetime(2026, 1, 1)


def record(seq: int, name: str | None = None, external_id: str | None = None, modified: int = 0) -> PersonRecord:
    times = {"added_at": DAY + timedelta(seconds=seq), "modified_at": DAY + timedelta(seconds=modified)}
    return replace(person(str(seq)), seq=seq, name=name, external_id=external_id, **times)


RECORDS = [
    record(1, "Bob", "e1", 9),
    record(2, "alice", "e2", 8),
    record(3, None, "e1", 7),
    record(5, "Bob", None, 6),
    record(8, "Älice", "e3", 5),
]
SEQS = {record(seq).person_id: seq for seq in range(10)}


@dataclass(frozen=True)
class Page:
    person_ids: Sequence[str]
    start_index: int
    next_state: str | None


def page(query: str, records: Sequence[PersonRecord] = RECORDS) -> Page:
    listed, position = page_of(Query(make_request(query=query)), records, 100)
    state = position.get("nextIndexState")
    return Page(listed, int(position["startIndex"]), None if state is None else str(state))


def seqs(listed: Page) -> list[int]:
    return [SEQS[person_id] for person_id in listed.person_ids]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=name", [3, 1, 5, 2, 8]),
        ("sort=name&sort-order=DESC", [8, 2, 5, 1, 3]),
        ("sort=name&sort-order=descending&startIndexState=", [8, 2, 5, 1, 3]),
        ("sort=name&sort-order=Ascending", [3, 1, 5, 2, 8]),
        ("sort=name&sort-order=", [3, 1, 5, 2, 8]),
        ("person-type=&groups=&face-id=&access-level=&external-id=", [1, 2, 3, 5, 8]),
        ("external-id=&external-id=e2", [2]),
        ("include-expired=maybe", [1, 2, 3, 5, 8]),
        (f"short-id={RECORDS[3].person_id[:8].upper()}", [5]),
        ("short-id=z", []),
        ("sort=update-date", [8, 5, 3, 2, 1]),
        ("name-pattern=ob", [1, 5]),
        ("name-pattern=%C3%84l", [8]),
        ("name-pattern=Bob&external-id=e1", [1]),
    ],
)
def test_what_is_listed(query: str, expected: list[int]) -> None:
    assert seqs(page(query)) == expected


@pytest.mark.parametrize(
    "order", ["", "&sort=name", "&sort=name&sort-order=desc", "&sort=update-date", "&name-pattern=b"]
)
@pytest.mark.parametrize("count", [1, 2, 4])
def test_pages_make_up_the_whole(order: str, count: int) -> None:
    listed, state, starts = [], "", []
    while True:
        part = page(f"count={count}{order}&startIndexState={state}")
        listed += seqs(part)
        starts.append(part.start_index)
        if part.next_state is None:
            break
        state = part.next_state
    assert listed == seqs(page(f"count=0{order}"))
    assert starts == list(range(0, len(listed), count))


def test_a_page_goes_on_after_insertions_and_deletions() -> None:
    first = page("count=2&sort=name&external-id=e1&external-id=e2&external-id=e3")
    assert seqs(first) == [3, 1]
    changed = [record(0, "Aaron", "e1"), *RECORDS[1:], record(9, "Carl", "e2")]
    after = page(
        f"count=9&sort=name&external-id=e1&external-id=e2&external-id=e3&startIndexState={first.next_state}", changed
    )
    assert seqs(after) == [9, 2, 8]


def forged(value: object) -> str:
    data = json.dumps(value).encode()
    return base64.urlsafe_b64encode(_checksum(data) + data).decode()


@pytest.mark.parametrize(
    "state",
    [
        "x",
        "!!!",
        "AAAAAAAAAAAA",
        "%F0%9F%98%80",
        forged(5),
        forged([]),
        forged(["", False, "text", 1]),
        forged(["", False, 0, "1"]),
        forged(["name", False, "Bob", 1]),
        forged(["", True, 0, 1]),
    ],
)
def test_what_is_no_cursor_of_this_listing_is_refused(state: str) -> None:
    with pytest.raises(ParameterInvalid):
        page(f"startIndexState={state}")


def test_a_changed_cursor_is_refused() -> None:
    state = page("count=2").next_state
    assert state is not None
    changed = ("A" if state[10] != "A" else "B").join([state[:10], state[11:]])
    with pytest.raises(ParameterInvalid):
        page(f"startIndexState={changed}")


@pytest.mark.parametrize("pattern", ["%5C1", "(?%3C%3Da)b", "a{1000}{1000}", "x" * 1001])
def test_another_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ParameterInvalid):
        page(f"name-pattern={pattern}")


@pytest.mark.parametrize("order", ["down", "descend", "0", "descending,ascending"])
def test_another_order_is_refused(order: str) -> None:
    with pytest.raises(ParameterInvalid):
        page(f"sort-order={order}")


@given(query=st.text(max_size=30), key=st.sampled_from(["name-pattern", "startIndexState", "sort", "external-id"]))
def test_no_value_is_an_unexpected_error(query: str, key: str) -> None:
    try:
        page(f"{key}={query}")
    except ParameterInvalid as error:
        assert error.http_status == 400  # noqa: PT017  most are fine
