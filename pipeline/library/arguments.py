"""What the library's functions make of their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config import Settings, load_settings
from pipeline.errors import UsageError
from pipeline.runtime.buckets import is_address
from pipeline.texts import directory_name
from pipeline.types import Source


def checked_directory(name: str) -> str:
    try:
        return directory_name(name)
    except ValueError as exc:
        raise UsageError(message=f"The directory {name!r} {exc}.") from None


def settings_of(
    settings: Mapping[str, object] | None,
    weights: str,
    *,
    device: str = "auto",
    calibration: Path | str | None = None,
    encrypt: bool = False,
) -> Settings:
    """Returns `settings`, overridden by the arguments that are not at their default."""
    arguments = {
        "model.weights": None if weights == "auto" else weights,
        "run.device": None if device == "auto" else device,
        "model.calibration": None if calibration is None else str(calibration),
        "security.encrypt": encrypt or None,
    }
    return load_settings(flags={**(settings or {}), **{k: v for k, v in arguments.items() if v is not None}})


def run_flags(
    labels: str | None,
    include: Sequence[str] | str,
    exclude: Sequence[str] | str,
    threshold: float | str | None,
    settings: Mapping[str, object] | None,
) -> dict[str, object]:
    """Returns the settings of one run by key; None: not given."""
    arguments = {
        "source.labels": labels,
        "source.include": include if isinstance(include, str) else ",".join(include),
        "source.exclude": exclude if isinstance(exclude, str) else ",".join(exclude),
        "match.threshold": threshold,
    }
    return {**(settings or {}), **{key: value for key, value in arguments.items() if value not in (None, "")}}


def source_of(source: Path | str) -> Source:
    return source if is_address(source) else Path(source)


def path_or_none(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)
