"""What every stage of a run needs: the open store, its account and settings, and the progress display."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import AVERAGE_LINK, RAY, Settings
from pipeline.errors import UsageError
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.jobs.accounts import resolve_account
from pipeline.jobs.cluster.connection import require_ray
from pipeline.jobs.expectation import calibration_warning
from pipeline.jobs.profile import Profiler
from pipeline.jobs.store import Store, open_or_create_store, open_store
from pipeline.jobs.store_identity import settings_of_store
from pipeline.people.clustering import cut_of
from pipeline.runtime.buckets import is_address
from pipeline.store import has_store
from pipeline.texts import path_text
from pipeline.types import Progress, SilentProgress, Source


@dataclass(frozen=True)
class RunRequest:
    """The user's request. `source` may be None for `extract` and `group`, which use the unfinished run."""

    source: Source | None
    store: Path
    settings: Settings
    account: str | None = None
    directory: str = "main"
    command: str = "run"
    profile: bool = False  # whether the report says where the time went
    further_sources: tuple[Source, ...] = ()  # `run` processes them after the first
    moved_from: Source | None = None  # where the source was before
    forget_many: bool = False  # even more missing photos than `run.missing_limit`

    @property
    def sources(self) -> list[Source]:
        """All sources, each once."""
        named = [self.source, *self.further_sources] if self.source is not None else []
        return list({source_name(source): source for source in named}.values())


@dataclass(frozen=True)
class Session:
    """A command on an open store that locks out other runs."""

    request: RunRequest
    progress: Progress
    stop: threading.Event  # set: finish the shard in progress, then raise Interrupted
    store: Store
    settings: Settings  # with the store's values for all that it fixes
    account: str
    account_id: int
    profiler: Profiler
    started: float = field(default_factory=time.monotonic)

    @property
    def source(self) -> str | None:
        """Its name in the store and the reports."""
        return None if self.request.source is None else source_name(self.request.source)

    @property
    def to_scan(self) -> Source:
        """The folder, prefix or manifest. Raises UsageError if the request names none."""
        if self.request.source is None:
            raise UsageError(message="Name a folder or a manifest to scan.")
        return self.request.source

    def of_source(self, source: Source) -> Session:
        """The session for one of the request's sources."""
        return dataclasses.replace(self, request=dataclasses.replace(self.request, source=source))


@contextmanager
def open_session(
    request: RunRequest,
    progress: Progress | None,
    stop: threading.Event | None,
    *,
    create: bool = True,
    opened: Store | None = None,
) -> Iterator[Session]:
    """Opens the request's store, with `create` creates it, and locks out other runs. Does not close a store that was
    `opened` before.

    Raises InputError for an unusable source, StoreError, UsageError, and ModelError for a new store.
    """
    started = time.monotonic()
    progress = progress or SilentProgress()
    if request.settings.run.engine == RAY:
        require_ray()
    require_sources(request)
    with (
        closing(Profiler(request.profile, request.settings.run)) as profiler,
        _open(request, create) if opened is None else nullcontext(opened) as store,
        store.lock_runs(request.command),
    ):
        store.unlock()
        settings = settings_of_store(request.settings, store.identity, request.store, store.other_identity())
        account = resolve_account(store, request.account)
        settings, note = store.settings_in(
            settings, request.directory, store.remembered(account.account_id, request.directory)
        )
        if note is not None:
            progress.note(note)
        if settings.regroup.method == AVERAGE_LINK:
            cut_of(settings.regroup, store.identity, 1)  # fails before the work
        if store.server is not None:
            progress.note("A server holds the store: its faces are decided and stored there.")
        if store.master_key is not None and store.master_key.made:
            progress.note(store.master_key.notice)
        warning = calibration_warning(store.identity)
        if warning is not None:
            progress.note(f"warning: {warning}")
        stop = stop or threading.Event()
        yield Session(request, progress, stop, store, settings, account.account, account.account_id, profiler, started)


def source_name(path: Source) -> str:
    """Returns a source's name: without "..", but with its links, as its rows' paths begin; a bucket prefix without
    final slash."""
    if is_address(path):
        return path_text(path.rstrip("/"))
    return path_text(os.path.abspath(path))  # noqa: PTH100


def require_sources(request: RunRequest) -> None:
    """Checks the sources first: a missing, empty or invalid one must not leave an empty store behind, nor stop the
    command after other sources."""
    if request.moved_from is not None:
        _require_moved_from(request, request.moved_from)
    for source in request.sources:
        source_kind(source)
    if len(request.sources) > 1 or not has_store(request.store.absolute()):
        for source in request.sources:
            next(scan_source(source, request.settings.source), None)


def _require_moved_from(request: RunRequest, old: Source) -> None:
    sources = [source_name(source) for source in request.sources]
    if len(sources) > 1:
        raise UsageError(message=f"--moved-from takes one source, not {len(sources)}: {', '.join(sources)}.")
    if source_name(old) in sources:
        raise UsageError(message=f"--moved-from names where the archive was before, and {source_name(old)} is SOURCE.")
    if not has_store(request.store.absolute()):
        raise UsageError(message=f"There is no store at {request.store} yet that could have anything from {old}.")


def _open(request: RunRequest, create: bool) -> Store:
    if create:
        return open_or_create_store(request.store, request.settings, request.command)
    return open_store(request.store, request.settings, command=request.command)
