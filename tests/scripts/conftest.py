"""Photos of two people in the layout of the benchmarks' folder, and how a benchmark is run over them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from corpora import two_people

Bench = Callable[..., dict[str, Any]]  # (module, *words) -> its only result, or all by name


@pytest.fixture(scope="package")
def photos(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    """Two portraits of one size and a group photo of both; the lists of pairs name copies of the portraits."""
    folder = two_people(tmp_path_factory.mktemp("bench") / "photos", hopper_path, astronaut_path)
    lfw = folder / "lfw-view1"
    for path, people in ((hopper_path, "AC"), (astronaut_path, "BD")):
        portrait = lfw / "images" / path.stem / f"{path.stem}_0001.jpg"
        for name in people:
            (lfw / "images" / name).mkdir()
            for number in (1, 2):
                copy = lfw / "images" / name / f"{name}_000{number}.jpg"
                copy.write_bytes(portrait.read_bytes() + f"{name}{number}".encode())
    for file, first, second in (("pairsDevTrain.txt", "A", "B"), ("pairsDevTest.txt", "C", "D")):
        (lfw / file).write_text(f"1\n{first}\t1\t2\n{first}\t1\t{second}\t1\n")
    return folder


@pytest.fixture
def bench(weights_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Runs a benchmark's `main` with these arguments; the figures of each result, by its name."""
    monkeypatch.setenv("FACEPIPE_CACHE", str(weights_cache))
    threads = torch.get_num_threads()

    def run(module: ModuleType, *arguments: object) -> dict[str, Any]:
        results = tmp_path / "results"
        words = [str(word) for word in (module.__name__, *arguments, "--results", results)]
        monkeypatch.setattr("sys.argv", words)
        module.main()
        documents = [json.loads(file.read_text("utf-8")) for file in results.glob("*-cpu.json")]
        for document in documents:
            assert "/" not in json.dumps(document["settings"]), "a path of this machine"
        return {document["benchmark"]: document["figures"] for document in documents}

    yield run
    torch.set_num_threads(threads)
