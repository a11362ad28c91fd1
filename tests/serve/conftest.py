"""The servers that the tests of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve import auth
from tests.forking import Forker
from tests.remembering import remembering
from tests.serve.conformance.client import Account, Server
from tests.serve.connecting import Clients
from tests.serve.live import PASSWORD, LiveServer, live_server


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("full"):
        os.environ.setdefault("SCHEMA_EXAMPLES", "5000")  # test_schema needs the number when it is imported


def pytest_itemcollected(item: pytest.Item) -> None:
    """From pytest 9.2 on schemathesis's tests of all API operations have one node id, and pytest-xdist would run only
    one of them (`test_much_was_asked` notices)."""
    operation = getattr(item, "operation_label", None)
    if operation and operation not in item.nodeid:
        from _pytest.nodeid import coerce_node_id

        item._id = coerce_node_id(f"{item.nodeid}[{operation}]")


@pytest.fixture(scope="session")
def extractor(extractor: BatchExtractor) -> BatchExtractor:
    return remembering(extractor)


@pytest.fixture(scope="package")  # afterwards its thread would fold amid other tests, also at their fault points
def live(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """Local hosting; short times, so that the tests of slow clients are quick."""
    with live_server(tmp_path_factory.mktemp("live") / "store", extractor, serve__body_timeout_s=1.5) as server:
        yield server


@pytest.fixture(scope="package")
def live_account(live: LiveServer) -> Iterator[Account]:
    """Alice's at `live`, by the calls of the contract."""
    server = Server.at(live.url)
    with server.http:
        yield Account(server, "alice", PASSWORD)


@pytest.fixture
def quick_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who guessed too often is refused at once."""
    monkeypatch.setattr(auth, "REFUSAL_S", 0.0)


@pytest.fixture
def clients(live: LiveServer) -> Iterator[Clients]:
    """Raw connections to `live`, closed afterwards."""
    with ExitStack() as stack:
        yield Clients(live.port, stack)


@pytest.fixture(scope="session")
def forked_servers() -> Iterator[Forker]:
    """Forks servers."""
    with Forker("tests.serve.forked_server") as forker:
        yield forker


@pytest.fixture(scope="session")
def hopper(hopper_path: Path) -> bytes:
    return hopper_path.read_bytes()
