"""The places for connections: how many there are, and which connection gives its place away when they are taken.

A connection has its place from the moment it is accepted, so a TLS handshake counts too. It holds the place while a
request of a verified account is in progress. At any other time a new connection may evict it. If the new one's peer has
its share of the places, the new one evicts that peer's connection that has been idle for longest. If all places are
taken, it evicts the longest idle connection of the peer with the most idle ones. If none can be evicted, the new
connection gets a place of a small reserve, which only serves the server's health.
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
PEER_SHARE: Final = 4  # one peer may have one place in so many
_IPV6_SITE_BITS: Final = 64  # a single host usually has a whole /64 to itself
_OTHER_FILES: Final = 256  # open files for the store, the libraries, the reserve, and the admin port

_log = logging.getLogger(__name__)


def raise_file_limit() -> None:
    """Raises the process's limit on open files as far as connections need it and the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MAX_CONNECTIONS + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else min(needed, hard), hard)
        )


def max_connections() -> int:
    """How many connections may be open, so that the store never lacks a file because of them."""
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
    idle: dict[Place, None] = field(default_factory=dict)  # those that can be evicted; the longest idle one first


class Place:
    """The place of one connection. `end` ends the connection at once."""

    def __init__(self, places: Places, peer: _Peer) -> None:
        self._places = places
        self._peer = peer
        self.reserved = places.reserved  # only the server's health is answered here
        self._left = False
        self.end: Callable[[], None] = lambda: None

    def hold(self) -> None:
        """A request of a verified account is in progress: the connection cannot be evicted."""
        self._peer.idle.pop(self, None)

    def release(self) -> None:
        """The request is answered: the connection is idle from now on."""
        if not self._left:
            self._peer.idle.pop(self, None)
            self._peer.idle[self] = None

    def leave(self) -> None:
        """The connection has ended; a second call does nothing."""
        if not self._left:
            self._left = True
            self._places.free(self, self._peer)

    def evict(self) -> None:
        self.leave()
        self.end()


class Places:
    """`total` places, of which one peer may have `per_peer`."""

    def __init__(self, total: int, per_peer: int, *, reserved: bool = False) -> None:
        self.total = total
        self.per_peer = per_peer
        self.reserved = reserved
        self.taken = 0
        self._peers: dict[str, _Peer] = {}

    def take(self, name: str, *, is_proxy: bool = False) -> Place | None:
        """A place for a connection of this peer; a proxy has those of many clients. None if no connection can be
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
    """The places of one server. `proxies` are the networks of trusted proxies, separated by commas. They have no limit
    per peer."""

    def __init__(self, total: int, per_peer: int, proxies: str | None = None) -> None:
        self.places = Places(total, per_peer)
        self.reserve = Places(RESERVE, RESERVE, reserved=True)
        self._proxies = [ipaddress.ip_network(network) for network in listed(proxies)] if proxies else []

    def admit(self, host: str) -> Place | None:
        """A place for a new connection from this address. None if even the reserve is full."""
        is_proxy = any(ipaddress.ip_address(host.partition("%")[0]) in network for network in self._proxies)
        peer = host if is_proxy else site(host)  # a proxy's connections are not its neighbours'
        place = self.places.take(peer, is_proxy=is_proxy)
        if place is None:
            _log.warning("no place for a connection of %s: all have a request in hand", peer)
            place = self.reserve.take(peer)
        return place
