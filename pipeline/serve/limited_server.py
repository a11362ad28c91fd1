"""A uvicorn server that accepts its connections itself, to limit them and time the TLS handshake: uvicorn only knows
connections after it."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import functools
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from pipeline.errors import UsageError
from pipeline.serve.connections import Connections, Place
from pipeline.serve.protocol import LimitedProtocol

TLS_TIMEOUT_S: Final = 10.0  # for the handshake, and for the client's part of the end
_TLS_BUFFER_BYTES: Final = 256 * 2**10
_ACCEPTS_AT_ONCE: Final = 32  # then the loop serves existing connections
_RETRY_S: Final = 0.5  # after the system lacked resources for a connection

_log = logging.getLogger(__name__)


class LimitedServer(uvicorn.Server):
    """A server with slots for `connections`. Calls `on_listening` when it accepts connections, and `on_signal` when a
    signal stops it; then it returns. uvicorn would raise the signal again, and SIGTERM would end the process before the
    store is closed. `options`: uvicorn's. Raises UsageError if a port is taken."""

    def __init__(
        self,
        app: ASGIApp,
        connections: Connections,
        on_listening: Callable[[], None],
        on_signal: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        config = uvicorn.Config(
            app, http=LimitedProtocol, ws="none", log_config=None, access_log=False, server_header=False, **options
        )
        super().__init__(config)
        self.connections = connections
        self._on_listening = on_listening
        self._on_signal = on_signal

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            try:
                listener.listen(self.config.backlog)
            except OSError as exc:  # another process listens there since the socket was bound
                host, port = listener.getsockname()[:2]
                raise UsageError(message=f"Nothing can listen at {host} port {port}: {exc.strerror}.") from exc
        await super().startup([])
        make_protocol = functools.partial(
            LimitedProtocol, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        self.servers = [
            Acceptor(listener, self.connections, make_protocol, self.config.ssl)  # type: ignore[misc]
            for listener in sockets or []
        ]
        self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:  # the second signal
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        super().handle_exit(sig, frame)
        self._on_signal()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()


class Acceptor:
    """Accepts a listener's connections until closed. Create it in a running event loop."""

    def __init__(
        self,
        listener: socket.socket,
        connections: Connections,
        make_protocol: Callable[..., asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._listener = listener
        self._connections = connections
        self._make_protocol = make_protocol
        self._tls = tls
        self._tls_buffer = bytearray(_TLS_BUFFER_BYTES)
        self._loop = asyncio.get_running_loop()
        self._opening: dict[asyncio.Task[None], Place] = {}
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        # Connections inherit it from the listener; asyncio only sets it if the socket names its protocol. Without it
        # small answers, written in two pieces, wait 40 ms for the client's acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listen()

    def close(self) -> None:
        """Stops accepting, and ends connections still opening."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for place in list(self._opening.values()):
            place.evict()

    async def wait_closed(self) -> None:
        """As in asyncio's servers; uvicorn itself waits for the connections."""

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept_waiting)

    def _accept_waiting(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                _log.warning("no connection can be accepted: %s", exc.strerror)
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(_RETRY_S, self._listen)
                return
            self._admit(connection, str(address[0]))

    def _admit(self, connection: socket.socket, host: str) -> None:
        place = self._connections.admit(host)
        if place is None:
            connection.close()
            return
        connection.setblocking(False)
        # Neither closed nor its task cancelled: a transport may already own the socket, and ends at its end of file.
        place.end = functools.partial(_shut_down, connection)
        task = self._loop.create_task(self._open(connection, place))
        self._opening[task] = place
        task.add_done_callback(self._opened)

    async def _open(self, connection: socket.socket, place: Place) -> None:
        protocol = self._make_protocol(place=place)
        if self._tls is None:
            await self._loop.connect_accepted_socket(lambda: protocol, connection)
            return
        handshake = self._loop.create_future()
        tls = _Tls(
            self._loop,
            protocol,
            self._tls,
            handshake,
            server_side=True,
            ssl_handshake_timeout=TLS_TIMEOUT_S,
            ssl_shutdown_timeout=TLS_TIMEOUT_S,
            buffer=self._tls_buffer,
        )
        await self._loop.connect_accepted_socket(lambda: tls, connection)
        await asyncio.wait([handshake])
        error = handshake.exception()
        if error is not None:  # no handshake, or none in time
            error.__traceback__ = None  # its frames refer to it, so it would stay until a full garbage collection
            place.leave()

    def _opened(self, task: asyncio.Task[None]) -> None:
        place = self._opening.pop(task)
        if task.cancelled() or task.exception() is not None:
            place.leave()


class _Tls(asyncio.sslproto.SSLProtocol):
    """The TLS of one connection, with a shared buffer: asyncio would make 256 KiB for each, even silent ones.

    Received data leaves the buffer before the event loop turns to another connection.
    """

    max_size = 0  # of the buffer that the constructor of asyncio's class makes

    def __init__(self, *args: Any, buffer: bytearray, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_size = len(buffer)
        self._ssl_buffer = buffer
        self._ssl_buffer_view = memoryview(buffer)


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client was faster
        connection.shutdown(socket.SHUT_RDWR)
