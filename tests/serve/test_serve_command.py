"""`facepipe serve` as a process: what it prints, its two ports, TLS, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from pipeline.cli import main
from pipeline.errors import StoreMissing, UsageError
from pipeline.jobs.store import open_or_create_store, open_store
from pipeline.store.local import LocalStore
from tests.forking import Forker
from tests.serve.certificate import Certificate, make_certificate
from tests.serve.conformance.launch import server_order, server_process
from tests.serve.live import PASSWORD, credentials, live_settings
from tests.serve.quick_hash import quick_hash
from tests.stored import stored_people
from tests.waiting import until

GRACE = [(b"X-RPC-PERSON-NAME", b"Grace"), (b"X-RPC-EXTERNAL-ID", b"e1")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with open_or_create_store(tmp_path / "store", live_settings(), "test") as client:
        client.create_account("alice", quick_hash(PASSWORD))
    return tmp_path / "store"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def log_of(store: Path) -> Path:
    return store.parent / "server.log"


@pytest.mark.slow
def test_a_server_with_tls_and_two_ports_that_stops_in_good_order(
    store: Path, certificate: Certificate, hopper: bytes
) -> None:
    cert, key = certificate.cert, certificate.key
    tls = certificate.client()
    flags = ("--device", "cpu", "--object-port", "0", "--tls-cert", str(cert), "--tls-key", str(key))
    with server_process(store, log_of(store), *flags, environ=os.environ) as (process, listening):
        assert listening["url"].startswith("https://127.0.0.1:")
        assert listening["url"] != listening["object_url"]
        assert (listening["store"], listening["identities"]) == (str(store), 0)
        answers: list[httpx.Response] = []

        def post() -> None:
            headers = [*credentials(), *GRACE]
            answers.append(
                httpx.post(f"{listening['url']}/people", content=hopper, headers=headers, verify=tls, timeout=60)
            )

        for url in (listening["url"], listening["object_url"]):
            assert httpx.get(f"{url}/people", headers=credentials(), verify=tls).json()["people"] == []
            elsewhere = httpx.get(f"{url}/people", headers={"Host": "evil.example"}, verify=tls)
            assert (elsewhere.status_code, "Strict-Transport-Security" in elsewhere.headers) == (421, True)
        request = threading.Thread(target=post)
        request.start()
        wait_for_post(listening["object_url"], tls)
        process.send_signal(signal.SIGTERM)
        request.join()
        assert answers[0].status_code == 201
        assert process.wait(90) == 0
    log = log_of(store).read_text()
    assert "method=POST route=/people status=201" in log
    assert [line for line in log.splitlines() if "facepipe.access" not in line] == ["loading the models"]
    assert PASSWORD not in log
    with LocalStore.open(store, command="test") as client:  # the lock is free, and the answer was true
        assert len(stored_people(client, 1, "main")) == 1


def wait_for_post(url: str, tls: ssl.SSLContext | bool = True) -> None:
    """Until the metrics of the server show a post at work."""
    until(lambda: "facepipe_pending_posts 1.0" in httpx.get(f"{url}/metrics", verify=tls).text)


def test_ctrl_c_ends_it_too(store: Path, forked_servers: Forker) -> None:
    server = forked_servers.start(**server_order(store, log_of(store), "--quiet", environ=os.environ))
    assert httpx.get(f"{json.loads(server.ready)['url']}/readyz").status_code == 200
    os.kill(server.pid, signal.SIGINT)
    assert server.wait().status == 0
    assert log_of(store).read_text() == ""


def test_commands_get_the_address_of_its_page(store: Path, forked_servers: Forker) -> None:
    server = forked_servers.start(**server_order(store, log_of(store), environ=os.environ))
    with open_store(store, command="test") as opened:
        assert opened.server is not None
        assert opened.server.page == f"{json.loads(server.ready)['url']}/ui"


def serve(*arguments: str) -> None:
    main(["serve", *arguments], standalone_mode=False)


def test_a_port_in_use(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="Nothing can listen at"):
        serve("--store", str(store), "--port", str(taken.getsockname()[1]))


def test_a_port_that_somebody_takes_while_the_models_are_loaded(store: Path) -> None:
    """A bound port can be taken still, until the server listens."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        def take() -> None:
            try:
                until(lambda: '"serve"' in (store / "LOCK").read_text(), "the server did not open the store")
            finally:
                other.listen()

        taking = threading.Thread(target=take)
        taking.start()
        with pytest.raises(UsageError, match=r"Nothing can listen at .* Address already in use"):
            serve("--store", str(store), "--device", "cpu", "--port", str(other.getsockname()[1]))
        taking.join()
    assert not (store / "admin.token").exists()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreMissing):
        serve("--store", str(tmp_path / "none"), "--port", "0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosting", "cloud", "--public-url", "host"], "Cloud hosting needs a store with encrypted images"),
        (["--tls-cert", "cert.pem"], "TLS needs both"),
        (["--tls-cert", "none.pem", "--tls-key", "none.pem"], "The TLS certificate or key cannot be used"),
    ],
)
def test_settings_that_do_not_fit(store: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        serve("--store", str(store), "--port", "0", "--device", "cpu", *arguments)


def test_a_second_signal_ends_it_at_once(store: Path, forked_servers: Forker) -> None:
    """While the first waits for a body that does not come."""
    server = forked_servers.start(**server_order(store, log_of(store), environ=os.environ))
    with socket.create_connection(address(json.loads(server.ready)["url"])) as connection:
        begin_body(connection)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(2)
        assert server.stop().status == -signal.SIGTERM  # and not 0, of the first
    with LocalStore.open(store, command="test") as client:
        assert len(stored_people(client, 1, "main")) == 0


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def begin_body(connection: socket.socket) -> None:
    """A post whose body has 10 of 100 bytes, once the server has taken them."""
    headers = [(b"Host", b"localhost"), (b"Content-Length", b"100"), *credentials(), (b"Expect", b"100-continue")]
    lines = [b"POST /people HTTP/1.1", *(name + b": " + value for name, value in headers)]
    connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
    assert connection.recv(100).startswith(b"HTTP/1.1 100")
    connection.sendall(bytes(10))


STUCK = """
import sys, time
import pipeline.serve.server as server
from pipeline.cli import main
server._STOP_S, server._END_S = 1, 3
server.Decoder.open = lambda *_: time.sleep(100)
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_what_never_ends_does_not_keep_it_alive(store: Path, hopper: bytes) -> None:
    """A post whose thread hangs where nothing can stop it."""
    command = [sys.executable, "-c", STUCK, "serve", "--store", str(store), "--port", "0", "--json", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        headers = [*credentials(), *GRACE]
        post = threading.Thread(target=lambda: post_in_vain(url, hopper, headers))
        post.start()
        wait_for_post(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 128 + signal.SIGTERM
        post.join()
        assert process.stderr is not None
        assert "not done after 3 s: ending without it" in process.stderr.read()


def post_in_vain(url: str, image: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    with suppress(httpx.HTTPError):
        httpx.post(f"{url}/people", content=image, headers=headers, timeout=60)
