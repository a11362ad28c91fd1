"""Stores for notebooks and other programs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from pipeline.config import load_settings, with_flags
from pipeline.errors import UsageError
from pipeline.jobs import store as opening
from pipeline.jobs.expectation import calibration_warning
from pipeline.jobs.people import People
from pipeline.jobs.store import Store, open_or_create_store
from pipeline.library.arguments import checked_directory, run_flags, settings_of, source_of
from pipeline.matching.calibration import Calibration
from pipeline.run.session import RunRequest
from pipeline.store import has_store, vectors_of
from pipeline.types import FloatArray, IntArray, Progress

if TYPE_CHECKING:
    from pipeline.extraction.images.given import GivenImage
    from pipeline.jobs.run_report import RunReport
    from pipeline.store import ChangesPage, FaceAnswer

_COMMAND = "library"  # shown to another process that finds the store in use
_log = logging.getLogger("facepipe")


def open_store(path: Path | str, *, settings: Mapping[str, object] | None = None) -> OpenStore:
    """Opens the store at `path`, through a server if one is running on it.

    `settings` are facepipe settings by key; they override the environment and FACEPIPE_CONFIG. Raises StoreMissing,
    StoreLocked if another process works on the store, StoreMismatch, and other StoreErrors.

    >>> with open_store("people", settings={"run.device": "cpu"}) as store:
    ...     store.persons().num_rows
    2
    """
    options = load_settings(flags=settings)
    return OpenStore(opening.open_store(Path(path), options, command=_COMMAND))


def create_store(
    path: Path | str,
    *,
    weights: str = "auto",
    encrypt: bool = False,
    calibration: Path | str | None = None,
    settings: Mapping[str, object] | None = None,
) -> OpenStore:
    """Creates a store at `path` and opens it. Weights, encryption and calibration cannot be changed later.

    `weights`: auto, casia-webface, vggface2 or sface. `calibration`: a file that `calibrate(...).write(file)` wrote. If
    the store's distances are not calibrated, a warning is logged and repeated in the reports of runs. Raises UsageError
    if a store already exists, ModelError, StoreError.

    >>> with create_store("people", weights="casia-webface") as store:
    ...     report = store.run("photos")
    >>> report.persons
    2
    """
    path = Path(path)
    if has_store(path.absolute()):
        raise UsageError(message=f"There is a store at {path} already: open it with open_store.")
    options = settings_of(settings, weights, calibration=calibration, encrypt=encrypt)
    store = open_or_create_store(path, options, _COMMAND)
    opened = OpenStore(store)
    warning = calibration_warning(store.identity)
    if warning is not None:
        _log.warning("%s", warning)
    return opened


class Matrix(NamedTuple):
    """The vectors of n faces."""

    face_ids: IntArray  # [n] int64, ascending
    vectors: FloatArray  # [n, d] float32, L2 norm 1


class OpenStore:
    """An open store, from `open_store` or `create_store`. Close it or use a `with` statement: no other process can open
    it meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        try:
            store.unlock()
            self._settings = store.settled
        except BaseException:
            store.close()
            raise

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._store.path

    def run(
        self,
        source: Path | str,
        *,
        account: str | None = None,
        directory: str = "main",
        labels: str | None = None,
        include: Sequence[str] | str = (),
        exclude: Sequence[str] | str = (),
        threshold: float | str | None = None,
        settings: Mapping[str, object] | None = None,
        moved_from: Path | str | None = None,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> RunReport:
        """Imports the photos of a folder, a manifest or "s3://bucket/prefix", as `facepipe run` does.

        A second call imports only what is new or changed. `labels`: "parent" names people after the photos' folders.
        `include`, `exclude`: patterns such as "*.gif" or "private". `threshold`: T, or a false match rate such as
        "fmr:1e-4". `settings`: any others by key, for this run. `moved_from`: the source's former place; its photos
        count as already imported. `account`: None is the only one there is. Once `stop` is set, the shard in progress
        is finished and Interrupted raised; the next call continues. Unusable photos are counted in the report and raise
        nothing. Raises InputError, ModelError, DeviceError, StoreError, UsageError.

        >>> with open_store("people") as store:
        ...     report = store.run("photos")
        >>> report.new, report.already_in
        (0, 2)
        """
        from pipeline.run.run import run

        self._store.release()  # frees the models and the identities loaded before the run
        flags = run_flags(labels, include, exclude, threshold, settings)
        store = self._store.with_settings(with_flags(self._store.settings, flags))
        request = RunRequest(
            source_of(source),
            self.path,
            store.settings,  # as given: a run compares them with the store's
            account,
            checked_directory(directory),
            _COMMAND,
            moved_from=None if moved_from is None else source_of(moved_from),
        )
        try:
            return run(request, progress, stop, store)
        finally:
            store.forget_manifest()
            store.release()

    def report(self, to: Path | str, *, run_id: str | None = None, account: str | None = None) -> None:
        """Writes an HTML report to `to`, as `facepipe report` does: the people of a run ("last": the last one), or with
        None all people of the account. Raises UsageError, StoreError.

        >>> with open_store("people") as store:
        ...     store.report("people.html")
        """
        from pipeline.run.page import write_report_page

        write_report_page(self._store, Path(to), account=account, run_id=run_id)

    def recognise(
        self,
        image: GivenImage,
        *,
        top: int = 5,
        account: str | None = None,
        directory: str = "main",
    ) -> list[FaceAnswer]:
        """Recognises the people in an image: a path, the bytes of a file, an array [H, W, 3] uint8 RGB, or a PIL
        image. Stores nothing.

        Returns the faces from the largest to the smallest, each with its box (xyxy, pixels of the upright image), the
        identity that it matches, and the `top` most similar identities. The first call loads the models. Raises
        ImageRejected, StoreError, ModelError, DeviceError.

        >>> with open_store("people") as store:
        ...     (face,) = store.recognise("photos/hopper.jpg", top=1)
        >>> face.identity.similarity_score >= 1
        True
        """
        return self.people.of(account=account, directory=directory).recognise(image, top)

    @property
    def people(self) -> StorePeople:
        """The people of the directory `main` of the only account, and corrections; `people.of(...)` selects another.

        >>> with open_store("people") as store:
        ...     first, second = store.people.all()
        ...     done = store.people.name(first.person_id, "Eileen Collins")
        ...     len(store.people.photos("Eileen Collins"))
        ...     undone = store.people.undo()
        1
        """
        return StorePeople(self._store)

    def persons(self) -> pa.Table:
        """Returns the persons of all accounts and directories: the columns of `persons.parquet` (see FORMAT.md).

        >>> with open_store("people") as store:
        ...     store.persons()["directory"].to_pylist()
        ['main', 'main']
        """
        return self._store.table("persons").read_all()

    def changes(self, since: int = 0, *, account: str | None = None, limit: int = 1000) -> ChangesPage:
        """Returns the changes of people after commit `since`, of one account or of all, for a reader that keeps a copy:
        about `limit` entries, as a commit is never split. Ask for `next` next. Raises ChangesUnknown if the store no
        longer knows all of them; its field `start` is the number to start from.

        >>> with open_store("people") as store:
        ...     page = store.changes()
        >>> [entry.kind for entry in page.entries][:2], page.more
        (['insert', 'insert'], False)
        """
        from pipeline.jobs.accounts import find_account

        account_id = None if account is None else find_account(self._store, account).account_id
        return self._store.changes(since, account_id, limit)

    def faces(self) -> pa.Table:
        """Returns the detected faces, with box, landmarks, quality and person: the columns of `faces.parquet`.

        >>> with open_store("people") as store:
        ...     store.faces()["outcome"].to_pylist()
        ['inserted', 'inserted']
        """
        return self._store.table("faces").read_all()

    def photos(self) -> pa.Table:
        """Returns the rows that runs imported, with path, hash, status and date: the columns of `media.parquet`.

        >>> with open_store("people") as store:
        ...     store.photos()["status"].to_pylist()
        ['ok', 'ok']
        """
        return self._store.table("media").read_all()

    def embeddings(self) -> pa.Table:
        """Returns the embeddings: `face_id` and `embedding` (a list of d float32, L2 norm 1), ordered by `face_id`.

        Loads all into memory: 2 KB per face with d = 512.

        >>> with open_store("people") as store:
        ...     store.embeddings().num_rows
        2
        """
        return self._store.table("embeddings").read_all()

    def matrix(self) -> Matrix:
        """Returns the embeddings as arrays; row i is the vector of face `face_ids[i]`. Loads all into memory.

        >>> with open_store("people") as store:
        ...     face_ids, vectors = store.matrix()
        >>> face_ids.tolist(), vectors.shape
        ([1, 2], (2, 512))
        """
        table = self.embeddings()
        size = self._store.identity.embedding_size
        return Matrix(table["face_id"].to_numpy(), vectors_of(table["embedding"], size))

    @property
    def calibration(self) -> Calibration:
        """What T means here, for `pairwise_distances`: the calibration of the store's distances."""
        return Calibration.from_dict(self._store.identity.calibration)

    def export(self, to: Path | str) -> dict[str, int]:
        """Writes the tables as Parquet files into the new or empty folder `to`, as `facepipe export` does; returns
        their row counts. Raises UsageError, StoreError.

        >>> with open_store("people") as store:
        ...     store.export("people-parquet")["persons"]
        2
        """
        return self._store.export(Path(to).absolute())

    def close(self) -> None:
        """Closes the store; a second call does nothing."""
        self._store.close()

    def __enter__(self) -> OpenStore:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


class StorePeople(People):
    """The people of an open store."""

    def of(self, *, account: str | None = None, directory: str = "main") -> People:
        """Returns the people of another account or directory."""
        return People(self._store, account, checked_directory(directory))

    def __call__(self) -> pa.Table:
        """The former `OpenStore.persons`."""
        warnings.warn("store.people() is now store.persons()", DeprecationWarning, stacklevel=2)
        return self._store.table("persons").read_all()
