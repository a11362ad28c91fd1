"""Starts a real `facepipe serve` over a new store with accounts, as an operator would: by the command line."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.serve.conformance.client import Account, Server

PASSWORDS = {"alice": "p:ss word-ä", "bob": "b0b password"}  # a colon, a space, a letter beyond ASCII
LIMITED_QUEUE = {"serve.queue_images": "3", "serve.workers": "2"}
ROOT = Path(__file__).parents[3]
_START_S = 120


@dataclass(frozen=True)
class Launched:
    """A server process of ours. `environ` is what another command needs to work on its store."""

    server: Server
    store: Path
    process: subprocess.Popen[str]
    environ: Mapping[str, str]

    def account(self, user: str) -> Account:
        return Account(self.server, user, PASSWORDS[user])


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """That of a command with these settings (`section.name`), and none of the caller's own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FACEPIPE_")}
    cache = {key: os.environ[key] for key in ("FACEPIPE_CACHE",) if key in os.environ}
    told = {f"FACEPIPE_{key.replace('.', '__').upper()}": value for key, value in settings.items()}
    return {**inherited, **cache, "OMP_WAIT_POLICY": "passive", **told}


def facepipe(*arguments: str, environ: Mapping[str, str], stdin: str | None = None) -> dict[str, Any]:
    """One command, told to answer in JSON."""
    command = [sys.executable, "-m", "pipeline", *arguments, "--json"]
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=dict(environ), cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def make_accounts(store: Path, environ: Mapping[str, str], flags: Sequence[str] = ()) -> None:
    for user, password in PASSWORDS.items():
        facepipe(
            *("account", "create", user, "--store", str(store), "--password-stdin", *flags),
            environ=environ,
            stdin=password + "\n",
        )


@contextmanager
def launch(
    folder: Path, hosting: str = "local", settings: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[Launched]:
    """A server on a free port over the new store `folder`/store; stopped by SIGTERM, which must end well."""
    store = folder / "store"
    common = {"model.weights": "casia-webface", "run.device": "cpu", **(settings or {})}
    if hosting == "cloud":
        common["security.master_key"] = base64.b64encode(os.urandom(32)).decode()
        flags = (*flags, "--hosting", "cloud", "--public-url", "https://images.example.org")
    environ = environment(common)
    make_accounts(store, environ, ["--encrypt"] if hosting == "cloud" else [])
    command = [sys.executable, "-m", "pipeline", "serve", "--store", str(store), "--port", "0", "--json", *flags]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ, cwd=ROOT)
        try:
            server = _listening(process, folder / "server.log")
            with server.http:
                yield Launched(server, store, process, environ)
            process.send_signal(signal.SIGTERM)
            assert process.wait(_START_S) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _listening(process: subprocess.Popen[str], log: Path) -> Server:
    """Waits for the line that tells the addresses."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()
    told = json.loads(line)
    return Server.at(told["url"], told["object_url"])
