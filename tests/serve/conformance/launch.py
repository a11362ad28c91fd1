"""Starts a real `facepipe serve` by the command line, as an operator would."""

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
_STOP_S = 120


@dataclass(frozen=True)
class Launched:
    """A server process of the tests. `environ` is the environment that another command on its store needs."""

    server: Server
    store: Path
    process: subprocess.Popen[str]
    environ: Mapping[str, str]

    def account(self, user: str) -> Account:
        return Account(self.server, user, PASSWORDS[user])


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command with these settings (`section.name`) and none of the caller's own."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("FACEPIPE_")}
    cache = {key: os.environ[key] for key in ("FACEPIPE_CACHE",) if key in os.environ}
    variables = {f"FACEPIPE_{key.replace('.', '__').upper()}": value for key, value in settings.items()}
    return {**inherited, **cache, "OMP_WAIT_POLICY": "passive", **variables}


def facepipe(*arguments: str, environ: Mapping[str, str], stdin: str | None = None) -> dict[str, Any]:
    """Runs one command and returns the JSON that it prints."""
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
def server_process(
    store: Path, log: Path, *flags: str, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`facepipe serve` on a free port, and the JSON that it prints when it listens. Killed in the end if it still runs.
    Its standard error goes to the file `log`."""
    command = [sys.executable, "-m", "pipeline", "serve", "--store", str(store), "--port", "0", "--json", *flags]
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


@contextmanager
def launch(
    folder: Path, hosting: str = "local", settings: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Iterator[Launched]:
    """A server on a free port over the new store `folder`/store. SIGTERM stops it, and it must stop cleanly."""
    store = folder / "store"
    common = {"model.weights": "casia-webface", "run.device": "cpu", **(settings or {})}
    if hosting == "cloud":
        common["security.master_key"] = base64.b64encode(os.urandom(32)).decode()
        flags = (*flags, "--hosting", "cloud", "--public-url", "https://images.example.org")
    environ = environment(common)
    make_accounts(store, environ, ["--encrypt"] if hosting == "cloud" else [])
    with server_process(store, folder / "server.log", *flags, environ=environ) as (process, listening):
        server = Server.at(listening["url"], listening["object_url"])
        with server.http:
            yield Launched(server, store, process, environ)
        process.send_signal(signal.SIGTERM)
        assert process.wait(_STOP_S) == 0
