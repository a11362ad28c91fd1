"""Settings: one frozen object per stage, from defaults, a YAML file, the environment and flags, in this order.

Nothing below this module reads the environment. `FACEPIPE_DETECT__MIN_FACE_PX=40` sets `detect.min_face_px`.
An unknown key is refused with the nearest known one. `Settings.output_hash()` covers what changes the stored
numbers (decoding, detection, alignment, quality, mode); it is fixed per store generation.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import BadValue, UnknownKey, UsageError

ENV_PREFIX = "FACEPIPE_"
# Environment variables with the prefix that are no settings.
ENV_OTHER = frozenset({"FACEPIPE_TEST_FACES", "FACEPIPE_CACHE", "FACEPIPE_CONFIG"})


@dataclass(frozen=True)
class SourceSettings:
    labels: str = "none"  # none | parent: the parent folder's name is the person's name
    root: str | None = None  # files outside this folder are refused; None: only `..` in relative paths is
    follow_symlinks: bool = True


@dataclass(frozen=True)
class DecodeSettings:
    max_pixels: int = 100_000_000
    max_bytes: int = 256 * 2**20
    truncated: str = "refuse"  # refuse | accept: the missing part stays grey


@dataclass(frozen=True)
class DetectSettings:
    """Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks";
    thresholds and factor as in facenet-pytorch."""

    min_face_px: int = 20
    pnet_threshold: float = 0.6
    rnet_threshold: float = 0.7
    onet_threshold: float = 0.7
    factor: float = 0.709
    min_confidence: float = 0.95  # faces below it are dropped after the cascade


@dataclass(frozen=True)
class AlignSettings:
    margin_px: int = 14  # in pixels of the crop, both sides together, as facenet-pytorch counts it


@dataclass(frozen=True)
class MatchSettings:
    threshold: float = 0.54  # T of the contract, in [0, 4]
    min_cpq: float = 0.59
    min_fsq: float = 0.40
    min_fcq: float = 0.45


@dataclass(frozen=True)
class RunSettings:
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    threads: int = 0  # of the CPU networks and of decoding; 0: all cores
    batch_images: int = 32
    batch_pixels: int = 24_000_000  # a batch ends before its images pass this sum
    shard_rows: int = 256  # manifest rows per shard: what a crash may cost, and what one transaction commits
    mode: str = "exact"


@dataclass(frozen=True)
class ModelSettings:
    weights: str = "auto"  # auto | casia-webface | vggface2
    weights_file: str | None = None
    cache: str | None = None  # None: the user's cache folder


@dataclass(frozen=True)
class Settings:
    source: SourceSettings = field(default_factory=SourceSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    detect: DetectSettings = field(default_factory=DetectSettings)
    align: AlignSettings = field(default_factory=AlignSettings)
    match: MatchSettings = field(default_factory=MatchSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        _check_ranges(self)

    def output_settings(self) -> dict[str, Any]:
        """What changes the stored numbers, as plain JSON-able values."""
        return {
            "decode": dataclasses.asdict(self.decode),
            "detect": dataclasses.asdict(self.detect),
            "align": dataclasses.asdict(self.align),
            "mode": self.run.mode,
        }

    def output_hash(self) -> str:
        """SHA-256 over `output_settings()` in canonical JSON."""
        text = json.dumps(self.output_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_RANGES: dict[str, tuple[float, float]] = {
    "decode.max_pixels": (1, 2**31 - 1),
    "decode.max_bytes": (1, 2**40),
    "detect.min_face_px": (12, 100_000),
    "detect.pnet_threshold": (0, 1),
    "detect.rnet_threshold": (0, 1),
    "detect.onet_threshold": (0, 1),
    "detect.factor": (0.1, 0.95),
    "detect.min_confidence": (0, 1),
    "align.margin_px": (0, 120),
    "match.threshold": (0, 4),
    "match.min_cpq": (0, 1),
    "match.min_fsq": (0, 1),
    "match.min_fcq": (0, 1),
    "run.threads": (0, 1024),
    "run.batch_images": (1, 4096),
    "run.batch_pixels": (1, 2**40),
    "run.shard_rows": (1, 1_000_000),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "source.labels": ("none", "parent"),
    "decode.truncated": ("refuse", "accept"),
    "run.mode": ("exact",),
}


def _check_ranges(settings: Settings) -> None:
    for key, (low, high) in _RANGES.items():
        value = _get(settings, key)
        if not (math.isfinite(value) and low <= value <= high):
            raise BadValue(key=key, where="the settings", value=value, expected=f"must be in [{low:g}, {high:g}]")
    for key, known in _CHOICES.items():
        if _get(settings, key) not in known:
            raise BadValue(
                key=key,
                where="the settings",
                value=repr(_get(settings, key)),
                expected=f"must be one of {', '.join(known)}",
            )


def _get(settings: Settings, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(settings, section), name)


def known_keys() -> dict[str, Any]:
    """Every key `section.name` with its type."""
    keys: dict[str, Any] = {}
    for section in dataclasses.fields(Settings):
        cls = typing.get_type_hints(Settings)[section.name]
        for name, hint in typing.get_type_hints(cls).items():
            keys[f"{section.name}.{name}"] = hint
    return keys


def load_settings(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Defaults, then `file` (YAML), then `environ`, then `flags` (`section.name` -> value; None = not given).

    Raises UnknownKey, BadValue, or UsageError where the file cannot be read or is no mapping.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_yaml(file))
    for variable, text in (os.environ if environ is None else environ).items():
        if variable.startswith(ENV_PREFIX) and variable not in ENV_OTHER:
            key = variable[len(ENV_PREFIX) :].lower().replace("__", ".", 1)
            _known(key, f"the environment ({variable})")
            values[key] = _convert(key, text, variable)
    for key, value in (flags or {}).items():
        if value is not None:
            _known(key, "the flags")
            values[key] = _convert(key, value, "the flags")
    return _build(values)


def _from_yaml(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise UsageError(message=f"The configuration {file} cannot be read: {exc}") from exc
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(message=f"The configuration {file} must be a mapping of sections, not {type(data).__name__}.")
    values: dict[str, Any] = {}
    sections = {f.name for f in dataclasses.fields(Settings)}
    for section, content in data.items():
        if section not in sections:
            raise UnknownKey(key=section, where=str(file), hint=_nearest(str(section), sections))
        if content is None:
            continue
        if not isinstance(content, dict):
            raise BadValue(key=section, where=str(file), value=repr(content), expected="must be a mapping")
        for name, value in content.items():
            key = _known(f"{section}.{name}", str(file))
            values[key] = _convert(key, value, str(file))
    return values


def _known(key: str, where: str) -> str:
    keys = known_keys()
    if key not in keys:
        raise UnknownKey(key=key, where=where, hint=_nearest(key, keys))
    return key


def _nearest(key: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{close[0]}"?' if close else f" Known: {', '.join(sorted(known))}."


def _convert(key: str, value: Any, where: str) -> Any:
    """`value` as the key's type; text is parsed. Raises BadValue."""
    hint = known_keys()[key]
    options = typing.get_args(hint) or (hint,)
    if value is None or (isinstance(value, str) and value == "" and type(None) in options):
        if type(None) in options:
            return None
        raise BadValue(key=key, where=where, value="empty", expected=f"must be {_type_name(options)}")
    for option in options:
        if option is bool:
            if isinstance(value, bool):
                return value
            if isinstance(value, str) and value.lower() in ("true", "false"):
                return value.lower() == "true"
        elif option in (int, float) and not isinstance(value, bool):
            try:
                number = option(value)
            except (TypeError, ValueError):
                continue
            if not (option is int and isinstance(value, float) and value != number):
                return number
        elif option is str and isinstance(value, str):
            return value
    raise BadValue(key=key, where=where, value=repr(value), expected=f"must be {_type_name(options)}")


def _type_name(options: tuple[Any, ...]) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "empty",
    }
    return " or ".join(names[o] for o in options)


def _build(values: Mapping[str, Any]) -> Settings:
    settings = Settings()
    by_section: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        by_section.setdefault(section, {})[name] = value
    return dataclasses.replace(
        settings,
        **{s: dataclasses.replace(getattr(settings, s), **v) for s, v in by_section.items()},
    )
