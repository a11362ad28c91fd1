"""The command line as a process: help, errors, exit codes, --json, pipes."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import pytest

from pipeline.cli import COMMANDS, main
from pipeline.cli.output import EXIT_ABORTED, PrintableFormatter, csv_lines, dumps, json_list, printable
from pipeline.config import ENV_STORE
from pipeline.errors import SourceMissing, StoreMissing
from tests.cli.report import facepipe


def process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pipeline", *words], capture_output=True, text=True, check=False)


def leaf_commands() -> dict[str, click.Command]:
    """Every command by the words that call it."""
    leaves: dict[str, click.Command] = {}
    with click.Context(main) as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                leaves.update({f"{name} {inner}": command.commands[inner] for inner in command.commands})
            else:
                leaves[name] = command
    return leaves


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom pipeline.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'torch', 'duckdb', 'pyarrow', 'PIL', 'cv2', 'numpy', 'rich', 'cryptography'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for words in (["--help"], ["run", "--help"], ["models", "list", "--help"], ["account", "create", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Usage: facepipe" in done.stdout


@pytest.mark.parametrize(("words", "command"), leaf_commands().items())
def test_every_command_has_help_an_example_and_json(words: str, command: click.Command) -> None:
    assert f"facepipe {words}" in (command.help or "").split("Example")[1]
    assert {"as_json"} <= {parameter.name for parameter in command.params}
    options = [option for parameter in command.params for option in parameter.opts]
    assert "--traceback" in options
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or getattr(parameter, "help", None), parameter.name


@pytest.mark.parametrize("words", leaf_commands())
def test_the_examples_are_valid_command_lines(words: str) -> None:
    command = leaf_commands()[words]
    for line in (command.help or "").split("Example")[1].splitlines():
        if line.strip().startswith("facepipe "):
            arguments = shlex.split(re.split("[<>]", line)[0])[1 + len(words.split()) :]
            command.make_context(words, arguments, resilient_parsing=False).close()


def test_version_and_the_module() -> None:
    done = process("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("facepipe, version ")


def test_without_a_command_the_help_and_exit_code_2() -> None:
    result = facepipe()
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rum",), "No such command 'rum'. Did you mean 'run'?"),
        (("account", "pasword"), "No such command 'pasword'. Did you mean 'password'?"),
        (("unheard-of",), "No such command 'unheard-of'."),
        (("run", "x", "--stor", "y"), "No such option"),
        (("run", "x"), "Missing option '--store'"),
        (("search", "x", "--store", "y", "--top", "-1"), "--top"),
        (("run", "x", "--store", "y", "--threshold", "5"), 'Setting "match.threshold" in the flags is 5'),
        (("run", "x", "--store", "y", "--set", "run.thread=5"), 'Did you mean "run.threads"'),
        (("run", "x", "--store", "y", "--set", "threads"), "SECTION.KEY=VALUE"),
        (("run", "x", "--store", "y", "--config", "/absent.yaml"), "cannot be read"),
    ],
)
def test_usage_errors(words: tuple[str, ...], message: str) -> None:
    plain, as_json = facepipe(*words), facepipe(*words, "--json")
    assert plain.exit_code == as_json.exit_code == 2
    assert message in plain.stderr
    assert plain.stdout == ""
    report = json.loads(as_json.stdout)
    assert report.keys() == {"error", "message", "exit_code"}
    assert message in report["message"]
    assert report["exit_code"] == 2


def test_an_error_of_the_tree_ends_with_its_exit_code(tmp_path: Path) -> None:
    words = ("check", "--store", str(tmp_path / "absent"))
    plain, as_json = facepipe(*words), facepipe(*words, "--json")
    assert plain.exit_code == as_json.exit_code == StoreMissing.exit_code
    assert plain.stdout == ""
    assert plain.stderr == f"facepipe: {StoreMissing(path=tmp_path / 'absent')}\n"
    assert json.loads(as_json.stdout) == {
        "error": "store-missing",
        "message": str(StoreMissing(path=tmp_path / "absent")),
        "exit_code": 40,
    }


def test_a_missing_source_leaves_no_store(tmp_path: Path) -> None:
    result = facepipe("run", str(tmp_path / "absent"), "--store", str(tmp_path / "store"))
    assert result.exit_code == SourceMissing.exit_code
    assert not (tmp_path / "store").exists()


def test_a_path_that_is_no_text_is_shown_and_not_the_end() -> None:
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"pipeline", b"check", b"--json", b"--store", b"/absent/\xff"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == StoreMissing.exit_code, done.stderr
    assert json.loads(done.stdout)["message"].startswith("There is no store at /absent/\udcff")
    assert rb"/absent/\udcff" in done.stderr


@pytest.fixture
def broken_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `broken`, which fails in a way that nobody foresaw."""

    @click.command()
    @click.option("--json", is_flag=True)
    @click.option("--traceback", is_flag=True)
    @click.option("--interrupt", is_flag=True)
    def broken(interrupt: bool, **_: bool) -> None:
        raise KeyboardInterrupt if interrupt else ZeroDivisionError("two\nlines")

    monkeypatch.setattr("pipeline.cli.run.broken", broken, raising=False)
    monkeypatch.setitem(COMMANDS, "broken", "pipeline.cli.run")


