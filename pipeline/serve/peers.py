"""Who counts as one peer, where a limit holds for each."""

from __future__ import annotations

import ipaddress
from typing import Final

from starlette.requests import HTTPConnection

_IPV6_SITE_BITS: Final = 64  # a single host usually has a whole /64 to itself


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
