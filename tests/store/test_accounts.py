from __future__ import annotations

import pytest

from pipeline.errors import AccountExists, AccountUnknown, UsageError
from pipeline.store.accounts import generate_password, hash_password, verify_password
from pipeline.store.client import StoreClient


def test_create_and_find(client: StoreClient) -> None:
    first = client.create_account("ann@example.org", None)
    second = client.create_account("Bob_2", "scrypt$x")
    assert client.accounts() == ["ann@example.org", "Bob_2"]
    assert (client.account_id("ann@example.org"), client.account_id("Bob_2")) == (first, second)
    with pytest.raises(AccountExists):
        client.create_account("Bob_2", None)
    with pytest.raises(AccountUnknown, match=r"Accounts: ann@example\.org, Bob_2\."):
        client.account_id("bob_2")


@pytest.mark.parametrize("user_id", ["", "a b", "a:b", "ä", "a/b", "x" * 65, "ann\n"])
def test_user_ids_that_do_not_serve(client: StoreClient, user_id: str) -> None:
    with pytest.raises(UsageError, match="no user id"):
        client.create_account(user_id, None)
    assert client.accounts() == []


def test_passwords_are_salted_and_verified() -> None:
    password = generate_password()
    encoded = hash_password(password)
    assert encoded.startswith("scrypt$32768$8$1$")
    assert password not in encoded
    assert encoded != hash_password(password)
    assert verify_password(password, encoded)
    assert not verify_password(password + "x", encoded)
    assert not verify_password("", encoded)
    assert not verify_password(password, None)
    assert len({generate_password() for _ in range(20)}) == 20
