"""Credentials: what opens an account, what it costs, and who is held off."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator

import pytest

from pipeline.errors import TooManyAttempts, Unauthorized
from pipeline.serve import auth as module
from pipeline.serve.auth import MAX_FAILURES, VERIFIED_S, WINDOW_S, Authenticator
from pipeline.store.catalog import accounts as accounts_module
from pipeline.store.catalog.accounts import hash_password
from pipeline.store.records import Credentials
from tests.serve.asking import make_request

PASSWORD = "pass:wörd"


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


@pytest.fixture(autouse=True, scope="module")
def _quick_hashes() -> Iterator[None]:
    """scrypt with little work: the tests count how often it is done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts_module, "_N", 16)
        yield


@pytest.fixture(scope="module")
def hashed(_quick_hashes: None) -> str:
    return hash_password(PASSWORD)


@pytest.fixture
def accounts(hashed: str) -> Accounts:
    return Accounts({"alice": Credentials(7, hashed), "nobody": Credentials(8, None)})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def auth(accounts: Accounts, clock: Clock) -> Authenticator:
    return Authenticator(accounts.find, threads=2, queue=64, clock=clock)


def ask(auth: Authenticator, credentials: str | bytes | None, peer: str = "192.0.2.1") -> Awaitable[int]:
    headers = {} if credentials is None else {"X-RPC-AUTHORIZATION": credentials}
    return auth.account(make_request(headers, peer=peer))


def run(work: Callable[[], Awaitable[object]]) -> object:
    async def main() -> object:
        return await work()

    return asyncio.run(main())


async def refusals(auth: Authenticator, count: int, peer: str = "192.0.2.1", user: str = "alice") -> list[type]:
    outcomes = []
    for number in range(count):
        with pytest.raises((Unauthorized, TooManyAttempts)) as caught:
            await ask(auth, f"{user}:wrong-{number}!", peer)
        outcomes.append(caught.type)
    return outcomes


def encoded(password: str) -> str:
    return base64.b64encode(password.encode()).decode()


@pytest.mark.parametrize("form", [f"alice:{PASSWORD}", f"alice:{PASSWORD}".encode(), f"alice:{encoded(PASSWORD)}"])
def test_both_forms_of_the_password_open_the_account(auth: Authenticator, form: str | bytes) -> None:
    assert run(lambda: ask(auth, form)) == 7


def test_a_password_that_is_base64_itself_is_taken_as_it_stands() -> None:
    password = encoded("something else")
    auth = Authenticator({"a": Credentials(1, hash_password(password))}.get, threads=1, queue=1)
    assert run(lambda: ask(auth, f"a:{password}")) == 1


@pytest.mark.parametrize(
    "sent", [None, "", "alice", "alice:", ":", "alice:wrong", f"Alice:{PASSWORD}", "nobody:", "nobody:x", "who:x"]
)
def test_anything_else_is_unauthorized(auth: Authenticator, sent: str | None) -> None:
    with pytest.raises(Unauthorized):
        run(lambda: ask(auth, sent))


def test_a_verified_credential_is_remembered_for_a_while(auth: Authenticator, accounts: Accounts, clock: Clock) -> None:
    async def work() -> None:
        for _ in range(5):
            await ask(auth, f"alice:{PASSWORD}")
        assert accounts.asked == 1
        clock.now += VERIFIED_S
        await ask(auth, f"alice:{PASSWORD}")
        assert accounts.asked == 2

    run(work)


def test_a_dropped_user_is_verified_anew(auth: Authenticator, accounts: Accounts) -> None:
    async def work() -> None:
        await ask(auth, f"alice:{PASSWORD}")
        accounts["alice"] = Credentials(7, None)
        assert await ask(auth, f"alice:{PASSWORD}") == 7
        auth.drop("alice")
        with pytest.raises(Unauthorized):
            await ask(auth, f"alice:{PASSWORD}")

    run(work)


def test_clients_that_start_together_share_one_check(auth: Authenticator, accounts: Accounts) -> None:
    async def work() -> list[int]:
        return await asyncio.gather(*(ask(auth, f"alice:{PASSWORD}") for _ in range(50)))

    assert run(work) == [7] * 50
    assert accounts.asked == 1


