"""Starts a real `facepipe serve`, from the command line or with the words of one."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import load_settings
from pipeline.jobs.store import open_or_create_store
from pipeline.store.catalog.accounts import hash_password
from tests.forking import Forker, Order
from tests.serve.conformance.client import Account, Server

PASSWORDS = {"alice": "p:ss word-ä", "bob": "b0b password"}  # a colon, a space, a non-ASCII letter
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Launched:
    server: Server
    store: Path

    def account(self, user: str) -> Account:
        return Account(self.server, user, PASSWORDS[user])


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command with these settings (`section.name`), without the settings of the caller."""
    inherited = {
        key: value for key, value in os.environ.items() if key == "FACEPIPE_CACHE" or not key.startswith("FACEPIPE_")
    }
    variables = {f"FACEPIPE_{key.replace('.', '__').upper()}": value for key, value in settings.items()}
    return {**inherited, "OMP_WAIT_POLICY": "passive", **variables}


def make_accounts(store: Path, environ: Mapping[str, str], hashed: Callable[[str], str] = hash_password) -> None:
    """Makes a store with the accounts of PASSWORDS. The environment decides whether it is encrypted."""
    with open_or_create_store(store, load_settings(environ=environ), "test") as client:
        for user, password in PASSWORDS.items():
            client.create_account(user, hashed(password))


def serve_words(store: Path, *flags: str) -> list[str]:
    """`facepipe serve` on a free port, which prints JSON once it listens."""
    return ["serve", "--store", str(store), "--port", "0", "--json", *flags]


@contextmanager
def server_process(
    store: Path, log: Path, *flags: str, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Runs `facepipe serve`; kills it afterwards if it still runs. Yields the process and the JSON that it prints. Its
    standard error goes to the file `log`."""
    command = [sys.executable, "-m", "pipeline", *serve_words(store, *flags)]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(environ), cwd=ROOT
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield process, json.loads(line)
        finally:
            process.kill()


def server_order(store: Path, log: Path, *flags: str, environ: Mapping[str, str]) -> Order:
    """The same for `tests.serve.forked_server`, whose children need not import everything. They are ready with the
    JSON."""
    return {"words": serve_words(store, *flags), "environ": dict(environ), "log": str(log)}


@contextmanager
def launch(
    forker: Forker,
    folder: Path,
    hosting: str = "local",
    settings: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Iterator[Launched]:
    """A server with a new store, `folder`/store. It must stop cleanly on SIGTERM."""
    store = folder / "store"
    common = {"model.weights": "casia-webface", "run.device": "cpu", **(settings or {})}
    if hosting == "cloud":
        common |= {"security.encrypt": "true", "security.master_key": base64.b64encode(os.urandom(32)).decode()}
        flags = (*flags, "--hosting", "cloud", "--public-url", "https://images.example.org")
    environ = environment(common)
    make_accounts(store, environ)
    log = folder / "server.log"
    with forker.running(**server_order(store, log, *flags, environ=environ)) as child:
        assert child.ready, log.read_text()
        listening = json.loads(child.ready)
        server = Server.at(listening["url"], listening["object_url"])
        with server.http:
            yield Launched(server, store)
