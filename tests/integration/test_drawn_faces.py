"""Faces that the real detector misses on real photos, drawn by a user: embedded, or a tag."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from PIL import Image

from pipeline.config import Settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.reindex import reindex
from pipeline.jobs.store import open_store
from pipeline.run.run import RunRequest, run
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.types import DRAWN, SilentProgress
from tests.cli.report import answer, facepipe

FACE = (181, 62, 268, 172)  # of the astronaut, who is 512 px wide


@pytest.fixture(scope="module")
def made(settings: Settings, astronaut_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/, and a store/ that only detects larger faces: whole.png, small.png (a face of 11 px) and turned.png."""
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "photos").mkdir()
    portrait = Image.open(astronaut_path).convert("RGB")
    portrait.save(folder / "photos" / "whole.png")
    small = Image.new("RGB", (320, 240), (120, 120, 120))
    small.paste(portrait.crop((120, 0, 330, 220)).resize((26, 26)), (150, 100))
    small.save(folder / "photos" / "small.png")
    portrait.rotate(60).save(folder / "photos" / "turned.png")
    larger = dataclasses.replace(settings, detect=dataclasses.replace(settings.detect, min_face_px=250))
    report = run(RunRequest(folder / "photos", folder / "store", larger))
    assert (report.new, report.faces) == (3, 0)
    return folder


def add(made: Path, photo: str, box: tuple[float, ...], *who: str) -> dict[str, object]:
    words = (made / "photos" / photo, *who, "--box", ",".join(map(str, box)), "--store", made / "store")
    return answer("people", "add-face", *words, "--device", "cpu")


def cosine(store: LocalStore, portrait: np.ndarray) -> float:
    vectors = store.read_table("embeddings").read_all()["embedding"].to_pylist()
    (own,) = vectors
    return float(np.dot(own, portrait) / np.linalg.norm(own) / np.linalg.norm(portrait))


def test_it_is_embedded_as_if_it_had_been_detected(
    made: Path, settings: Settings, extractor: BatchExtractor, astronaut_path: Path
) -> None:
    (detected,) = extractor.extract([Decoder(settings.decode)(astronaut_path.read_bytes())])
    alike = np.array(detected["embedding"][0].as_py())
    told = add(made, "whole.png", FACE, "--new", "Eileen")
    assert told["tag"] is None
    store = made / "store"
    with LocalStore.open(store, command="test") as opened:
        assert cosine(opened, alike) > 0.85  # the box differs by a few pixels
        (face,) = opened.read("SELECT outcome, confidence, x1, y1, x2, y2 FROM main.faces").to_pylist()
        assert face["outcome"] == DRAWN
        assert face["confidence"] > 0.9
        assert [face[side] for side in ("x1", "y1", "x2", "y2")] == pytest.approx(FACE, abs=8)
    for photo, box, why in (
        ("small.png", (150, 100, 176, 126), "quality"),
        ("turned.png", (150, 150, 350, 350), ""),
        ("small.png", (10, 10, 60, 60), "no face was detected there"),
    ):
        assert why in str(add(made, photo, box, "Eileen")["tag"])
    larger = dataclasses.replace(settings, embed=dataclasses.replace(settings.embed, centre=False))
    counted = reindex(store, larger, ["embed.centre"], SilentProgress(), Event())
    assert (counted["faces"], counted["vectors"], counted["left"]) == (4, 1, 0)
    with open_store(store, command="test") as opened_store:
        opened_store.switch_generation()
    with LocalStore.open(store, command="test") as opened:
        assert check_store(opened).problems == []
        assert opened.read("SELECT count(*) AS n FROM main.faces WHERE confidence IS NULL").to_pylist() == [{"n": 3}]
    assert answer("people", "show", "Eileen", "--store", store)["faces"] == 4


def test_the_command_says_what_is_wrong(made: Path) -> None:
    photo, store = made / "photos" / "whole.png", made / "store"

    def said(*words: object, exit_code: int) -> str:
        told = facepipe("people", "add-face", *words, "--store", store, "--device", "cpu")
        assert told.exit_code == exit_code, told.output
        return told.stderr

    assert "Give WHO or --new" in said(photo, "--box", "1,2,30,40", exit_code=2)
    assert "X1,Y1,X2,Y2" in said(photo, "--new", "A", "--box", "1,2,30", exit_code=2)
    assert "finite" in said(photo, "--new", "A", "--box", "nan,2,30,40", exit_code=61)
    assert "has 512 x 512 px" in said(photo, "--new", "A", "--box", "500,2,530,40", exit_code=61)
    assert "has no photo of a run at" in said(made / "other.png", "--new", "A", "--box", "1,2,30,40", exit_code=2)
    assert "Nobody" in said(photo, "Nobody", "--box", "1,2,30,40", exit_code=72)
