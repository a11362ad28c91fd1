"""By which names clients may call a server, which headers a request must have once, and what browsers are told over
TLS."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from pipeline.errors import BadValue
from pipeline.extraction.extractor import BatchExtractor
from pipeline.serve.hosts import allowed_hosts, host_name
from tests.forking import Forker
from tests.serve.certificate import Certificate, make_certificate
from tests.serve.coded import empty_store
from tests.serve.connecting import ended
from tests.serve.live import LiveServer, credentials, live_server, live_settings

HSTS = "Strict-Transport-Security"
ERROR_KEYS = {"error", "errorReason", "message", "path", "status", "timestamp", "verb"}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """A server with names of its own."""
    hosts = "Photos.example, 192.0.2.7, 2001:DB8::7"
    with live_server(tmp_path_factory.mktemp("named") / "store", extractor, serve__allowed_hosts=hosts) as server:
        yield server


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, extractor: BatchExtractor) -> Iterator[LiveServer]:
    """A server that takes this machine for a proxy."""
    store = tmp_path_factory.mktemp("proxied") / "store"
    with live_server(store, extractor, serve__trusted_proxies="127.0.0.1") as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def request(*headers: bytes, line: bytes = b"GET /people HTTP/1.1") -> bytes:
    """With credentials, and no Host."""
    sent = [name + b": " + value for name, value in credentials()]
    return b"\r\n".join([line, *sent, *headers, b"", b""])


def asked(connection: socket.socket, data: bytes) -> tuple[int, str]:
    """Status of the answer and the reason of the error, "" of none; after an error the connection must end."""
    connection.sendall(data)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    body = json.loads(answer.read())
    if answer.status == 200:
        return 200, ""
    assert set(body) == ERROR_KEYS
    assert body["status"] == answer.status
    assert answer.headers["Connection"] == "close"
    assert ended(connection)
    return answer.status, body["errorReason"]


def ask(server: LiveServer, data: bytes) -> tuple[int, str]:
    with server.connect() as connection:
        return asked(connection, data)


@pytest.mark.parametrize("path", [b"/people", b"/healthz", b"/nothing", b"/ui/api/session"])
def test_a_request_without_a_host(live: LiveServer, path: bytes) -> None:
    assert ask(live, request(line=b"GET " + path + b" HTTP/1.1")) == (400, "host-required")


def test_a_client_of_http_1_0_may_have_no_host(live: LiveServer) -> None:
    """Probes of load balancers are such."""
    assert ask(live, request(line=b"GET /healthz HTTP/1.0")) == (200, "")
    assert ask(live, request(line=b"GET /people HTTP/1.0")) == (200, "")
    assert ask(live, request(b"Host: evil.example", line=b"GET /people HTTP/1.0")) == (421, "host-unknown")


@pytest.mark.parametrize("line", [b"GET /healthz", b"GET /healthz HTTP/0.9", b"GET /healthz HTTP/2.0"])
@pytest.mark.parametrize("headers", [(), (b"Host: localhost",)])
def test_another_version_of_http(live: LiveServer, line: bytes, headers: tuple[bytes, ...]) -> None:
    assert ask(live, b"\r\n".join([line, *headers, b"", b""])) == (400, "request-malformed")


@pytest.mark.parametrize(
    "header",
    [b"Host: localhost", b"host: evil.example", b"X-RPC-DIRECTORY: main", b"x-rpc-authorization: bob:x"],
)
def test_a_header_that_comes_twice_where_one_counts(live: LiveServer, header: bytes) -> None:
    assert ask(live, request(b"Host: localhost", header)) == (400, "header-repeated")
    post = request(b"Host: localhost", header, b"Content-Length: 8", line=b"POST /people HTTP/1.1")
    assert ask(live, post + b"no image") == (400, "header-repeated")


@pytest.mark.parametrize(
    "host", [b"", b" ", b"[", b"[::1", b"[::1]x", b"[1.2.3.4]", b"a b", b"\xff", b"localhost:x", b"u@localhost", b"."]
)
def test_a_host_that_is_none(live: LiveServer, host: bytes) -> None:
    assert ask(live, request(b"Host: " + host)) == (400, "host-invalid")


@pytest.mark.parametrize(
    "host",
    [
        b"localhost",
        b"LocalHost:80",
        b"localhost.:1",
        b"localhost:",
        b"127.0.0.1",
        b"127.8.0.1:9",
        b"[::1]",
        b"[0::1]:80",
    ],
)
def test_on_the_loopback_its_names_are_allowed(live: LiveServer, host: bytes) -> None:
    assert ask(live, request(b"Host: " + host)) == (200, "")


@pytest.mark.parametrize(
    "host", [b"evil.example", b"localhost.evil.example:80", b"localhost..", b"10.0.0.1", b"[fe80::1]", b"0.0.0.0"]
)
def test_on_the_loopback_other_names_are_not(live: LiveServer, host: bytes) -> None:
    for line in (b"GET /people HTTP/1.1", b"OPTIONS /people HTTP/1.1", b"GET /ui/api/session HTTP/1.1"):
        assert ask(live, request(b"Host: " + host, line=line)) == (421, "host-unknown")
    for path in (b"/healthz", b"/readyz/", b"/metrics?x"):
        with live.connect() as connection:
            connection.sendall(request(b"Host: " + host, line=b"GET " + path + b" HTTP/1.1"))
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_the_host_of_a_target_in_absolute_form_counts(live: LiveServer) -> None:
    for target, host, status in (
        (b"http://evil.example/people", b"localhost", 421),
        (b"HTTP://evil.example:80/?x", b"localhost", 421),
        (b"http://u@localhost/people", b"localhost", 400),
        (b"http://LOCALHOST:80/people?count=1", b"evil.example", 200),
    ):
        assert ask(live, request(b"Host: " + host, line=b"GET " + target + b" HTTP/1.1"))[0] == status
    assert ask(live, request(line=b"GET http://localhost/people HTTP/1.1")) == (400, "host-required")


def test_names_of_ones_own(named: LiveServer) -> None:
    for host in (b"photos.example", b"PHOTOS.example.:443", b"192.0.2.7:80", b"[2001:db8:0::7]:80"):
        assert ask(named, request(b"Host: " + host)) == (200, "")
    for host in (b"localhost", b"127.0.0.1", b"a.photos.example", b"192.0.2.70", b"[2001:db8::8]"):
        assert ask(named, request(b"Host: " + host, b"X-Forwarded-Host: photos.example")) == (421, "host-unknown")


def test_which_names_are_allowed_without_the_setting() -> None:
    for flags, loopback_only in (
        ({"host": "127.0.0.1"}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.0.0.1", "trusted_proxies": "127.0.0.1"}, False),
        ({"host": "0.0.0.0"}, False),
        ({"host": "::"}, False),
        ({"host": "127.0.0.1", "allowed_hosts": "*"}, False),
    ):
        is_allowed = allowed_hosts(live_settings(**{f"serve__{key}": value for key, value in flags.items()}).serve)
        assert is_allowed("localhost")
        assert is_allowed("evil.example") is not loopback_only
    for hosts in ("a b", "host:80", "https://host", "[::1]", "*.example.org", "10.0.0.0/8"):
        with pytest.raises(BadValue, match="must be host names or IP addresses without ports"):
            live_settings(serve__allowed_hosts=hosts)


def test_a_name_is_the_same_however_it_is_written() -> None:
    assert host_name("Photos.EXAMPLE.:80") == "photos.example"
    assert host_name("[2001:0DB8::0007]") == "2001:db8::7"


def test_a_proxy_that_is_trusted_names_the_host_and_the_scheme(proxied: LiveServer, live: LiveServer) -> None:
    headers = [*credentials(), (b"Host", b"photos.example"), (b"X-Forwarded-Proto", b"https")]
    answer = httpx.get(f"{proxied.url}/people", headers=headers)
    assert (answer.status_code, answer.headers[HSTS]) == (200, "max-age=2592000")
    assert HSTS not in httpx.get(f"{proxied.url}/people", headers=headers[:-1]).headers
    assert HSTS not in httpx.get(f"{live.url}/people", headers=[*credentials(), headers[-1]]).headers


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_browsers_are_told_to_stay_with_tls(
    forked_servers: Forker, tmp_path: Path, certificate: Certificate, host: str
) -> None:
    """With any answer, also to what is no request."""
    flags = {"serve.host": host, "serve.tls_cert": str(certificate.cert), "serve.tls_key": str(certificate.key)}
    order = {"store": str(empty_store(tmp_path / "store")), "flags": flags}
    with forked_servers.running(**order) as server, ExitStack() as stack:
        tls = certificate.client()
        tls.check_hostname = False
        for data, status in (
            (request(b"Host: [::1]:1", line=b"GET /healthz HTTP/1.1"), 200),
            (request(line=b"GET /healthz HTTP/1.1"), 400),
            (request(b"Host: evil.example"), 421),
            (b"no request\r\n\r\n", 400),
        ):
            plain = stack.enter_context(socket.create_connection((host, urlsplit(server.ready).port or 0), timeout=60))
            connection: ssl.SSLSocket = stack.enter_context(tls.wrap_socket(plain))
            connection.sendall(data)
            answer = stack.enter_context(http.client.HTTPResponse(connection))
            answer.begin()
            assert (answer.status, answer.headers[HSTS]) == (status, "max-age=2592000")
