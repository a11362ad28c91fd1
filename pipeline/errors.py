"""Every failure that a user can meet, as one tree. Its families:

    FacepipeError
      UsageError         the command line or the configuration is wrong
      InputError         the source as a whole cannot be used
      ImageRejected      one image: becomes a row with a status and a reason, never stops a run
      OutputUnwritable   standard output is closed, or its disk full
      DeviceError        what computes: a processor, a GPU, a Ray cluster
      ModelError
      StoreError         the store: always stops a run
      RequestError       one request to the server: answered with its HTTP status
      SelfCheckFailed    `demo` or `doctor` found something wrong
      Interrupted        Ctrl-C: the shard in hand was finished

A class *is* its message template and its exit code (the scheme is borg's). The docstring is the template, filled with
the constructor's keyword arguments. The command line ends with `exit_code`, the server answers with `http_status`.
Exit codes are unique per class from 3 up and part of the documented surface: a class may be added, a code never changes
its meaning.
"""

from __future__ import annotations

from typing import ClassVar


class FacepipeError(Exception):
    """{message}"""

    exit_code: ClassVar[int] = 3
    http_status: ClassVar[int] = 500
    shown: ClassVar[tuple[str, ...]] = ()  # the fields that the server's answer has beside the message

    def __init_subclass__(cls, *, exit_code: int | None = None, http_status: int | None = None) -> None:
        """What a class does not set it has from its family."""
        super().__init_subclass__()
        if exit_code is not None:
            cls.exit_code = exit_code
        if http_status is not None:
            cls.http_status = http_status

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__((type(self).__doc__ or "").strip().format(**fields))

    @property
    def code(self) -> str:
        """The class name in kebab-case: the stable, machine-readable name of the error."""
        name = type(self).__name__
        return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


class UsageError(FacepipeError, exit_code=2, http_status=400):
    """{message}"""


class UnknownKey(UsageError):
    """Unknown setting "{key}" in {where}.{hint}"""


class BadValue(UsageError):
    """Setting "{key}" in {where} is {value}: {expected}."""


class PersonNotFound(UsageError, exit_code=72):
    """No person of the directory "{directory}" has the id, the name or its first letters "{who}"."""


class PersonAmbiguous(UsageError, exit_code=73):
    """ "{who}" fits {count} people, and nothing was done: {people}. Give more of the id."""


class InputError(FacepipeError, exit_code=4, http_status=400):
    """{message}"""


class SourceMissing(InputError, exit_code=10):
    """There is no folder or manifest at {path}. Check the path, or that the disk is mounted."""


class SourceEmpty(InputError, exit_code=11):
    """{path} holds no image files ({detail}). Nothing was done."""


class ManifestInvalid(InputError, exit_code=12):
    """The manifest {path} cannot be used: {detail}."""


class BoxesInvalid(InputError, exit_code=15):
    """The annotated boxes in {path} cannot be used: {detail}."""


class PairsInvalid(InputError, exit_code=16):
    """The list of pairs {path} cannot be used: {detail}."""


class TooLittleData(InputError, exit_code=17):
    """There is too little data for a false match rate of {fmr}: {detail}."""


class PhotosMissing(InputError, exit_code=68):
    """{missing} of the {photos} photos to read again are not at their paths: a disk may not be mounted. Nothing was done; --yes builds the index without them."""  # noqa: E501


class ReceiptInvalid(InputError, exit_code=69):
    """The receipt cannot be used: {detail}."""


class ReceiptPending(InputError, exit_code=70):
    """The receipt is still pending: {detail}."""


class NotErased(InputError, exit_code=71):
    """Not everything that was asked for is erased: {detail}."""


class TooManyDirectories(InputError, exit_code=13, http_status=403):
    """The run would give account "{account}" {count} directories; an account holds at most {limit}. Put people of one purpose into one directory, or use a second account."""  # noqa: E501


class BucketFailed(InputError, exit_code=19):
    """{bucket} cannot be used: {detail}. The same command goes on once it can."""


class ImageRejected(FacepipeError, exit_code=1, http_status=400):
    """{reason}"""

    status: ClassVar[str] = "unreadable"

    def __init_subclass__(cls, *, status: str, http_status: int | None = None) -> None:
        super().__init_subclass__(http_status=http_status)
        cls.status = status

    @property
    def reason(self) -> str:
        return str(self)


