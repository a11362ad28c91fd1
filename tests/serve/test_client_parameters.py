"""Every name that clients know with an empty, a neutral, a meaningful and a bad value over a real server: each is done,
harmless or refused as known_parameters.py says. `test_every_name_has_its_cases` counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from pipeline.serve.client_parameters import REFUSED_FILTERS, REFUSED_IN_POSTS
from pipeline.serve.handlers import description
from tests.serve.conformance.client import (
    ANNA,
    BEA,
    FORCED,
    READ_ONLY,
    UNKNOWN_ID,
    Account,
    Directory,
    Json,
    assert_error,
)
from tests.serve.conformance.photos import other, pair, photo, poor
from tests.serve.known_parameters import FILTERS, POST_PEOPLE, ClientParameter

ROWS = {row.name: row for row in POST_PEOPLE}
KINDS = ("empty", "neutral", "meaningful", "bad")
UNKNOWN = (404, "person-unknown")
CASES = [(name, kind) for name in ROWS for kind in KINDS]
SENT = {"X-RPC-ACCESS-*": "X-RPC-ACCESS-LEVEL", "X-RPC-MASK-*": "X-RPC-MASK-MODEL"}  # a name for each pattern


@dataclass(frozen=True)
class Done:
    """A post into a directory with Anna (`photo("hopper")`), to which the meaningful value makes a difference."""

    image: bytes
    neutral: str | None  # None: not sent
    meaningful: str  # {anna}: her id
    bad: str
    differs: Callable[[Json], bool]  # whether the answer, with the newest `record`, is that to the meaningful value
    query: Mapping[str, str] = field(default_factory=dict)
    who: Mapping[str, Any] = field(default_factory=lambda: ANNA)
    error: tuple[int, str] = (400, "parameter-invalid")


def faces(answer: Json) -> list[Json]:
    return list(answer["identifiedFaces"])


def is_anna(answer: Json) -> bool:
    return faces(answer)[0]["name"] == "Anna"


def kept(field: str, sent: str, stored: Any, bad: str = "n" * 1001) -> Done:
    """A header whose value the record of a new person keeps."""
    error = 400, "header-invalid"
    return Done(photo("collins"), "", sent, bad, lambda a: a["record"].get(field) == stored, who=STRANGER, error=error)


BOTH = pair("hopper", "collins")
STRANGER = {"name": "Eileen", "external_id": "E-1"}
DONE = {
    "closest-only-x": Done(BOTH, None, "0.9", "1.1", lambda a: len(faces(a)) == 1, READ_ONLY),
    "closest-only-y": Done(BOTH, None, "0", "left", lambda a: len(faces(a)) == 1, READ_ONLY),
    "largest-only": Done(BOTH, "false", "true", "yes", lambda a: len(faces(a)) == 1, READ_ONLY),
    "larger-than": Done(BOTH, "0", "1", "-1", lambda a: faces(a) == [], READ_ONLY),
    "update-person-id": Done(
        other("hopper"), None, "{anna}", "anna", lambda a: bool(a["accountUpdated"]), who=BEA, error=UNKNOWN
    ),
    "merge-with": Done(photo("collins"), None, "{anna}", UNKNOWN_ID, is_anna, who=STRANGER, error=UNKNOWN),
    "X-RPC-ROOT-PERSON-ID": Done(photo("collins"), "", "{anna}", "anna", is_anna, who=STRANGER, error=UNKNOWN),
    "min-size": Done(photo("collins"), "-1", "5000", "tall", lambda a: "newId" not in faces(a)[0]),
    "X-RPC-MIN-SIZE": Done(
        photo("collins"), "-1", "5000", "-2", lambda a: "newId" not in faces(a)[0], error=(400, "header-invalid")
    ),
    "update-if-lower-quality": Done(
        poor("hopper", "contrast"), "false", "true", "no", lambda a: not a["accountUpdated"], FORCED
    ),
    "update-if-older-than": Done(other("hopper"), "0", "1", "-1", lambda a: not a["accountUpdated"]),
    "provide-face-id": Done(photo("hopper"), "true", "false", "0", lambda a: "personId" not in faces(a)[0], READ_ONLY),
    "X-RPC-PERSON-FIRST-NAME": kept("firstName", "Ada", "Ada"),
    "X-RPC-PERSON-FIRST-NAME-BASE64": kept("firstName", "QWRh", "Ada", "%%%"),
    "X-RPC-PERSON-LAST-NAME": kept("lastName", "Ada", "Ada"),
    "X-RPC-PERSON-LAST-NAME-BASE64": kept("lastName", "QWRh", "Ada", "%%%"),
    "X-RPC-PERSON-TAGS": kept("tags", "vip, staff", ["vip", "staff"], ",".join(["t"] * 101)),
    "X-RPC-PERSON-TYPE": kept("personType", "visitor", "visitor"),
    "X-RPC-GENDER": kept("gender", "female", "female"),
    "X-RPC-AGE": kept("age", "36", "36"),
    "X-RPC-DATE-OF-BIRTH": kept("dateOfBirth", "1815-12-10", "1815-12-10"),
    "X-RPC-GROUPS": kept("groups", "vip, staff", ["vip", "staff"]),
    "X-RPC-GROUPS-BASE64": kept("groups", "dmlw", ["vip"], "%%%"),
}


@pytest.fixture
def directory(live_account: Account) -> Iterator[Directory]:
    with live_account.fresh_directory() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def known(live_account: Account) -> Iterator[Directory]:
    """A directory with Anna, for tests that only read."""
    with live_account.fresh_directory() as fresh:
        fresh.insert(photo("hopper"))
        yield fresh


def post(directory: Directory, row: ClientParameter, value: str | None, image: bytes, **options: Any) -> httpx.Response:
    name = SENT.get(row.name, row.name)
    if row.is_header:
        return directory.post(image, headers={name: value}, **options)
    return directory.post(image, **options, **({} if value is None else {name: value}))


def answer_of(response: httpx.Response) -> Json:
    assert response.status_code == 201, response.text
    return {key: value for key, value in response.json().items() if key != "detectionTime"}


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if ROWS[case[0]].verdict == "harmless"])
def test_a_harmless_name_changes_no_answer(known: Directory, name: str, kind: str) -> None:
    value = {"empty": "", "neutral": "false", "meaningful": "true", "bad": "~?"}[kind]
    answer = answer_of(post(known, ROWS[name], value, photo("hopper"), **READ_ONLY, similar_limit=1))
    assert answer == answer_of(known.post(photo("hopper"), **READ_ONLY, similar_limit=1))


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if ROWS[case[0]].verdict == "refused"])
def test_a_refused_name_stores_nothing_unless_it_asks_for_nothing(directory: Directory, name: str, kind: str) -> None:
    """One rule for its forms: as a parameter, as a header, and as a parameter with the name of the header. Of a call
    that can write nothing it is harmless."""
    row = ROWS[name]
    if kind in ("empty", "neutral"):
        for value in ("",) if kind == "empty" else (*row.neutral, *zeros(row)):
            for form in forms(row):
                answer_of(form_of(directory, form, value, photo("hopper"), update="false", **ANNA))
        return
    value = {"meaningful": "0.5", "bad": "~?"}[kind]
    for form in forms(row):
        for writing in ({"insert": "false"}, {"update": "false"}, {}):
            response = form_of(directory, form, value, photo("hopper"), **ANNA, **writing)
            assert_error(response, 400, "parameter-unsupported")
            assert form.name in response.json()["message"]
        assert directory.people() == []
        answer_of(form_of(directory, form, value, photo("hopper"), **READ_ONLY))


@dataclass(frozen=True)
class Form:
    name: str
    is_header: bool


def forms(row: ClientParameter) -> list[Form]:
    stem = SENT.get(row.name, row.name).lower().removeprefix("x-rpc-")
    return [Form(stem, False), Form(f"X-RPC-{stem.upper()}", True), Form(f"X-RPC-{stem.upper()}", False)]


def zeros(row: ClientParameter) -> list[str]:
    """The neutral numbers, written in another way."""
    return [f"{same}.0" for same in row.neutral if same[-1].isdigit()]


def form_of(directory: Directory, form: Form, value: str, image: bytes, **options: Any) -> httpx.Response:
    if form.is_header:
        return directory.post(image, headers={form.name: value}, **options)
    return directory.post(image, **options, **{form.name: value})


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if ROWS[case[0]].verdict == "done"])
def test_a_name_that_is_done_makes_its_difference(directory: Directory, name: str, kind: str) -> None:
    row, done = ROWS[name], DONE[name]
    anna = str(directory.insert(photo("hopper"))["personId"])
    if kind != "bad":
        value = {"empty": "", "neutral": done.neutral}.get(kind, done.meaningful.format(anna=anna))
        answer = answer_of(post(directory, row, value, done.image, **done.who, **done.query))
        assert done.differs({**answer, "record": directory.people()[-1]}) is (kind == "meaningful")
        return
    before = directory.people()
    assert_error(post(directory, row, done.bad, done.image, **done.who, **done.query), *done.error)
    assert directory.people() == before


def test_every_name_has_its_cases(record_property: Callable[[str, object], None]) -> None:
    assert set(DONE) == {name for name, row in ROWS.items() if row.verdict == "done"}
    assert len(CASES) == len(KINDS) * len(POST_PEOPLE)
    described = {parameter["name"] for parameter in description()["paths"]["/people"]["post"]["parameters"]}
    assert set(DONE) <= described
    for rows, refused in ((POST_PEOPLE, REFUSED_IN_POSTS), (FILTERS, REFUSED_FILTERS)):
        assert {row.stem: row.neutral for row in rows if row.verdict == "refused"} == refused
    record_property("cases", len(CASES))


def test_parameters_come_after_the_directory_and_before_the_type(directory: Directory) -> None:
    """The order of checks: 401, directory 400, parameters 400, 415, 413, decoding 400."""
    bad = {"max-occlusion": "0.5"}
    other_type = {"Content-Type": "text/plain"}
    no_directory = directory.post(b"no image", headers={"X-RPC-DIRECTORY": None, **other_type}, **bad)
    assert_error(no_directory, 400, "directory-required")
    stranger = directory.post(b"no image", headers={"X-RPC-AUTHORIZATION": "a:b", **other_type}, **bad)
    assert_error(stranger, 401, "unauthorized")
    assert_error(directory.post(b"no image", headers=other_type, **bad), 400, "parameter-unsupported")
    assert_error(directory.post(b"no image", headers=other_type), 415, "media-type-unsupported")


def test_of_a_repeated_name_the_last_counts(directory: Directory) -> None:
    def post_twice(first: str, last: str) -> httpx.Response:
        query = [("max-occlusion", first), ("max-occlusion", last), ("insert", "false")]
        return directory.request("POST", "/people", content=photo("hopper"), params=query)

    assert post_twice("0.5", "-1").status_code == 201
    assert_error(post_twice("-1", "0.5"), 400, "parameter-unsupported")
    assert_error(
        directory.post(photo("hopper"), headers={"x-rpc-access-zone": "7"}, **ANNA), 400, "parameter-unsupported"
    )


@pytest.mark.parametrize("path", [("people", "post"), ("people", "get"), ("rootpeople", "get")])
def test_no_default_in_the_description_undoes_what_a_user_set(path: tuple[str, str]) -> None:
    """Generated clients send the defaults: none is of a parameter that another one may say as well."""
    parameters = description()["paths"][f"/{path[0]}"][path[1]]["parameters"]
    stems = [parameter["name"].lower().removeprefix("x-rpc-") for parameter in parameters]
    twice = [p for p, stem in zip(parameters, stems, strict=True) if stems.count(stem) > 1]
    assert [p["name"] for p in twice] == (["min-size", "X-RPC-MIN-SIZE"] if path[1] == "post" else [])
    assert not any("default" in p["schema"] for p in twice)
