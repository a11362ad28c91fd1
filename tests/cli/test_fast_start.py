"""Commands that compute nothing start without torch, whose import takes longer than their work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ImageMissing
from pipeline.store.local import LocalStore
from tests.cli.report import facepipe
from tests.cli.test_commands import IDENTITY
from tests.people.coded_archive import fill

COMMANDS = {
    "help": "--help",
    "account create": "account create ann --store {new} --weights casia-webface --password-stdin",
    "account list": "account list --store {store}",
    "directory list": "directory list --store {store}",
    "models list": "models list",
    "check": "check --store {store}",
    "people list": "people list --store {store} --account default",
    "unchanged run": "run {photos} --store {store}",
    "people show": "people show {person1} --store {people}",
    "people photos": "people photos {person1} --store {people}",
    "people name": "people name {person1} Ann --store {people}",
    "people merge": "people merge {person1} {person2} --store {people}",
    "people split": "people split {person2} {face} --store {people}",
    "people hide": "people hide {person3} --store {people}",
    "people undo": "people undo --yes --store {people}",
    "people log": "people log --store {people}",
    "regroup": "regroup --store {people} --yes",
    "report": "report --store {people} --to {page}",
}
CODE = """
import sys
from pipeline.cli import main
try:
    main(sys.argv[1:], prog_name="facepipe")
finally:
    heavy = {"torch", "torchvision", "numba", "onnxruntime", "openvino"} & sys.modules.keys()
    print("loaded:", *sorted(heavy), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store that has the one file of a folder: a broken photo, which needs no weights; a place for a new one; and a
    store of three people."""
    folder = tmp_path_factory.mktemp("start")
    names = {"store": "store", "photos": "photos", "new": "new", "page": "page.html"}
    places = {name: folder / file for name, file in names.items()}
    places["photos"].mkdir()
    (places["photos"] / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    LocalStore.open_or_create(places["store"], lambda: IDENTITY, command="test").close()
    result = facepipe("run", places["photos"], "--store", places["store"])
    assert "1 new" in result.stdout, result.output
    places["people"] = fill(folder / "people") / "store"
    for number, row in enumerate(shown("people list", "people", places["people"]), 1):
        places[f"person{number}"] = row["person_id"]
    places["face"] = shown(f"people photos {places['person2']}", "faces", places["people"])[-1]["face_id"]
    return places


def shown(words: str, key: str, store: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(facepipe(*words.split(), "--store", store, "--json").stdout)[key]
    return rows


def started(words: str, places: dict[str, Path], weights_cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "FACEPIPE_CACHE": str(weights_cache)}
    command = [sys.executable, "-c", CODE, *words.format(**places).split()]
    return subprocess.run(command, input="password\n", capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_torch(command: str, places: dict[str, Path], weights_cache: Path) -> None:
    result = started(COMMANDS[command], places, weights_cache)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (0, "loaded:")
    if command == "unchanged run":
        assert "1 were in already" in result.stdout


def test_a_search_for_a_missing_photo_ends_without_torch(places: dict[str, Path], weights_cache: Path) -> None:
    result = started("search {photos}/nope.jpg --store {store}", places, weights_cache)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (ImageMissing.exit_code, "loaded:")