@pytest.mark.usefixtures("broken_command")
def test_an_unexpected_error_is_one_line_and_exit_code_3() -> None:
    result = facepipe("broken")
    assert result.exit_code == 3
    assert result.stderr == "facepipe: unexpected error: ZeroDivisionError: two lines (--traceback shows all)\n"
    assert json.loads(facepipe("broken", "--json").stdout)["error"] == "unexpected"


@pytest.mark.usefixtures("broken_command")
def test_traceback_shows_all() -> None:
    result = facepipe("broken", "--traceback")
    assert result.exit_code == 3
    assert "Traceback (most recent call last)" in result.stderr


def test_an_interrupt_inside_an_exec_leaves_the_exit_code(tmp_path: Path) -> None:
    """Imports call `exec`, such as for dataclasses. `python -m` ended by the signal, although it was handled."""
    (tmp_path / "loading.py").write_text("""
import signal, click
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from pipeline.cli import COMMANDS, main
COMMANDS["loading"] = __name__
@click.command()
def loading():
    exec("signal.raise_signal(signal.SIGINT)")
main(["loading"])
""")
    done = subprocess.run([sys.executable, "-m", "loading"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (EXIT_ABORTED, "facepipe: stopped.")


@pytest.mark.usefixtures("broken_command")
def test_an_interrupt_where_nothing_can_be_finished() -> None:
    assert facepipe("broken", "--interrupt").exit_code == 130


@pytest.mark.parametrize(
    ("words", "exit_code"), [(["models", "list"], 141), (["check", "--json", "--store", "/absent"], 40)]
)
def test_a_reader_that_goes_away_is_no_traceback(words: list[str], exit_code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "pipeline", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_what_is_printed_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    hostile = "gone\x1b[2J\nfacepipe: forged \u202eline\x9b\r.jpg"
    result = facepipe("run", tmp_path / hostile, "--store", tmp_path / "store")
    assert result.exit_code == SourceMissing.exit_code
    (line,) = result.stderr.splitlines()
    assert "gone\\x1b[2J\\nfacepipe: forged \\u202eline\\x9b\\r.jpg" in line


def test_other_scripts_are_printed_as_they_are() -> None:
    for name in ("Ännie Ζωή", "小林　花子", "علی‌رضا", "👩\u200d🚀", "a\xa0b"):
        assert printable(name) == name


def test_a_log_record_is_one_line_and_a_traceback_has_bars() -> None:
    formatter = PrintableFormatter("%(levelname)s %(message)s")
    try:
        raise ValueError("x\n2026 ERROR forged\x1b")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "", 0, "of %s", ("a\nb",), sys.exc_info())
    first, *rest = formatter.format(record).split("\n")
    assert first == "ERROR of a\\nb"
    assert all(line.startswith("| ") for line in rest)
    assert rest[-1] == "| 2026 ERROR forged\\x1b"


@pytest.mark.parametrize("output", [">/dev/full", ">&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize(
    ("words", "exit_code"), [("models list", 18), ("models list --json", 18), ("check --store /absent --json", 40)]
)
def test_an_output_that_cannot_be_written_is_told(words: str, exit_code: int, output: str) -> None:
    command = f"exec {sys.executable} -m pipeline {words} {output}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if exit_code == 18 and "2>" not in output:
        reason = "No space left on device" if "full" in output else "it is closed"
        assert f"facepipe: Standard output cannot be written: {reason}." in done.stderr


@pytest.mark.parametrize("words", ["--help", "run --help", "--version"])
def test_help_on_a_full_disk_is_told(words: str) -> None:
    command = f"exec {sys.executable} -m pipeline {words} >/dev/full"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 18
    assert done.stderr.startswith("facepipe: Standard output cannot be written: No space left on device.")


def test_rows_are_printed_as_they_come() -> None:
    rows: list[dict[str, object]] = [{"name": 'a"b', "rate": float("nan")}, {"name": "c\u2028\nd", "rate": 1.5}]
    for some in ([], rows[:1], rows):
        assert "".join(json_list("rows", some)) == dumps({"rows": some}) + "\n"
    assert [*csv_lines([])] == []
    assert [*csv_lines(rows)] == ['name,rate\n"a""b",nan\n', '"c\\u2028\nd",1.5\n']
    for written in (json_list("rows", failing(rows)), csv_lines(failing(rows))):
        assert "a" in next(written)
        with pytest.raises(StoreMissing):
            next(written)
    with pytest.raises(StoreMissing):  # before anything is printed
        next(json_list("rows", failing([])))


def failing(rows: Sequence[dict[str, object]]) -> Iterator[dict[str, object]]:
    yield from rows[:1]
    raise StoreMissing(path=Path("store"))


def test_json_is_standard_json() -> None:
    text = dumps({"rate": float("nan"), "path": Path("/a"), "many": [1.5, float("inf")], "deep": {"x": (1, None)}})
    assert json.loads(text) == {"rate": None, "path": "/a", "many": [1.5, None], "deep": {"x": [1, None]}}
    assert "\n" not in text


def test_the_store_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that needs a store takes it, and none that can do without one."""
    monkeypatch.setenv(ENV_STORE, str(tmp_path / "named"))
    monkeypatch.setenv(f"{ENV_STORE}__ERASE_WITHIN", "0")  # a setting of the section `store`
    without = {"demo", "evaluate pairs", "evaluate identification", "evaluate detection", "erase verify"}
    commands = {**leaf_commands(), "reindex": main.get_command(click.Context(main), "reindex")}
    for words, command in commands.items():
        (option,) = [each for each in command.params if each.name == "store"] or [None]
        if option is not None:
            assert (option.envvar is None) == (words in without), words
    for words in (("check",), ("reindex",), ("people", "list")):
        assert f"There is no store at {tmp_path / 'named'}" in facepipe(*words).stderr
    assert f"There is no store at {tmp_path / 'typed'}" in facepipe("check", "--store", tmp_path / "typed").stderr
    report = json.loads(facepipe("doctor", "--json").stdout)
    assert [finding["level"] for finding in report["findings"] if finding["subject"] == "store"] == ["fail"]
    monkeypatch.delenv(ENV_STORE)
    assert "Missing option '--store' (env var: 'FACEPIPE_STORE')" in facepipe("check").stderr
    for words in (("reindex",), ("erase",)):
        assert "Missing option '--store'" in facepipe(*words).stderr
    assert f"or {ENV_STORE} names one" in facepipe("doctor").stdout


def test_what_is_typed_replaces_the_store_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `evaluate clustering` and `calibrate`, which take either."""
    monkeypatch.setenv(ENV_STORE, str(tmp_path / "absent"))
    table = tmp_path / "table.csv"
    table.write_text("path,name,cluster\na.jpg,Ann,1\nb.jpg,Ann,2\n")
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(b"")
    words = ("evaluate", "clustering", table)
    assert "There is no store" in facepipe(*words).stderr
    assert json.loads(facepipe(*words, "--clusters", table, "--json").stdout)["identities"] == 2
    both = facepipe(*words, "--clusters", table, "--store", tmp_path / "absent")
    assert "Give either --store DIR or --clusters FILE" in both.stderr
    assert "There is no store" in facepipe("calibrate").stderr
    assert "There is no store" not in facepipe("calibrate", tmp_path / "nothing.csv").stderr


@pytest.mark.parametrize(
    ("words", "found"), [("facepipe peo", "plain,people\n"), ("facepipe run --sto", "plain,--store\n")]
)
def test_a_shell_can_complete_commands_and_flags(words: str, found: str) -> None:
    place = str(len(words.split()) - 1)
    asked = {"_FACEPIPE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline"], env={**os.environ, **asked}, capture_output=True, text=True, check=True
    )
    assert done.stdout == found
