"""Puts weight sets into the cache: by conversion, copy or download."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.errors import UsageError, WeightsCorrupt
from pipeline.models.files.cache import cache_errors, exclusive, publish, replacing, sha256_of
from pipeline.models.files.converted import check_converted, is_current
from pipeline.models.files.download import ProgressFn, download
from pipeline.models.registry import WeightSet
from pipeline.models.weights import (
    acceptance_file,
    cached_file,
    check_hash,
    convert,
    hash_weights,
    known_hashes,
    package_files,
)

_SHA256 = re.compile(r"[0-9a-f]{64}")


def fetch(
    row: WeightSet,
    cache: Path,
    *,
    file: Path | None = None,
    accept_sha256: str | None = None,
    progress: ProgressFn | None = None,
) -> list[Path]:
    """Puts the weights of `row` into the cache, from `file` or their source; returns their paths.

    Intact files stay. `accept_sha256` permanently allows this hash for a downloaded set. Raises UsageError,
    WeightsMissing, WeightsCorrupt, DownloadFailed or CacheUnwritable.
    """
    accepted = _check_options(row, file, accept_sha256)
    with exclusive(cache, row.name):
        target = cached_file(row, cache)
        if not row.package:
            _bring(row, file, target, accepted, progress)
        # A file named by the user is used or refused, whatever is cached.
        elif file is not None or not _is_whole(row, target):
            convert(row, [file] if file else package_files(row), target)
    return [target]


def _check_options(row: WeightSet, file: Path | None, accept_sha256: str | None) -> str | None:
    """The accepted hash in lower case. Raises UsageError."""
    if row.kind == "detector" and file is not None:
        raise UsageError(message="The detector's weights come with an installed package, never from --file.")
    if accept_sha256 is None:
        return None
    if row.package:
        raise UsageError(message=f"{row.name} comes from {row.distribution}, which has one hash; no other is accepted.")
    if not _SHA256.fullmatch(accept_sha256.lower()):
        raise UsageError(message=f"--accept-sha256 takes 64 hexadecimal digits, not {accept_sha256!r}.")
    return accept_sha256.lower()


def _is_whole(row: WeightSet, target: Path) -> bool:
    try:
        return is_current(target, row.sha256) and bool(check_converted(target))
    except WeightsCorrupt:
        return False


def _bring(row: WeightSet, file: Path | None, target: Path, accepted: str | None, progress: ProgressFn | None) -> None:
    known = known_hashes(row, target.parent) | ({accepted} if accepted else set())
    refused = target.with_name(target.name + ".refused")
    if file is not None:
        sha256 = _copy(row, file, target, known)
    elif target.exists() and (sha256 := hash_weights(row, target)) in known:
        pass
    elif refused.exists() and (sha256 := hash_weights(row, refused)) in known:
        publish(refused, target)
    else:
        sha256 = _download(row, target, refused, known, progress)
    if accepted is not None and sha256 == accepted:
        with replacing(acceptance_file(row, target.parent)) as record:
            record.write(accepted.encode() + b"\n")


def _copy(row: WeightSet, file: Path, target: Path, known: set[str]) -> str:
    sha256 = hash_weights(row, file)
    if sha256 not in known:
        check_hash(row, file, sha256)
    with replacing(target) as copy:
        if sha256_of(file, copy_to=copy) != sha256:
            raise WeightsCorrupt(path=file, detail="it changed while it was read", cure="Run the same command again.")
    return sha256


def _download(row: WeightSet, target: Path, refused: Path, known: set[str], progress: ProgressFn | None) -> str:
    """Downloads to `target`, or with an unknown hash to `refused`, so that the user can accept it."""
    part = target.with_name(target.name + ".part")
    with cache_errors(target.parent):
        download(row.url or "", part, progress)
    sha256 = hash_weights(row, part)
    publish(part, target if sha256 in known else refused)
    if sha256 not in known:
        check_hash(row, refused, sha256)
    return sha256
