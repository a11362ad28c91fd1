"""Which server the conformance tests talk to: one they start, or any one by URL.

    python -m pytest tests/serve/conformance --conformance-url http://host:8080 \\
        --conformance-user alice --conformance-password secret

Options of the command line, or variables of the environment (CONFORMANCE_URL and so on). `--conformance-other-user`
and its password name a second account, without which the tests of separation are skipped; `--conformance-cloud-url`
a server in cloud hosting, with the same accounts. The tests make their own directories, named `c-...`, and empty
them again; at most four at a time but for the test of the limit, which takes the second account's ten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.serve.conformance.client import Account, Directory, Json, Server
from tests.serve.conformance.launch import LIMITED_QUEUE, Launched, launch
from tests.serve.conformance.photos import photo

OPTIONS = ("url", "object-url", "key-url", "user", "password", "other-user", "other-password", "cloud-url")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "a server to test, instead of one that is started")
    for name in OPTIONS:
        group.addoption(f"--conformance-{name}", default=None)


@dataclass(frozen=True)
class Given:
    """What the command line or the environment says of a server that is running already."""

    config: pytest.Config

    def __getitem__(self, name: str) -> str | None:
        option = self.config.getoption(f"--conformance-{name}", default=None)
        value = option or os.environ.get(f"CONFORMANCE_{name.upper().replace('-', '_')}")
        return str(value) if value else None

    def account(self, server: Server, which: str = "") -> Account:
        user, password = self[f"{which}user"], self[f"{which}password"]
        if user is None or password is None:
            pytest.skip(f"no --conformance-{which}user and --conformance-{which}password were given")
        return Account(server, user, password)


@pytest.fixture(scope="session")
def given(pytestconfig: pytest.Config) -> Given:
    return Given(pytestconfig)


@pytest.fixture(scope="session")
def local_process(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A server of ours in local hosting with the settings as they come."""
    if given["url"]:
        pytest.skip("needs a server that the tests start themselves")
    with launch(tmp_path_factory.mktemp("local")) as launched:
        yield launched


@pytest.fixture(scope="session")
def cloud_process(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """One of ours in cloud hosting, with the other choice of every setting of the contract's open points."""
    if given["url"]:
        pytest.skip("needs a server that the tests start themselves")
    settings = {"serve.person_headers": "optional", "serve.unique_external_ids": "true", **LIMITED_QUEUE}
    with launch(tmp_path_factory.mktemp("cloud"), hosting="cloud", settings=settings) as launched:
        yield launched


@pytest.fixture(scope="session")
def server(given: Given, request: pytest.FixtureRequest) -> Iterator[Server]:
    if not given["url"]:
        launched: Launched = request.getfixturevalue("local_process")
        yield launched.server
        return
    running = Server.at(given["url"], given["object-url"], given["key-url"])
    with running.http:
        yield running


@pytest.fixture(scope="session")
def account(given: Given, server: Server, request: pytest.FixtureRequest) -> Account:
    if given["url"]:
        return given.account(server)
    launched: Launched = request.getfixturevalue("local_process")
    return launched.account("alice")


@pytest.fixture(scope="session")
def other_account(given: Given, server: Server, request: pytest.FixtureRequest) -> Account:
    if given["url"]:
        return given.account(server, "other-")
    launched: Launched = request.getfixturevalue("local_process")
    return launched.account("bob")


@pytest.fixture(scope="session")
def cloud_account(given: Given, request: pytest.FixtureRequest) -> Iterator[Account]:
    """Of a server in cloud hosting."""
    if not given["cloud-url"]:
        launched: Launched = request.getfixturevalue("cloud_process")
        yield launched.account("alice")
        return
    running = Server.at(given["cloud-url"])
    with running.http:
        yield given.account(running)


@pytest.fixture(scope="session")
def lenient_account(cloud_process: Launched) -> Account:
    """Of a server with person_headers=optional and unique_external_ids."""
    return cloud_process.account("alice")


@pytest.fixture
def directory(account: Account) -> Iterator[Directory]:
    with account.fresh_directory() as made:
        yield made


@pytest.fixture
def second_directory(account: Account) -> Iterator[Directory]:
    with account.fresh_directory() as made:
        yield made


@pytest.fixture
def cloud_directory(cloud_account: Account) -> Iterator[Directory]:
    with cloud_account.fresh_directory() as made:
        yield made


@pytest.fixture
def lenient_directory(lenient_account: Account) -> Iterator[Directory]:
    with lenient_account.fresh_directory() as made:
        yield made


@dataclass(frozen=True)
class Gallery:
    """A directory with two identities, for tests that change nothing."""

    directory: Directory
    hopper: Json  # the answers to their insertion
    collins: Json


@pytest.fixture(scope="session")
def gallery(account: Account) -> Iterator[Gallery]:
    with ExitStack() as stack:
        directory = stack.enter_context(account.fresh_directory())
        hopper = directory.insert(photo("hopper"), "Grace Hopper", "N-1906")
        collins = directory.insert(photo("collins"), "Eileen Collins", "N-1956")
        yield Gallery(directory, hopper, collins)
