"""The Ray cluster of a run: joined at its address, or started and stopped on this machine."""

from __future__ import annotations

import logging
import math
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from typing import Any, Final

from pipeline.config import RaySettings
from pipeline.errors import ClusterFailed, UsageError
from pipeline.runtime.threads import usable_cores
from pipeline.texts import install_extra

NAMESPACE: Final = "facepipe"
_REACHED_S: Final = 10.0
# Ray keeps objects, here manifest rows and answers, in shared memory: at least 75 MB.
_OBJECTS_BYTES: Final = 80 * 2**20


def set_environment(settings: RaySettings) -> None:
    """Sets the environment of a cluster to start here. Call before Ray is loaded, which reads it.

    Ray listens on all addresses, and whoever connects can run programs: only this process and its children know the
    token. If a program loaded Ray before, Ray's own settings apply. Ray's usage reports are off.
    """
    if settings.address is None and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def require_ray() -> None:
    """Raises UsageError if Ray, or a package that the shard folder needs, is missing."""
    for module in ("ray", "obstore"):
        if find_spec(module) is None:
            raise UsageError(message=f"The engine ray needs the extra `ray`: {install_extra('ray')}.")


@contextmanager
def connected(settings: RaySettings) -> Iterator[None]:
    """Connects this process to the cluster within the block. Raises ClusterFailed."""
    import ray

    if ray.is_initialized():  # by a program that uses this library
        yield
        return
    if settings.address not in (None, "auto"):
        _reach(settings.address)
    own = {"num_cpus": usable_cores(), "include_dashboard": False, "object_store_memory": _OBJECTS_BYTES}
    # Ray writes about workers to standard output, which is for a command's answer.
    with redirect_stdout(sys.stderr):
        try:
            _init(address=settings.address or "local", **({} if settings.address else own))
            yield
        finally:
            ray.shutdown()


def room_for(settings: RaySettings) -> tuple[int, int]:
    """Returns how many workers fit on the cluster, at least one, and the cores of each. Raises ClusterFailed."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest = int(max((node.get("CPU", 0.0) for node in nodes), default=0.0))
    if largest < 1:
        raise ClusterFailed(detail="no node of it has a processor core to spare (num_cpus)")
    cpus = min(settings.cpus, largest)
    room = sum(_workers_of(node, cpus, settings.gpus) for node in nodes)
    if not room:
        raise ClusterFailed(detail=f"no node has {settings.gpus:g} GPUs and {cpus} cores (ray.gpus, ray.cpus)")
    return settings.actors or room, cpus


def _workers_of(node: Mapping[str, float], cpus: int, gpus: float) -> int:
    by_cpus = node.get("CPU", 0.0) // cpus
    by_gpus = node.get("GPU", 0.0) / gpus if gpus else math.inf
    return int(min(by_cpus, by_gpus))


def _init(**how: Any) -> None:
    import ray

    try:
        with _own_sigterm():
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **how)
    except (Exception, SystemExit) as exc:  # Ray exits the program if a cluster does not answer
        reason = str(exc) if isinstance(exc, Exception) else "it does not answer"
        raise ClusterFailed(detail=" ".join(reason.split())[:400]) from exc


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Restores our SIGTERM handler, which finishes the shard in progress; Ray's ends the program at once."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _reach(address: str) -> None:
    """Tests the connection: Ray would try for minutes, writing to standard error."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(message=f'"{address}" is no address of a Ray cluster, such as 10.0.0.1:6379, or auto.')
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACHED_S).close()
    except OSError as exc:
        raise ClusterFailed(detail=f"nothing answers at {address} ({exc.strerror or exc})") from exc