class ImageMissing(ImageRejected, status="missing"):
    """no such file"""


class ImageIsFolder(ImageRejected, status="not_a_file"):
    """is a folder, not an image file"""


class ImageOutside(ImageRejected, status="outside"):
    """lies outside {root}; give --root a folder that holds it"""


class ImageUnreadable(ImageRejected, status="unreadable"):
    """cannot be read: {detail}"""


class ImageUnsupported(ImageRejected, status="unsupported"):
    """not an image of a known format{detail}"""


class ImageTruncated(ImageRejected, status="truncated"):
    """the image data end early: {detail}"""


class ImageTooLarge(ImageRejected, status="too_large", http_status=413):
    """{what} is over the limit of {limit}"""


class ImageChanged(ImageRejected, status="changed"):
    """changed while the run was reading it; the next run takes it up"""


class OutputUnwritable(FacepipeError, exit_code=18):
    """Standard output cannot be written: {detail}. What the command did before stays done."""


class DeviceError(FacepipeError, exit_code=5):
    """{message}"""


class DeviceMissing(DeviceError, exit_code=20):
    """Device "{device}" was asked for, but {detail}. Use --device cpu or --device auto, or see `facepipe doctor`."""


class DeviceOutOfMemory(DeviceError, exit_code=21):
    """{device} ran out of memory ({detail}), with one image alone or before the first. End what else uses it, take a larger device, or use --device cpu."""  # noqa: E501


class DeviceFailed(DeviceError, exit_code=22):
    """The device failed ({detail}). What is in the store stays: once the device works again, the same command goes on from there."""  # noqa: E501


class ClusterFailed(DeviceError, exit_code=23):
    """The Ray cluster cannot be used: {detail}. What is in the store stays: the same command goes on from there."""


class NodeMismatch(DeviceError, exit_code=24):
    """The Ray node {node} has {found}, and this machine {own}. All need the same, as their results must be equal. Nothing was given to it."""  # noqa: E501


class ShardFailed(DeviceError, exit_code=25):
    """Shard {shard} of the run failed {times} times on the Ray cluster, the last time because: {detail}. `--engine local` extracts it on this machine."""  # noqa: E501


class ModelError(FacepipeError, exit_code=6):
    """{message}"""


class UnknownWeights(ModelError, exit_code=30):
    """There are no weights named "{name}". Known: {known}."""


class WeightsMissing(ModelError, exit_code=31):
    """The weights "{name}" are not on this machine ({detail}). Run `facepipe models fetch {name}`, or give the file with --weights-file."""  # noqa: E501


class WeightsCorrupt(ModelError, exit_code=32):
    """The weights file {path} is not the expected file: {detail}. {cure}"""


class DownloadFailed(ModelError, exit_code=33):
    """Downloading {url} failed: {detail}. The part that arrived is kept: run the same command again to continue, or download the file elsewhere and give it with --weights-file."""  # noqa: E501


class EmbeddingInvalid(ModelError, exit_code=34):
    """An embedding must be {size} finite float32 numbers of norm 1, but {detail}. The model or the store that it comes from is damaged."""  # noqa: E501


class CacheUnwritable(ModelError, exit_code=35):
    """The weights' cache folder {path} cannot be used: {detail}. Free some space or change its permissions, or set FACEPIPE_CACHE to another folder."""  # noqa: E501


class CalibrationInvalid(ModelError, exit_code=36):
    """The calibration {path} cannot be used: {detail}."""


class StoreError(FacepipeError, exit_code=7):
    """{message}"""


class StoreMissing(StoreError, exit_code=40):
    """There is no store at {path}. `facepipe run SOURCE --store {path}` or `facepipe account create NAME --store {path}` makes one."""  # noqa: E501


class StoreLocked(StoreError, exit_code=41):
    """The store {path} is in use by process {pid} on {host} since {since} ({command}). Wait for it, or stop it; nothing was changed."""  # noqa: E501


class StoreTooNew(StoreError, exit_code=42):
    """The store {path} has format {found}; this facepipe reads up to {known}. Upgrade facepipe."""


class StoreDamaged(StoreError, exit_code=43):
    """The store {path} is damaged: {detail}. {cure}"""


