"""Every failure that a user can meet, as one tree.

    FacepipeError
      UsageError (2)                 the command line or the configuration is wrong
        UnknownKey, BadValue
      InputError                     the source as a whole cannot be used
        SourceMissing (10), SourceEmpty (11), ManifestInvalid (12), TooManyDirectories (13), BoxesInvalid (15),
        PairsInvalid (16), TooLittleData (17)
      ImageRejected (1)              one image: becomes a row with a status and a reason, never stops a run
        ImageMissing, ImageIsFolder, ImageOutside, ImageUnreadable, ImageUnsupported, ImageTruncated,
        ImageTooLarge, ImageChanged
      DeviceError
        DeviceMissing (20), DeviceOutOfMemory (21)
      ModelError
        UnknownWeights (30), WeightsMissing (31), WeightsCorrupt (32), DownloadFailed (33), EmbeddingInvalid (34),
        CacheUnwritable (35), CalibrationInvalid (36)
      StoreError                     the store: always stops a run
        StoreMissing (40), StoreLocked (41), StoreTooNew (42), StoreDamaged (43), StoreFull (44),
        StoreMismatch (45), AccountUnknown (46), AccountExists (47), StoreUnwritable (48), MasterKeyMissing (49),
        MasterKeyWrong (50), DirectoryUnknown (51), ServerUnreachable (52)
      RequestError (14)              one request to the server: answered with its HTTP status
        Unauthorized, TooManyAttempts, DirectoryRequired, DirectoryInvalid, ParameterInvalid, HeaderInvalid,
        BodyInvalid, BodyTooLarge, BodyTimeout, MediaTypeUnsupported, PersonHeadersRequired, ExternalIdTaken,
        PersonUnknown, ObjectUnknown, RouteUnknown, MethodUnknown, Overloaded, NotReady,
        Forbidden
      SelfCheckFailed (8)            `demo` or `doctor` found something wrong
      Interrupted (9)                Ctrl-C: the shard in hand was finished

A class *is* its message template and its exit code (the scheme is borg's). The first line of the docstring is the
template, filled with the constructor's keyword arguments. The command line ends with `exit_code`, the server
answers with `http_status`. Exit codes are unique per class from 3 up and part of the documented surface: a class
may be added, a code never changes its meaning.
"""

from __future__ import annotations

from typing import ClassVar


