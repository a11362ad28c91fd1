"""Extracted shards on their way from cluster workers to the store: sealed files in a folder shared by all nodes, or
objects in a bucket.

A shard is written once: the first of several workers wins. It is sealed (AES-256-GCM) under a key of the run and bound
to its name, so nobody with access to the folder can read, change or swap shards. In an unencrypted store of an earlier
version the key is not secret, and only detects damage.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import BucketFailed
from pipeline.runtime import buckets
from pipeline.store.files.encryption import seal, unseal
from pipeline.store.files.shards import parquet_bytes, parquet_table

BUILD: Final = "reindex-"  # prefix of a build's folder, in place of a run's id
_SEALED: Final = ".sealed"
_SHARD: Final = re.compile(rf"(\d{{5,}})-[0-9a-f]{{16}}{re.escape(_SEALED)}")
_SIGN: Final = ".sign"  # shows a worker that it has the driver's folder, and that the driver is running


class ShardUnusable(Exception):
    """What lies under a shard's name is not the shard."""


def remove_builds(runs: Path) -> None:
    """Removes the leftovers of killed builds from a store's folder of runs."""
    for left in runs.glob(f"{BUILD}*"):
        shutil.rmtree(left, ignore_errors=True)


def is_left(name: str) -> bool:
    """Whether a worker wrote this file in a run's folder of shards, completely or not."""
    return name.endswith(_SIGN) or _SEALED in name


@dataclass(frozen=True)
class ShardFolder:
    """The shards of one run. Many processes write while one reads. All methods raise BucketFailed if the folder or
    bucket is unusable, and UsageError without obstore."""

    address: str  # the run's shards
    output_hash: str
    key: bytes = field(repr=False)  # 32

    @classmethod
    def of_run(cls, run_id: str, folder: str, output_hash: str, secret: bytes) -> ShardFolder:
        """`folder`: a path or address, shared by runs. `secret`: the run's key is derived from it."""
        if not buckets.is_address(folder):
            folder = f"file://{Path(folder.removeprefix('file://')).expanduser().absolute()}"
        key = hmac.new(secret, f"facepipe shards {run_id} {output_hash}".encode(), hashlib.sha256).digest()
        return cls(buckets.below(folder, f"{run_id}/shards"), output_hash, key)

    @classmethod
    def of_build(cls, folder: str, output_hash: str) -> ShardFolder:
        """For a build of another index. Later builds use another key and cannot import its leftovers."""
        return cls.of_run(f"{BUILD}{uuid.uuid4()}", folder, output_hash, os.urandom(32))

    def put(self, shard: int, table: pa.Table, metadata: Mapping[str, Any]) -> bool:
        """Writes an extracted shard; False if it exists."""
        name = self._name(shard)
        data = parquet_bytes(table, {**metadata, "shard": shard})
        with self._failures():
            return buckets.create(self._address(name), seal(self.key, data, self._bound_to(name)))

    def read(self, shard: int, metadata: Mapping[str, Any]) -> pa.Table:
        """An extracted shard. Raises ShardUnusable if it is missing, or not written with `metadata`."""
        name = self._name(shard)
        with self._failures():
            try:
                sealed, _ = buckets.read(self._address(name))
            except FileNotFoundError:
                raise ShardUnusable(f"{self._address(name)} is missing") from None
        try:
            data = unseal(self.key, sealed, self._bound_to(name))
            return parquet_table(data, metadata={**metadata, "shard": shard})
        except (OSError, ValueError, pa.ArrowException) as exc:
            raise ShardUnusable(f"{self._address(name)}: {exc}") from exc

    def shards(self) -> set[int]:
        """The existing shards of these output settings."""
        found = {name: match for name in self._names() if (match := _SHARD.fullmatch(name))}
        return {int(match[1]) for name, match in found.items() if name == self._name(int(match[1]))}

    def remove(self, shard: int) -> None:
        """Removes a shard, if it exists."""
        with self._failures():
            buckets.remove(self._address(self._name(shard)))

    def clear(self) -> None:
        """Removes everything that workers wrote for the run."""
        self.remove_signs()  # first, so that no more are written
        self._remove_all(_SEALED)
        if self.address.startswith("file:"):
            folder = Path(self.address.removeprefix("file://"))
            for half_written in folder.glob(f"*{_SEALED}#*"):  # of killed workers; obstore does not list them
                half_written.unlink(missing_ok=True)
            for empty in (folder, folder.parent):
                with suppress(OSError):  # not empty, or missing
                    empty.rmdir()

    def leave_sign(self) -> str:
        """Writes a file for `sees`, replacing any other; returns its name."""
        self.remove_signs()
        name = f"{uuid.uuid4().hex}{_SIGN}"
        with self._failures():
            buckets.create(self._address(name), b"facepipe")
        return name

    def remove_signs(self) -> None:
        """Stops workers of earlier commands from writing."""
        self._remove_all(_SIGN)

    def _remove_all(self, ending: str) -> None:
        names = [name for name in self._names() if name.endswith(ending)]
        with self._failures():
            for name in names:
                buckets.remove(self._address(name))

    def sees(self, sign: str) -> bool:
        """Whether this is the folder of the process that wrote the sign, and that process is still running."""
        with self._failures():
            try:
                buckets.read(self._address(sign))
            except FileNotFoundError:
                return False
        return True

    def _names(self) -> Iterator[str]:
        with self._failures():
            yield from (found.address.rpartition("/")[2] for found in buckets.list_objects(self.address))

    def _name(self, shard: int) -> str:
        return f"{shard:05d}-{self.output_hash[:16]}{_SEALED}"

    def _address(self, name: str) -> str:
        return buckets.below(self.address, name)

    def _bound_to(self, name: str) -> str:
        return "/".join([*self.address.split("/")[-2:], name])  # run id etc.: equal on every mount

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise BucketFailed(bucket=self.address, detail=exc.strerror or str(exc)) from exc
