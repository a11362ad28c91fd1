"""`facepipe serve`."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pipeline.cli.flags import SERVE_FLAGS, settings_options, store_option
from pipeline.cli.output import PrintableFormatter, emit, output_options
from pipeline.config import Settings

if TYPE_CHECKING:
    from pipeline.serve.server import Listening

MOST: Final = 20  # lines of one kind in a window
WINDOW_S: Final = 60.0


@click.command()
@store_option
@click.option("--quiet", is_flag=True, help="No line per request on standard error; failures are still shown.")
@click.option(
    "--for-existing-clients", is_flag=True, help="Set what clients of the well-known service with these headers need."
)
@settings_options(SERVE_FLAGS)
@output_options
def serve(store: Path, quiet: bool, for_existing_clients: bool, as_json: bool, settings: Settings) -> None:
    """Serve the identity contract over HTTP from a store, and a web UI at /ui.

    Prints one line when it listens (with --json one object with `url`), and serves until Ctrl-C or SIGTERM. It finishes
    requests in progress first; a second signal ends it at once. Give accounts a password with `facepipe
    account`.

    \b
    Examples:
      facepipe serve --store ~/people
      facepipe serve --store ~/people --for-existing-clients
      facepipe serve --store ~/people --host 0.0.0.0 --port 8443 --tls-cert cert.pem --tls-key key.pem
    """
    from pipeline.serve import server

    log_to_stderr(quiet)
    if not quiet:
        click.echo("loading the models", err=True)
    if for_existing_clients:
        settings = replace(settings, serve=server.for_existing_clients(settings.serve))

    def announce(listening: Listening) -> None:
        report = {
            "url": listening.url,
            "object_url": listening.object_url,
            "store": str(store),
            "identities": listening.identities,
        }
        emit(report, _lines(listening, page=settings.ui.enabled), as_json)

    server.serve(store, settings, announce)


def _lines(listening: Listening, *, page: bool) -> Iterator[str]:
    also = f", objects on {listening.object_url}" if listening.object_url != listening.url else ""
    where = f"{'a page for people at /ui, ' * page}documentation at /docs"
    yield f"listening on {listening.url}{also} ({listening.identities:,} identities; {where})"


def log_to_stderr(quiet: bool) -> None:
    """One line per request and per failure; of the libraries, warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of every malformed request
    logging.getLogger("facepipe").setLevel(logging.WARNING if quiet else logging.INFO)


@dataclass
class _Kind:
    window_end: float
    passed: int = 0
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Lets `MOST` warnings and errors of one kind through in `WINDOW_S`: from one line of code, with one type of
    exception. The first of the next window says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[object, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, record.pathname, record.lineno, record.exc_info and record.exc_info[0])
        with self._lock:
            now = self._clock()
            kind = self._kinds.setdefault(key, _Kind(now + WINDOW_S))
            left_out = 0
            if now >= kind.window_end:
                left_out = kind.left_out
                kind = self._kinds[key] = _Kind(now + WINDOW_S)
            if kind.passed >= MOST:
                kind.left_out += 1
                return False
            kind.passed += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} like it before)", None
        return True
