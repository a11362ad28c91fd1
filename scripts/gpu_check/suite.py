"""The project's own tests that run on a device: each with its CUDA half."""

from __future__ import annotations

import os
import subprocess
import sys

from gpu_check.findings import Findings, Skipped
from gpu_check.machine import missing_packages
from gpu_check.options import ROOT, Options

FOLDERS = ("extraction", "matching", "models", "runtime")
_PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")
_TIMEOUT_S = 110


def tests(options: Options, found: Findings) -> None:
    lacking = [name for name in missing_packages()[1] if name in ("pytest", "pytest-timeout", "hypothesis")]
    if lacking:
        raise Skipped(f"not installed: {', '.join(lacking)}; pip install -e '.[dev]'")
    which = "cuda or (wait and not cpu)" if options.cuda else "nms and kernel"
    # One process a folder; a quick run takes the one that has the tests above.
    folders = FOLDERS if options.cuda and not options.quick else FOLDERS[:1]
    running = {folder: _pytest(folder, which) for folder in folders}
    ends = []
    for folder, process in running.items():
        text = process.communicate()[0]
        print(text)
        lines = text.splitlines()
        ends.append(f"{folder}: {next((line for line in reversed(lines) if ' in ' in line), 'no summary').strip('= ')}")
        for line in lines:
            found.expect(not line.startswith(("FAILED", "ERROR")), line[:200])
        found.expect(process.returncode in (0, 1), f"pytest ended with {process.returncode} in {folder}")
    found.put("summaries", ends)
    found.headline = "; ".join(ends)


def _pytest(folder: str, which: str) -> subprocess.Popen[str]:
    # Warnings are errors in tests, and those of a plugin that the project does not use would end the run.
    plugins = [word for plugin in ("no:cacheprovider", *_PLUGINS) for word in ("-p", plugin)]
    words = ["-q", "--tb=short", "--timeout", str(_TIMEOUT_S), "-k", which, str(ROOT / "tests" / folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *plugins, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
