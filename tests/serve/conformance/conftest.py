"""The servers of the conformance tests: those that they start, or any running one, by its URL.

    python -m pytest tests/serve/conformance --conformance-url http://host:8080 \\
        --conformance-user alice --conformance-password secret

Each option can also be an environment variable (CONFORMANCE_URL and so on). `--conformance-other-user` and
`--conformance-other-password` name a second account; without it the tests that need two accounts are skipped.
`--conformance-cloud-url` is a server in cloud hosting with the same accounts. The tests create directories named
`c-...` and empty them afterwards. They use at most four at a time, except the test of the limit, which uses ten of the
second account.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.forking import Forker
from tests.serve.conformance.client import Account, Directory, Json, Server
from tests.serve.conformance.launch import Launched, launch
from tests.serve.conformance.photos import other, photo

OPTIONS = ("url", "object-url", "key-url", "user", "password", "other-user", "other-password", "cloud-url")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "a running server to test")
    for name in OPTIONS:
        group.addoption(f"--conformance-{name}", default=None)


@dataclass(frozen=True)
class Running:
    """What the command line and the environment say about a running server."""

    config: pytest.Config

    def __getitem__(self, name: str) -> str | None:
        option = self.config.getoption(f"--conformance-{name}", default=None)
        value = option or os.environ.get(f"CONFORMANCE_{name.upper().replace('-', '_')}")
        return str(value) if value else None

    def account(self, server: Server, prefix: str = "") -> Account:
        user, password = self[f"{prefix}user"], self[f"{prefix}password"]
        if user is None or password is None:
            pytest.skip(f"--conformance-{prefix}user and --conformance-{prefix}password are not set")
        return Account(server, user, password)


@pytest.fixture(scope="session")
def running(pytestconfig: pytest.Config) -> Running:
    return Running(pytestconfig)


@pytest.fixture(scope="session")
def local_process(
    running: Running, forked_servers: Forker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    """Our server in local hosting with default settings."""
    if running["url"]:
        pytest.skip("the tests must start this server themselves")
    with launch(forked_servers, tmp_path_factory.mktemp("local")) as launched:
        yield launched


@pytest.fixture(scope="session")
def cloud_process(
    running: Running, forked_servers: Forker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    """Our server in cloud hosting. Every setting about the contract's open points has its other value, and the queue is
    short."""
    if running["url"]:
        pytest.skip("the tests must start this server themselves")
    settings = {
        "serve.person_headers": "optional",
        "serve.unique_external_ids": "true",
        "serve.update_conflicts": "apply",
        "serve.queue_images": "3",
        "serve.workers": "2",
    }
    with launch(forked_servers, tmp_path_factory.mktemp("cloud"), hosting="cloud", settings=settings) as launched:
        yield launched


@pytest.fixture(scope="session")
def server(running: Running, request: pytest.FixtureRequest) -> Iterator[Server]:
    if not running["url"]:
        launched: Launched = request.getfixturevalue("local_process")
        yield launched.server
        return
    server = Server.at(running["url"], running["object-url"], running["key-url"])
    with server.http:
        yield server


@pytest.fixture(scope="session")
def account(running: Running, server: Server, request: pytest.FixtureRequest) -> Account:
    if running["url"]:
        return running.account(server)
    launched: Launched = request.getfixturevalue("local_process")
    return launched.account("alice")


@pytest.fixture(scope="session")
def other_account(running: Running, server: Server, request: pytest.FixtureRequest) -> Account:
    if running["url"]:
        return running.account(server, "other-")
    launched: Launched = request.getfixturevalue("local_process")
    return launched.account("bob")


@pytest.fixture(scope="session")
def cloud_account(running: Running, request: pytest.FixtureRequest) -> Iterator[Account]:
    if not running["cloud-url"]:
        launched: Launched = request.getfixturevalue("cloud_process")
        yield launched.account("alice")
        return
    server = Server.at(running["cloud-url"])
    with server.http:
        yield running.account(server)


@pytest.fixture
def directory(account: Account) -> Iterator[Directory]:
    with account.fresh_directory() as fresh:
        yield fresh


@pytest.fixture
def second_directory(account: Account) -> Iterator[Directory]:
    with account.fresh_directory() as fresh:
        yield fresh


@pytest.fixture
def cloud_directory(cloud_account: Account) -> Iterator[Directory]:
    with cloud_account.fresh_directory() as fresh:
        yield fresh


@pytest.fixture
def lenient_directory(cloud_process: Launched) -> Iterator[Directory]:
    """A directory of a server with person_headers=optional, unique_external_ids and update_conflicts=apply."""
    with cloud_process.account("alice").fresh_directory() as fresh:
        yield fresh


@pytest.fixture
def person(directory: Directory) -> Json:
    """The record of the only identity of `directory`."""
    return directory.record(directory.insert(photo("hopper"), "Anna", "A-1")["personId"])


@pytest.fixture
def applying_person(lenient_directory: Directory) -> Json:
    """The record of the only identity of `lenient_directory`, whose server applies updates by another name."""
    return lenient_directory.record(lenient_directory.insert(photo("hopper"), "Anna", "A-1")["personId"])


@pytest.fixture
def alike(directory: Directory) -> list[str]:
    """The ids of three identities of one face in `directory`, oldest first."""
    return directory.force_all(*(other("hopper", which) for which in range(3)))


@dataclass(frozen=True)
class Gallery:
    """A directory with two identities, for tests that only read, and the answers to their insertion."""

    directory: Directory
    hopper: Json
    collins: Json


@pytest.fixture(scope="session")
def gallery(account: Account) -> Iterator[Gallery]:
    with ExitStack() as stack:
        directory = stack.enter_context(account.fresh_directory())
        hopper = directory.insert(photo("hopper"), "Grace Hopper", "N-1906")
        collins = directory.insert(photo("collins"), "Eileen Collins", "N-1956")
        yield Gallery(directory, hopper, collins)