class FacepipeError(Exception):
    """{message}"""

    exit_code: ClassVar[int] = 3
    http_status: ClassVar[int] = 500

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__((type(self).__doc__ or "").strip().format(**fields))

    @property
    def code(self) -> str:
        """The class name in kebab-case: the stable, machine-readable name of the error."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


class UsageError(FacepipeError):
    """{message}"""

    exit_code = 2
    http_status = 400


class UnknownKey(UsageError):
    """Unknown setting "{key}" in {where}.{hint}"""


class BadValue(UsageError):
    """Setting "{key}" in {where} is {value}: {expected}."""


class InputError(FacepipeError):
    """{message}"""

    exit_code = 4
    http_status = 400


class SourceMissing(InputError):
    """There is no folder or manifest at {path}. Check the path, or that the disk is mounted."""

    exit_code = 10


class SourceEmpty(InputError):
    """{path} holds no image files ({detail}). Nothing was done."""

    exit_code = 11


class ManifestInvalid(InputError):
    """The manifest {path} cannot be used: {detail}."""

    exit_code = 12


class BoxesInvalid(InputError):
    """The annotated boxes in {path} cannot be used: {detail}."""

    exit_code = 15


class PairsInvalid(InputError):
    """The list of pairs {path} cannot be used: {detail}."""

    exit_code = 16


class TooLittleData(InputError):
    """There is too little data for a false match rate of {fmr}: {detail}."""

    exit_code = 17


class TooManyDirectories(InputError):
    """The run would give account "{account}" {count} directories; an account holds at most {limit}. Put people of one purpose into one directory, or use a second account."""  # noqa: E501

    exit_code = 13
    http_status = 403


class ImageRejected(FacepipeError):
    """{reason}"""

    exit_code = 1
    http_status = 400
    status: ClassVar[str] = "unreadable"

    @property
    def reason(self) -> str:
        return str(self)


class ImageMissing(ImageRejected):
    """no such file"""

    status = "missing"


class ImageIsFolder(ImageRejected):
    """is a folder, not an image file"""

    status = "not_a_file"


class ImageOutside(ImageRejected):
    """lies outside {root}; give --root a folder that holds it"""

    status = "outside"


class ImageUnreadable(ImageRejected):
    """cannot be read: {detail}"""

    status = "unreadable"


class ImageUnsupported(ImageRejected):
    """not an image of a known format{detail}"""

    status = "unsupported"
    http_status = 400


class ImageTruncated(ImageRejected):
    """the image data end early: {detail}"""

    status = "truncated"


class ImageTooLarge(ImageRejected):
    """{what} is over the limit of {limit}"""

    status = "too_large"
    http_status = 413


class ImageChanged(ImageRejected):
    """changed while the run was reading it; the next run takes it up"""

    status = "changed"


class DeviceError(FacepipeError):
    """{message}"""

    exit_code = 5


class DeviceMissing(DeviceError):
    """Device "{device}" was asked for, but {detail}. Use --device cpu or --device auto, or see `facepipe doctor`."""

    exit_code = 20


class DeviceOutOfMemory(DeviceError):
    """{device} ran out of memory on a batch of one image ({detail}). Use --device cpu, or a larger device."""

    exit_code = 21


class ModelError(FacepipeError):
    """{message}"""

    exit_code = 6


class UnknownWeights(ModelError):
    """There are no weights named "{name}". Known: {known}."""

    exit_code = 30


class WeightsMissing(ModelError):
    """The weights "{name}" are not on this machine ({detail}). Run `facepipe models fetch {name}`, or give the file with --weights-file."""  # noqa: E501

    exit_code = 31


class WeightsCorrupt(ModelError):
    """The weights file {path} is not the expected file: {detail}. {cure}"""

    exit_code = 32


class DownloadFailed(ModelError):
    """Downloading {url} failed: {detail}. The part that arrived is kept: run the same command again to continue, or download the file elsewhere and give it with --weights-file."""  # noqa: E501

    exit_code = 33


class EmbeddingInvalid(ModelError):
    """An embedding must be {size} finite float32 numbers of norm 1, but {detail}. The model or the store that it comes from is damaged."""  # noqa: E501

    exit_code = 34


class CacheUnwritable(ModelError):
    """The weights' cache folder {path} cannot be used: {detail}. Free some space or change its permissions, or set FACEPIPE_CACHE to another folder."""  # noqa: E501

    exit_code = 35


class CalibrationInvalid(ModelError):
    """The calibration {path} cannot be used: {detail}."""

    exit_code = 36


class StoreError(FacepipeError):
    """{message}"""

    exit_code = 7


class StoreMissing(StoreError):
    """There is no store at {path}. `facepipe run SOURCE --store {path}` or `facepipe account create NAME --store {path}` makes one."""  # noqa: E501

    exit_code = 40


class StoreLocked(StoreError):
    """The store {path} is in use by process {pid} on {host} since {since} ({command}). Wait for it, or stop it; nothing was changed."""  # noqa: E501

    exit_code = 41


class StoreTooNew(StoreError):
    """The store {path} has format {found}; this facepipe reads up to {known}. Upgrade facepipe: pip install --upgrade facepipe."""  # noqa: E501

    exit_code = 42


class StoreDamaged(StoreError):
    """The store {path} is damaged: {detail}. {cure}"""

    exit_code = 43


class StoreFull(StoreError):
    """The disk of {path} is full ({detail}). Everything committed is safe: free some space and run the same command again."""  # noqa: E501

    exit_code = 44
    http_status = 507


class StoreMismatch(StoreError):
    """The store {path} was made with {key} = {stored}, and this command has {given}. Use the store's value, or make another store with --store."""  # noqa: E501

    exit_code = 45


