"""The quality benchmark's bookkeeping, on planted pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench_quality import DEFAULTS, DISCARDS, Side, check_curves, combinations, curve, kept_figures, naive_fnmr
from PIL import Image
from quality_damage import STEPS, find

from pipeline.config import load_settings
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity

FACES = 400


@pytest.fixture
def side() -> Side:
    """200 people of two photos each; the pairs with the worst photo are missed."""
    rng = np.random.default_rng(3)
    quality = rng.uniform(0.5, 1, (FACES, 3)).astype(np.float32)
    pairs = np.arange(FACES).reshape(-1, 2)
    worst = combinations(quality)["gate"][pairs].min(axis=1)
    return Side(quality, pairs, worst < np.quantile(worst, 0.1), 1.0)


def test_the_measure_that_knows_discards_the_errors(side: Side) -> None:
    fnmr = curve(side, combinations(side.quality)["gate"])["fnmr"]
    assert fnmr[0] == pytest.approx(0.1)
    assert fnmr[1] < 0.06  # 20 of the 400 faces gone, of 20 missed pairs
    assert fnmr[-1] == 0


def test_a_constant_discards_nothing_and_chance_changes_little(side: Side) -> None:
    assert curve(side, np.full(FACES, 0.5, np.float32))["pairs"] == [FACES // 2] * len(DISCARDS)
    chance = curve(side, np.random.default_rng(5).random(FACES).astype(np.float32))["fnmr"]
    assert np.ptp(chance) < 0.06


def test_two_ways_agree(side: Side) -> None:
    check_curves(side)
    gate = combinations(side.quality)["gate"]
    assert naive_fnmr(side, gate, 0.1) == pytest.approx(curve(side, gate)["fnmr"][DISCARDS.index(0.1)])


def test_the_gates_number_is_negative_where_the_gate_rejects(side: Side) -> None:
    rejects = (side.quality < DEFAULTS).any(axis=1)
    assert rejects.any()
    np.testing.assert_array_equal(combinations(side.quality)["gate"] < 0, rejects)
    assert kept_figures(side)["kept"] == pytest.approx(1 - rejects.mean())
    assert combinations(np.ones((1, 3), np.float32))["gate"] == 1


def test_damage_has_its_steps() -> None:
    photo = Image.effect_noise((60, 40), 80).convert("RGB")
    for kind, steps in STEPS.items():
        made = [np.asarray(damage(photo, 30.0), dtype=np.float64) for damage in steps.values()]
        if kind in ("blur", "contrast"):
            assert (np.diff([m.std() for m in made]) < 0).all()
        if kind == "size":
            assert [m.shape[1] for m in made] == [120, 80, 60, 48]


def test_damage_is_found_and_rated(photos: Path, weights_cache: Path) -> None:
    settings = load_settings(environ={"FACEPIPE_CACHE": str(weights_cache)}, flags={"run.threads": 1})
    with Image.open(next(photos.rglob("A_0001.jpg"))) as image:
        photo = image.convert("RGB")
    extractor = load_extractor(settings, make_identity(settings), Path())
    made = [photo, STEPS["blur"]["0.04"](photo, 90.0), Image.new("RGB", (250, 250), "grey")]
    faces = find(extractor, made)
    assert faces.found.tolist() == [True, True, False]
    assert faces.quality[0, 1] > DEFAULTS[1] > faces.quality[1, 1]
    assert np.linalg.norm(faces.embeddings[:2], axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert np.isnan(faces.embeddings[2]).all()
