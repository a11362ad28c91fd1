"""Holding a store: its lock, and the one thread that owns its catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from pipeline.errors import StoreError
from pipeline.store import cleanup
from pipeline.store.catalog import opening
from pipeline.store.catalog.connection import Catalog
from pipeline.store.commits import lost
from pipeline.store.files.durable import Folder
from pipeline.store.files.lock import StoreLock
from pipeline.store.records import Problem, StoreIdentity

P = ParamSpec("P")
T = TypeVar("T")


class CatalogThread:
    """An open, locked store's catalog. What the methods ask of it waits in the queue of its thread, so they may be
    called from any thread, and a Ctrl-C in the caller never cuts a transaction."""

    def __init__(
        self,
        root: Path,
        make_identity: Callable[[], StoreIdentity] | None,
        command: str,
        *,
        repair: bool = False,
        reading: bool = False,
    ) -> None:
        """Opens the store at `root`, or makes one with the identity from `make_identity`, if there is one. With
        `repair` also one whose last transactions are gone; `lost` tells what they were. With `reading` also one on a
        disk that can't be written.

        Raises StoreMissing, StoreLocked, StoreDamaged, StoreTooNew, StoreFull, StoreUnwritable.
        """
        self.folder = Folder(root)
        self.path = root
        self._lock = StoreLock.acquire(root, command, reading=reading)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._closed = False
        # Who holds it: no other file of embeddings is on its way into the catalog but those of unfinished runs.
        self.embeddings_lock = threading.Lock()
        try:
            work = partial(_open, self.folder, make_identity, repair, self._lock.read_only)
            self._catalog, self.lost = self._thread.submit(work).result()
        except BaseException:
            self._thread.shutdown()
            self._lock.release()
            raise
        self.identity = self._catalog.identity
        self.generation = self._catalog.generation

    def announce(self, url: str | None) -> None:
        """Writes into the lock where this process takes the work of other commands; None: nowhere any more."""
        self._lock.announce(url)

    def close(self) -> None:
        """Closes the catalog and frees the lock; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._thread.submit(_close_catalog, self._catalog).result()
        finally:
            self._thread.shutdown()
            self._lock.release()

    def submit(self, work: Callable[Concatenate[Catalog, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Does `work` on the thread that owns the catalog, and returns what it returns."""
        return self.begin(lambda catalog: work(catalog, *args, **kwargs)).result()

    ask = submit  # a query

    def begin(self, work: Callable[[Catalog], T]) -> Future[T]:
        """Does work without waiting for it. Raises StoreError after `close`."""
        if self._closed:
            raise StoreError(message=f"The store {self.path} is closed.")
        answer = Future[T]()
        self._thread.submit(self._work, work, answer)
        return answer

    def read(self, sql: str, params: Sequence[object] = ()) -> pa.Table:
        """The rows that an SQL query answers. For this package and its tests."""
        return self.submit(Catalog.read, sql, params)

    def _work(self, work: Callable[[Catalog], T], answer: Future[T]) -> None:
        """On the catalog's thread. Nobody who waits by now for work of theirs waits for the checkpoint after it too."""
        try:
            answer.set_result(work(self._catalog))
        except BaseException as exc:  # noqa: BLE001  raised in the thread that waits
            answer.set_exception(exc)
        with suppress(RuntimeError):  # the thread takes no more work: the store was closed meanwhile
            self._thread.submit(self._keep_log_short)

    def _keep_log_short(self) -> None:
        if not self._closed:  # closing it makes the checkpoint as well
            self._catalog.keep_log_short()


def _close_catalog(catalog: Catalog) -> None:
    try:
        cleanup.quarantine_images(catalog)
    finally:
        catalog.close()


def _open(
    folder: Folder, make_identity: Callable[[], StoreIdentity] | None, repair: bool, read_only: bool
) -> tuple[Catalog, list[Problem]]:
    """Under the lock, on the catalog's thread."""
    if make_identity is None:
        opening.require_store(folder)
    elif not opening.has_store(folder.root):
        opening.create_store(folder, make_identity())
    loss = lost.look_for_loss(folder) if repair and not read_only else None
    catalog = opening.open_catalog(folder, lossy=loss is not None, read_only=read_only)
    try:
        problems = [] if loss is None else loss.accept(catalog)
        cleanup.sweep(catalog)
    except BaseException:
        catalog.close()
        raise
    return catalog, problems
