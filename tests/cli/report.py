"""Commands in this process, and what they answer with --json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from pipeline.cli import main


def facepipe(*words: object, cache: Path | None = None, stdin: str | bytes | None = None) -> Result:
    """Runs the command `words`. `cache`: the folder of the weights; None: the user's."""
    environment = {} if cache is None else {"FACEPIPE_CACHE": str(cache)}
    return CliRunner().invoke(main, [str(word) for word in words], env=environment, input=stdin)


def report_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """The one JSON object on standard output."""
    assert result.exit_code == exit_code, result.output
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert isinstance(report, dict)
    return report


def answer(*words: object, exit_code: int = 0, cache: Path | None = None) -> dict[str, Any]:
    """The report of the command `words` with --json."""
    return report_of(facepipe(*words, "--json", cache=cache), exit_code)
