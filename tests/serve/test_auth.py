"""Credentials: what opens an account, what it costs, and who is turned away. The conformance tests prove the rest."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable

import pytest

from pipeline.errors import Overloaded, StoreError, TooManyAttempts, Unauthorized
from pipeline.serve import auth as module
from pipeline.serve.auth import MAX_FAILURES, VERIFIED_S, WINDOW_S, Authenticator
from pipeline.store.catalog.accounts import hash_password, verify_password
from pipeline.store.records import Credentials
from tests.serve.asking import make_request

PASSWORD = "pass:wörd"

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick_hashes", "quick_refusals")]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Accounts(dict[str, Credentials]):
    """Accounts by user id, counting how often they are asked for."""

    asked = 0

    def find(self, user_id: str) -> Credentials | None:
        self.asked += 1
        return self.get(user_id)


@pytest.fixture
def anyio_backend() -> str:
    """For anyio's pytest plugin, which runs the asynchronous tests."""
    return "asyncio"


@pytest.fixture
def accounts() -> Accounts:
    return Accounts({"alice": Credentials(7, hash_password(PASSWORD)), "nobody": Credentials(8, None)})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def auth(accounts: Accounts, clock: Clock) -> Authenticator:
    return Authenticator(accounts.find, threads=2, queue=64, clock=clock)


def ask(auth: Authenticator, credentials: str | bytes | None, peer: str = "192.0.2.1") -> Awaitable[int]:
    headers = {} if credentials is None else {"X-RPC-AUTHORIZATION": credentials}
    return auth.account(make_request(headers, peer=peer))


async def refusals(auth: Authenticator, count: int, peer: str = "192.0.2.1", user: str = "alice") -> list[type]:
    outcomes = []
    for number in range(count):
        with pytest.raises((Unauthorized, TooManyAttempts)) as caught:
            await ask(auth, f"{user}:wrong-{number}!", peer)
        outcomes.append(caught.type)
    return outcomes


def encoded(password: str) -> str:
    return base64.b64encode(password.encode()).decode()


@pytest.mark.parametrize(
    "credentials", [f"alice:{PASSWORD}", f"alice:{PASSWORD}".encode("latin-1"), f"alice:{encoded(PASSWORD)}"]
)
async def test_each_form_of_the_password_opens_the_account(auth: Authenticator, credentials: str | bytes) -> None:
    assert await ask(auth, credentials) == 7


async def test_a_password_that_is_base64_itself_is_taken_as_it_stands() -> None:
    password = encoded("something else")
    auth = Authenticator({"a": Credentials(1, hash_password(password))}.get, threads=1, queue=1)
    assert await ask(auth, f"a:{password}") == 1


@pytest.mark.parametrize(
    "credentials",
    [None, "", "alice", "alice:", ":", "alice:wrong", f"Alice:{PASSWORD}", "nobody:", "nobody:x", "who:x"],
)
async def test_anything_else_is_unauthorized(auth: Authenticator, credentials: str | None) -> None:
    with pytest.raises(Unauthorized):
        await ask(auth, credentials)


async def test_a_verified_credential_is_remembered_for_a_while(
    auth: Authenticator, accounts: Accounts, clock: Clock
) -> None:
    for _ in range(5):
        await ask(auth, f"alice:{PASSWORD}")
    assert accounts.asked == 1
    clock.now += VERIFIED_S
    await ask(auth, f"alice:{PASSWORD}")
    assert accounts.asked == 2


async def test_a_dropped_user_is_verified_again(auth: Authenticator, accounts: Accounts) -> None:
    await ask(auth, f"alice:{PASSWORD}")
    accounts["alice"] = Credentials(7, None)
    assert await ask(auth, f"alice:{PASSWORD}") == 7
    auth.drop("alice")
    with pytest.raises(Unauthorized):
        await ask(auth, f"alice:{PASSWORD}")


async def test_clients_that_start_together_share_one_check(auth: Authenticator, accounts: Accounts) -> None:
    assert await asyncio.gather(*(ask(auth, f"alice:{PASSWORD}") for _ in range(50))) == [7] * 50
    assert accounts.asked == 1


