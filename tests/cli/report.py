"""What commands with --json answer."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result


def report_of(result: Result, exit_code: int = 0) -> dict[str, Any]:
    """The one JSON object on standard output."""
    assert result.exit_code == exit_code, result.output
    (line,) = result.stdout.splitlines()
    report = json.loads(line)
    assert isinstance(report, dict)
    return report