class StoreFull(StoreError, exit_code=44, http_status=507):
    """The disk of {path} is full ({detail}). Everything committed is safe: free some space and run the same command again."""  # noqa: E501


class StoreMismatch(StoreError, exit_code=45):
    """The store {path} was made with {key} = {stored}, and this command has {given}. Use the store's value, or make another store with --store."""  # noqa: E501


class AccountUnknown(StoreError, exit_code=46, http_status=401):
    """The store has no account "{account}". Accounts: {known}. `facepipe account create {account} --store {path}` makes it."""  # noqa: E501


class AccountExists(StoreError, exit_code=47, http_status=409):
    """The store already has an account "{account}"."""


class StoreUnwritable(StoreError, exit_code=48):
    """The store {path} cannot be written: {detail}. Put that right, then run the same command again."""


class MasterKeyMissing(StoreError, exit_code=49):
    """The images of the store {path} are encrypted, and there is no master key: {detail}. Give it with security.master_key_file or FACEPIPE_SECURITY__MASTER_KEY; without it nobody can read the images."""  # noqa: E501


class MasterKeyWrong(StoreError, exit_code=50):
    """The master key from {source} is not the one that the store {path} was made with{detail}. Give the right one with security.master_key_file or FACEPIPE_SECURITY__MASTER_KEY."""  # noqa: E501


class DirectoryUnknown(StoreError, exit_code=51, http_status=404):
    """Account "{account}" has no directory "{directory}". Directories: {known}."""


class ServerUnreachable(StoreError, exit_code=52):
    """The store {path} is held by the server at {url}, and nothing can be done through it: {detail}. Try again, or stop the server."""  # noqa: E501


class ReindexUnderWay(StoreError, exit_code=66):
    """The store {path} has a second index already, by {weights}. `facepipe reindex status --store {path}` tells how far it is; `reindex gc` or `reindex abandon` deletes the one that is not in use."""  # noqa: E501


class ReindexMissing(StoreError, exit_code=67):
    """The store {path} has no second index that this can be done with: {detail}. `facepipe reindex --weights NAME --store {path}` builds one."""  # noqa: E501


class CleanUpLeft(StoreError, exit_code=53):
    """Done: the change is in the store {path}. Cleaning up after it failed ({detail}): the next command on this store finishes that. Do not repeat this one."""  # noqa: E501


class RequestError(FacepipeError, exit_code=14, http_status=400):
    """{message}"""


class Unauthorized(RequestError, http_status=401):
    """The credentials in X-RPC-AUTHORIZATION are missing or wrong."""


class SignInRequired(RequestError, http_status=401):
    """Nobody is signed in, or the session has ended: sign in."""


class OtherAccount(RequestError, http_status=401):
    """Another account is signed in by now in this browser; nothing was done. Sign in again."""


class SignInRefused(RequestError, http_status=401):
    """The user id or the password is wrong."""


class CrossSite(RequestError, http_status=403):
    """This request does not come from the page itself; nothing was done."""


class TooManyAttempts(RequestError, http_status=429):
    """Too many failed attempts. Try again in {retry_after_s} seconds."""


class DirectoryRequired(RequestError):
    """The header X-RPC-DIRECTORY is missing{instead}."""


class DirectoryInvalid(RequestError):
    """X-RPC-DIRECTORY must be 1 to 64 printable characters without / and \\, and not . or .."""


class ParameterInvalid(RequestError):
    """The parameter {name} must be {expected}."""


class ParameterUnsupported(RequestError):
    """The parameter {name} asks for something that this server does not have; nothing was done."""


class HeaderInvalid(RequestError):
    """The header {name} must be {expected}."""


class HeaderRepeated(RequestError):
    """The header {name} may be sent once only."""


class HostRequired(RequestError):
    """The header Host is missing."""


class HostInvalid(RequestError):
    """The header Host must be a host name or an IP address, with or without a port."""


class HostUnknown(RequestError, http_status=421):
    """This server does not answer to the name in Host; its setting serve.allowed_hosts lists those that it does."""


class BodyInvalid(RequestError):
    """The body cannot be used: {detail}."""


class BodyTooLarge(RequestError, http_status=413):
    """The body is larger than {limit_bytes} bytes."""


