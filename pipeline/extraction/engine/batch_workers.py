"""Batches in several threads at once, their results in order.

On CUDA a batch is uploaded, and another written down, while the device is busy with a third. On a CPU one thread per
core works a batch of its own, from the pixels to the embeddings, and every operation in it runs
on that thread alone. Splitting each operation over the cores instead leaves them waiting for each other several hundred
times a batch, and at small pictures most of what is not a matrix product runs on one core anyway. Processes would not
wait for the interpreter's lock either, but the loops and networks release it, and each would hold the weights again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

import torch

from pipeline.runtime.device import own_threads

Batch = TypeVar("Batch")
_DONE_PER_WORKER = 4  # batches that are done and wait for an earlier one: they hold faces, no pixels


class BatchWorkers(Generic[Batch]):
    """`workers` threads that do `work(batch)`, which changes the batch; a context manager that ends them. torch's
    operations in each use `threads` of the cores."""

    def __init__(self, workers: int, work: Callable[[Batch], None], threads: int = 1) -> None:
        self._workers = workers
        self._work = work
        # One more than is worked on, so that a worker finds its next batch ready.
        self._room = threading.Semaphore(workers + 1)
        self._pool = ThreadPoolExecutor(
            workers, thread_name_prefix="batch", initializer=own_threads, initargs=(threads,)
        )

    def __enter__(self) -> BatchWorkers[Batch]:
        torch.get_num_threads()  # this thread's own from here on, not what the workers set
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        # The workers' would be that of every later thread.
        torch.set_num_threads(torch.get_num_threads())

    def in_order(self, batches: Iterable[Batch]) -> Generator[Batch, None, None]:
        """The batches as they come, each when its work is done. Raises what the work raised, at that batch's place.

        At most `workers` + 1 batches wait or are worked on, and one more is taken.
        """
        taken: deque[tuple[Batch, Future[None]]] = deque()
        for batch in batches:
            self._room.acquire()
            future = self._pool.submit(self._work, batch)
            future.add_done_callback(lambda _: self._room.release())
            taken.append((batch, future))
            while taken and (taken[0][1].done() or len(taken) > _DONE_PER_WORKER * self._workers):
                yield _result(*taken.popleft())
        while taken:
            yield _result(*taken.popleft())


def _result(batch: Batch, future: Future[None]) -> Batch:
    future.result()
    return batch
