"""Store: the operations of commands and the library, in this process or through a running server.

A verb is a method that runs where the store is open: here, or through the admin port in the server's own `Store`. The
command itself writes the files of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import DecodeSettings, Settings, load_settings
from pipeline.errors import (
    CleanUpLeft,
    DirectoryUnknown,
    ReindexUnderWay,
    StoreError,
    StoreLocked,
    StoreMismatch,
    StoreUnwritable,
    UsageError,
)
from pipeline.jobs.run_report import RunTotals, run_totals
from pipeline.jobs.server_connection import ServerConnection
from pipeline.jobs.store_identity import make_identity, resolve_threshold, settings_of_generation, settings_of_store
from pipeline.report import page_data
from pipeline.report.page_data import Mentioned, PageData
from pipeline.runtime.device import HOST
from pipeline.store import (
    ADD_FACE,
    AccountSummary,
    Catalog,
    ChangesPage,
    CheckReport,
    CorrectionAnswer,
    CorrectionRequest,
    Deleted,
    ErasureState,
    FaceAnswer,
    Label,
    LocalStore,
    MasterKey,
    Remembered,
    RunFiles,
    RunRow,
    ScanNotes,
    SearchQuery,
    SourceSummary,
    StoreIdentity,
    Suggestions,
    accounts,
    cleaning_up,
    corrections,
    directories,
    handed_over,
    load_master_key,
    load_or_make_master_key,
    media,
    overview,
    people,
    read_handed_over,
    runs,
)
from pipeline.types import Progress

if TYPE_CHECKING:
    from pipeline.people.corrections import Corrections
    from pipeline.people.directory import Directories
    from pipeline.people.service import IdentityService

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Runs:
    """The runs of a source and an account."""

    unfinished: RunRow | None  # the latest unfinished run
    last: RunRow | None  # the latest in any state
    committed: set[int]  # shards of the last run
    has_page: bool  # of the last run, as a registered file


@dataclass(frozen=True)
class Known:
    """What the store knows of some rows of a source."""

    media: dict[str, int]  # SHA-256 -> media whose faces can be reused
    forgotten: set[str]  # of these paths and hashes: those of `photo_texts`
    digests: list[str | None]  # of the labels, in their order


@dataclass(frozen=True)
class Switched:
    """The result of switching to another generation."""

    weights: str  # active, or in a dry run about to be
    regrouped: CorrectionAnswer | None


_PHOTOS: Final[Mapping[str, Callable[[Catalog, int, str], pa.Table]]] = {
    "names": media.named_photos,
    "detected_faces": media.detected_faces,
    "rejected_faces": corrections.rejected_faces,
    "identities": media.central_identities,
    "in_both_generations": people.faces_to_compare,
    "twice": people.twice_on_photos,
}
_ALL_FACES: Final = (0, people.EVERYBODY[1])  # (after, limit)
_PAGES: Final[Mapping[str, Callable[[Catalog, int, str, int, int], pa.Table]]] = {
    "unassigned_faces": people.unassigned_faces,
    "all_unassigned_faces": partial(people.unassigned_faces, nobodys=None),
}
VERBS: Final[dict[str, Callable[..., object]]] = {}


def verb(method: Callable[Concatenate[Store, P], T]) -> Callable[Concatenate[Store, P], T]:
    """Runs a method where the store is: in this process, or in the server that has it open."""

    @wraps(method)
    def perform(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if store.server is None:
            return method(store, *args, **kwargs)
        return cast("T", store.server.call(method, *args, **kwargs))

    VERBS[method.__name__] = method
    return perform


class Store(RunFiles):
    """An open store. Every verb may raise StoreDamaged, StoreFull, StoreUnwritable, and ServerUnreachable if a server
    with the store ends."""

    def __init__(
        self, holder: LocalStore | ServerConnection, settings: Settings, service: IdentityService | None = None
    ) -> None:
        """`settings`: as the command got them. `service`: recognises and corrects in this process; None: loaded for the
        first recognition, and corrections need no models."""
        super().__init__(holder.folder)
        self.path: Path = holder.path
        self.settings = settings
        self.service = service
        self.server = holder if isinstance(holder, ServerConnection) else None
        self._holder = holder
        self._corrections: Corrections | None = None
        self._directories: Directories | None = None
        self._run_keys: dict[str, bytes | None] = {}

    @property
    def identity(self) -> StoreIdentity:
        """Of the current generation."""
        return self._holder.identity

    @property
    def generation(self) -> int:
        return self._holder.generation

    @property
    def local(self) -> LocalStore:
        """The store opened by this process."""
        if not isinstance(self._holder, LocalStore):
            raise StoreError(message=f"The store {self.path} is held by a server.")
        return self._holder

    @property
    def master_key(self) -> MasterKey | None:
        """Of an encrypted store unlocked by this process."""
        return None if self.server else self.local.master_key

    @cached_property
    def settled(self) -> Settings:
        """The settings with all values that the store fixes. Raises StoreMismatch."""
        return settings_of_store(self.settings, self.identity, self.path, self.other_identity())

    def key_of_run(self, run_id: str) -> bytes | None:
        if self.identity.encrypted and run_id not in self._run_keys:
            run = self.runs(run_id=run_id).last
            self._run_keys[run_id] = None if run is None else self.image_key(run.account_id)
        return self._run_keys.get(run_id)

    def with_settings(self, settings: Settings) -> Store:
        """The same open store with other settings. Release it; do not close it."""
        return Store(self._holder, settings)

    def unlock(self, master_key: MasterKey | None = None) -> None:
        """Unlocks an encrypted store with the master key (None: the settings'), to read and write images. A server has
        it already. Raises MasterKeyMissing, MasterKeyWrong, UsageError, and StoreMismatch if the settings ask for
        encryption of an unencrypted store."""
        security = self.settings.security
        if security.encrypt and not self.identity.encrypted:
            raise StoreMismatch(path=self.path, key="security.encrypt", stored="false", given="true")
        if self.server is None and self.local.locked:
            self.local.unlock(master_key or load_master_key(security, self.path))

    def release(self) -> None:
        """Drops the models and the loaded directories."""
        self._corrections = self._directories = None
        if self.service is not None:
            self.service.close()
            self.service = None

    def close(self) -> None:
        """Closes the store, but not a server's. A second call does nothing."""
        self.forget_manifest()
        if self.server is None:
            self.release()
            self.local.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def clean_up(self) -> None:
        """Moves vectors of posted faces into shards, and removes deleted ones from the files. Call after a command's
        commit; servers do it when idle. Raises CleanUpLeft."""
        if self.server is None:
            with cleaning_up(self.path):
                self.local.fold()

    def regroup(self, request: CorrectionRequest, decoded: pa.Table | None) -> CorrectionAnswer:
        """`correct` with re-extracted faces (DECODED_SCHEMA), sent to a server in a file."""
        if decoded is None:
            return self.correct(request)
        if self.server is None:
            return self._correct(request, decoded)
        with handed_over(self.folder, decoded, self.image_key(request.account_id)) as sha256:
            return self.correct(replace(request, decoded=sha256))

    # Accounts and directories

    @verb
    def accounts(self) -> list[AccountSummary]:
        """All, the oldest first, with directories."""
        return self.local.ask(accounts.summaries)

    @verb
    def create_account(self, user_id: str, password_hash: str | None) -> int:
        """Creates an account; returns its id. Raises AccountExists, UsageError."""
        return self.local.create_account(user_id, password_hash)

    @verb
    def set_password(self, user_id: str, password_hash: str | None) -> None:
        """None: no password is accepted. Raises AccountUnknown."""
        self.local.set_password(user_id, password_hash)

    @verb
    def image_key(self, account_id: int) -> bytes | None:
        """The 32 byte AES key of an account's images; None if unencrypted."""
        return self.local.image_key(account_id)

    @verb
    def delete_all(
        self, account_id: int, directory: str | None = None, *, no_trace: bool = False, dry_run: bool = False
    ) -> Deleted:
        """Deletes a directory with all people and photos, or counts them (`dry_run`); None: the account with all
        directories, runs and digests, and the caller holds `lock_runs`. `no_trace`: later runs into the directory may
        import the photos again. Raises DirectoryUnknown."""
        if dry_run:
            names = self.local.ask(directories.with_contents, account_id) if directory is None else [directory]
            held = [self.local.ask(directories.contents, account_id, name) for name in names]
            return Deleted(sum(len(people) for people, _ in held), sum(len(photos) for _, photos in held))
        if self.service is None:
            self.release()
        holder = self.service or self.local
        if directory is not None:
            return holder.delete_directory(account_id, directory, no_trace=no_trace)
        for run in self.local.runs_of(account_id):
            if run.state != runs.FINISHED:
                self.local.abandon_run(run.run_id)
        people = photos = 0
        while not self.local.delete_account(account_id):  # also what was posted meanwhile
            for name in self.local.ask(directories.with_contents, account_id):
                with suppress(DirectoryUnknown):  # emptied meanwhile
                    deleted = holder.delete_directory(account_id, name, no_trace=True)
                    people, photos = people + deleted.people, photos + deleted.photos
        return Deleted(people, photos)

    def remembered(self, account_id: int, directory: str) -> Remembered:
        """What the last regroup set for a directory."""
        rows = (row for account in self.accounts() for row in account.directories)
        return next((r.remembered for r in rows if (r.account_id, r.name) == (account_id, directory)), Remembered())

    def threshold_in(self, remembered: Remembered) -> float | None:
        """The T in use by what a directory remembers, if any."""
        from pipeline.people.records import threshold_in_use

        return threshold_in_use(remembered, self.identity.calibration, self.generation)

    def unconfirmed(self, directory: str, remembered: Remembered) -> str | None:
        """A note if the threshold or cut that a directory remembers has no effect until it is confirmed."""
        from pipeline.people.records import unconfirmed

        return unconfirmed(directory, remembered, self.identity.calibration, self.generation)

    def settings_in(self, settings: Settings, directory: str, remembered: Remembered) -> tuple[Settings, str | None]:
        """`settings` with the threshold that the directory remembers, unless a flag gave one; and a note if theirs
        differ, or it has to be confirmed."""
        from pipeline.people.records import overridden

        own, match = self.threshold_in(remembered), settings.match
        if own is None or own == match.threshold:
            return settings, self.unconfirmed(directory, remembered)
        if "match.threshold" in settings.given:
            return settings, overridden(directory, own, match.threshold)
        made = replace(settings, match=replace(match, threshold=own, threshold_fmr=None))
        return made, f'The directory "{directory}" has the threshold {own:g}, which a regroup set for it.'

    # Runs

    @verb
    def runs(self, source: str | None = None, account_id: int | None = None, run_id: str | None = None) -> Runs:
        """The runs of a source and an account (None: of any), or the one with this id. Raises StoreError for an unknown
        id."""
        store = self.local
        last = store.ask(runs.last_run, source, account_id) if run_id is None else store.run_row(run_id)
        return Runs(
            unfinished=store.unfinished_run(source, account_id),
            last=last,
            committed=store.committed_shards(last.run_id) if last else set(),
            has_page=last is not None and page_data.registered_page(store, last.run_id) is not None,
        )

    @verb
    def sources(self, account_id: int) -> list[SourceSummary]:
        """The sources of an account's rows, by path."""
        return self.local.sources(account_id)

    @verb
    def known_files(self, source: str, account_id: int) -> pa.RecordBatchReader:
        """The rows committed from a source (KNOWN_FILES_SCHEMA), read lazily."""
        return self.local.known_files(source, account_id)

    @verb
    def known(
        self,
        account_id: int,
        paths: Sequence[str] = (),
        hashes: Sequence[str] = (),
        labels: Sequence[Label] = (),
        *,
        directories: Sequence[str] = (),
    ) -> Known:
        """What the store knows of these labels, and of these paths and hashes in these directories."""
        return Known(
            self.local.media_of_hashes(account_id, hashes) if hashes else {},
            self.local.forgotten_photos(account_id, directories, paths, hashes) if paths or hashes else set(),
            self.local.digests_of_labels(labels) if labels else [],
        )

    @verb
    def begin_run(self, source: str, kind: str, account_id: int, directory: str, settings: Mapping[str, Any]) -> RunRow:
        """Returns a run that needs a manifest: a new one, or the one whose scan was interrupted, without its
        settings."""
        cut_off = self.local.unfinished_run(source, account_id)
        if cut_off is not None:
            return self.local.ask(runs.rebegin_run, cut_off.run_id, kind, directory, settings)
        return self.local.begin_run(source, kind, account_id, directory, settings)

    @verb
    def end_scan(self, source: str, account_id: int, notes: ScanNotes, planned: RunRow | None = None) -> RunRow | None:
        """Records a scan's findings and, in the same transaction, the run that it planned, if any, with numbers of rows
        and shards, and the scan's counts as summary."""
        if planned is None:
            self.local.note_scan(source, account_id, notes)
            return None
        self.local.plan_run(planned.run_id, planned.rows or 0, planned.shards or 0, planned.summary, notes)
        return self.local.run_row(planned.run_id)

    @verb
    def commit_shard(self, run_id: str, shard: int, model: str) -> None:
        """Decides and commits a shard that `model` (`StoreIdentity.model`) extracted. Raises StoreMismatch if the
        store's model has changed."""
        if model != self.identity.model:
            given = "another model, or other settings"
            raise StoreMismatch(path=self.path, key="model.weights", stored=self.identity.weights, given=given)
        self._recognition().enrol_shard(run_id, shard)

    @verb
    def end_run(self, run_id: str, summary: Mapping[str, Any] | None = None, mentioned: Mentioned = ((), ())) -> RunRow:
        """Finishes a run with all shards committed; without a summary gives it up, keeping the committed ones.
        `mentioned`: who and what is in its run.json."""
        for files in (self, self.local):
            files.forget_manifest()  # its file is deleted
        if summary is None:
            return self.local.abandon_run(run_id)
        self.local.finish_run(run_id, summary, *mentioned)
        return self.local.run_row(run_id)

    @verb
    def count_runs(self, account_id: int, run_ids: Sequence[str]) -> RunTotals:
        """What these runs of an account imported."""
        return run_totals(self.local, account_id, run_ids)

    # Two generations

    def _measure_also(self, identity: StoreIdentity | None) -> None:
        """Makes this process's service, if any, also embed new faces by this model."""
        if self.service is not None:
            from pipeline.jobs.models import load_other

            other = None if identity is None else load_other(self.settings, identity, self.path)
            self.service.extractor.measure_also(other)

    @verb
    def other_identity(self) -> StoreIdentity | None:
        """Of the generation that is not current, if any."""
        return self.local.other_identity()

    @verb
    def begin_generation(self, identity: StoreIdentity) -> int:
        """Begins another generation; returns its number. A server first loads its model, then embeds each new face by
        both. Raises ReindexUnderWay, ModelError, DeviceError."""
        if (other := self.other_identity()) is not None:
            raise ReindexUnderWay(path=self.path, weights=other.weights)
        self._measure_also(identity)
        try:
            return self.local.begin_generation(identity)
        except BaseException:
            self._measure_also(None)
            raise

    @verb
    def count_unmeasured(self) -> int:
        """Without another generation, of all faces."""
        return self.local.count_unmeasured()

    @verb
    def unmeasured_faces(self, after: int, photos: int) -> pa.Table:
        """The faces missing in the generation being built, of up to `photos` photos with media ids above `after`."""
        return self.local.unmeasured_faces(after, photos)

    @verb
    def commit_measured(self, faces: pa.Table, counts: Mapping[str, Any]) -> None:
        """Commits measured faces (MEASURED_SCHEMA)."""
        self.local.commit_measured(faces, counts)

    @verb
    def complete_generation(self) -> bool:
        """Builds its references. False if it still lacks faces."""
        return self.local.complete_generation()

    @verb
    def switch_generation(self, request: CorrectionRequest | None = None, *, back: bool = False) -> Switched:
        """Makes the newer generation current, or with `back` the older one. `request`, a regroup, also re-clusters a
        directory in the same transaction; a dry run only reports the changes. Raises ReindexMissing, and BadValue if
        the calibration lacks the rate in the settings."""
        other = self.other_identity()
        try:
            if self.service is not None and other is not None:
                match = resolve_threshold(self.settings, other).match
                answer = self.service.switch_generation(match, request, back=back)
            else:
                decode = settings_of_generation(self.settings, self.identity).decode
                answer = self._corrector(decode).switch_generation(request, back=back)
                self.local.require_unlinked()
        finally:  # an error may come after the commit
            self.__dict__.pop("settled", None)
            if self.service is None:
                self.release()
        dry_run = request is not None and request.dry_run
        return Switched(other.weights if dry_run and other is not None else self.identity.weights, answer)

    @verb
    def drop_generation(self, *, older: bool = False) -> str | None:
        """Deletes the newer generation, or with `older` the former one; returns the name of its weights. Raises
        ReindexMissing."""
        other = self.other_identity()
        self.local.drop_generation(older=older)
        if self.service is not None:
            self.service.extractor.keep_one(self.identity.model)
        return None if other is None else other.weights

    @verb
    def generation_summary(self) -> dict[str, Any]:
        """Numbers of the other generation. Raises ReindexMissing."""
        return self.local.generation_summary()

    # People

    @verb
    def people(
        self,
        account_id: int,
        directory: str,
        who: Sequence[str] | None = None,
        page: tuple[int, int] = people.EVERYBODY,
        *,
        counted: bool,
    ) -> pa.Table:
        """The records of a directory by age: all, a `page` (after, limit), or the merged sets that `who` may mean; with
        what they are found by, or if `counted` all fields."""
        return self.local.ask(people.people, account_id, directory, who, page, counted=counted)

    @verb
    def faces_of(self, person_ids: Sequence[str]) -> pa.Table:
        """The faces of these records, by photo path (null: posted)."""
        return self.local.ask(people.faces_of_people, person_ids)

    @verb
    def correction_log(
        self, account_id: int, directory: str, before: int, count: int
    ) -> tuple[pa.Table, dict[str, str | None]]:
        """The last corrections before number `before`, and the involved people's names."""
        rows = self.local.ask(corrections.history, account_id, directory, before, count)
        persons = {person for ids in rows["person_ids"].to_pylist() for person in ids}
        return rows, self.local.ask(overview.names_of, sorted(persons))

    @verb
    def changes(self, since: int, account_id: int | None, limit: int) -> ChangesPage:
        """The changes after a commit, of one account or of all. Raises ChangesUnknown."""
        return self.local.changes(since, account_id, limit)

    @verb
    def correct(self, request: CorrectionRequest) -> CorrectionAnswer:
        """Corrects whose a face is, or what a person is called. A server's answers reflect it immediately. Raises
        RequestError if it is impossible, changing nothing. A drawn face needs the models: also raises ModelError,
        DeviceError."""
        if request.decoded is None:
            return self._correct(request)
        key = self.local.image_key(request.account_id)
        return self._correct(request, read_handed_over(self.folder, request.decoded, key))

    @verb
    def search(self, query: SearchQuery) -> list[FaceAnswer]:
        """Recognises the faces of an image. Raises ImageRejected."""
        return self._recognition().search(query)

    # Reading

    @verb
    def photos(
        self,
        what: str,
        account_id: int = 0,
        directory: str = "",
        paths: Sequence[str] | None = None,
        page: tuple[int, int] = _ALL_FACES,
    ) -> pa.Table:
        """Returns the table `what`. Of a directory's photos: `names` from their source, detected_faces, rejected_faces,
        identities, `twice` (who is on one), those `at` paths, and a `page` (after, limit) of the unassigned_faces or,
        with those said to be nobody's, all_unassigned_faces. Of any directory: the central_faces at `paths`, or all
        records. Raises FaceUnknown."""
        if what in _PAGES:
            return self.local.ask(_PAGES[what], account_id, directory, *page)
        if what == "at":
            return self.local.ask(media.photos_at, account_id, directory, paths or [])
        if what == "central_faces":
            return self.local.ask(media.central_faces, paths or [])
        if what == "records":
            return self.local.ask(media.photo_records)
        if what not in _PHOTOS:
            raise UsageError(message=f"There is no table of photos {what!r}.")
        return self.local.ask(_PHOTOS[what], account_id, directory)

    @verb
    def table(self, name: str) -> pa.RecordBatchReader:
        """A table of `export`, or `erasures`. Raises UsageError for another name."""
        return self.local.read_table(name)

    @verb
    def page_data(
        self, account_id: int, run_ids: Sequence[str], threshold: float, mentioned: Mentioned | None
    ) -> PageData:
        """A report's rows; without `mentioned`, of one without people. `threshold`: of directories that remember none,
        for pairs who may be one person."""

        def suggest(directory: str, person_ids: Sequence[str]) -> Suggestions:
            used = self._threshold(account_id, directory, threshold, given=False)
            return self._suggestions(account_id, used, directory, person_ids, every_nearest=True)

        return page_data.page_data(self.local, account_id, run_ids, mentioned, suggest)

    @verb
    def suggest(
        self, account_id: int, directory: str, who: str | None, threshold: float, *, given: bool
    ) -> Suggestions:
        """Pairs of this person, or of the people on most photos, who may be one. The directory's threshold replaces one
        that was not `given`."""
        used = self._threshold(account_id, directory, threshold, given=given)
        if who is not None:
            return self._suggestions(account_id, used, directory, [who])
        listed = self.local.ask(people.people, account_id, directory)
        roots = listed.filter(pc.equal(listed["person_id"], listed["root_person_id"]))
        shown = roots.filter(pc.invert(roots["hidden"])).sort_by([("photos", "descending"), ("person_id", "ascending")])
        return self._suggestions(account_id, used, directory, shown["person_id"].to_pylist(), each_once=True)

    def _threshold(self, account_id: int, directory: str, threshold: float, *, given: bool) -> float:
        with self.directories().using(account_id, directory) as opened:
            return opened.match(replace(self.settings.match, threshold=threshold), given=given).threshold

    def _suggestions(
        self,
        account_id: int,
        threshold: float,
        directory: str,
        person_ids: Sequence[str],
        *,
        each_once: bool = False,
        every_nearest: bool = False,
    ) -> Suggestions:
        """`each_once`: leaves out a pair's second place among these people."""
        from pipeline.people.suggestions import suggestions

        places = {person_id: place for place, person_id in enumerate(person_ids)} if each_once else None
        with self.directories().using(account_id, directory) as opened:
            return suggestions(self.local, opened, threshold, person_ids, places, every_nearest=every_nearest)

    @verb
    def keep_page(self, run_id: str, content: bytes, person_ids: Sequence[str], media_ids: Sequence[int]) -> bool:
        """Writes a run's report file; False if somebody on it was forgotten since."""
        return page_data.keep_page(self.local, run_id, content, person_ids, media_ids)

    # The whole store

    @verb
    def check(self, *, repair: bool = False, progress: Progress | None = None) -> CheckReport:
        """Reads the whole store; with `repair`, repairs what can be repaired without loss and reads it again.
        `progress` only advances in this process. Raises StoreUnwritable."""
        advance = None if progress is None else lambda _: progress.advance()
        report = self.local.check(repair=repair, progress=advance)
        if self.service is not None:
            self.service.directories.map_again()  # segments that were rewritten
        return report

    @verb
    def erase(self, *, now: bool) -> ErasureState:
        """What waits to be erased from the catalog's file; `now` erases it, and all that deletions left elsewhere.
        Raises StoreFull, StoreUnwritable."""
        before = self.local.erase_state()
        if now:
            self.local.erase(now=True)
            if self.service is not None:
                self.service.directories.map_again()
        return before

    @verb
    def sign_receipt(self, pending: str | None) -> str:
        """See `LocalStore.sign_receipt`."""
        return self.local.sign_receipt(pending)

    @verb
    def find_text(self, text: str) -> list[tuple[str, int]]:
        """The text columns of the catalog that contain a text, with the number of rows."""
        return self.local.find_text(text)

    @verb
    def migrate(self, *, progress: Progress | None = None) -> list[int]:
        """See `LocalStore.migrate`."""
        return self.local.migrate(progress)

    @verb
    def export(self, to: Path) -> dict[str, int]:
        """Writes the tables as Parquet files into the new or empty folder `to`; returns their row counts. Raises
        UsageError, StoreFull and StoreUnwritable of the target."""
        return self.local.export(to)

    def _recognition(self) -> IdentityService:
        """Raises ModelError, DeviceError."""
        if self.service is None:
            from pipeline.extraction.images.decode import Decoder
            from pipeline.jobs.models import load_extractor
            from pipeline.people.service import IdentityService

            self.release()
            extractor = load_extractor(self.settled, self.identity, self.path)
            self.service = IdentityService(self.local, extractor, Decoder(self.settled.decode), self.settled)
        return self.service

    def directories(self, device: str | None = None) -> Directories:
        """This process's directories, each read once. `device`: where photos' faces are searched."""
        if self.service is not None:
            return self.service.directories
        known = self._directories
        if known is None or (device is not None and (known.device, known.quantized) != (device, True)):
            from pipeline.people.directory import Directories

            self.release()
            self._directories = Directories(self.local, device or HOST, quantized=device is not None)
            return self._directories
        return known

    def _correct(self, request: CorrectionRequest, decoded: pa.Table | None = None) -> CorrectionAnswer:
        """Corrects in this process."""
        if self.service is not None or request.kind == ADD_FACE:
            return self._recognition().correct(request, decoded)
        answer = self._corrector(self.settled.decode).make(request, decoded)
        self.local.require_unlinked()
        return answer

    def _corrector(self, decode: DecodeSettings) -> Corrections:
        if self._corrections is None:
            from pipeline.extraction.images.decode import Decoder
            from pipeline.people.corrections import Corrections

            self._corrections = Corrections(self.local, self.directories(), Decoder(decode), self.settings.serve)
        return self._corrections


def open_store(
    path: Path, settings: Settings | None = None, *, command: str, repair: bool = False, reading: bool = False
) -> Store:
    """Opens the store at `path`. `repair` also opens one whose last changes are lost, `reading` one on a read-only
    disk. Without `settings`, only `store.erase_within` is taken from the environment and FACEPIPE_CONFIG. Raises
    StoreMissing, StoreLocked, StoreDamaged, StoreTooNew, ServerUnreachable, and UsageError for a wrong setting."""
    within = (settings or load_settings()).store.erase_within

    def open_it() -> LocalStore:
        return LocalStore.open(path, command=command, repair=repair, reading=reading, erase_within_h=within)

    return _opened(open_it, settings)


def store_at(place: Path | Store, command: str) -> AbstractContextManager[Store]:
    """The store at a path, or one that is open, which stays open. Raises as `open_store`."""
    return nullcontext(place) if isinstance(place, Store) else open_store(place, command=command)


def path_of(place: Path | Store) -> Path:
    return place.path if isinstance(place, Store) else place


def open_or_create_store(path: Path, settings: Settings, command: str) -> Store:
    """Opens the store at `path`, or creates it with the settings' weights, which are then fixed.

    New stores are encrypted if the settings say so; encrypted stores are unlocked. Raises StoreError, UsageError,
    UnknownWeights, WeightsMissing, WeightsCorrupt.
    """
    master_key: MasterKey | None = None

    def make() -> StoreIdentity:
        nonlocal master_key
        if settings.security.encrypt:
            master_key = load_or_make_master_key(settings.security, path)
        identity = make_identity(settings, master_key)
        resolve_threshold(settings, identity)  # fails before an unusable store is created
        return identity

    within = settings.store.erase_within
    store = _opened(lambda: LocalStore.open_or_create(path, make, command=command, erase_within_h=within), settings)
    try:
        store.unlock(master_key)
    except BaseException:
        store.close()
        raise
    return store


def _opened(open_it: Callable[[], LocalStore], settings: Settings | None) -> Store:
    """Opens the store, or connects to its server. Raises StoreLocked if another process has it open, or a server that
    is starting or stopping."""
    settings = settings or Settings()
    try:
        return Store(open_it(), settings)
    except StoreLocked as locked:
        if locked.fields["url"] is None:
            raise
        return Store(ServerConnection(Path(str(locked.fields["path"])), str(locked.fields["url"])), settings)


@contextmanager
def part_of_command() -> Iterator[None]:
    """Wraps commits that do not complete a command, so that CleanUpLeft does not report it as done: raises the disk's
    error instead."""
    try:
        yield
    except CleanUpLeft as left:
        cause = left.__cause__  # a server sends none
        raise (cause if isinstance(cause, StoreError) else StoreUnwritable(**left.fields)) from left
