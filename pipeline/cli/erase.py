"""`facepipe erase`: what of deleted people is still in a store's files, and receipts of what is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pipeline.cli.flags import PATH, optional_store, settings_options, store_option
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import emit, end_with, output_options
from pipeline.config import Settings
from pipeline.errors import NotErased, UsageError

if TYPE_CHECKING:
    from pipeline.jobs.receipts import Verified


_KINDS: Final = "name, external-id, tag, metadata, person-id, path"


@click.group(cls=CommandGroup, invoke_without_command=True)
@optional_store("The store.")
@click.option("--now", is_flag=True, help="Erase it now.")
@settings_options(("store.erase_within",))
@output_options
@click.pass_context
def erase(context: click.Context, store: Path | None, now: bool, settings: Settings, as_json: bool) -> None:
    """Tell what of deleted people is still in a store's files, or erase it.

    `people forget` and other deletions delete vectors, pictures and reports at once. Names, paths and hashes may stay
    among the free bytes of the catalog's file, until it is written again without them: by a running server or the next
    command, within --erase-within hours, or now. Works while a server is running.

    \b
    Examples:
      facepipe erase --store ~/people
      facepipe erase --now --store ~/people
    """
    if context.invoked_subcommand is not None:
        return
    if store is None:
        raise click.UsageError("Missing option '--store'.", context)
    from pipeline.jobs.store import open_store

    with open_store(store, settings, command="erase", reading=not now) as opened:
        state = opened.erase(now=now)
    if state.since is None:
        said = "Nothing waits to be erased."
    elif now:
        said = "Erased what was deleted."
    else:
        said = f"Deleted data waits to be erased by {state.due:%F %T} UTC: facepipe erase --now"
    report = {"since": state.since, "due": state.due, "erased": now and state.since is not None}
    emit(report, [said], as_json)


@erase.command()
@click.argument("file", type=PATH)
@store_option
@settings_options(("store.erase_within",))
@output_options
def receipt(file: Path, store: Path, settings: Settings, as_json: bool) -> None:
    """Complete and sign the receipt FILE of `people forget --receipt`.

    The store refuses it until its files are rewritten, and if FILE is not the one that it knows.

    \b
    Example:
      facepipe erase receipt grace.json --store ~/people
    """
    from pipeline.jobs.receipts import complete
    from pipeline.jobs.store import open_store

    with open_store(store, settings, command="erase receipt") as opened:
        made = complete(opened, file)
    lines = [f"receipt {file}: {made.state}, signed with the key {made.public_key}", *_parts(made.parts)]
    emit({"receipt": str(file), **_without_digests(made.content)}, lines, as_json)


@erase.command()
@click.argument("file", metavar="RECEIPT", type=PATH)
@click.option("--name", metavar="NAME", help="Was this name erased?")
@click.option("--external-id", metavar="ID", help="Was this external id erased?")
@click.option("--value", "values", multiple=True, metavar="KIND=TEXT", help=f"Was it erased? Kinds: {_KINDS}.")
@click.option("--photo", type=PATH, metavar="FILE", help="Was the hash of this photo's bytes erased?")
@click.option("--store", type=PATH, metavar="DIR", help="Search this store, and take its public key.")
@click.option("--key", metavar="HEX", help="The public key, as `erase key` printed it.")
@output_options
def verify(
    file: Path,
    name: str | None,
    external_id: str | None,
    values: tuple[str, ...],
    photo: Path | None,
    store: Path | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Verify the signature of RECEIPT, and what it says of a name, a photo or another value.

    With --store also searches all bytes of its files, and all texts of its catalog, for what is given. Ends with exit
    code 71 if that was not erased, or is found: it may be somebody else's of the same name.

    \b
    Examples:
      facepipe erase verify grace.json --name "Grace Hopper" --key 3b6a...
      facepipe erase verify grace.json --photo grace.jpg --store ~/people
      facepipe erase verify grace.json --value tag=pioneer --value path=/photos/grace.jpg
    """
    from pipeline.jobs.receipts import verify as verify_receipt
    from pipeline.jobs.store import open_store

    texts = [(kind, text) for kind, text in (("name", name), ("external_id", external_id)) if text is not None]
    for value in values:
        kind, _, text = value.partition("=")
        if kind not in _KINDS.split(", "):
            raise UsageError(message=f"--value takes KIND=TEXT, as in --value tag=pioneer, with a kind of {_KINDS}.")
        texts.append((kind.replace("-", "_"), text))
    if not all(text for _, text in texts):
        raise UsageError(message="A value is empty.")
    with ExitStack() as stack:
        opened = stack.enter_context(open_store(store, command="erase verify", reading=True)) if store else None
        made, verified = verify_receipt(file, texts, photo, store=opened, key=key)
    trusted = key is not None or store is not None
    report = {"receipt": str(file), "key_known": trusted, "values": [asdict(value) for value in verified]}
    report |= _without_digests(made.content)
    lines = [f"signed by the store with the key {made.public_key}"]
    if not trusted:
        lines.append("Only the store's owner can say whether that is its key: --key or --store compares it.")
    lines += [*_parts(made.parts), *(line for value in verified for line in _value_lines(value))]
    wrong = [value for value in verified if value.found or not value.in_receipt]
    if wrong:
        detail = ", ".join(value.kind.replace("_", " ") for value in wrong)
        end_with(NotErased(detail=detail), report, lines, as_json)
    emit(report, lines, as_json)


