"""Credentials: what opens an account, what it costs, and who is turned away. The conformance tests prove the rest."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable

import pytest

from pipeline.errors import TooManyAttempts, Unauthorized
from pipeline.serve import auth as module
from pipeline.serve.auth import MAX_FAILURES, VERIFIED_S, WINDOW_S, Authenticator
from pipeline.store.catalog.accounts import hash_password
from pipeline.store.records import Credentials
from tests.serve.asking import make_request

PASSWORD = "pass:wörd"

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick_hashes")]


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
    real = module.verify_password

    def counted(candidate: str, encoded_hash: str | None) -> bool:
        checked.append(candidate)
        return real(candidate, encoded_hash)

    monkeypatch.setattr(module, "verify_password", counted)
    work = []
    for user in ("alice", "nobody", "unknown"):
        with pytest.raises(Unauthorized):
            await ask(auth, f"{user}:{password}")
        work.append(checked.copy())
        checked.clear()
    assert work[0] == work[1] == work[2]
    assert len(work[0]) == (1 if password == "wrong!" else 2)


async def test_the_table_of_failures_is_bounded(auth: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 5)
    for number in range(8):
        await refusals(auth, 1, user=f"user-{number}")
    assert len(auth._failures) == 5
