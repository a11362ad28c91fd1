"""Accounts, credentials and directories: sections 2.1, 5 and 8 of the contract, and the decisions on both headers."""

from __future__ import annotations

import base64
import time
import unicodedata
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.conformance.client import ANNA, UNKNOWN_ID, Account, Directory, assert_error, external_path
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.launch import Launched
from tests.serve.conformance.photos import other, photo

MAX_DIRECTORIES = 10
ROUTES = [
    ("POST", "/people"),
    ("GET", "/people"),
    ("GET", "/rootpeople"),
    ("GET", "/people/{person_id}"),
    ("PUT", f"/people/{UNKNOWN_ID}"),
    ("DELETE", f"/people/{UNKNOWN_ID}"),
    ("GET", "/people/external/N-1906"),
    ("PUT", "/merge"),
    ("PUT", "/unmerge"),
    ("GET", "/person/{person_id}/face"),
    ("GET", "/obj/{guid}"),
    ("GET", "/obj/imagekey"),
    ("GET", "/imagekey"),
]


# 2.1 Account and directory


@pytest.fixture(params=["another directory", "another account"])
def elsewhere(request: pytest.FixtureRequest, directory: Directory) -> Iterator[Directory]:
    """Another directory of the account, or the directory of the same name in another account."""
    if request.param == "another directory":
        yield request.getfixturevalue("second_directory")
        return
    other_account: Account = request.getfixturevalue("other_account")
    namesake = other_account.directory(directory.name)
    yield namesake
    namesake.clear()


def test_2_1_data_is_separate(directory: Directory, elsewhere: Directory) -> None:
    """Data of different accounts is entirely separate, even when directory names are equal, and so is data of
    different directories. X-RPC-DIRECTORY selects the directory (4.1), the credentials identify the account (5 rule 2).
    """
    person_id = directory.insert(photo("hopper"))["personId"]
    uri = directory.record(person_id)["imageURI"]
    (face,) = elsewhere.recognise(other("hopper"), similar_limit=5)
    assert "personId" not in face
    assert face["similar"] == []
    assert elsewhere.people() == elsewhere.roots() == []
    for answer in (
        elsewhere.get(f"/people/{person_id}"),
        elsewhere.get(external_path("A-1")),
        elsewhere.face_image(person_id),
        elsewhere.stored(uri),
    ):
        assert answer.status_code == 404
    namesake_id = elsewhere.insert(photo("hopper"), "Bea", "B-2")["personId"]
    assert namesake_id != person_id
    assert directory.recognise(other("hopper"))[0]["personId"] == person_id
    assert elsewhere.recognise(other("hopper"))[0]["personId"] == namesake_id
    assert [person["personId"] for person in directory.people()] == [person_id]


def test_2_1_nothing_can_be_changed_from_elsewhere(directory: Directory, elsewhere: Directory) -> None:
    first = directory.insert(photo("hopper"))["personId"]
    second = directory.insert(photo("collins"))["personId"]
    before = directory.people()
    assert elsewhere.put(f"/people/{first}", {"name": "Mallory"}).status_code == 404
    assert elsewhere.put("/merge", {"personIds": [first, second]}).status_code == 404
    assert elsewhere.delete(first).status_code == 404
    assert directory.people() == before


# 5 Authentication, X-RPC-AUTHORIZATION


def credentials(account: Account, template: str | bytes | None) -> str | bytes | None:
    if not isinstance(template, str):
        return template
    return template.format(
        user=account.user,
        password=account.password,
        coded=base64.b64encode(account.password.encode()).decode(),
        basic=base64.b64encode(account.authorization.encode()).decode(),
        random=uuid.uuid4().hex,
    )


def listing(account: Account, authorization: str | bytes | None) -> httpx.Response:
    """The answer to GET /people with this X-RPC-AUTHORIZATION."""
    return account.directory("main").request("GET", "/people", headers={"X-RPC-AUTHORIZATION": authorization})


@pytest.mark.parametrize(
    ("header", "value", "status", "reason"),
    [
        ("X-RPC-AUTHORIZATION", None, 401, "unauthorized"),
        ("X-RPC-AUTHORIZATION", "nobody-{random}:{password}", 401, "unauthorized"),
        ("X-RPC-DIRECTORY", None, 400, "directory-required"),
    ],
    ids=["no credentials", "credentials of nobody", "no directory"],
)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_5_rules_1_and_3_every_request_needs_both_headers(
    gallery: Gallery, method: str, path: str, header: str, value: str | None, status: int, reason: str
) -> None:
    """Every request carries X-RPC-AUTHORIZATION with the credentials issued for the account, and X-RPC-DIRECTORY. Both
    are required (4.1, 4.4, 4.5 rule 2, 4.6)."""
    directory, person_id = gallery.directory, gallery.hopper["personId"]
    guid = directory.record(person_id)["imageURI"].rsplit("/", 1)[1]
    headers = {header: credentials(directory.account, value)}
    answer = directory.request(method, path.format(person_id=person_id, guid=guid), headers=headers)
    assert_error(answer, status, reason)


@pytest.mark.parametrize("template", ["{user}:{password}", "{user}:{coded}"])
def test_5_rule_1_the_value_is_userid_colon_password(account: Account, template: str) -> None:
    """The value is <userid>:<pwd>, and also `<userid>:<base64(pwd)>`."""
    assert listing(account, credentials(account, template)).status_code == 200


@pytest.mark.parametrize(
    "template",
    [
        "{user}:{password}x",
        "{user}:",
        "{user}x:{password}",
        "{user}",
        "no-colon",
        "",
        ":",
        b"\xff\xfe:\xff",
        "Basic {basic}",
    ],
)
def test_5_rule_1_other_values_are_401(account: Account, template: str | bytes) -> None:
    """Missing or wrong -> `401`."""
    assert_error(listing(account, credentials(account, template)), 401, "unauthorized")


