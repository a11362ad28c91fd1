"""A TypeScript client that @hey-api/openapi-ts generates from the description, compiled strictly, in a round trip.

It is skipped unless `openapi-ts`, `tsc` and `node` are on the PATH; CONTRIBUTING.md says how to get them.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.serve.live import PASSWORD, LiveServer

PROGRAM = Path(__file__).with_name("round_trip.ts")
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def run(*command: object, folder: Path) -> None:
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_a_round_trip(live: LiveServer, hopper_path: Path, tmp_path: Path) -> None:
    tools = {name: shutil.which(name) for name in ("openapi-ts", "tsc", "node")}
    missing = [name for name, found in tools.items() if found is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # The packages beside the generator have Node's types.
    (tmp_path / "node_modules").symlink_to(Path(str(tools["openapi-ts"])).resolve().parents[3])
    (tmp_path / "openapi.json").write_bytes(httpx.get(f"{live.url}/openapi.json").content)
    shutil.copy(PROGRAM, tmp_path)
    (sample,) = re.findall(r"^```ts\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "sample.ts").write_text(sample)
    run(tools["openapi-ts"], "--input", "openapi.json", "--output", "client", folder=tmp_path)
    options = ("--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--outDir", "compiled")
    run(tools["tsc"], *options, PROGRAM.name, "sample.ts", folder=tmp_path)
    credentials = f"alice:{base64.b64encode(PASSWORD.encode()).decode()}"
    run(tools["node"], "compiled/round_trip.js", live.url, credentials, hopper_path, folder=tmp_path)
