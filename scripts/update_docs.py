#!/usr/bin/env python
"""Writes the generated sections of the documents, from the code and from the results under scripts/bench/results/, and
the line numbers of links to functions.

python scripts/update_docs.py            writes
python scripts/update_docs.py --check    ends with 1 where something is out of date

A document takes a section wherever it has the lines `<!-- generated: NAME -->` and `<!-- end -->`; NAME is in SECTIONS.
A link [`NAME`](FILE.py#L) gets the line of the function, class or `Class.method`. #L0 marks a missing one, an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click
from bench.tables import TABLES, Table

from pipeline.cli import main
from pipeline.cli.output import EXIT_ABORTED, EXIT_BROKEN_PIPE
from pipeline.errors import FacepipeError, ImageRejected, all_errors
from pipeline.types import DUPLICATE, DUPLICATE_ROW, FORGOTTEN, NO_FACE, OK, REPLACED

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/commands.md",
    "docs/accuracy.md",
    "docs/cluster.md",
    "docs/speed.md",
)

# Codes that are no class of their own, and classes whose message says nothing without its fields.
_MEANINGS: Final = {
    0: "done",
    1: "`--strict`: done, and inputs were rejected; `search`: the photo could not be used",
    2: "the command line or the configuration is wrong",
    3: "an error that nobody expected; `--traceback` shows all of it",
    4: "another error of the source",
    5: "another error of the device",
    6: "another error of the weights",
    7: "another error of the store",
    8: "`demo` or `doctor` found something wrong",
    9: "Ctrl-C: the current shard was finished; the same command continues from there",
    14: "another request that can't be answered as it was made",
    25: "a shard of the run failed too often on the Ray cluster: one of its photos may end workers",
    34: "an embedding in the store or from the model is not finite, or not of norm 1",
    61: "this correction can't be made; nothing was changed",
    64: "the correction can't be undone any more, because something changed since",
    72: "nobody in the directory has this id, this name or its first letters",
    73: "several people have this name or these first letters; nothing was done",
    EXIT_ABORTED: "stopped by a second Ctrl-C, or nothing was in progress that could be finished",
    EXIT_BROKEN_PIPE: "the reader of standard output went away",
}
_FIRST_OWN_CODE: Final = 8  # below, codes of families and of the command line itself
_STATUSES: Final = {
    OK: "faces were found",
    NO_FACE: "no face was found",
    DUPLICATE: "the bytes of another row: not decoded again, its faces are counted again",
    DUPLICATE_ROW: "the same path, directory and bytes a second time: not counted again",
    FORGOTTEN: "was forgotten: nothing of it is stored any more",
    REPLACED: "of a file that changed since: its later row has what is stored",
}


def commands() -> Table:
    """Every command, those of groups as well, with the first sentence of its help."""
    rows = []
    with click.Context(main) as context:
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            assert command is not None
            inner = dict(command.commands) if isinstance(command, click.Group) else {}
            if not isinstance(command, click.Group) or command.invoke_without_command:
                inner = {"": command, **inner}
            rows += [(f"`{name} {sub}`", each.get_short_help_str(100)) for sub, each in inner.items()]
    rows = [(name.replace(" `", "`"), does) for name, does in rows]
    return ("command", "does"), rows


def exit_codes() -> Table:
    """One row per code; where several classes share one, its meaning stands for them."""
    rows = {code: ("", meaning) for code, meaning in _MEANINGS.items()}
    for error in all_errors():
        # A class that only inherits its family's code has no row of its own.
        if error.exit_code >= _FIRST_OWN_CODE and "exit_code" in vars(error):
            meaning = _MEANINGS.get(error.exit_code) or _first_sentence(error)
            rows[error.exit_code] = (f"`{error.__new__(error).code}`", meaning)
    return ("code", "error", "meaning"), [(str(code), *rows[code]) for code in sorted(rows)]


def statuses() -> Table:
    """What becomes of a row of the source."""
    rejected = {c.status: _first_sentence(c) for c in all_errors(ImageRejected) if c is not ImageRejected}
    return ("status", "meaning"), [(f"`{status}`", meaning) for status, meaning in {**_STATUSES, **rejected}.items()]


def _first_sentence(error: type[FacepipeError]) -> str:
    """Of the message's template; its fields in capitals, the details left out."""
    template = re.sub(
        r":? *\(?\{detail\}\)?", "", (error.__doc__ or "").strip().replace(", but {detail}", " and is not there")
    )
    sentence = re.split(r"(?<=[.;])\s", template, maxsplit=1)[0].rstrip(".;")
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), sentence).replace("|", "\\|")


SECTIONS: Final[dict[str, Callable[[], Table]]] = {
    "commands": commands,
    "exit codes": exit_codes,
    "statuses": statuses,
    **TABLES,
}
_SECTION: Final = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ("---",) * len(head), *rows))


def updated(text: str) -> str:
    """`text` with every generated section written again. Raises KeyError for a section without a generator."""
    return _SECTION.sub(lambda match: match[1] + table(*SECTIONS[match[2]]()) + match[3], text)


_LINK: Final = re.compile(r"\[([^\[\]]+)\]\(([^()#]+\.py)#L(\d*)\)")


def line_of(file: Path, name: str) -> int:
    """The line of a function, class or `Class.method`; 0 if it is missing."""
    place: ast.AST = ast.parse(file.read_text("utf-8") if file.is_file() else "")
    for part in name.split("."):
        named = (node for node in ast.iter_child_nodes(place) if getattr(node, "name", None) == part)
        place = next(named, ast.Module([], []))
    return getattr(place, "lineno", 0)


def relinked(text: str, folder: Path) -> str:
    """`text` with the line of each linked function written again. Its links are relative to `folder`."""

    def link(match: re.Match[str]) -> str:
        name = match[1].strip("`").removesuffix("()")
        return f"[{match[1]}]({match[2]}#L{line_of(folder / match[2], name)})"

    return _LINK.sub(link, text)


def write(check: bool) -> None:
    """Writes the documents that are out of date; with `check` names them instead, and ends with 1. So it does for links
    to missing functions."""
    stale, wrong = [], []
    for name in DOCUMENTS:
        file = ROOT / name
        old = file.read_text("utf-8")
        new = relinked(updated(old), file.parent)
        wrong += [f"{name}: there is no {text} in {path}" for text, path, line in _LINK.findall(new) if line == "0"]
        if old != new:
            stale.append(name)
            if not check:
                file.write_text(new, "utf-8")
    if stale and check:
        wrong.append(f"{', '.join(stale)} out of date: python scripts/update_docs.py")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    write(check="--check" in sys.argv[1:])
