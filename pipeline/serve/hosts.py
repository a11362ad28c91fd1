"""Checks a request's head: allowed Host names, and headers that may occur only once.

A web page can have its own name resolve to this machine (DNS rebinding); its requests then name that host.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from pipeline.config import ANY, ServeSettings, listed
from pipeline.errors import HeaderRepeated, HostInvalid, HostRequired, HostUnknown, RequestError

HEALTH: Final = frozenset({b"/healthz", b"/readyz", b"/metrics"})  # probes call them by any name
# Repeated, these are ambiguous.
_ONCE: Final = {name.lower().encode(): name for name in ("Host", "X-RPC-AUTHORIZATION", "X-RPC-DIRECTORY")}
_KEPT_HOSTS: Final = 64  # most clients of a server send the same
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.~!$&'()*+,;=%-]+)(:[0-9]*)?", re.ASCII)  # RFC 9110, 7.2


def is_loopback(host: str) -> bool:
    """Whether a name, or an address without brackets, is a loopback one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_health(path: bytes) -> bool:
    return path.rstrip(b"/") in HEALTH


def host_name(host: str) -> str | None:
    """The name in a Host header: without port, brackets and final dot, in lower case. None if malformed."""
    match = _HOST.fullmatch(host)
    if match is None:
        return None
    name = match[1].lower()
    if not name.startswith("["):
        return name.removesuffix(".") or None
    try:
        return str(ipaddress.IPv6Address(name[1:-1]))
    except ValueError:
        return None


def allowed_hosts(settings: ServeSettings) -> Callable[[str], bool]:
    """Returns a test for names from `host_name`."""
    if settings.allowed_hosts is not None:
        listed_hosts = listed(settings.allowed_hosts)
        names = {host_name(f"[{host}]" if ":" in host else host) for host in listed_hosts}
        return (lambda _: True) if ANY in listed_hosts else names.__contains__
    # Clients of a proxy before a loopback address use the proxy's name.
    return is_loopback if is_loopback(settings.host) and settings.trusted_proxies is None else lambda _: True


def head_check(settings: ServeSettings) -> Callable[[Scope], RequestError | None]:
    """Returns a check of a request's head: Host must be present, valid and allowed, and `_ONCE` headers unique."""
    is_allowed = allowed_hosts(settings)

    @functools.lru_cache(_KEPT_HOSTS)
    def host_error(host: bytes) -> type[RequestError] | None:
        name = host_name(host.decode("latin-1"))
        if name is None:
            return HostInvalid
        return None if is_allowed(name) else HostUnknown

    def head_error(scope: Scope) -> RequestError | None:
        sent = [name for name, _ in scope["headers"]]
        for name, shown in _ONCE.items():
            if sent.count(name) > 1:
                return HeaderRepeated(name=shown)
        if b"host" not in sent:  # HTTP/1.0 has no such header, and probes of load balancers still use it
            return None if scope["http_version"] == "1.0" else HostRequired()
        error = host_error(scope["headers"][sent.index(b"host")][1])
        if error is None or (error is HostUnknown and is_health(scope["raw_path"])):
            return None
        return error()

    return head_error
