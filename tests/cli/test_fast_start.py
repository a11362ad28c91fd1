"""No command needs torch on a CPU with the extra `fast`, and those that compute nothing load no networks either."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from PIL import Image

from pipeline.errors import ImageMissing
from pipeline.store.local import LocalStore
from tests.cli.report import facepipe
from tests.cli.test_commands import IDENTITY
from tests.forking import Forker
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
    "people unassigned": "people unassigned --store {people}",
    "people twice": "people twice --store {people}",
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


def called(words: str, places: dict[str, Path], weights_cache: Path) -> tuple[list[str], dict[str, str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "FACEPIPE_CACHE": str(weights_cache)}
    return [sys.executable, "-c", CODE, *words.format(**places).split()], environment


def started(words: str, places: dict[str, Path], weights_cache: Path) -> subprocess.CompletedProcess[str]:
    command, environment = called(words, places, weights_cache)
    return subprocess.run(command, input="password\n", capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    with Forker("tests.cli.forked_command") as forker:
        yield forker


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_torch(command: str, forker: Forker, places: dict[str, Path], weights_cache: Path, tmp_path: Path) -> None:
    words, environ = COMMANDS[command].format(**places).split(), {"FACEPIPE_CACHE": str(weights_cache)}
    output = tmp_path / "output"
    status = forker.start(words=words, environ=environ, stdin="password\n", output=str(output)).wait().status
    told = output.read_text()
    assert (status, told.splitlines()[-1]) == (0, "loaded:"), told
    if command == "unchanged run":
        assert "1 were in already" in told


EXTRACTING = {
    "search": "search {portrait} --store {faces}",
    "run": "run {more} --store {faces}",
    "regroup --decode": "regroup --store {faces} --decode --min-cpq 0 --yes",
}


@pytest.fixture(scope="module")
def faces(weights_cache: Path, tmp_path_factory: pytest.TempPathFactory, hopper_path: Path) -> dict[str, Path]:
    """A store with a rejected portrait, made by a run that converts the networks, and another portrait."""
    for package in ("numba", "openvino"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("faces")
    for name in ("photos", "more"):
        (folder / name).mkdir()
    shutil.copy(hopper_path, folder / "photos")
    with Image.open(hopper_path) as image:
        image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "more" / "mirrored.png")
    faces = {"portrait": hopper_path, "photos": folder / "photos", "more": folder / "more", "faces": folder / "store"}
    result = started("run {photos} --store {faces} --min-cpq 1", faces, weights_cache)
    assert result.returncode == 0, result.stderr
    return faces


@pytest.mark.slow
@pytest.mark.parametrize("command", EXTRACTING)
def test_faces_without_torch(command: str, faces: dict[str, Path], weights_cache: Path) -> None:
    result = started(EXTRACTING[command], faces, weights_cache)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (0, "loaded: numba openvino"), result.stderr


@pytest.mark.slow
def test_a_server_starts_without_torch(faces: dict[str, Path], weights_cache: Path) -> None:
    command, environment = called("serve --store {faces} --port 0 --json", faces, weights_cache)
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["identities"] >= 1  # it listens
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
    assert told.splitlines()[-1] == "loaded: numba openvino", told


def test_a_search_for_a_missing_photo_ends_without_torch(places: dict[str, Path], weights_cache: Path) -> None:
    result = started("search {photos}/nope.jpg --store {store}", places, weights_cache)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (ImageMissing.exit_code, "loaded:")
