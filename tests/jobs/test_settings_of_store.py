"""What a store and a calibration remember of the settings that they were made with, and which they refuse."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from pipeline.config import Settings, load_settings
from pipeline.errors import BadValue, CalibrationInvalid, StoreMismatch
from pipeline.jobs.calibration_file import read_calibration, write_calibration
from pipeline.jobs.store_identity import make_identity, settings_of_store
from pipeline.matching.calibration import Calibration
from pipeline.store.records import StoreIdentity

# Each with its default, and another value.
FIXED = [("embed.centre", True, False), ("run.mode", "exact", "fast"), ("align.resampling", "area", "pillow")]


def settings_with(weights_cache: Path, **flags: object) -> Settings:
    fixed = {"model.weights": "casia-webface", "model.cache": str(weights_cache), "run.device": "cpu"}
    return load_settings(environ={}, flags={**fixed, **flags})


def value_of(settings: Settings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


@pytest.mark.parametrize(("key", "default", "other"), FIXED)
def test_a_store_keeps_what_it_was_made_with(
    weights_cache: Path, tmp_path: Path, key: str, default: object, other: object
) -> None:
    plain, changed = (settings_with(weights_cache, **{key: value}) for value in (default, other))
    made = make_identity(changed)
    assert made.output_hash != make_identity(plain).output_hash
    for settings in (plain, changed):  # the default is not a wish
        assert value_of(settings_of_store(settings, made, tmp_path), key) == other
    assert value_of(settings_of_store(plain, make_identity(plain), tmp_path), key) == default
    with pytest.raises(StoreMismatch, match=re.escape(key)):
        settings_of_store(changed, make_identity(plain), tmp_path)


def test_each_store_has_a_key_of_its_own_that_is_not_printed(weights_cache: Path) -> None:
    keys = [identity.pixel_key for identity in (make_identity(settings_with(weights_cache)) for _ in range(2))]
    assert len(set(keys)) == 2
    for key in keys:
        assert re.fullmatch("[0-9a-f]{32}", str(key))
    assert "pixel_key" not in repr(make_identity(settings_with(weights_cache)))


@pytest.mark.parametrize(
    ("section", "without", "key", "value"),
    [("align", {"margin_px": 32}, "align.resampling", "area"), ("embed", {}, "embed.centre", False)],
)
def test_a_store_from_before_there_was_a_setting_has_what_was_done_then(
    weights_cache: Path, tmp_path: Path, section: str, without: dict[str, object], key: str, value: object
) -> None:
    settings = settings_with(weights_cache)
    identity = make_identity(settings)
    older = dataclasses.replace(identity, output_settings={**identity.output_settings, section: without})
    assert value_of(settings_of_store(settings, older, tmp_path), key) == value
    with pytest.raises(StoreMismatch, match=r"align\.resampling"):
        settings_of_store(settings_with(weights_cache, **{"align.resampling": "pillow"}), older, tmp_path)


def test_the_mode_is_recorded_and_not_how_fast_it_works(weights_cache: Path) -> None:
    exact = make_identity(settings_with(weights_cache))
    fast, other = (
        make_identity(settings_with(weights_cache, **{"run.mode": "fast", **flags}))
        for flags in ({}, {"run.precision": "bfloat16", "run.tf32": "true", "run.jpeg": "device"})
    )
    assert fast == dataclasses.replace(other, pixel_key=fast.pixel_key)
    assert fast.mode == fast.output_settings["mode"] == "fast"
    assert fast.calibration == exact.calibration
    assert set(fast.output_settings) == {"decode", "detect", "align", "embed", "mode"}
    with pytest.raises(BadValue, match="exact or fast"):
        settings_with(weights_cache, **{"run.mode": "faster"})


@pytest.mark.parametrize(("key", "other", "message"), [(*FIXED[0][::2], "centre"), (*FIXED[2][::2], "pillow")])
def test_a_calibration_is_for_one_kind_of_embeddings_and_both_modes(
    weights_cache: Path, tmp_path: Path, key: str, other: object, message: str
) -> None:
    fitted, file = Calibration(1.5, "photos", 1e-3, "a note"), tmp_path / "c.json"
    plain, fast, changed = (
        make_identity(settings_with(weights_cache, **flags)) for flags in ({}, {"run.mode": "fast"}, {key: other})
    )

    def read(identity: StoreIdentity) -> Calibration:
        return read_calibration(file, identity.weights_sha256, identity.output_settings, identity.preprocessing)

    for identity, others in ((plain, changed), (changed, plain)):
        write_calibration(file, fitted, identity, {})
        assert read(identity) == fitted
        with pytest.raises(CalibrationInvalid, match=message):
            read(others)
    write_calibration(file, fitted, plain, {})
    content = json.loads(file.read_text())
    before_resampling = {**content, "output_settings": {"align": {"margin_px": 32}, "mode": "exact"}}
    for written in (content, before_resampling):
        file.write_text(json.dumps(written))
        assert read(plain) == read(fast) == fitted
        with pytest.raises(CalibrationInvalid, match=message):
            read(changed)
