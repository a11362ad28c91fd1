"""What a command prints: text for people, or with --json one object on standard output and nothing else there."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, TextIO, TypeVar

import click

from pipeline.errors import FacepipeError, OutputUnwritable

Command = TypeVar("Command", bound=Callable[..., Any])

# What a shell shows for a process that SIGINT or SIGPIPE ended.
EXIT_ABORTED = 130
EXIT_BROKEN_PIPE = 141

# Control characters, ends of lines, and what turns the direction of text: a name with them could forge what is printed.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ENCODER = json.JSONEncoder(allow_nan=False, default=str)


def printable(text: str) -> str:
    r"""`text` as one line that does nothing to a terminal: control characters as `\x1b`, `\n` or `\u202e`."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


class PrintableFormatter(logging.Formatter):
    """One line for each record; those of a traceback begin with a bar."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "\n".join(f"| {printable(line)}" for line in super().formatException(ei).split("\n"))


def output_options(function: Command) -> Command:
    """Adds `--json` (argument `as_json`) and `--traceback` (read from the command line by the group)."""
    function = click.option(
        "--traceback", is_flag=True, expose_value=False, help="Show the full traceback of an unexpected error."
    )(function)
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object on standard output, and nothing else there."
    )(function)


def emit(report: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Prints `report` as JSON, or `lines` as text, on standard output. Raises as `write_out`."""
    write_out([f"{dumps(report)}\n"] if as_json else (f"{printable(line)}\n" for line in lines))


def confirm(question: str) -> None:
    """Asks on standard error. Raises click.Abort unless the answer is yes. Call it while the store is closed, so that
    others can use it."""
    agreed = None
    try:
        agreed = click.confirm(question, err=True)
    finally:
        if agreed is None or not sys.stdin.isatty():
            click.echo(err=True)  # no Enter was shown, which ends the line
    if not agreed:
        raise click.Abort


def json_list(key: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """`dumps({key: rows})` in parts, while the rows are read: none before the first row is there."""
    before = start = f'{{"{key}": ['
    for row in rows:
        yield before + dumps(row)
        before = ", "
    yield (start if before is start else "") + "]}\n"


def csv_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The rows as CSV, while they are read, after a line with the keys of the first."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    for number, row in enumerate(rows):
        writer.writerows([row.values()] if number else [row.keys(), row.values()])
        yield "\n".join(map(printable, line.getvalue().split("\n")))
        line.seek(0)
        line.truncate()


def write_out(parts: Iterable[str]) -> None:
    """Writes these on standard output as they come, and flushes it.

    Raises OutputUnwritable where it is closed or its disk is full, BrokenPipeError where its reader went away.
    """
    if sys.stdout is None:
        raise OutputUnwritable(detail="it is closed")
    try:
        for part in parts:
            sys.stdout.write(part)
        # Here, where a failure can still be reported, and not at the interpreter's end.
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        drop_output(sys.stdout)
        raise OutputUnwritable(detail=exc.strerror) from exc


def dumps(report: Mapping[str, Any]) -> str:
    """`report` as one line of standard JSON: NaN and infinity become null, paths and times text."""
    return _ENCODER.encode(_plain(report))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def error_report(code: str, message: str, exit_code: int) -> dict[str, Any]:
    """The one shape of an error under --json."""
    return {"error": code, "message": message, "exit_code": exit_code}


def end_with(
    error: FacepipeError, report: Mapping[str, Any], lines: Iterable[str], as_json: bool, subject: str = ""
) -> NoReturn:
    """Prints a finished report that amounts to a failure, and ends with the failure's exit code.

    Under --json the error's three keys stand in the report itself: still one object. `subject` goes before the message.
    """
    message = f"{subject}: {error}" if subject else str(error)
    emit({**report, **error_report(error.code, message, error.exit_code)}, lines, as_json)
    click.echo(printable(f"facepipe: {message}"), err=True)
    raise click.exceptions.Exit(error.exit_code)


def show_error(code: str, message: str, exit_code: int, as_json: bool) -> int:
    """Says on standard error what went wrong, with --json also on standard output; returns `exit_code`."""
    try:
        click.echo(printable(f"facepipe: {message}"), err=True)
        if as_json:
            emit(error_report(code, message, exit_code), (), as_json)
    except BrokenPipeError:  # nobody reads it; the exit code remains
        drop_output(sys.stdout, sys.stderr)
    except OutputUnwritable:
        pass
    return exit_code


def drop_output(*streams: TextIO | None) -> None:
    """Points streams that cannot be written at nothing, so that Python's last flush cannot fail again."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        if stream is not None:  # as where it was closed from the start
            os.dup2(nothing, stream.fileno())
    os.close(nothing)
