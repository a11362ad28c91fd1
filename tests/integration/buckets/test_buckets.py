"""What the functions of `buckets` do over a network that fails, and with bad input."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import BucketFailed, UsageError
from pipeline.runtime import buckets
from tests.integration.buckets.conftest import put
from tests.integration.buckets.faulty import CUT, DENIED, LOST, RESET, SLOW, STALLED, UNAVAILABLE, FaultyProxy, failing

DATA = os.urandom(3 * 2**20)


def first_only(fault: str, method: str) -> Callable[[str, str], str | None]:
    """The first request of this method fails so."""
    left = [fault]
    return lambda asked, _: left.pop() if asked == method and left else None


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where objects are written."""
    return request.getfixturevalue("bucket") if request.param == "s3" else f"file://{tmp_path}"


def test_an_object_is_what_was_written(place: str) -> None:
    address = buckets.below(place, "a b/ü%2F#?.jpg")
    assert buckets.create(address, DATA)
    data, found = buckets.read(address)
    assert data == DATA
    assert (found.address, found.bytes) == (address, len(DATA))
    assert buckets.describe(address) == found == next(buckets.list_objects(place))
    assert abs(found.modified_ns - time.time_ns()) < 60 * 10**9
    buckets.remove(address)
    buckets.remove(address)
    with pytest.raises(FileNotFoundError):
        buckets.read(address)
    with pytest.raises(FileNotFoundError):
        buckets.describe(address)


def test_a_removal_is_tried_again(bucket: str, proxy: FaultyProxy) -> None:
    address = f"{bucket}/shard"
    buckets.create(address, DATA)
    proxy.choose = first_only(RESET, "POST")
    buckets.remove(address)
    assert (proxy.asked["POST"], proxy.failed[RESET]) == (2, 1)
    with pytest.raises(FileNotFoundError):
        buckets.read(address)


