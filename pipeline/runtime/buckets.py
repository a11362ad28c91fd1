"""Bucket objects (s3://bucket/key) through obstore (extra `buckets`).

Transient failures (5xx, dropped connections, timeouts) are retried with growing pauses; interrupted bodies resume. What
still fails raises `BucketFailed`. Credentials come from the provider's chain, boto3's for s3:// (environment, profiles,
the machine's role).
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from pipeline.errors import BucketFailed, UsageError
from pipeline.texts import install_extra

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "gs", "az")
_BEGINNINGS: Final = tuple(f"{scheme}://" for scheme in SCHEMES)
# A request with its body takes at most the second; no retry starts after the third. A call waits for both at most.
_CONNECT_S, _REQUEST_S, _RETRIED_S = 5, 30, 60
_WRITES: Final = 4  # tries to write or remove an object
_PAUSE_S: Final = 0.1  # before the second try, then doubled
_PIECE_BYTES: Final = 2**20
_PER_LISTING: Final = 1000  # S3's maximum
_S3_SAYS: Final = re.compile("<Code>(.*?)</Code> *<Message>(.*?)</Message>")
# S3's error codes that concern the bucket, not an object.
_OF_BUCKET: Final = ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")


class StoredObject(NamedTuple):
    """An object's metadata; `modified_ns` is in ns since 1970, `etag` changes with the bytes."""

    address: str
    bytes: int
    modified_ns: int
    etag: str | None


def is_address(text: object) -> TypeGuard[str]:
    """Whether it is an address in a bucket, not a path."""
    return isinstance(text, str) and text.startswith(_BEGINNINGS)


def is_below(address: str, prefix: str) -> bool:
    """Whether the address is the prefix or below it."""
    return f"{address}/".startswith(f"{prefix.rstrip('/')}/")


def below(prefix: str, name: str) -> str:
    """The address of `name` below a prefix."""
    return f"{prefix.rstrip('/')}/{name}"


def check(addresses: Sequence[str]) -> None:
    """Checks access with one request per object. Some may be missing or denied.

    Raises BucketFailed if a bucket is missing or unreachable, or denies all objects and the listing; UsageError without
    obstore.
    """
    denied: dict[str, PermissionError | None] = {}
    for address in addresses:
        bucket, key = _split(address)
        try:
            with _named(address):
                _opened(bucket).get(_object_key(key))
            denied[bucket] = None
        except PermissionError as exc:
            denied.setdefault(bucket, exc)
        except OSError:
            denied[bucket] = None
    for bucket, refusal in denied.items():
        if refusal is not None:  # S3's answer for missing objects if listing is denied
            try:
                next(list_objects(bucket), None)
            except BucketFailed:
                raise BucketFailed(bucket=bucket, detail="it denies access") from refusal


def list_objects(prefix: str) -> Iterator[StoredObject]:
    """The objects below a prefix, in byte order of keys, one request per thousand.

    Raises BucketFailed, also if access is denied or the bucket is missing; UsageError without obstore.
    """
    bucket, key = _split(prefix)
    with _named(prefix, listing=True):
        pages = iter(_opened(bucket).list(key.strip("/") or None, chunk_size=_PER_LISTING))
    for page in _each(pages, prefix, listing=True):
        yield from (_described(bucket, meta) for meta in page)


def describe(address: str) -> StoredObject:
    """The object's metadata, by one request. Raises as `open_object`."""
    bucket, key = _split(address)
    with _named(address):
        return _described(bucket, _opened(bucket).head(_object_key(key)))


def read(address: str) -> tuple[bytes, StoredObject]:
    """An object's bytes and metadata. Raises as `open_object`."""
    found, pieces = open_object(address)
    return b"".join(pieces), found


def open_object(address: str) -> tuple[StoredObject, Iterator[bytes]]:
    """An object's metadata, and its bytes in pieces of about 1 MiB, read on demand.

    Both raise FileNotFoundError, PermissionError, OSError for a key that is not a path, BucketFailed and UsageError.
    """
    bucket, key = _split(address)
    with _named(address):
        answer = _opened(bucket).get(_object_key(key))
        pieces = iter(answer.stream(min_chunk_size=_PIECE_BYTES))
    return _described(bucket, answer.meta), map(bytes, _each(pieces, address))


def create(address: str, data: bytes) -> bool:
    """Creates an object; returns False if it exists. Of concurrent writers of different bytes exactly one gets True.

    After a lost answer, an object with our bytes counts as ours, so writers of equal bytes may all get True. Raises as
    `open_object`; the object may then exist.
    """
    from obstore.exceptions import AlreadyExistsError

    bucket, key = _split(address)
    for left in _tries():
        try:
            with _named(address):
                _opened(bucket).put(_object_key(key), data, mode="create", use_multipart=False)
            return True
        except BucketFailed as exc:
            if isinstance(exc.__cause__, AlreadyExistsError):
                return left < _WRITES - 1 and read(address)[0] == data
            if not left:
                raise
    raise AssertionError


