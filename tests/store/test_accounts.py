"""Accounts: their names, and the passwords that open them."""

from __future__ import annotations

import pytest

from pipeline.errors import AccountExists, AccountUnknown, UsageError
from pipeline.store.catalog import accounts
from pipeline.store.catalog.accounts import check_password, generate_password, hash_password, verify_password
from pipeline.store.local import LocalStore
from pipeline.store.records import Credentials


def test_create_and_find(client: LocalStore) -> None:
    first = client.create_account("ann@example.org", None)
    second = client.create_account("Bob_2", "scrypt$x")
    assert client.accounts() == ["ann@example.org", "Bob_2"]
    assert (client.account_id("ann@example.org"), client.account_id("Bob_2")) == (first, second)
    assert client.credentials("Bob_2") == Credentials(second, "scrypt$x")
    assert client.credentials("bob_2") is None
    with pytest.raises(AccountExists):
        client.create_account("Bob_2", None)
    with pytest.raises(AccountUnknown, match=r"Accounts: ann@example\.org, Bob_2\."):
        client.account_id("bob_2")


@pytest.mark.parametrize("user_id", ["", "a b", "a:b", "ä", "a/b", "x" * 65, "ann\n"])
def test_other_user_ids_are_refused(client: LocalStore, user_id: str) -> None:
    with pytest.raises(UsageError, match="is not a user id"):
        client.create_account(user_id, None)
    assert client.accounts() == []


@pytest.mark.slow
def test_passwords_are_salted_and_verified() -> None:
    password = generate_password()
    encoded = hash_password(password)
    assert encoded.startswith("scrypt$32768$8$3$")
    assert password not in encoded
    assert encoded != hash_password(password)
    assert verify_password(password, encoded)
    assert not verify_password(password + "x", encoded)
    assert not verify_password("", encoded)
    assert not verify_password(password, None)
    assert len({generate_password() for _ in range(20)}) == 20


def test_a_new_password_replaces_the_old_one(client: LocalStore) -> None:
    client.create_account("ann", hash_password("first"))
    client.create_account("bob", None)
    client.set_password("ann", hash_password("second"))
    hashes = dict(client.submit(lambda c: c.rows("SELECT user_id, password_hash FROM core.accounts")))
    assert verify_password("second", hashes["ann"])
    assert not verify_password("first", hashes["ann"])
    assert hashes["bob"] is None
    with pytest.raises(AccountUnknown, match="ann, bob"):
        client.set_password("ANN", "scrypt$x")


@pytest.fixture
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the work: what a password may be does not depend on it."""
    monkeypatch.setattr(accounts, "_N", 2**8)


@pytest.mark.usefixtures("cheap_hashes")
@pytest.mark.parametrize("password", ["a:b::c", ":", "pässwörd", "密码 🗝️", " leading", "x" * 1000])
def test_unusual_passwords_are_accepted(password: str) -> None:
    encoded = hash_password(check_password(password))
    assert verify_password(password, encoded)
    assert not verify_password(password[:-1], encoded)
    assert not verify_password(password.swapcase() + "x", encoded)


@pytest.mark.parametrize("password", ["", "a\nb", "a\x00b", "trailing ", "tab\t", "\x7f", "x" * 1001])
def test_passwords_that_no_client_can_send_are_refused(password: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_password(password)
    assert not password or password not in str(refused.value)


@pytest.mark.usefixtures("cheap_hashes")
def test_one_text_in_two_encodings_is_one_password() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert verify_password(decomposed, hash_password(composed))
    assert verify_password(composed, hash_password(decomposed))
    assert not verify_password("cafe", hash_password(composed))
