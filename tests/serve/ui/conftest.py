"""A server over a store that a real run filled from photos of coded faces, and browsers that look at it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from coded_faces import CodedExtractor

from pipeline.config import MatchSettings, ServeSettings, UiSettings
from pipeline.extraction.images.decode import Decoder
from pipeline.people.service import IdentityService
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, SIZE, fill
from tests.serve.live import LiveServer, listening
from tests.serve.quick_hash import quick_hash
from tests.serve.ui.browser import PASSWORD, Browser


@contextmanager
def page_server(
    store: Path, serve: ServeSettings = SETTINGS.serve, match: MatchSettings = SETTINGS.match, **ui: object
) -> Iterator[LiveServer]:
    """Serves a store of coded faces; ann has a password, and bob is another account."""
    settings = replace(SETTINGS, serve=serve, match=match, ui=UiSettings(**ui))  # type: ignore[arg-type]
    with LocalStore.open(store, command="serve") as client:
        client.set_password("ann", quick_hash(PASSWORD))
        if "bob" not in client.accounts():
            client.create_account("bob", quick_hash(PASSWORD))
        service = IdentityService(client, CodedExtractor(SIZE), Decoder(settings.decode), settings)  # type: ignore[arg-type]
        with closing(service):
            service.load()
            with listening(client, service, settings) as server:
                yield server


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and store, as `fill` makes them."""
    return fill(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="package")  # as `live`
def shared(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server for tests that change nothing; photos may be shown."""
    store = shutil.copytree(archive / "store", tmp_path_factory.mktemp("shared") / "store")
    with page_server(store, photo_roots=str(archive / "photos")) as running:
        yield running


@pytest.fixture
def reader(shared: LiveServer, browser_at: Callable[[LiveServer], Browser]) -> Browser:
    """Ann's, at the server that nothing changes."""
    made = browser_at(shared)
    made.sign_in()
    return made


@pytest.fixture
def store(archive: Path, tmp_path: Path) -> Path:
    """A copy for a test to change."""
    return shutil.copytree(archive / "store", tmp_path / "store")


@pytest.fixture
def server(store: Path, archive: Path) -> Iterator[LiveServer]:
    """Of the test's own store, which is whole afterwards; photos may be shown."""
    with page_server(store, photo_roots=str(archive / "photos")) as running:
        yield running
        assert check_store(running.client).problems == []


@pytest.fixture
def browser_at() -> Iterator[Callable[[LiveServer], Browser]]:
    """Makes browsers where nobody is signed in."""
    with ExitStack() as stack:

        def made(server: LiveServer) -> Browser:
            browser = Browser(server.url)
            stack.enter_context(browser.http)
            return browser

        yield made


@pytest.fixture
def browser(server: LiveServer, browser_at: Callable[[LiveServer], Browser]) -> Browser:
    """Ann's."""
    made = browser_at(server)
    made.sign_in()
    return made
