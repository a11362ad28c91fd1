"""The conformance tests are proven: a server that breaks a rule on purpose does not pass them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conformance.launch import PASSWORDS, ROOT, environment, make_accounts
from tests.serve.conformance.mutants import MUTANTS

HERE = Path(__file__).parent
TESTS_FAILED, ALL_PASSED = 1, 0


@dataclass
class Forker:
    """The forking process, and the store with accounts that every server gets a copy of."""

    process: subprocess.Popen[str]
    accounts: Path
    folder: Path

    def order(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    @contextmanager
    def serving(self, mutant: str | None, hosting: str) -> Iterator[str]:
        """The URL of a server; it is up to the end, and stops well."""
        store = self.folder / f"{mutant}-{hosting}"
        shutil.copytree(self.accounts, store)
        made = self.order(store=str(store), hosting=hosting, mutant=mutant)
        assert made["url"], f"{mutant} did not start"
        try:
            yield made["url"]
            assert httpx.get(f"{made['url']}/healthz", trust_env=False).status_code == 200
        finally:
            assert self.order(stop=made["pid"])["status"] == 0


@pytest.fixture(scope="module")
def forker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    folder = tmp_path_factory.mktemp("mutants")
    key = base64.b64encode(os.urandom(32)).decode()
    environ = environment({"model.weights": "casia-webface", "security.master_key": key})
    make_accounts(folder / "accounts", environ, ["--encrypt"])
    command = [sys.executable, "-W", "ignore", "-m", "tests.serve.conformance.mutant_forker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
    ) as process:
        yield Forker(process, folder / "accounts", folder)
        assert process.stdin is not None
        process.stdin.close()


def conformance(tests: Sequence[str], url: str, hosting: str) -> subprocess.CompletedProcess[str]:
    """These conformance tests against that server, as anybody would run them."""
    told: Mapping[str, str] = {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CONFORMANCE_USER": "alice",
        "CONFORMANCE_PASSWORD": PASSWORDS["alice"],
        "CONFORMANCE_OTHER_USER": "bob",
        "CONFORMANCE_OTHER_PASSWORD": PASSWORDS["bob"],
    }
    # The plugins of other tests take longer to import than these tests to run.
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout"]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, f"--confcutdir={HERE}"]
    command += [f"--conformance-url={url}", f"--conformance-cloud-url={url if hosting == 'cloud' else ''}"]
    command += [str(HERE / test) for test in tests]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**environment({}), **told}, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("hosting", ["local", "cloud"])
def test_a_server_that_breaks_no_rule_passes(forker: Forker, hosting: str) -> None:
    tests = [each.test for each in MUTANTS.values() if each.hosting == hosting]
    with forker.serving(None, hosting) as url:
        done = conformance(tests, url, hosting)
    assert done.returncode == ALL_PASSED, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(forker: Forker, name: str) -> None:
    mutant = MUTANTS[name]
    with forker.serving(name, mutant.hosting) as url:
        done = conformance([mutant.test], url, mutant.hosting)
    assert done.returncode == TESTS_FAILED, f"{mutant.rule}\n{done.stdout}"
    assert "FAILED" in done.stdout, done.stdout  # and not an error in a fixture
