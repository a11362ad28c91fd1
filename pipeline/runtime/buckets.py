"""Objects in buckets, by obstore (the extra `buckets`): addresses such as s3://bucket/key.

Requests that fail in passing (5xx, dropped connections, timeouts) are repeated with growing pauses; what then still fails
is the bucket's fault, `BucketFailed`, not an object's. Credentials come from the provider's chain: of s3:// boto3's
where it is installed (environment, profiles, roles), else the environment's variables or the machine's role.
"""

from __future__ import annotations

import errno
import importlib.util
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.errors import BucketFailed, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "gs", "az")
_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}|file)://([^/]*)/?(.*)", re.DOTALL)
_CONNECT_S, _REQUEST_S, _RETRIED_S = 5, 30, 60  # no request waits longer than the last two together
_READS = 3  # of an object whose body breaks off
_PER_LISTING = 1000  # objects, as many as S3 gives at once


class StoredObject(NamedTuple):
    """An object as its bucket describes it: the time of its last change in ns since 1970, and its tag, which differs
    where its bytes do."""

    address: str
    bytes: int
    modified_ns: int
    etag: str | None


def is_address(text: str) -> bool:
    """Whether the text names an object or a prefix in a bucket, and not a path."""
    return text.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def below(prefix: str, name: str) -> str:
    """The address of `name` below a prefix."""
    return f"{prefix.rstrip('/')}/{name}"


def list_objects(prefix: str) -> Iterator[StoredObject]:
    """The objects below a prefix, in the byte order of their keys. One request per thousand.

    Raises BucketFailed, also where access is denied or there is no such bucket; UsageError without obstore.
    """
    bucket, key = _split(prefix)
    with _named(prefix, listing=True):
        pages = iter(_opened(bucket).list(key or None, chunk_size=_PER_LISTING))
    while True:
        with _named(prefix, listing=True):
            page = next(pages, None)
        if page is None:
            return
        yield from (_described(bucket, meta) for meta in page)


def describe(address: str) -> StoredObject:
    """The object, by one request. Raises as `read`."""
    bucket, key = _split(address)
    with _named(address):
        return _described(bucket, _opened(bucket).head(key))


def read(address: str, check_bytes: Callable[[int], None] = lambda _: None) -> tuple[bytes, StoredObject]:
    """The bytes of an object, and what the bucket says of them; `check_bytes` gets their number before they are read.

    Raises FileNotFoundError, PermissionError, OSError for a key that no object can have, BucketFailed, UsageError.
    """
    bucket, key = _split(address)
    for left in reversed(range(_READS)):
        with _named(address):
            answer = _opened(bucket).get(key)
            found = _described(bucket, answer.meta)
            check_bytes(found.bytes)
            try:
                return bytes(answer.bytes()), found
            except Exception:
                if not left:
                    raise
        time.sleep(0.2 * (_READS - left))
    raise AssertionError


def create(address: str, data: bytes) -> bool:
    """Writes an object unless there is one: False. Of several writers one gets True. Raises as `read`."""
    from obstore.exceptions import AlreadyExistsError

    bucket, key = _split(address)
    with _named(address):
        try:
            _opened(bucket).put(key, data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
    return True


def remove(address: str) -> None:
    """Removes an object, if there is one. Raises as `read`."""
    bucket, key = _split(address)
    try:
        with _named(address):
            _opened(bucket).delete(key)
    except FileNotFoundError:
        pass


def _split(address: str) -> tuple[str, str]:
    """The bucket (of file:// the root), ending with a slash, and the key. Raises UsageError for what is no address."""
    match = _ADDRESS.fullmatch(address)
    if match is None or (match[1] != "file") != bool(match[2]):
        raise UsageError(message=f'"{address}" is no address such as s3://bucket/key.')
    return f"{match[1]}://{match[2]}/", match[3]


@lru_cache(maxsize=64)
def _opened(bucket: str) -> ObjectStore:
    """Its client, which threads share."""
    try:
        from obstore.store import from_url
    except ImportError as exc:
        raise UsageError(message="Buckets need the extra `buckets`: pip install 'facepipe[buckets]'.") from exc
    if bucket.startswith("file:"):
        return from_url(bucket)
    retries: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=_RETRIED_S)}
    options: Any = {"connect_timeout": f"{_CONNECT_S}s", "timeout": f"{_REQUEST_S}s"}
    credentials: Any = None
    if bucket.startswith("s3:") and importlib.util.find_spec("boto3"):
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            credentials = Boto3CredentialProvider()
        except ValueError:
            raise BucketFailed(bucket=bucket, detail="there are no credentials (boto3's chain found none)") from None
    return from_url(bucket, client_options=options, retry_config=retries, credential_provider=credentials)


def _described(bucket: str, meta: Any) -> StoredObject:
    modified = meta["last_modified"]
    nanoseconds = int(modified.timestamp()) * 10**9 + modified.microsecond * 1000
    return StoredObject(bucket + meta["path"], meta["size"], nanoseconds, meta["e_tag"])


@contextmanager
def _named(address: str, *, listing: bool = False) -> Iterator[None]:
    """obstore's errors as ours."""
    try:
        from obstore import exceptions
    except ImportError:
        yield
        return
    try:
        yield
    except exceptions.BaseError as exc:
        detail = _reason(exc)
        if isinstance(exc, exceptions.NotFoundError) and "NoSuchBucket" not in str(exc) and not listing:
            raise FileNotFoundError(errno.ENOENT, "no such object") from exc
        if isinstance(exc, exceptions.InvalidPathError):
            raise OSError(errno.EINVAL, "no object can have this key") from exc
        denied = isinstance(exc, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
        if denied and not listing:
            raise PermissionError(errno.EACCES, "the bucket denies access") from exc
        raise BucketFailed(bucket=address, detail=detail) from exc


def _reason(exc: Exception) -> str:
    """obstore's message in one line, without its dump of the error's structure."""
    return " ".join(str(exc).split("Debug source")[0].split())[:300]
