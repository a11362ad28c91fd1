"""Receipts of erasures as files outside the store: written when somebody is forgotten, completed, verified."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.errors import FacepipeError, ReceiptInvalid, ReceiptPending, UsageError
from pipeline.jobs.store import Store
from pipeline.store import PRIVATE_FILE, receipts, sync, traces
from pipeline.texts import is_unicode

_PARTIAL: Final = ".part"


@dataclass(frozen=True)
class Verified:
    """What a receipt proves of one value."""

    kind: str  # as in the receipt, or photo
    value: str  # the photo's path
    in_receipt: bool
    found: list[str] | None  # places in the store; None: not searched
    is_short: bool  # it was only searched as the whole value of a column


@contextmanager
def written(file: Path, pending: str, store: Store) -> Iterator[str]:
    """Writes a new pending receipt, and yields the hash by which the block's erasure is recorded. If the block fails
    and the store recorded nothing, deletes the file. Raises UsageError if it cannot be written, or exists."""
    target = _write_outside(store, file, pending, " Nothing was forgotten.")
    try:
        yield receipts.sha256(pending)
    except FacepipeError:
        with suppress(FacepipeError):
            try:
                store.sign_receipt(pending)
            except ReceiptInvalid:
                target.unlink(missing_ok=True)
        raise


def write_log(store: Store, file: Path) -> None:
    """Writes a new signed receipt of all erasures, in times and numbers. Raises ReceiptPending while files are left to
    erase, and UsageError if it cannot be written, or exists."""
    _write_outside(store, file, store.sign_receipt(None))


def complete(store: Store, file: Path) -> receipts.Receipt:
    """Replaces a pending receipt's file by the completed one; one that is complete stays. Raises ReceiptInvalid,
    ReceiptPending, and UsageError if it cannot be read or written."""
    text, receipt = _read(file)
    if receipt.state != receipts.PENDING:
        receipts.require_signature(receipt, store.erase(now=False).public_key)
        return receipt
    signed = store.sign_receipt(text)
    target = file.resolve()
    partial = target.with_name(target.name + _PARTIAL)
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed
        _write_new(partial, signed)
        partial.replace(target)
        sync(target.parent)
    except OSError as exc:
        raise UsageError(message=f"The receipt {file} cannot be written: {exc.strerror}.") from exc
    return receipts.read(signed)


def verify(
    file: Path,
    texts: Sequence[tuple[str, str]],
    photo: Path | None = None,
    *,
    store: Store | None = None,
    key: str | None = None,
) -> tuple[receipts.Receipt, list[Verified]]:
    """Verifies a receipt's signature by the public `key`, the store's, or without both by its own. Then says of each
    value (`texts` with kinds, and a photo's bytes) whether it is among what was erased, and where `store` still has it.
    Raises ReceiptInvalid, ReceiptPending, and UsageError if a file cannot be read."""
    if not all(is_unicode(text) for _, text in texts):
        raise UsageError(message="What is searched for must be UTF-8.")
    _, receipt = _read(file)
    if receipt.state == receipts.PENDING:
        raise ReceiptPending(detail=f"facepipe erase receipt {file} --store DIR completes it")
    for given in (key, None if store is None else store.erase(now=False).public_key):
        if given is not None:
            receipts.require_signature(receipt, given.lower())
    receipts.require_signature(receipt, receipt.public_key)
    asked = [(kind, text, text, kind, traces.patterns_of_text(text)) for kind, text in texts]
    if photo is not None:
        data = _bytes(photo)
        patterns = traces.patterns_of_photo(data)
        asked.append(("photo", str(photo), patterns[0].hex(), receipts.SHA256, patterns))
    found: dict[str, list[str]] = {text: [] for _, _, text, _, _ in asked}
    if store is not None:
        for text, places in found.items():
            places += [f"{column} ({rows} row{'s' * (rows > 1)})" for column, rows in store.find_text(text)]
        for text, name in traces.in_files(store.folder, {text: patterns for _, _, text, _, patterns in asked}):
            found[text].append(name)
    return receipt, [
        Verified(kind, shown, receipt.has(of, text), None if store is None else found[text], not patterns)
        for kind, shown, text, of, patterns in asked
    ]


def _read(file: Path) -> tuple[str, receipts.Receipt]:
    try:
        text = _bytes(file).decode()
    except UnicodeDecodeError as exc:
        raise ReceiptInvalid(detail="it is not JSON") from exc
    return text, receipts.read(text)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise UsageError(message=f"{file} cannot be read: {exc.strerror}.") from exc


def _write_outside(store: Store, file: Path, text: str, otherwise: str = "") -> Path:
    """A new file outside the store. Raises UsageError, which says `otherwise`, too."""
    try:
        target = file.parent.resolve(strict=True) / file.name
        if target.is_relative_to(store.path.resolve()):
            raise UsageError(message=f"The receipt {file} would be in the store: give a file elsewhere.")
        _write_new(target, text)
        sync(target.parent)
    except OSError as exc:
        detail = "it exists already" if isinstance(exc, FileExistsError) else exc.strerror
        raise UsageError(message=f"The receipt {file} cannot be written: {detail}.{otherwise}") from exc
    return target


def _write_new(file: Path, text: str) -> None:
    """Durably, but for the folder."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "wb") as out:
        try:
            out.write(text.encode())
            out.flush()
            os.fsync(out.fileno())
        except BaseException:
            file.unlink()
            raise