class AccountUnknown(StoreError):
    """The store has no account "{account}". Accounts: {known}. `facepipe account create {account} --store {path}` makes it."""  # noqa: E501

    exit_code = 46
    http_status = 401


class AccountExists(StoreError):
    """The store already has an account "{account}"."""

    exit_code = 47
    http_status = 409


class StoreUnwritable(StoreError):
    """The store {path} cannot be written: {detail}."""

    exit_code = 48


class MasterKeyMissing(StoreError):
    """The images of the store {path} are encrypted, and there is no master key: {detail}. Give it with security.master_key_file or FACEPIPE_SECURITY__MASTER_KEY; without it nobody can read the images."""  # noqa: E501

    exit_code = 49


class MasterKeyWrong(StoreError):
    """The master key from {source} is not the one that the store {path} was made with{detail}. Give the right one with security.master_key_file or FACEPIPE_SECURITY__MASTER_KEY."""  # noqa: E501

    exit_code = 50


class DirectoryUnknown(StoreError):
    """Account "{account}" has no directory "{directory}". Directories: {known}."""

    exit_code = 51
    http_status = 404


class ServerUnreachable(StoreError):
    """The store {path} is held by the server at {url}, and nothing can be done through it: {detail}. Try again, or stop the server."""  # noqa: E501

    exit_code = 52


class RequestError(FacepipeError):
    """{message}"""

    exit_code = 14
    http_status = 400


class Unauthorized(RequestError):
    """The credentials in X-RPC-AUTHORIZATION are missing or wrong."""

    http_status = 401


class TooManyAttempts(RequestError):
    """Too many failed attempts. Try again in {retry_after_s} seconds."""

    http_status = 429


class DirectoryRequired(RequestError):
    """The header X-RPC-DIRECTORY is missing."""


class DirectoryInvalid(RequestError):
    """X-RPC-DIRECTORY must be 1 to 64 of the characters A-Z a-z 0-9 . _ - and not . or .."""


class ParameterInvalid(RequestError):
    """The parameter {name} must be {expected}."""


class HeaderInvalid(RequestError):
    """The header {name} must be {expected}."""


class BodyInvalid(RequestError):
    """The body cannot be used: {detail}."""


class BodyTooLarge(RequestError):
    """The body is larger than {limit_bytes} bytes."""

    http_status = 413


class BodyTimeout(RequestError):
    """The body did not arrive within {timeout_s} seconds."""

    http_status = 408


class MediaTypeUnsupported(RequestError):
    """The Content-Type must be {expected}."""

    http_status = 415


class PersonHeadersRequired(RequestError):
    """An insertion needs X-RPC-PERSON-NAME and X-RPC-EXTERNAL-ID; nothing was stored."""


class ExternalIdTaken(RequestError):
    """The external id is in use in this directory; nothing was stored."""

    http_status = 409


class PersonUnknown(RequestError):
    """There is no such person in this directory."""

    http_status = 404


class ObjectUnknown(RequestError):
    """There is no such object."""

    http_status = 404


class RouteUnknown(RequestError):
    """There is nothing at this address."""

    http_status = 404


class MethodUnknown(RequestError):
    """This address does not take the method {method}."""

    http_status = 405


class Overloaded(RequestError):
    """The server is busy and its queue is full. Try again in {retry_after_s} seconds."""

    http_status = 503


class NotReady(RequestError):
    """The server is not ready to answer. Try again in {retry_after_s} seconds."""

    http_status = 503


class Forbidden(RequestError):
    """Not allowed."""

    http_status = 403


class SelfCheckFailed(FacepipeError):
    """{check} found something wrong: {detail}."""

    exit_code = 8


class Interrupted(FacepipeError):
    """Stopped: {detail}. Run the same command again to continue."""

    exit_code = 9


def all_errors(root: type[FacepipeError] = FacepipeError) -> list[type[FacepipeError]]:
    """Every class of the tree, parents before children, for the README's table and the tests."""
    classes = [root]
    for child in root.__subclasses__():
        classes.extend(all_errors(child))
    return classes
