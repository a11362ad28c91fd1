"""The command `facepipe`. A command reads its settings, calls one library function, reports, and sets the exit code.

Commands are loaded when they are named, and import the library inside their functions: `facepipe --help` reads
neither torch nor DuckDB nor Arrow.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import EXIT_ABORTED, EXIT_BROKEN_PIPE, drop_output, printable, show_error
from pipeline.errors import FacepipeError, OutputUnwritable, UsageError
from pipeline.runtime.allocator import configure_allocator

# In the order of the help: name -> module of the click command with the same name.
COMMANDS = {
    "demo": "pipeline.cli.self_checks",
    "run": "pipeline.cli.run",
    "scan": "pipeline.cli.run",
    "extract": "pipeline.cli.run",
    "group": "pipeline.cli.run",
    "abandon": "pipeline.cli.run",
    "report": "pipeline.cli.store",
    "search": "pipeline.cli.search",
    "people": "pipeline.cli.people",
    "regroup": "pipeline.cli.regroup",
    "reindex": "pipeline.cli.reindex",
    "serve": "pipeline.cli.serve",
    "check": "pipeline.cli.store",
    "export": "pipeline.cli.store",
    "migrate": "pipeline.cli.store",
    "erase": "pipeline.cli.erase",
    "evaluate": "pipeline.cli.evaluate",
    "calibrate": "pipeline.cli.evaluate",
    "bench": "pipeline.cli.evaluate",
    "account": "pipeline.cli.accounts",
    "directory": "pipeline.cli.accounts",
    "models": "pipeline.cli.models",
    "doctor": "pipeline.cli.self_checks",
}


class FacepipeGroup(CommandGroup):
    """Loads commands by name, and turns every failure into a message and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """The command, and EXIT_BROKEN_PIPE where the reader of its output went away (click would say 1)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            drop_output(sys.stdout, sys.stderr)
            return EXIT_BROKEN_PIPE

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Runs the command line and exits; with `standalone_mode=False` behaves as click's own."""
        words = list(sys.argv[1:] if args is None else args)
        run = partial(super().main, prog_name=prog_name or "facepipe", complete_var=complete_var, obj=words, **extra)
        if not standalone_mode:
            return run(words, standalone_mode=False)
        _prepare()
        code = _exit_code(partial(run, words, standalone_mode=False), words)
        # Python forgets a Ctrl-C inside an earlier `exec`. Else `python -m` would end by the signal, not with the code.
        exec("")
        sys.exit(code)


def _prepare() -> None:
    # Else the interpreter looks through all objects of the libraries at its end: 0.5 s with torch.
    atexit.register(gc.freeze)
    # The next file to be opened would take the number of a closed stream, and what libraries print would go into it.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    # A path that is no valid text must be shown, not end the program.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    # Spinning OpenMP threads make two busy processes on one machine many times slower. Read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    own = any(name.startswith("MALLOC_") for name in os.environ)
    if not own and "glibc.malloc." not in os.environ.get("GLIBC_TUNABLES", ""):  # the user's own settings stay
        configure_allocator()


def _exit_code(run: Callable[[], object], words: list[str]) -> int:
    """What click's `run` ends with, its errors turned into messages."""
    # Looked up in the words: an error in parsing them comes before any option is set.
    options = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in options
    try:
        result = run()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, click.Abort):
        return show_error("aborted", "stopped.", EXIT_ABORTED, as_json)
    except FacepipeError as error:
        return show_error(error.code, str(error), error.exit_code, as_json)
    except click.ClickException as error:
        return _show_click_error(error, as_json)
    except OSError as error:
        # Help and versions are printed by click itself.
        if traceback.extract_tb(error.__traceback__)[-1].filename != click.utils.__file__:
            return _show_unexpected(error, "--traceback" in options, as_json)
        drop_output(sys.stdout)
        unwritable = OutputUnwritable(detail=error.strerror)
        return show_error(unwritable.code, str(unwritable), unwritable.exit_code, as_json)
    except Exception as error:  # noqa: BLE001  the outermost frame: whatever it is, one line and exit code 3
        return _show_unexpected(error, "--traceback" in options, as_json)


def _show_unexpected(error: Exception, with_traceback: bool, as_json: bool) -> int:
    if with_traceback:
        for line in traceback.format_exc().splitlines():
            click.echo(printable(line), err=True)
    message = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "" if with_traceback else " (--traceback shows all)"
    return show_error("unexpected", f"unexpected error: {message}{hint}", FacepipeError.exit_code, as_json)


def _show_click_error(error: click.ClickException, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    usage = f"{context.get_usage()}\nSee `{context.command_path} --help`.\n" if context is not None else ""
    click.echo(usage, err=True, nl=False)
    return show_error("usage-error", error.format_message(), UsageError.exit_code, as_json)


@click.group(cls=FacepipeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="facepipe", prog_name="facepipe")
def main() -> None:
    """Turns photo archives into a store of identities, and answers from it who a face belongs to.

    Start with `facepipe demo`, then `facepipe run PHOTOS --store STORE`.
    """


__all__ = ["COMMANDS", "main"]
