"""What memory do connections take that send nothing, and how much of it is left when they are closed?

    python scripts/bench/bench_connections.py [--connections 1900] [--waves 3] [--left-s 10]

A process of its own runs the HTTP server of `facepipe serve` over an application that tells how many places are taken.
Connections come from 20 addresses of the loopback and are closed together, wave after wave: without TLS (plain), with
TLS before its handshake (silent), and after it (shaken). The server's timeouts of headers and handshakes are raised, so
that no connection ends by itself. Needs Linux, and the command openssl for a certificate.

Asserts that the server holds all of them at once, and that it answers after each wave.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from multiprocessing.connection import Connection

import psutil
from harness import argument_parser, settings_of, write_result
from starlette.types import Receive, Scope, Send

from pipeline.config import load_settings
from pipeline.runtime.allocator import settle_allocator
from pipeline.serve import limited_server, protocol
from pipeline.serve.connections import raise_file_limit
from pipeline.serve.server import make_server

KINDS = ("plain", "silent", "shaken")
ADDRESSES = 20
TIMEOUT_S = 600.0


def serve(flags: dict[str, str], ready: Connection) -> None:
    """Serves until the process is ended; sends the port."""
    settle_allocator()
    raise_file_limit()
    protocol.HEADER_TIMEOUT_S = limited_server.HANDSHAKE_TIMEOUT_S = TIMEOUT_S  # type: ignore[misc]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        body = str(server.connections.places.taken).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": body})

    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = load_settings(environ={}, flags=flags).serve
        server = make_server(app, settings, lambda: ready.send(listener.getsockname()[1]))
        server.run([listener])


@contextlib.contextmanager
def running(flags: dict[str, str]) -> Iterator[tuple[psutil.Process, int]]:
    """The server's process and port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(flags, theirs))
    process.start()
    try:
        yield psutil.Process(process.pid), ours.recv()
    finally:
        process.terminate()
        process.join()


def measure(kind: str, files: dict[str, str], arguments: argparse.Namespace) -> dict[str, object]:
    """MiB above what the server has before, with all connections open and after they are closed, for each wave."""
    tls = None if kind == "plain" else ssl._create_unverified_context()
    opened, left = [], []
    with running({} if tls is None else files) as (process, port):

        def taken() -> int:
            url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/"
            with urllib.request.urlopen(url, context=tls, timeout=30) as answer:
                return int(answer.read()) - 1

        def mib() -> float:
            return float(round((process.memory_info().rss - before) / 2**20, 1))

        assert taken() == 0
        before = process.memory_info().rss
        for _ in range(arguments.waves):
            with contextlib.ExitStack() as stack:
                for number in range(arguments.connections):
                    source = (f"127.0.0.{2 + number % ADDRESSES}", 0)
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30, source))
                    if tls and kind == "shaken":
                        stack.enter_context(tls.wrap_socket(connection))
                assert taken() == arguments.connections
                opened.append(mib())
            time.sleep(arguments.left_s)
            left.append(mib())
            assert taken() == 0
    return {
        "opened_mib": opened,
        "left_mib": left,
        "kib_each": round(max(opened) * 1024 / arguments.connections, 1),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--connections", type=int, default=1900, help="at once; 2,000 is the server's limit")
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--left-s", type=float, default=10.0, help="from the end of a wave to the measurement")
    arguments = parser.parse_args()
    raise_file_limit()
    with tempfile.TemporaryDirectory() as folder:
        files = {"serve.tls_cert": f"{folder}/cert.pem", "serve.tls_key": f"{folder}/key.pem"}
        names = ("-out", files["serve.tls_cert"], "-keyout", files["serve.tls_key"])
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost")
        subprocess.run(["openssl", "req", "-x509", *kind, *names], check=True, capture_output=True)
        figures = {each: measure(each, files, arguments) for each in KINDS}
    write_result("connections", settings_of(arguments), {}, figures, arguments)


if __name__ == "__main__":
    main()