def test_a_client_that_goes_away_does_not_end_the_check_of_the_others(auth: Authenticator) -> None:
    async def work() -> int:
        first = asyncio.ensure_future(ask(auth, f"alice:{PASSWORD}"))
        second = asyncio.ensure_future(ask(auth, f"alice:{PASSWORD}"))
        await asyncio.sleep(0.01)
        first.cancel()
        return await second

    assert run(work) == 7


def test_a_guesser_is_held_off_until_the_window_ends(auth: Authenticator, clock: Clock) -> None:
    async def work() -> None:
        outcomes = await refusals(auth, MAX_FAILURES + 2)
        assert outcomes == [Unauthorized] * MAX_FAILURES + [TooManyAttempts] * 2
        with pytest.raises(TooManyAttempts) as caught:
            await ask(auth, f"alice:{PASSWORD}")
        assert caught.value.fields == {"retry_after_s": WINDOW_S}
        clock.now += WINDOW_S
        assert await ask(auth, f"alice:{PASSWORD}") == 7

    run(work)


def test_guesses_at_once_count_as_guesses_one_by_one(auth: Authenticator) -> None:
    async def work() -> list[object]:
        guesses = (ask(auth, f"alice:wrong-{n}!") for n in range(3 * MAX_FAILURES))
        return await asyncio.gather(*guesses, return_exceptions=True)

    outcomes = run(work)
    assert isinstance(outcomes, list)
    assert [type(outcome) for outcome in outcomes].count(Unauthorized) == MAX_FAILURES


def test_the_right_password_from_elsewhere_is_never_held_off(auth: Authenticator) -> None:
    async def work() -> None:
        await refusals(auth, MAX_FAILURES + 1)
        assert await ask(auth, f"alice:{PASSWORD}", "192.0.2.2") == 7
        assert await ask(auth, f"alice:{PASSWORD}", "2001:db8::1") == 7

    run(work)


def test_other_users_of_the_peer_are_not_held_off(auth: Authenticator, accounts: Accounts, hashed: str) -> None:
    accounts["bob"] = Credentials(9, hashed)

    async def work() -> None:
        await refusals(auth, MAX_FAILURES + 1)
        assert await ask(auth, f"bob:{PASSWORD}") == 9

    run(work)


def test_addresses_of_one_ipv6_site_are_one_peer(auth: Authenticator) -> None:
    async def work() -> None:
        for number in range(MAX_FAILURES):
            await refusals(auth, 1, f"2001:db8::{number + 1:x}")
        assert await refusals(auth, 1, "2001:db8::ffff") == [TooManyAttempts]
        assert await refusals(auth, 1, "2001:db8:0:1::1") == [Unauthorized]

    run(work)


def test_successes_do_not_count_as_failures(auth: Authenticator, clock: Clock) -> None:
    async def work() -> None:
        for _ in range(2 * MAX_FAILURES):
            assert await ask(auth, f"alice:{PASSWORD}") == 7
            auth.drop("alice")
        assert await refusals(auth, 1) == [Unauthorized]

    run(work)


def test_unknown_users_are_held_off_like_known_ones(auth: Authenticator) -> None:
    async def work() -> list[type]:
        return await refusals(auth, MAX_FAILURES + 1, user="nobody-at-all")

    assert run(work) == [Unauthorized] * MAX_FAILURES + [TooManyAttempts]


@pytest.mark.parametrize("password", ["wrong!", encoded("wrong!")])
def test_unknown_user_and_wrong_password_cost_the_same_work(
    auth: Authenticator, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    done: list[str] = []
    real = module.verify_password

    def counted(candidate: str, encoded_hash: str | None) -> bool:
        done.append(candidate)
        return real(candidate, encoded_hash)

    monkeypatch.setattr(module, "verify_password", counted)
    work = []
    for user in ("alice", "nobody", "unknown"):
        with pytest.raises(Unauthorized):
            run(lambda user=user: ask(auth, f"{user}:{password}"))
        work.append(done.copy())
        done.clear()
    assert work[0] == work[1] == work[2]
    assert len(work[0]) == (1 if password == "wrong!" else 2)


def test_the_table_of_failures_is_bounded(auth: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 5)

    async def work() -> None:
        for number in range(8):
            await refusals(auth, 1, user=f"user-{number}")
        assert len(auth._failures) == 5

    run(work)
