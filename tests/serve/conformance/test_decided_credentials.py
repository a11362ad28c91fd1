"""decisions.md, "Requests": X-RPC-AUTHORIZATION and X-RPC-DIRECTORY."""

from __future__ import annotations

import base64
import time
import uuid
from typing import Any

import httpx
import pytest

from tests.serve.conformance.client import Account, raw
from tests.serve.conformance.photos import (
    photo,
)


def refused(answer: httpx.Response, status: int, reason: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["errorReason"] == reason


# X-RPC-AUTHORIZATION


def _status_as(account: Account, authorization: str) -> int:
    return (
        account.directory("main").request("GET", "/people", headers={"X-RPC-AUTHORIZATION": authorization}).status_code
    )


def test_requests_password_may_be_base64(account: Account) -> None:
    """Also `<userid>:<base64(pwd)>`."""
    coded = base64.b64encode(account.password.encode()).decode()
    assert _status_as(account, f"{account.user}:{coded}") == 200


def test_requests_missing_or_wrong_credentials_are_401(account: Account) -> None:
    """Missing or wrong -> `401`."""
    main = account.directory("main")
    refused(main.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": None}), 401, "unauthorized")
    refused(main.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": "no-colon"}), 401, "unauthorized")
    unknown = f"nobody-{uuid.uuid4().hex}:x"
    refused(main.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": unknown}), 401, "unauthorized")


def test_requests_unknown_user_and_wrong_password_get_the_same_answer(account: Account) -> None:
    """Nothing tells whether an account exists."""
    bodies = []
    for authorization in (f"{account.user}:wrong", f"nobody-{uuid.uuid4().hex}:wrong"):
        answer = account.directory("main").request("GET", "/people", headers={"X-RPC-AUTHORIZATION": authorization})
        bodies.append({key: value for key, value in answer.json().items() if key != "timestamp"})
    assert bodies[0] == bodies[1]


def test_requests_too_many_failures_are_429_with_retry_after(account: Account) -> None:
    """After too many failures `429` + `Retry-After` per (user id, peer), and other users are not hindered."""
    nobody = f"nobody-{uuid.uuid4().hex}"
    main = account.directory("main")
    for attempt in range(100):
        answer = main.request("GET", "/people", headers={"X-RPC-AUTHORIZATION": f"{nobody}:{attempt}"})
        if answer.status_code == 429:
            break
        refused(answer, 401, "unauthorized")
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert _status_as(account, account.authorization) == 200


def test_requests_a_correct_password_from_elsewhere_is_never_429(local_process: Any) -> None:
    """... never for a correct password from elsewhere: another address of this machine guesses meanwhile."""
    account: Account = local_process.account("bob")
    headers = {"X-RPC-DIRECTORY": "main"}
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.7"), trust_env=False) as guesser:
        statuses = [
            guesser.get(
                f"{account.server.base_url}/people",
                headers={**headers, "X-RPC-AUTHORIZATION": f"{account.user}:guess-{n}"},
            ).status_code
            for n in range(15)
        ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert _status_as(account, account.authorization) == 200


def test_requests_unknown_users_cost_the_same_work(local_process: Any) -> None:
    """Unknown users cost the same work: the quickest of some answers takes as long for one as for the other."""
    account: Account = local_process.account("alice")
    taken: dict[str, list[float]] = {account.user: [], "nobody": []}
    for attempt in range(6):
        transport = httpx.HTTPTransport(local_address=f"127.0.1.{attempt + 1}")
        with httpx.Client(transport=transport, trust_env=False) as client:
            client.get(f"{account.server.base_url}/healthz")
            for user, times in taken.items():
                headers = {"X-RPC-DIRECTORY": "main", "X-RPC-AUTHORIZATION": f"{user}:wrong-{attempt}"}
                start = time.perf_counter()
                assert client.get(f"{account.server.base_url}/people", headers=headers).status_code == 401
                times.append(time.perf_counter() - start)
    known, unknown = min(taken[account.user]), min(taken["nobody"])
    assert 0.4 < known / unknown < 2.5


# X-RPC-DIRECTORY


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64, "..."])
def test_requests_directory_names(account: Account, name: str) -> None:
    """`[A-Za-z0-9._-]{1,64}`."""
    assert account.directory(name).people() == []


@pytest.mark.parametrize("name", [".", "..", "x" * 65, "a/b", "../main", "a b", "mäin", "a;b", "a\\b", "%2e", "'"])
def test_requests_strange_directory_names_are_400(account: Account, name: str) -> None:
    """... not `.` or `..`."""
    headers = {"X-RPC-AUTHORIZATION": account.authorization.encode(), "X-RPC-DIRECTORY": name.encode()}
    answer = raw(account.server.base_url, "GET", "/people", headers)
    assert answer.status == 400
    assert answer.json()["errorReason"] == "directory-invalid"


def test_requests_an_absent_directory_is_an_empty_one(account: Account) -> None:
    """Reading an absent one gives an empty result."""
    absent = account.directory(f"c-{uuid.uuid4().hex[:16]}")
    assert absent.people() == []
    assert absent.roots() == []
    (face,) = absent.recognise(photo("hopper"), similar_limit=3)
    assert face["similar"] == []
