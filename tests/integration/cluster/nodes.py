"""Two Ray nodes on this machine, and ways to kill what runs on them."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import until

LIMIT_S = 300  # for what is seen to be alive: only a hanging test waits so long


class Node:
    """A node that `ray start` made, with all its processes."""

    def __init__(self, address: str, *, head: bool) -> None:
        port = address.rpartition(":")[2]
        role = [f"--port={port}", "--head", "--include-dashboard=false"] if head else [f"--address={address}"]
        common = ["--num-cpus=1", "--node-ip-address=127.0.0.1", "--object-store-memory=80000000", "--block"]
        ray = shutil.which("ray", path=str(Path(sys.executable).parent)) or "ray"
        command = [ray, "start", *role, *common, "--disable-usage-stats"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to all of its processes at once."""
        try:
            family = [*psutil.Process(self._process.pid).children(recursive=True), psutil.Process(self._process.pid)]
        except psutil.NoSuchProcess:
            return
        for process in family:
            kill(process.pid)
        self._process.wait()


class Cluster:
    """A head and a second node, of one core each."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._head = Node(self.address, head=True)
        until(self._listens, "the head does not listen", LIMIT_S)
        self.second: Node | None = None

    def restore(self) -> None:
        """Starts the second node, where there is none or it was killed, and waits until the cluster has two."""
        if self.second is not None and self.second.alive:
            return
        self.second = Node(self.address, head=False)
        import ray

        ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, "the cluster has not two nodes", LIMIT_S)
        ray.shutdown()

    def kill_second(self) -> None:
        assert self.second is not None
        self.second.kill()

    def end(self) -> None:
        if self.second is not None:
            self.second.kill()
        self._head.kill()

    def _listens(self) -> bool:
        host, port = self.address.split(":")
        assert self._head.alive, "`ray start --head` ended"
        with suppress(OSError):
            socket.create_connection((host, int(port)), 1).close()
            return True
        return False


def worker_processes() -> list[int]:
    """The processes of our workers on this machine, whichever cluster they belong to."""
    return sorted(p.pid for p in psutil.process_iter(["cmdline"]) if "ShardWorker" in " ".join(p.info["cmdline"] or []))


def assert_no_worker() -> None:
    """Ray ends them soon after it was told to."""
    until(lambda: not worker_processes(), "there are still workers", LIMIT_S)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
