"""Real runs over a few photos made from the two public-domain portraits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pipeline.config import Settings, load_settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.jobs.run_report import RunReport
from pipeline.run.run import RunRequest, run
from tests.remembering import remembering

Runner = Callable[..., RunReport]


class RecordedProgress:
    """Progress that keeps what it receives."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.phases: list[str] = []
        self.advanced = 0

    def start(self, phase: str, total: int | None) -> None:
        self.phases.append(phase)

    def advance(self, count: int = 1) -> None:
        self.advanced += count

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="session")
def _written(tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path) -> Path:
    folder = tmp_path_factory.mktemp("written") / "photos"
    write_photos(folder, hopper_path, astronaut_path)
    return folder


@pytest.fixture
def photos(_written: Path, tmp_path: Path) -> Path:
    """Ten files: three of each portrait, a photo of both, an exact copy, a faceless and a broken one."""
    return Path(shutil.copytree(_written, tmp_path / "photos", copy_function=shutil.copy))


def write_photos(folder: Path, hopper_path: Path, astronaut_path: Path) -> None:
    folder.mkdir()
    hopper = Image.open(hopper_path).convert("RGB").resize((256, 300))
    astronaut = Image.open(astronaut_path).convert("RGB").resize((300, 300))
    hopper.save(folder / "a1.jpg", quality=95)
    hopper.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "a2.png")
    astronaut.save(folder / "b1.jpg", quality=95)
    astronaut.crop((20, 0, 280, 260)).save(folder / "b2.jpg", quality=80)
    both = Image.new("RGB", (560, 300))
    both.paste(hopper, (0, 0))
    both.paste(astronaut, (260, 0))
    both.save(folder / "c-both.png")
    (folder / "d-copy.jpg").write_bytes((folder / "a1.jpg").read_bytes())
    noise = np.random.default_rng(0).normal(128, 40, (150, 200)).clip(0, 255).astype(np.uint8)
    Image.fromarray(noise).convert("RGB").save(folder / "e-noise.png")
    (folder / "f-broken.jpg").write_bytes((folder / "a1.jpg").read_bytes()[:3000])
    hopper.resize((200, 234)).save(folder / "g1.webp")
    astronaut.resize((220, 220)).save(folder / "h1.bmp")


@pytest.fixture(scope="session")
def settings() -> Settings:
    return load_settings(environ={}, flags={"run.shard_rows": 3, "run.device": "cpu", "model.weights": "casia-webface"})


@pytest.fixture(scope="session")
def extractor(extractor: BatchExtractor) -> BatchExtractor:
    return remembering(extractor)


@pytest.fixture
def loaded_once(extractor: BatchExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and searches take the session's models instead of loading them again."""
    for module in ("run.stages", "jobs.models"):
        monkeypatch.setattr(f"pipeline.{module}.load_extractor", lambda *_: extractor)


@pytest.fixture(scope="session")
def archive(
    tmp_path_factory: pytest.TempPathFactory, hopper_path: Path, astronaut_path: Path, settings: Settings
) -> Path:
    """A folder with the photos of `write_photos` and the store of one run over them. No test changes either."""
    folder = tmp_path_factory.mktemp("archive")
    write_photos(folder / "photos", hopper_path, astronaut_path)
    run(RunRequest(source=folder / "photos", store=folder / "store", settings=settings))
    return folder


@pytest.fixture
def runner(tmp_path: Path, settings: Settings) -> Runner:
    """Runs the pipeline over a source into tmp_path/store."""

    def go(source: Path, **changes: object) -> RunReport:
        request = RunRequest(source=source, store=tmp_path / "store", settings=settings)
        for name, value in changes.items():
            object.__setattr__(request, name, value)
        return run(request)

    return go
