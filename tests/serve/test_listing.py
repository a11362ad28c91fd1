"""`GET /rootpeople`: filters, order, pages."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ParameterInvalid
from pipeline.identities.types import PersonView
from pipeline.serve import listing as module
from pipeline.serve.listing import Listing, Page
from pipeline.serve.request_parsing import Query
from pipeline.store.records import PersonRecord
from tests.serve.asking import make_request

DAY = datetime(2026, 1, 1)


def view(seq: int, name: str | None = None, external_id: str | None = None, modified: int = 0) -> PersonView:
    record = PersonRecord(
        person_id=str(uuid.UUID(int=seq)),
        seq=seq,
        name=name,
        external_id=external_id,
        parent_id=None,
        tags=(),
        ignored=False,
        occurrence=1,
        last_occurrence_at=DAY,
        added_at=DAY + timedelta(seconds=seq),
        modified_at=DAY + timedelta(seconds=modified),
        image_guid=f"{seq:08x}",
    )
    return PersonView(record, record, (), 1, 0)


VIEWS = [
    view(1, "Bob", "e1", 9),
    view(2, "alice", "e2", 8),
    view(3, None, "e1", 7),
    view(5, "Bob", None, 6),
    view(8, "Älice", "e3", 5),
]


def page(query: str, views: list[PersonView] | None = None) -> Page:
    return Listing.from_query(Query(make_request(query=query))).page(VIEWS if views is None else views)


def seqs(listed: Page) -> list[int]:
    return [view.record.seq for view in listed.views]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [1, 2, 3, 5, 8]),
        ("include-expired=true&sort=unheard-of", [1, 2, 3, 5, 8]),
        ("sort-order=desc", [8, 5, 3, 2, 1]),
        ("sort=name", [3, 1, 5, 2, 8]),
        ("sort=name&sort-order=DESC", [8, 2, 5, 1, 3]),
        ("sort=create-date&sort-order=desc", [8, 5, 3, 2, 1]),
        ("sort=update-date", [8, 5, 3, 2, 1]),
        ("external-id=e1", [1, 3]),
        ("external-id=e1&external-id=e3", [1, 3, 8]),
        ("external-id=nobody", []),
        ("name-pattern=ob", [1, 5]),
        ("name-pattern=%5Ealice", [2]),
        ("name-pattern=%C3%84l", [8]),
        ("name-pattern=Bob&external-id=e1", [1]),
        ("start-index=3", [5, 8]),
        ("start-index=99", []),
        ("count=0", [1, 2, 3, 5, 8]),
    ],
)
def test_what_is_listed(query: str, expected: list[int]) -> None:
    assert seqs(page(query)) == expected


def test_a_page_says_where_it_stands() -> None:
    listed = page("count=2&start-index=1")
    assert (seqs(listed), listed.start_index, listed.total) == ([2, 3], 1, 5)
    assert listed.next_state is not None
    assert page("count=2&start-index=3").next_state is None


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
    changed = [view(0, "Aaron", "e1"), *VIEWS[1:], view(9, "Carl", "e2")]
    after = page(
        f"count=9&sort=name&external-id=e1&external-id=e2&external-id=e3&startIndexState={first.next_state}", changed
    )
    assert seqs(after) == [9, 2, 8]


def forged(value: object) -> str:
    data = json.dumps(value).encode()
    return base64.urlsafe_b64encode(module._checksum(data) + data).decode()


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


@pytest.mark.parametrize("query", ["count=-1", "count=x", "start-index=-1", "include-expired=maybe"])
def test_other_values_are_refused(query: str) -> None:
    with pytest.raises(ParameterInvalid):
        page(query)


@pytest.mark.parametrize("pattern", ["(", "[", "*", "%5C1", "(?%3C%3Da)b", "a{1000}{1000}", "x" * 1001])
def test_another_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ParameterInvalid):
        page(f"name-pattern={pattern}")


def test_a_pattern_takes_linear_time() -> None:
    """Python's own engine would take years for this one."""
    views = [view(1, "x" * 1000)]
    start = time.perf_counter()
    assert seqs(page("name-pattern=(x%2Bx%2B)%2By", views)) == []
    assert time.perf_counter() - start < 1


@given(query=st.text(max_size=30), key=st.sampled_from(["name-pattern", "startIndexState", "sort", "external-id"]))
def test_no_value_is_an_unexpected_error(query: str, key: str) -> None:
    try:
        page(f"{key}={query}")
    except ParameterInvalid as error:
        assert error.http_status == 400  # noqa: PT017  most are fine