def test_one_of_several_writers_wins(place: str) -> None:
    address, start = f"{place}/shard", threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        return buckets.create(address, b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert buckets.read(address)[0] == b"%d" % won.index(True)


@pytest.mark.parametrize("fault", [LOST, RESET, UNAVAILABLE])
def test_a_write_that_fails_in_passing_is_ours(bucket: str, proxy: FaultyProxy, fault: str) -> None:
    proxy.choose = first_only(fault, "PUT")
    assert buckets.create(f"{bucket}/a", b"mine")
    assert buckets.read(f"{bucket}/a")[0] == b"mine"
    assert proxy.asked["PUT"] == 2


def test_a_write_that_fails_in_passing_does_not_replace_another(bucket: str, client: Any, proxy: FaultyProxy) -> None:
    def overtake(method: str, _: str) -> str | None:
        put(client, f"{bucket}/a", b"another")
        return RESET if method == "PUT" and not proxy.asked["PUT"] else None

    proxy.choose = overtake
    assert not buckets.create(f"{bucket}/a", b"mine")
    assert buckets.read(f"{bucket}/a")[0] == b"another"


@pytest.mark.parametrize("fault", [UNAVAILABLE, RESET, CUT, SLOW])
def test_what_fails_in_passing_is_asked_for_again(bucket: str, client: Any, proxy: FaultyProxy, fault: str) -> None:
    put(client, f"{bucket}/a", DATA)
    proxy.choose = first_only(fault, "GET")
    assert buckets.read(f"{bucket}/a")[0] == DATA
    assert proxy.asked["GET"] == 1 + (fault != SLOW)
    proxy.choose = first_only(fault, "GET")
    assert b"".join(buckets.open_object(f"{bucket}/a")[1]) == DATA


def test_an_object_that_changes_while_it_is_read_is_never_half_of_each(
    bucket: str, client: Any, proxy: FaultyProxy
) -> None:
    put(client, f"{bucket}/a", DATA)

    def change(method: str, _: str) -> str | None:
        if method == "GET" and not proxy.asked["GET"]:
            return CUT
        put(client, f"{bucket}/a", DATA[::-1])
        return None

    proxy.choose = change
    try:
        data, found = buckets.read(f"{bucket}/a")
    except BucketFailed:
        return
    assert data in (DATA, DATA[::-1])
    assert found == buckets.describe(f"{bucket}/a") or data == DATA


def test_many_objects_come_through_where_a_third_of_the_requests_fails(
    bucket: str, client: Any, proxy: FaultyProxy
) -> None:
    contents = {f"{bucket}/{n:02}": os.urandom(1000 + n) for n in range(40)}
    for address, data in contents.items():
        put(client, address, data)
    proxy.choose = failing(0.33)
    assert [found.address for found in buckets.list_objects(bucket)] == sorted(contents)
    with ThreadPoolExecutor(8) as pool:
        assert dict(zip(contents, (data for data, _ in pool.map(buckets.read, contents)), strict=True)) == contents
    assert proxy.failed.total() > 4


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", [UNAVAILABLE, RESET, STALLED])
def test_a_bucket_that_goes_on_failing_is_given_up(bucket: str, client: Any, proxy: FaultyProxy, fault: str) -> None:
    put(client, f"{bucket}/a", DATA)
    proxy.choose = lambda *_: fault
    with pytest.raises(BucketFailed) as failure:
        buckets.read(f"{bucket}/a")
    assert (failure.value.exit_code, bucket in str(failure.value)) == (19, True)
    if fault != STALLED:
        with pytest.raises(BucketFailed):
            next(buckets.list_objects(bucket))


def test_a_listing_is_in_the_byte_order_of_keys_below_the_prefix_alone(bucket: str, client: Any) -> None:
    names = ["p/b.jpg", "p/a/z.jpg", "p/a.jpg", "p/ä.jpg", "p/B.jpg", "p", "p-/x.jpg", "pp/x.jpg"]
    for name in names:
        put(client, f"{bucket}/{name}", b"x")
    below = sorted((name for name in names if name.startswith("p/")), key=str.encode)
    for prefix in (f"{bucket}/p", f"{bucket}/p/"):
        assert [found.address for found in buckets.list_objects(prefix)] == [f"{bucket}/{name}" for name in below]
    assert len([*buckets.list_objects(f"{bucket}/")]) == len(names)
    assert [*buckets.list_objects(f"{bucket}/none")] == []


def test_a_listing_of_several_pages(
    bucket: str, client: Any, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for number in range(21):
        put(client, f"{bucket}/{number:04}", b"")
    assert len([*buckets.list_objects(bucket)]) == 21
    assert proxy.asked == {"LIST": 3}


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", "./a", "a\udc80"])
def test_a_key_that_is_no_path_is_never_taken_for_another(
    bucket: str, client: Any, proxy: FaultyProxy, key: str
) -> None:
    put(client, f"{bucket}/a", b"another")
    for act in (buckets.read, buckets.describe, partial(buckets.create, data=b""), buckets.remove):
        with pytest.raises(OSError, match="its key is"):
            act(f"{bucket}/{key}")
    assert not proxy.asked


def test_a_listing_with_a_key_that_is_no_path_says_so(bucket: str, client: Any) -> None:
    put(client, f"{bucket}/a//b.jpg", b"x")
    with pytest.raises(BucketFailed, match=r"a manifest can name the others.*a//b\.jpg"):
        next(buckets.list_objects(bucket))


@pytest.mark.parametrize("text", ["s3://", "s3:///key", "ftp://host/a", "file://host/a", "a/b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address"):
        buckets.read(text)


def test_a_bucket_that_does_not_exist(proxy: FaultyProxy) -> None:
    for act in (buckets.read, lambda address: next(buckets.list_objects(address)), lambda a: buckets.check([a])):
        with pytest.raises(BucketFailed, match="NoSuchBucket"):
            act("s3://there-is-none/a")


class TestDenied:
    """A server that denies, as S3 does."""

    @pytest.fixture
    def denying(self, proxy: FaultyProxy) -> FaultyProxy:
        """What begins with "secret" is denied, and to list."""
        proxy.choose = lambda _, path: DENIED if "/secret" in path or "list-type" in path else None
        return proxy

    def test_one_object(self, bucket: str, client: Any, denying: FaultyProxy) -> None:
        put(client, f"{bucket}/a", b"x")
        with pytest.raises(PermissionError, match="denies access"):
            buckets.read(f"{bucket}/secret")
        buckets.check([f"{bucket}/secret", f"{bucket}/a"])
        buckets.check([f"{bucket}/secret", f"{bucket}/gone"])

    def test_all_of_a_bucket(self, bucket: str, denying: FaultyProxy) -> None:
        with pytest.raises(BucketFailed, match="denies access"):
            buckets.check([f"{bucket}/secret", f"{bucket}/secret2"])
        with pytest.raises(BucketFailed):
            next(buckets.list_objects(bucket))


def test_nobody_answers(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, impatient: None) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(BucketFailed):
        buckets.check(["s3://bucket/a"])


def test_no_credentials(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(BucketFailed, match="no credentials"):
        buckets.check(["s3://bucket/a"])
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(BucketFailed, match="nobody"):
        buckets.check(["s3://bucket/a"])
    assert not proxy.asked


@pytest.mark.parametrize("missing", ["obstore.store", "obstore.auth.boto3"])
def test_without_the_extra(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match="extra `buckets`"):
        buckets.read("s3://bucket/a")