async def test_a_client_that_goes_away_does_not_end_the_check_of_the_others(auth: Authenticator) -> None:
    first = asyncio.ensure_future(ask(auth, f"alice:{PASSWORD}"))
    second = asyncio.ensure_future(ask(auth, f"alice:{PASSWORD}"))
    await asyncio.sleep(0.01)
    first.cancel()
    assert await second == 7


async def test_a_guesser_is_turned_away_until_the_window_ends(auth: Authenticator, clock: Clock) -> None:
    outcomes = await refusals(auth, MAX_FAILURES + 2)
    assert outcomes == [Unauthorized] * MAX_FAILURES + [TooManyAttempts] * 2
    with pytest.raises(TooManyAttempts) as caught:
        await ask(auth, f"alice:{PASSWORD}")
    assert (caught.value.code, caught.value.fields) == ("too-many-attempts", {"retry_after_s": WINDOW_S})
    clock.now += WINDOW_S
    assert await ask(auth, f"alice:{PASSWORD}") == 7


async def test_guesses_at_once_count_as_guesses_one_by_one(auth: Authenticator) -> None:
    guesses = (ask(auth, f"alice:wrong-{n}!") for n in range(3 * MAX_FAILURES))
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(Unauthorized) == MAX_FAILURES


async def test_a_guesser_hinders_nobody_else(auth: Authenticator, accounts: Accounts) -> None:
    accounts["bob"] = Credentials(9, hash_password(PASSWORD))
    await refusals(auth, MAX_FAILURES + 1)
    assert await ask(auth, f"bob:{PASSWORD}") == 9
    assert await ask(auth, f"alice:{PASSWORD}", "192.0.2.2") == 7
    assert await ask(auth, f"alice:{PASSWORD}", "2001:db8::1") == 7


async def test_addresses_of_one_ipv6_site_are_one_peer(auth: Authenticator) -> None:
    for number in range(MAX_FAILURES):
        await refusals(auth, 1, f"2001:db8::{number + 1:x}")
    assert await refusals(auth, 1, "2001:db8::ffff") == [TooManyAttempts]
    assert await refusals(auth, 1, "2001:db8:0:1::1") == [Unauthorized]


async def test_successes_do_not_count_as_failures(auth: Authenticator) -> None:
    for _ in range(2 * MAX_FAILURES):
        assert await ask(auth, f"alice:{PASSWORD}") == 7
        auth.drop("alice")
    assert await refusals(auth, 1) == [Unauthorized]