def test_5_rule_2_the_password_of_one_account_does_not_open_another(account: Account, other_account: Account) -> None:
    assert listing(account, f"{account.user}:{other_account.password}").status_code == 401


def test_requests_unknown_user_and_wrong_password_get_the_same_answer(account: Account) -> None:
    """Nothing reveals whether an account exists."""
    wrong, unknown = (
        listing(account, authorization).json()
        for authorization in (f"{account.user}:wrong", f"nobody-{uuid.uuid4().hex}:wrong")
    )
    assert {**wrong, "timestamp": 0} == {**unknown, "timestamp": 0}


def test_requests_too_many_failures_are_429_with_retry_after(account: Account) -> None:
    """After too many failures `429` + `Retry-After` per (user id, peer): other users are not affected."""
    nobody = f"nobody-{uuid.uuid4().hex}"
    for attempt in range(100):
        answer = listing(account, f"{nobody}:{attempt}")
        if answer.status_code == 429:
            break
        assert_error(answer, 401, "unauthorized")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert listing(account, account.authorization).status_code == 200


def test_requests_a_correct_password_from_elsewhere_is_never_429(local_process: Launched) -> None:
    """`429` is never sent for a correct password from elsewhere, here while another address of this machine guesses."""
    account = local_process.account("bob")
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.7"), trust_env=False) as guesser:
        statuses = [
            guesser.get(
                f"{account.server.base_url}/people",
                headers={"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"{account.user}:guess-{n}"},
            ).status_code
            for n in range(15)
        ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert listing(account, account.authorization).status_code == 200


def test_requests_unknown_users_cost_the_same_work(local_process: Launched) -> None:
    """Unknown users cost the same work: the fastest of several answers takes about as long as for a known user."""
    account = local_process.account("alice")
    seconds: dict[str, list[float]] = {account.user: [], "nobody": []}
    for attempt in range(30):
        transport = httpx.HTTPTransport(local_address=f"127.0.1.{attempt + 1}")
        with httpx.Client(transport=transport, trust_env=False) as client:
            client.get(f"{account.server.base_url}/healthz")
            for user, times in seconds.items():
                headers = {"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"{user}:wrong-{attempt}"}
                start = time.perf_counter()
                assert client.get(f"{account.server.base_url}/people", headers=headers).status_code == 401
                times.append(time.perf_counter() - start)
        ratio = min(seconds[account.user]) / min(seconds["nobody"])
        if attempt >= 5 and 0.4 < ratio < 2.5:
            return
    pytest.fail(f"a known user costs {ratio:.2f} times the work of an unknown one")


# X-RPC-DIRECTORY, 8 Limits


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "a b", "mäin", "a;b", "%2e", "'", "x" * 64, "员工" * 32])
def test_requests_directory_names(account: Account, name: str) -> None:
    """[decided] 1 to 64 code points, all of them printable."""
    assert account.directory(name).people() == []


@pytest.mark.parametrize("name", [".", "..", "x" * 65, "员" * 65, "a/b", "../main", "a\\b", "a\tb", "a\u200bb"])
def test_requests_other_directory_names_are_400(account: Account, name: str) -> None:
    """[decided] Nothing else, no slash or backslash, and neither `.` nor `..`."""
    assert_error(account.directory(name).get("/people"), 400, "directory-invalid")


def test_requests_one_directory_in_every_spelling(directory: Directory) -> None:
    """[decided] Without outer white space, in NFC; header bytes are UTF-8 if valid, else latin-1."""
    name = f"Büro {directory.name[-8:]}"
    with directory.account.fresh_directory(name) as office:
        person_id = office.insert(photo("hopper"))["personId"]
        for spelling in (
            unicodedata.normalize("NFD", name).encode(),
            name.encode("latin-1"),
            f"\u2003{name}\u00a0".encode(),
        ):
            answer = office.request("GET", "/people", headers={"X-RPC-DIRECTORY": spelling})
            assert [person["personId"] for person in answer.json()["people"]] == [person_id]


def test_8_at_most_10_directories_per_account(other_account: Account) -> None:
    """Directories per account: 10 maximum. [decided] 403, nothing stored; count and insertion are atomic."""
    directories = [other_account.absent_directory() for _ in range(MAX_DIRECTORIES + 4)]
    try:
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda entry: entry.post(photo("hopper"), **ANNA), directories))
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {201, 403}
        assert statuses.count(201) <= MAX_DIRECTORIES  # fewer if the account already has directories
        assert [bool(entry.people()) for entry in directories] == [status == 201 for status in statuses]
        refused = directories[statuses.index(403)]
        assert_error(refused.post(photo("hopper"), **ANNA), 403, "too-many-directories")
        # A directory exists while it holds an identity, so emptying one makes room for another.
        directories[statuses.index(201)].clear()
        assert refused.post(photo("hopper"), **ANNA).status_code == 201
    finally:
        for entry in directories:
            entry.clear()


def test_8_the_limit_holds_for_insertions_only(other_account: Account) -> None:
    """[decided] Reading an absent directory gives an empty result and does not create it."""
    for _ in range(MAX_DIRECTORIES + 2):
        absent = other_account.absent_directory()
        assert absent.people() == absent.roots() == []
    (face,) = absent.recognise(photo("hopper"), similar_limit=3)
    assert face["similar"] == []
    with other_account.fresh_directory() as fresh:
        fresh.insert(photo("hopper"))
