"""The slots for connections: how many there are, and which connection is evicted when they are full.

A connection has a slot from its acceptance, so a TLS handshake counts. It cannot be evicted while a request of a
verified account is in progress. A new connection evicts its peer's longest idle connection if the peer has its share of
slots; if all slots are taken, the longest idle one of the peer with the most idle ones. If none can be evicted, it gets
a reserve slot that only serves the health checks.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from pipeline.config import listed

MAX_CONNECTIONS: Final = 2_000
RESERVE: Final = 32
PEER_SHARE: Final = 4  # one peer may have 1 / PEER_SHARE of the slots
_IPV6_SITE_BITS: Final = 64  # a single host usually has a whole /64 to itself
_OTHER_FILES: Final = 256  # open files for the store, the libraries, the reserve, and the admin port

_log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raises the limit on open files as needed, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


def max_connections() -> int:
    """As many as leave enough files for the store."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, max(soft - _OTHER_FILES, soft // 4))


def peer_of(request: HTTPConnection) -> str:
    """The peer that sent a request."""
    return site(request.client.host if request.client else "")


def site(host: str) -> str:
    """The addresses that count as one peer: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, _IPV6_SITE_BITS), strict=False))
    return str(address)


@dataclass(eq=False)
class _Peer:
    """The connections of one peer."""

    name: str
    count: int = 0
    idle: dict[Place, None] = field(default_factory=dict)  # can be evicted; ordered by idle time, longest first


class Place:
    """The slot of one connection. `end` ends the connection immediately."""

    def __init__(self, places: Places, peer: _Peer) -> None:
        self._places = places
        self._peer = peer
        self.reserved = places.reserved  # only serves the health checks
        self._left = False
        self.end: Callable[[], None] = lambda: None

    def hold(self) -> None:
        """Protects the connection: a request of a verified account is in progress."""
        self._peer.idle.pop(self, None)

    def release(self) -> None:
        """Marks the connection as idle."""
        if not self._left:
            self._peer.idle.pop(self, None)
            self._peer.idle[self] = None

    def leave(self) -> None:
        """Frees the slot; a second call does nothing."""
        if not self._left:
            self._left = True
            self._places.free(self, self._peer)

    def evict(self) -> None:
        self.leave()
        self.end()


class Places:
    """`total` slots, of which one peer may have `per_peer`."""

    def __init__(self, total: int, per_peer: int, *, reserved: bool = False) -> None:
        self.total = total
        self.per_peer = per_peer
        self.reserved = reserved
        self.taken = 0
        self._peers: dict[str, _Peer] = {}

    def take(self, name: str, *, is_proxy: bool = False) -> Place | None:
        """Takes a slot for a connection of this peer; a proxy's are those of many clients. None if no connection can be
        evicted."""
        peer = self._peers.get(name) or _Peer(name)
        crowd = None
        if peer.count >= self.per_peer and not is_proxy:
            crowd = peer
        elif self.taken >= self.total:
            crowd = max(self._peers.values(), key=lambda each: len(each.idle))
        if crowd is not None:
            if not crowd.idle:
                return None
            next(iter(crowd.idle)).evict()
        self._peers[name] = peer
        peer.count += 1
        self.taken += 1
        place = Place(self, peer)
        place.release()
        return place

    def free(self, place: Place, peer: _Peer) -> None:
        peer.idle.pop(place, None)
        peer.count -= 1
        self.taken -= 1
        if peer.count == 0:
            del self._peers[peer.name]


class Connections:
    """A server's slots. `proxies`: comma-separated networks of trusted proxies, which have no limit per peer."""

    def __init__(self, total: int, per_peer: int, proxies: str | None = None) -> None:
        self.places = Places(total, per_peer)
        self.reserve = Places(RESERVE, RESERVE, reserved=True)
        self._proxies = [ipaddress.ip_network(network) for network in listed(proxies)] if proxies else []

    def admit(self, host: str) -> Place | None:
        """Takes a slot for a new connection; None if even the reserve is full."""
        is_proxy = any(ipaddress.ip_address(host.partition("%")[0]) in network for network in self._proxies)
        peer = host if is_proxy else site(host)  # a proxy does not share with neighbouring addresses
        place = self.places.take(peer, is_proxy=is_proxy)
        if place is None:
            _log.warning("no place for a connection of %s: all have a request in hand", peer)
            place = self.reserve.take(peer)
        return place