@pytest.mark.parametrize("password", ["wrong!", encoded("wrong!")])
async def test_unknown_user_and_wrong_password_cost_the_same_work(
    auth: Authenticator, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    checked: list[str] = []
    real = verify_password

    def counted(candidate: str, encoded_hash: str | None) -> bool:
        checked.append(candidate)
        return real(candidate, encoded_hash)

    monkeypatch.setattr(module.accounts, "verify_password", counted)
    work = []
    for user in ("alice", "nobody", "unknown"):
        with pytest.raises(Unauthorized):
            await ask(auth, f"{user}:{password}")
        work.append(checked.copy())
        checked.clear()
    assert work[0] == work[1] == work[2]
    assert len(work[0]) == (1 if password == "wrong!" else 2)


async def test_verified_credentials_open_nothing_for_another_peer(auth: Authenticator, accounts: Accounts) -> None:
    """An active client of the owner makes no guess free, and the right password no success."""
    assert await ask(auth, f"alice:{PASSWORD}") == 7
    for peer in ("192.0.2.9", "2001:db8::9"):
        assert await refusals(auth, MAX_FAILURES + 1, peer) == [Unauthorized] * MAX_FAILURES + [TooManyAttempts]
        asked = accounts.asked
        for right in (PASSWORD, encoded(PASSWORD)):
            with pytest.raises(TooManyAttempts):
                await ask(auth, f"alice:{right}", peer)
            assert await ask(auth, f"alice:{PASSWORD}") == 7
        assert accounts.asked == asked  # nothing was looked up


async def test_a_peer_verifies_what_another_is_having_verified(auth: Authenticator, accounts: Accounts) -> None:
    owner, guesser = (ask(auth, f"alice:{PASSWORD}", peer) for peer in ("192.0.2.1", "192.0.2.9"))
    assert await asyncio.gather(owner, guesser) == [7, 7]
    assert accounts.asked == 2


async def test_a_blocked_peer_learns_nothing_by_what_it_verified_itself(auth: Authenticator) -> None:
    assert await ask(auth, f"alice:{PASSWORD}") == 7
    await refusals(auth, MAX_FAILURES)
    with pytest.raises(TooManyAttempts):
        await ask(auth, f"alice:{PASSWORD}")


async def test_a_new_password_ends_what_every_peer_verified(auth: Authenticator, accounts: Accounts) -> None:
    peers = ("192.0.2.1", "192.0.2.2", "2001:db8::1")
    for peer in peers:
        assert await ask(auth, f"alice:{PASSWORD}", peer) == 7
    accounts["alice"] = Credentials(7, hash_password("another"))
    auth.drop("alice")
    for peer in peers:
        with pytest.raises(Unauthorized):
            await ask(auth, f"alice:{PASSWORD}", peer)


async def test_a_deleted_account_is_unauthorized_when_its_minute_ends(
    auth: Authenticator, accounts: Accounts, clock: Clock
) -> None:
    assert await ask(auth, f"alice:{PASSWORD}") == 7
    del accounts["alice"]
    clock.now += VERIFIED_S
    with pytest.raises(Unauthorized):
        await ask(auth, f"alice:{PASSWORD}")


@pytest.mark.slow
async def test_invented_users_push_out_no_count(accounts: Accounts, clock: Clock) -> None:
    """A flood of them, of which few are checked, makes no room for further guesses."""
    auth = Authenticator(accounts.find, threads=1, queue=1, clock=clock)
    await refusals(auth, MAX_FAILURES)
    counted = len(auth._failures)
    crowd = (ask(auth, f"user-{number}:x", f"192.0.2.{number % 200}") for number in range(10_300))
    outcomes = [type(outcome) for outcome in await asyncio.gather(*crowd, return_exceptions=True)]
    assert outcomes.count(Unauthorized) + outcomes.count(Overloaded) == 10_300
    assert len(auth._failures) == counted + outcomes.count(Unauthorized)  # only of checks that ran
    assert await refusals(auth, 1) == [TooManyAttempts]


async def test_a_queued_guess_of_a_peer_that_was_blocked_since_is_not_checked(accounts: Accounts) -> None:
    auth = Authenticator(accounts.find, threads=1, queue=64)
    guesses = (ask(auth, f"alice:wrong-{number}!") for number in range(64))
    outcomes = [type(outcome) for outcome in await asyncio.gather(*guesses, return_exceptions=True)]
    assert outcomes == [Unauthorized] * MAX_FAILURES + [TooManyAttempts] * (64 - MAX_FAILURES)
    assert accounts.asked == MAX_FAILURES


async def test_one_peer_has_room_for_so_many_users_and_takes_none_of_the_others(
    auth: Authenticator, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_OF_PEER", 5)
    outcomes = [await refusals(auth, 1, user=f"user-{number}") for number in range(8)]
    assert outcomes == [[Unauthorized]] * 5 + [[TooManyAttempts]] * 3
    assert await refusals(auth, 1, "192.0.2.2") == [Unauthorized]
    assert await refusals(auth, 1, user="user-0") == [Unauthorized]  # which has attempts left
    clock.now += WINDOW_S
    assert await refusals(auth, 1, user="user-7") == [Unauthorized]
    assert len(auth._failures) == 1  # windows that ended are dropped


async def test_what_did_not_fail_is_not_counted(auth: Authenticator, accounts: Accounts) -> None:
    assert await ask(auth, f"alice:{PASSWORD}") == 7

    def unreadable(user_id: str) -> Credentials | None:
        raise StoreError(message=f"the account {user_id} cannot be read")

    auth._lookup = unreadable
    with pytest.raises(StoreError):
        await ask(auth, "alice:other")
    assert len(auth._failures) == 0
