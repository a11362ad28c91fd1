"""Section 5 of the contract: authentication."""

from __future__ import annotations

import base64
import uuid
from dataclasses import replace

import pytest

from tests.serve.conformance.client import Account, raw
from tests.serve.conformance.conftest import Gallery
from tests.serve.conformance.photos import photo

ROUTES = [
    ("POST", "/people"),
    ("GET", "/people"),
    ("GET", "/rootpeople"),
    ("GET", "/people/00000000-0000-4000-8000-000000000000"),
    ("PUT", "/people/00000000-0000-4000-8000-000000000000"),
    ("DELETE", "/people/00000000-0000-4000-8000-000000000000"),
    ("GET", "/people/external/x"),
    ("PUT", "/merge"),
    ("PUT", "/unmerge"),
    ("GET", "/person/00000000-0000-4000-8000-000000000000/face"),
    ("GET", "/obj/00000000-0000-4000-8000-000000000000"),
    ("GET", "/obj/imagekey"),
    ("GET", "/imagekey"),
]


def authorised(account: Account, value: str | bytes | None) -> int:
    """The status of GET /people with this header."""
    headers: dict[str, str | bytes] = {"X-RPC-DIRECTORY": "main"}
    if value is not None:
        headers["X-RPC-AUTHORIZATION"] = value
    return raw(account.server.base_url, "GET", "/people", headers).status


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_5_rule_1_every_request_carries_credentials(account: Account, method: str, path: str) -> None:
    """Every request carries header X-RPC-AUTHORIZATION with value <userid>:<pwd>."""
    answer = account.directory("main").request(method, path, headers={"X-RPC-AUTHORIZATION": None})
    assert answer.status_code == 401


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_5_rule_1_every_request_needs_issued_credentials(account: Account, method: str, path: str) -> None:
    """... the credentials issued for the account."""
    nobody = f"nobody-{uuid.uuid4().hex}:{account.password}"
    answer = account.directory("main").request(method, path, headers={"X-RPC-AUTHORIZATION": nobody})
    assert answer.status_code == 401


def test_5_rule_1_a_wrong_password_opens_nothing(account: Account) -> None:
    """... and no other password."""
    assert authorised(account, f"{account.user}:{account.password}x") == 401
    assert authorised(account, f"{account.user}:") == 401
    assert authorised(account, f"{account.user}x:{account.password}") == 401


def test_5_rule_1_the_value_is_userid_colon_password(account: Account) -> None:
    """... with value <userid>:<pwd>."""
    assert authorised(account, account.authorization) == 200
    assert authorised(account, account.user) == 401
    assert authorised(account, "") == 401
    assert authorised(account, ":") == 401
    assert authorised(account, b"\xff\xfe:\xff") == 401
    assert authorised(account, f"Basic {base64.b64encode(account.authorization.encode()).decode()}") == 401


def test_5_rule_2_the_credentials_identify_the_account(gallery: Gallery, other_account: Account) -> None:
    """The credentials identify the account. Data of different accounts is entirely separate."""
    theirs = other_account.directory(gallery.directory.name)
    assert "personId" in gallery.directory.recognise(photo("hopper"))[0]
    assert "personId" not in theirs.recognise(photo("hopper"))[0]


def test_5_rule_2_one_accounts_password_does_not_open_another(account: Account, other_account: Account) -> None:
    """Each account has its own."""
    crossed = replace(account, password=other_account.password)
    assert authorised(account, crossed.authorization) == 401


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_5_rule_3_every_request_carries_a_directory(account: Account, method: str, path: str) -> None:
    """Every request also carries X-RPC-DIRECTORY (required) naming the directory within the account."""
    answer = account.directory("main").request(method, path, headers={"X-RPC-DIRECTORY": None})
    assert answer.status_code == 400
    assert answer.json()["errorReason"] == "directory-required"
