"""One process at a time holds a store; the error of a second names the first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.errors import StoreFull, StoreLocked
from pipeline.store.files.lock import StoreLock
from pipeline.store.local import LocalStore
from tests.store.store_samples import identity, no_room

HOLD = """
import sys, time
from pipeline.store.local import LocalStore
client = LocalStore.open(sys.argv[1], command="hold it")
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_client_of_the_same_process_is_refused(store: Path) -> None:
    with LocalStore.open(store, command="first"):
        with pytest.raises(StoreLocked) as caught:
            LocalStore.open(store, command="second")
        assert caught.value.fields["pid"] == os.getpid()
        assert caught.value.fields["command"] == "first"
        assert caught.value.exit_code == 41
    LocalStore.open(store, command="third").close()


def test_another_process_is_named_and_its_death_frees_the_lock(store: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(store)], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        start = time.monotonic()
        with pytest.raises(StoreLocked, match=f"process {holder.pid} on .*hold it"):
            LocalStore.open_or_create(store, identity, command="second")
        assert time.monotonic() - start < 1
        holder.send_signal(signal.SIGKILL)
    LocalStore.open(store, command="third").close()


def test_a_forked_child_does_not_keep_the_lock(store: Path) -> None:
    lock = StoreLock.acquire(store, "parent")
    (reading, writing), (heard, telling) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.write(telling, b".")  # it runs, so it has dropped the lock
        os.read(reading, 1)  # until the parent closes its end
        os._exit(0)
    os.close(reading)
    os.read(heard, 1)
    os.close(lock.fd)  # as when the parent dies, without unlocking
    lock.fd = -1
    try:
        StoreLock.acquire(store, "next").release()
    finally:
        for end in (writing, heard, telling):
            os.close(end)
        os.waitpid(child, 0)


def test_a_program_that_is_being_started_does_not_keep_a_released_lock(store: Path) -> None:
    lock = StoreLock.acquire(store, "first")
    copy = os.dup(lock.fd)  # as it has until it runs
    lock.release()
    StoreLock.acquire(store, "next").release()
    os.close(copy)


def test_the_lock_names_its_holder(store: Path) -> None:
    with LocalStore.open(store, command="facepipe run"):
        holder = json.loads((store / "LOCK").read_text("utf-8"))
    assert set(holder) == {"pid", "host", "boot_id", "url", "since", "command"}
    assert holder["url"] is None
    assert holder["command"] == "facepipe run"
    assert holder["since"].endswith("+00:00")
    assert (store / "LOCK").read_text("utf-8") == ""


def test_a_holder_that_has_not_written_its_name_still_refuses(store: Path) -> None:
    lock = StoreLock.acquire(store, "first")
    os.ftruncate(lock.fd, 0)
    with pytest.raises(StoreLocked, match="unknown"):
        StoreLock.acquire(store, "second")
    lock.release()


def test_a_lock_whose_holder_cannot_be_written_is_freed(tmp_path: Path) -> None:
    for _ in range(2):  # the second is not told that the first one holds it
        with no_room(), pytest.raises(StoreFull):
            StoreLock.acquire(tmp_path, "test")
