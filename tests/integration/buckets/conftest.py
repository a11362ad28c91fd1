"""A server of S3's API in this process, and a proxy in front of it that fails where a test wants it to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipeline.runtime import buckets
from tests.integration.buckets.faulty import FaultyProxy

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, int]]:
    pytest.importorskip("obstore", reason="the extra `buckets` is not installed")
    pytest.importorskip("boto3", reason="the extra `buckets` is not installed")
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


@pytest.fixture
def proxy(s3_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyProxy]:
    """The only way to the server: an endpoint of the environment, with credentials."""
    proxy = FaultyProxy(s3_server)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    buckets._opened.cache_clear()
    yield proxy
    buckets._opened.cache_clear()
    proxy.close()


@pytest.fixture
def client(proxy: FaultyProxy, s3_server: tuple[str, int]) -> Any:
    """boto3's client, past the proxy: obstore neither makes buckets nor writes odd keys."""
    import boto3

    return boto3.client("s3", endpoint_url="http://{}:{}".format(*s3_server))


@pytest.fixture
def bucket(client: Any) -> str:
    """The address of an empty bucket."""
    name = f"bucket-{uuid4().hex[:12]}"
    client.create_bucket(Bucket=name)
    return f"s3://{name}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits in seconds that a test can wait for."""
    monkeypatch.setattr(buckets, "_REQUEST_S", 1)
    monkeypatch.setattr(buckets, "_RETRIED_S", 2)
    assert timedelta(seconds=buckets._RETRIED_S)


def put(client: Any, address: str, data: bytes) -> None:
    bucket, _, key = address.removeprefix("s3://").partition("/")
    client.put_object(Bucket=bucket, Key=key, Body=data)