def remove(address: str) -> None:
    """Removes an object if it exists. Raises as `open_object`."""
    bucket, key = _split(address)
    for left in _tries():
        try:
            with _named(address):
                _opened(bucket).delete(_object_key(key))
            return
        except FileNotFoundError:
            return
        except BucketFailed:
            if not left:
                raise


def _tries() -> Iterator[int]:
    """Counts down the remaining tries of a write, with growing pauses: obstore does not retry after a broken
    connection."""
    for left in reversed(range(_WRITES)):
        yield left
        time.sleep(_PAUSE_S * 2 ** (_WRITES - left))


def _split(address: str) -> tuple[str, str]:
    """The bucket with a final slash (file://: the root), and the key. Raises UsageError if it is not an address."""
    scheme, separator, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if not separator or scheme not in (*SCHEMES, "file") or (scheme == "file") == bool(bucket):
        raise UsageError(message=f'"{ascii(address)[1:-1]}" is no address such as s3://bucket/key.')
    return f"{scheme}://{bucket}/", key


def _object_key(key: str) -> str:
    """Checks that the key is a path, else raises OSError: obstore reads "/a" and "a/" as "a", and refuses "a//b" and
    "a/../b"."""
    try:
        key.encode()
    except UnicodeEncodeError:
        raise OSError(errno.EINVAL, "its key is not valid Unicode text") from None
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise OSError(errno.EINVAL, "its key is no path: it has an empty part, or one that is . or ..")
    return key


@lru_cache(maxsize=64)
def _opened(bucket: str) -> ObjectStore:
    """The bucket's client, shared by threads."""
    try:
        from obstore.store import from_url
    except ImportError as exc:
        raise UsageError(message=f"Buckets need the extra `buckets`: {install_extra('buckets')}.") from exc
    if bucket.startswith("file:"):
        return from_url(bucket)
    retries: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=_RETRIED_S)}
    options: Any = {"connect_timeout": f"{_CONNECT_S}s", "timeout": f"{_REQUEST_S}s"}
    options["allow_http"] = os.environ.get("AWS_ALLOW_HTTP", "false")  # obstore ignores the variable here
    credentials = _credentials(bucket) if bucket.startswith("s3:") else None
    with _named(bucket, listing=True):
        return from_url(bucket, client_options=options, retry_config=retries, credential_provider=credentials)


def _credentials(bucket: str) -> Any:
    """boto3's credentials. obstore's own chain ignores profiles, and takes longer to find none."""
    try:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as exc:
        raise UsageError(message=f"s3:// needs boto3, of the extra `buckets`: {install_extra('buckets')}.") from exc
    try:
        return Boto3CredentialProvider()
    except ValueError:
        raise BucketFailed(bucket=bucket, detail="there are no credentials (boto3's chain found none)") from None
    except BotoCoreError as exc:  # such as a missing profile, an expired login
        raise BucketFailed(bucket=bucket, detail=f"boto3 finds no credentials ({exc})") from exc


def _described(bucket: str, meta: Any) -> StoredObject:
    modified = meta["last_modified"]
    nanoseconds = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    return StoredObject(bucket + meta["path"], meta["size"], nanoseconds, meta["e_tag"])


@contextmanager
def _named(address: str, *, listing: bool = False) -> Iterator[None]:
    """Translates obstore's errors to ours."""
    try:
        from obstore import exceptions
    except ImportError:
        yield
        return
    try:
        yield
    except (exceptions.BaseError, FileNotFoundError, ValueError) as exc:
        whole = not listing and not any(code in str(exc) for code in _OF_BUCKET)
        if whole and isinstance(exc, (exceptions.NotFoundError, FileNotFoundError)):
            raise FileNotFoundError(errno.ENOENT, "no such object") from exc
        if whole and isinstance(exc, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
            raise PermissionError(errno.EACCES, "the bucket denies access") from exc
        raise BucketFailed(bucket=address, detail=_reason(exc)) from exc


def _each(items: Iterator[Any], address: str, *, listing: bool = False) -> Iterator[Any]:
    """The items; obstore's errors become ours."""
    while True:
        with _named(address, listing=listing):
            item = next(items, None)
        if item is None:
            return
        yield item


def _reason(exc: Exception) -> str:
    """obstore's message in one line, without its debug dump."""
    text = " ".join(str(exc).split("Debug source")[0].split())
    if "parsing Path" in text or "Could not parse path" in text or "empty path segment" in text:
        return f"it has an object whose key is no path; a manifest can name the others ({text[:300]})"
    said = _S3_SAYS.search(text)
    return f"{said[1]}, {said[2]}" if said else text[:300]