@erase.command()
@store_option
@click.option(
    "--receipt", "file", type=PATH, metavar="FILE", help="Also write a signed receipt of them to this new file."
)
@output_options
def log(store: Path, file: Path | None, as_json: bool) -> None:
    """List the deletions of people and photos, in times and numbers.

    \b
    Examples:
      facepipe erase log --store ~/people
      facepipe erase log --receipt log.json --store ~/people
    """
    from pipeline.jobs.receipts import write_log
    from pipeline.jobs.store import open_store

    with open_store(store, command="erase log", reading=True) as opened:
        if file is not None:
            write_log(opened, file)
        rows = opened.table("erasures").read_all().to_pylist()
    emit({"erasures": rows}, map(_log_line, rows), as_json)


@erase.command()
@store_option
@output_options
def key(store: Path, as_json: bool) -> None:
    """Print the public key of a store's receipts: publish it, or give it to those who get receipts.

    \b
    Example:
      facepipe erase key --store ~/people
    """
    from pipeline.jobs.store import open_store

    with open_store(store, command="erase key", reading=True) as opened:
        public_key = opened.erase(now=False).public_key
    emit({"public_key": public_key}, [public_key], as_json)


def _log_line(row: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{row[name]} {name}" for name in ("people", "faces", "photos"))
    when = f"erased {row['erased_at']:%F %T}" if row["erased_at"] else "not erased yet"
    receipt = [f"receipt {row['receipt'][:12]}"] if row["receipt"] else []
    parts = [f"{row['deleted_at']:%F %T}", row["account"], row["kind"].replace("_", "-"), counts, when, *receipt]
    return "  ".join(parts)


def _without_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    parts = [{name: value for name, value in part.items() if name != "digests"} for part in content["parts"]]
    return {**content, "parts": parts}


def _parts(parts: Any) -> Iterator[str]:
    for part in parts:
        counts = ", ".join(f"{part[name]} {name}" for name in ("people", "faces", "photos"))
        erased = f"erased at {part['erased_at']}" if part["erased_at"] else "not erased yet"
        yield f"{part['kind'].replace('_', '-')} at {part['deleted_at']}, {erased}: {counts}"


def _value_lines(value: Verified) -> Iterator[str]:
    yield f"{value.kind} {value.value}: {'erased' if value.in_receipt else 'not in the receipt'}"
    if value.found is not None:
        yield from (f"  found in {place}" for place in value.found)
        if not value.found:
            yield "  not found in the store"
        if value.is_short:
            yield "  too short to be searched for among bytes: only the catalog's columns were searched"
