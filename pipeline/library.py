"""The library for notebooks and other programs. Import these names from `pipeline`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.config import Settings, load_settings
from pipeline.errors import UsageError
from pipeline.extraction.images.files import read_file
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image
from pipeline.jobs import store as opening
from pipeline.jobs.expectation import calibration_warning
from pipeline.jobs.people import People
from pipeline.jobs.store import Store, open_or_create_store
from pipeline.run.session import RunRequest
from pipeline.runtime.buckets import is_address
from pipeline.store import has_store
from pipeline.texts import directory_name
from pipeline.types import QUALITIES, ByteArray, DecodedImage, FloatArray, Progress, SilentProgress, Source, boxes_of

if TYPE_CHECKING:
    from pipeline.evaluation.calibration import CalibrationReport
    from pipeline.evaluation.pairs import PairsResult
    from pipeline.evaluation.report import Report
    from pipeline.jobs.run_report import RunReport
    from pipeline.store import ChangesPage, FaceAnswer

_COMMAND = "library"  # shown to another process that finds the store in use
_log = logging.getLogger("facepipe")
_AXES, _CHANNELS = 3, 3  # of pixels


def open_store(path: Path | str, *, settings: Mapping[str, object] | None = None) -> OpenStore:
    """Opens the store at `path`, through a server if one is running on it.

    `settings` are facepipe settings by key; they override the environment and FACEPIPE_CONFIG. Raises StoreMissing,
    StoreLocked if another process works on the store, StoreMismatch, and other StoreErrors.

    >>> with open_store("people", settings={"run.device": "cpu"}) as store:
    ...     store.people().num_rows
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
    options = _settings(settings, weights, calibration=calibration, encrypt=encrypt)
    store = open_or_create_store(path, options, _COMMAND)
    opened = OpenStore(store)
    warning = calibration_warning(store.identity)
    if warning is not None:
        _log.warning("%s", warning)
    return opened


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
        moved_from: Path | str | None = None,
        progress: Progress | None = None,
        stop: Event | None = None,
    ) -> RunReport:
        """Imports the photos of a folder, a manifest or "s3://bucket/prefix", as `facepipe run` does.

        A second call imports only what is new or changed. `moved_from`: the source's former place; its photos count as
        already imported. `account`: None is the only one there is. Once `stop` is set, the shard in progress is
        finished and Interrupted raised; the next call continues. Unusable photos are counted in the report and raise
        nothing. Raises InputError, ModelError, DeviceError, StoreError.

        >>> with open_store("people") as store:
        ...     report = store.run("photos")
        >>> report.new, report.already_in
        (0, 2)
        """
        from pipeline.run.run import run

        self._store.release()  # frees the models and the identities loaded before the run
        request = RunRequest(
            _source(source),
            self.path,
            self._store.settings,  # as given: a run compares them with the store's
            account,
            _directory(directory),
            _COMMAND,
            moved_from=None if moved_from is None else _source(moved_from),
        )
        return run(request, progress, stop, self._store)

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
        image: Path | str | bytes,
        *,
        top: int = 5,
        account: str | None = None,
        directory: str = "main",
    ) -> list[FaceAnswer]:
        """Recognises the people in an image file or an encoded image. Stores nothing.

        Returns the faces from the largest to the smallest, each with its box (xyxy, pixels of the upright image), the
        identity that it matches, and the `top` most similar identities. The first call loads the models. Raises
        ImageRejected, StoreError, ModelError, DeviceError.

        >>> with open_store("people") as store:
        ...     (face,) = store.recognise("photos/hopper.jpg", top=1)
        >>> face.identity.similarity_score >= 1
        True
        """
        data = image if isinstance(image, bytes) else read_file(Path(image), self._settings.decode.max_bytes)
        return self.people.of(account=account, directory=directory).recognise(data, top)

    @property
    def people(self) -> StorePeople:
        """The people of the directory `main` of the only account, and corrections; `people.of(...)` selects another. A
        call returns the persons of all accounts and directories: the columns of `persons.parquet` (see FORMAT.md).

        >>> with open_store("people") as store:
        ...     store.people()["directory"].to_pylist()
        ...     first, second = store.people.all()
        ...     done = store.people.name(first.person_id, "Eileen Collins")
        ...     len(store.people.photos("Eileen Collins"))
        ...     undone = store.people.undo()
        ['main', 'main']
        1
        """
        return StorePeople(self._store)

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
        """Returns the rows that runs imported, with path, hash and status: the columns of `media.parquet`.

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
        return People(self._store, account, _directory(directory))

    def __call__(self) -> pa.Table:
        return self._store.table("persons").read_all()


@dataclass(frozen=True)
class Face:
    """A face found in an image. Coordinates are pixels of the upright image."""

    box: FloatArray  # [4] float32 xyxy, within the image
    landmarks: FloatArray  # [5, 2] float32 (x, y): left eye, right eye, nose, left and right corner of the mouth
    confidence: float  # of the detector, in [0, 1]
    center_pose_quality: float  # in [0, 1], higher is better, like the two below
    sharpness_quality: float
    contrast_quality: float
    embedding: FloatArray  # [d] float32, L2 norm 1
    picture: bytes  # an encoded cut-out, as stored for a person


class FaceExtractor:
    """Finds and embeds the faces of images in memory, without a store.

    >>> extractor = FaceExtractor.from_settings(weights="casia-webface", device="cpu")
    >>> with open("photos/hopper.jpg", "rb") as file:
    ...     (face,) = extractor.faces(file.read())
    >>> face.embedding.shape
    (512,)
    """

    def __init__(self, settings: Settings) -> None:
        """Use `from_settings`."""
        from pipeline.extraction.images.decode import Decoder
        from pipeline.jobs.models import load_extractor
        from pipeline.jobs.store_identity import make_identity

        self._extractor = load_extractor(settings, make_identity(settings), Path())
        self._decode = Decoder(settings.decode)

    @classmethod
    def from_settings(
        cls, *, weights: str = "auto", device: str = "auto", settings: Mapping[str, object] | None = None
    ) -> FaceExtractor:
        """Loads the models onto a device: auto (CUDA if available), cpu, cuda or cuda:N.

        `weights`: auto, casia-webface, vggface2 or sface. `settings`: any others by key. Raises ModelError,
        DeviceError, UsageError.
        """
        return cls(_settings(settings, weights, device=device))

    def faces(self, image: bytes | ByteArray) -> list[Face]:
        """Returns the faces of one image, from the largest to the smallest. `image`: an encoded file, or pixels
        [H, W, 3] uint8 RGB.

        Raises ImageRejected for bytes that are no usable image, UsageError for another array, DeviceError.
        """
        (faces,) = self.faces_of_all([image])
        return faces

    def faces_of_all(self, images: Iterable[bytes | ByteArray]) -> list[list[Face]]:
        """Returns a list of faces per image. The images are processed as one batch."""
        decoded = [self._decode(image) if isinstance(image, bytes) else _from_pixels(image) for image in images]
        tables = self._extractor.extract(decoded)
        return [_faces(image, table) for image, table in zip(decoded, tables, strict=True)]


def _from_pixels(pixels: ByteArray) -> DecodedImage:
    if pixels.ndim != _AXES or pixels.shape[2] != _CHANNELS or pixels.dtype != np.uint8 or 0 in pixels.shape:
        raise UsageError(message=f"Pixels must be [H, W, 3] uint8, not {list(pixels.shape)} {pixels.dtype}.")
    return DecodedImage(np.ascontiguousarray(pixels), format="pixels")


def _faces(image: DecodedImage, table: pa.Table) -> list[Face]:
    cuts = cut_faces(image, boxes_of(table))
    return [_face(row, encode_reference_image(cut)) for row, cut in zip(table.to_pylist(), cuts, strict=True)]


def _face(row: Mapping[str, Any], picture: bytes) -> Face:
    return Face(
        box=np.array([row["x1"], row["y1"], row["x2"], row["y2"]], np.float32),
        landmarks=np.array(row["landmarks"], np.float32).reshape(-1, 2),
        embedding=np.array(row["embedding"], np.float32),
        picture=picture,
        **{name: row[name] for name in ("confidence", *QUALITIES)},
    )


def evaluate_pairs(
    pairs: Path | str,
    *,
    images: Path | str | None = None,
    train: Path | str | None = None,
    all_pairs: bool = False,
    store: Path | str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> Report[PairsResult]:
    """Measures verification on labelled pairs: accuracy, and FNMR at FMR, as `facepipe evaluate pairs` does.

    `pairs`: a list in the format of Labeled Faces in the Wild, or CSV with the columns path_a, path_b and same (1 or
    0). `images`: the folder of the photos (None: that of the list). `train`: a list that determines the threshold.
    `all_pairs`: error rates over all pairs of photos of the people in the list. `store`: take the embeddings from it.
    Raises InputError if nothing can be measured, UsageError, StoreError, ModelError, DeviceError.

    >>> report = evaluate_pairs("pairs.csv", settings={"model.weights": "casia-webface", "run.device": "cpu"})
    >>> report.result.genuine_pairs, report.result.impostor_pairs
    (1, 1)
    """
    from pipeline.evaluation.pairs import report_pairs

    return report_pairs(
        Path(pairs),
        load_settings(flags=settings),
        progress or SilentProgress(),
        images=_path(images),
        train=_path(train),
        all_pairs=all_pairs,
        store=_path(store),
    )


def calibrate(
    source: Path | str | None,
    *,
    fmr: float | None = None,
    images: Path | str | None = None,
    all_pairs: bool = False,
    store: Path | str | None = None,
    account: str | None = None,
    directory: str = "main",
    leave_out: Path | str | None = None,
    settings: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> CalibrationReport:
    """Fits a calibration on labelled photos: the threshold 0.54 then has the false match rate `fmr`; None: 1e-5, or the
    lowest rate that the pairs can measure.

    `source`: a list of pairs, a manifest with the columns path and name, or with the setting `source.labels` = parent a
    folder with one subfolder per person; None: the named rows of `store`. `leave_out`: a list of photos with wrong
    labels. The report's `write(file)` writes the file for `create_store`. Raises TooLittleData with fewer than `3/fmr`
    pairs of different people; UsageError, InputError, StoreError, ModelError, DeviceError.

    >>> model = {"model.weights": "casia-webface", "run.device": "cpu"}
    >>> calibrate("pairs.csv", settings=model)  # two pairs are too few
    Traceback (most recent call last):
    pipeline.errors.TooLittleData: ...
    """
    from pipeline.evaluation.calibration import report_calibration

    return report_calibration(
        _path(source),
        load_settings(flags=settings),
        progress or SilentProgress(),
        fmr=fmr,
        images=_path(images),
        all_pairs=all_pairs,
        store=_path(store),
        account=account,
        directory=_directory(directory),
        leave_out=_path(leave_out),
    )


def _directory(name: str) -> str:
    try:
        return directory_name(name)
    except ValueError as exc:
        raise UsageError(message=f"The directory {name!r} {exc}.") from None


def _settings(
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


def _source(source: Path | str) -> Source:
    return source if is_address(source) else Path(source)


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)