class BodyTimeout(RequestError, http_status=408):
    """The body came too slowly: nothing for {timeout_s} seconds, or fewer than {bytes_per_s} bytes a second."""


class MediaTypeUnsupported(RequestError, http_status=415):
    """The Content-Type must be {expected}."""


class MetadataTooLarge(RequestError):
    """The further fields of a person would take more than {limit_bytes} bytes as JSON; nothing was stored."""


class ContentEncodingUnsupported(RequestError, http_status=415):
    """The body must come as it is, without a Content-Encoding."""


class PersonHeadersRequired(RequestError):
    """An insertion needs X-RPC-PERSON-NAME and X-RPC-EXTERNAL-ID (person_headers: required); nothing was stored."""


class SeveralFaces(RequestError):
    """The photo shows several faces, and the request is about one: select it by closest-only-x and closest-only-y, or by largest-only; nothing was stored."""  # noqa: E501


class ExternalIdTaken(RequestError, http_status=409):
    """The external id is in use in this directory; nothing was stored."""


class PersonUnknown(RequestError, http_status=404):
    """There is no such person in this directory."""


class FaceUnknown(RequestError, exit_code=60, http_status=404):
    """There is no such face in this directory: {face_ids}."""


class PhotoUnknown(FaceUnknown):
    """There is no such photo of a run in this directory: media {media_ids}. Nothing was changed."""


class CorrectionImpossible(RequestError, exit_code=61, http_status=409):
    """This correction can't be made: {detail} Nothing was changed."""


class StatedTwoPeople(RequestError, exit_code=62, http_status=409):
    """{person_id} and {other_id} are stated to be two people (correction {correction_id}, {stated_at}). Nothing was changed; --anyway, or override=true, merges them.{chain}"""  # noqa: E501


class PictureMissing(RequestError, exit_code=63, http_status=409):
    """The person {person_id} would be known by another face, and none of its photos can be read as it was: {paths}. Nothing was changed."""  # noqa: E501


class UndoBlocked(RequestError, exit_code=64, http_status=409):
    """The correction {correction_id} ({kind}) can't be undone any more: since then {detail}. Nothing was changed."""


class ChangedSince(RequestError, http_status=409):
    """Somebody else corrected this since it was shown: {what}. Nothing was done."""

    shown = ("changes",)


class NameTaken(RequestError, http_status=409):
    """Somebody else has this name. Nothing was done."""

    shown = ("people",)


class ConfirmationNeeded(RequestError, http_status=409):
    """This deletes {persons} people with {faces} faces, their vectors and pictures, and can't be undone. Nothing was done yet."""  # noqa: E501

    shown = ("persons", "faces")


class ObjectUnknown(RequestError, http_status=404):
    """There is no such object."""


class PictureUnavailable(ObjectUnknown):
    """There is no picture of it: its photo is gone, is another one now, or may not be shown."""


class ObjectReplaced(RequestError, http_status=410):
    """This image was replaced by a newer one. The person's record has its address."""


class ChangesUnknown(RequestError, exit_code=65, http_status=410):
    """The changes since {since} are not known: the store is of an earlier version, a backup, or has erased people since. Read all people again, then the changes since {start}."""  # noqa: E501

    shown = ("start",)


class RouteUnknown(RequestError, http_status=404):
    """There is nothing at this address."""


class MethodUnknown(RequestError, http_status=405):
    """This address does not take the method {method}."""


class Overloaded(RequestError, http_status=503):
    """The server is busy and its queue is full. Try again in {retry_after_s} seconds."""


class NotReady(RequestError, http_status=503):
    """The server is not ready to answer. Try again in {retry_after_s} seconds."""


class Forbidden(RequestError, http_status=403):
    """Not allowed."""


class SelfCheckFailed(FacepipeError, exit_code=8):
    """{check} found something wrong: {detail}."""


class Interrupted(FacepipeError, exit_code=9):
    """Stopped: {detail}. Run the same command again to continue."""


def all_errors(root: type[FacepipeError] = FacepipeError) -> list[type[FacepipeError]]:
    """Every class of the tree, parents before children, for the table in docs/commands.md and the tests."""
    classes = [root]
    for child in root.__subclasses__():
        classes.extend(all_errors(child))
    return classes
