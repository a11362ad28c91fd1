"""Proves the conformance tests: a server that breaks a rule on purpose fails them."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.forking import Forker
from tests.serve.conformance.forked_mutant import HERE, PYTEST
from tests.serve.conformance.launch import PASSWORDS, environment, make_accounts
from tests.serve.conformance.mutants import MUTANTS
from tests.serve.quick_hash import quick_hash

TESTS_FAILED, ALL_PASSED = 1, 0
ENVIRON = {
    "CONFORMANCE_USER": "alice",
    "CONFORMANCE_PASSWORD": PASSWORDS["alice"],
    "CONFORMANCE_OTHER_USER": "bob",
    "CONFORMANCE_OTHER_PASSWORD": PASSWORDS["bob"],
}


class MutantServers:
    """Forks servers. Each has its own copy of an encrypted store with accounts."""

    def __init__(self, folder: Path) -> None:
        key = base64.b64encode(os.urandom(32)).decode()
        environ = environment({"model.weights": "casia-webface", "security.master_key": key})
        make_accounts(folder / "accounts", {**environ, "FACEPIPE_SECURITY__ENCRYPT": "true"}, quick_hash)
        self.folder = folder
        self.forker = Forker(
            "tests.serve.conformance.forked_mutant", environ={**environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        )

    @contextmanager
    def serving(self, mutant: str | None, hosting: str) -> Iterator[str]:
        """The URL of a server, which must be healthy at the end and stop cleanly."""
        store = self.folder / f"{mutant}-{hosting}"
        shutil.copytree(self.folder / "accounts", store)
        with self.forker.running(store=str(store), hosting=hosting, mutant=mutant) as server:
            assert server.ready, f"{mutant} did not start"
            yield server.ready
            assert httpx.get(f"{server.ready}/healthz", trust_env=False).status_code == 200

    def conformance(self, tests: Sequence[str], url: str, hosting: str) -> tuple[int, str]:
        """Runs these conformance tests against a server. Returns the exit status and the output."""
        cloud_url = url if hosting == "cloud" else ""
        arguments = [*PYTEST, f"--conformance-url={url}", f"--conformance-cloud-url={cloud_url}"]
        output = self.folder / "output"
        output.unlink(missing_ok=True)
        tests = [str(HERE / test) for test in tests]
        child = self.forker.start(pytest=[*arguments, *tests], environ=ENVIRON, output=str(output))
        return child.wait().status, output.read_text()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutantServers]:
    servers = MutantServers(tmp_path_factory.mktemp("mutants"))
    with servers.forker:
        yield servers


@pytest.mark.slow
@pytest.mark.parametrize("hosting", ["local", "cloud"])
def test_a_server_that_breaks_no_rule_passes(servers: MutantServers, hosting: str) -> None:
    tests = [mutant.test for mutant in MUTANTS.values() if mutant.hosting == hosting]
    with servers.serving(None, hosting) as url:
        status, output = servers.conformance(tests, url, hosting)
    assert status == ALL_PASSED, output
    assert "skipped" not in output


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(servers: MutantServers, name: str) -> None:
    mutant = MUTANTS[name]
    with servers.serving(name, mutant.hosting) as url:
        status, output = servers.conformance([mutant.test], url, mutant.hosting)
    assert status == TESTS_FAILED, output
    assert "FAILED" in output, output  # and not an error in a fixture
