"""The engine ray: a cluster's workers extract shards of a manifest."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import ray

from pipeline.config import RaySettings, SecuritySettings
from pipeline.errors import ClusterFailed, NodeMismatch
from pipeline.jobs.cluster.connection import NAMESPACE, connected, room_for
from pipeline.jobs.cluster.left_shards import read_left
from pipeline.jobs.cluster.scheduling import Assignments, Shard
from pipeline.jobs.cluster.worker import Done, Failed, Node, Order, ShardWorker, versions
from pipeline.jobs.run_report import WorkDone
from pipeline.jobs.wire import pack
from pipeline.runtime.stage_times import StageTimes
from pipeline.store import ShardUnusable

_log = logging.getLogger(__name__)
# Shards per worker in the folder or in progress, beyond those assigned at once.
_WINDOW_PER_WORKER: Final = 4
_TICK_S: Final = 1.0
_DEATHS: Final = 3  # per worker without a finished shard in between, before the cluster is given up


class _Worker:
    """A worker of the cluster."""

    def __init__(self, name: str, order: Order, cpus: int, gpus: float, calls: int) -> None:
        self.name = name
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
        options |= {"max_concurrency": calls + 1, "scheduling_strategy": "SPREAD"}
        kind: Any = ray.remote(ShardWorker)
        actor = kind.options(name=name, namespace=NAMESPACE, **options)
        self.actor: Any = actor.remote(order)
        self.started: Any = self.actor.start.remote()
        self.node: str | None = None  # once started
        self.calls: dict[Any, int] = {}  # awaited answers, and their shards
        self._heard = time.monotonic()  # when it last answered, or had nothing to answer

    def extract(self, shard: Shard) -> None:
        if not self.calls:
            self._heard = time.monotonic()
        self.calls[self.actor.extract.remote(shard.number, pack(shard.manifest)[1])] = shard.number

    def finished(self, answer: Any) -> int:
        """The shard of an answer that arrived."""
        self._heard = time.monotonic()
        return self.calls.pop(answer)

    def silent_for(self) -> float:
        """Seconds an answer has been awaited, even for a shard that another worker finished; else 0."""
        return time.monotonic() - self._heard if self.calls else 0.0

    def end(self) -> None:
        ray.kill(self.actor, no_restart=True)


class RayEngine:
    """Runs extraction on a cluster, joined or started for the first shard."""

    def __init__(
        self,
        order: Order,
        starting: Callable[[], AbstractContextManager[None]],
        times: StageTimes | None = None,
    ) -> None:
        """`order` has the command's settings. `starting` wraps the wait for the first worker."""
        settings = order.settings
        self._settings: RaySettings = settings.ray
        self._folder = order.folder
        self._times = StageTimes() if times is None else times
        self._starting = starting
        model = settings.model  # workers run in another folder
        model = replace(model, weights_file=_absolute(model.weights_file), cache=_absolute(model.cache))
        # Workers need no master key.
        self._order = replace(order, settings=replace(settings, security=SecuritySettings(), model=model))
        self._cpus = 0
        self._workers: dict[str, _Worker] = {}
        self._wanted = 0
        self._deaths = 0  # since a shard was done
        self._alone_since = 0.0  # when no started worker was left
        self._answers: dict[str, Done] = {}  # each worker's last one, also of ended workers

    def run_shards(
        self, shards: Iterable[tuple[int, pa.Table]], advance: Callable[[int], None]
    ) -> Generator[tuple[int, pa.Table], None, None]:
        """As `LocalEngine.run_shards`, but takes shards already in the folder.

        Raises ClusterFailed, NodeMismatch, ShardFailed, BucketFailed, and the workers' errors.
        """
        with ExitStack() as stack:
            there = self._folder.shards()
            assignments = Assignments((Shard(k, rows, done=k in there) for k, rows in shards), 1)
            while (shard := assignments.first()) is not None:
                if not shard.done and not self._wanted:
                    self._start(assignments, stack)
                while not shard.done:
                    self._work(assignments, advance)
                try:
                    size, metadata = self._order.identity.embedding_size, self._order.metadata
                    table = read_left(self._folder, shard.number, shard.manifest, size, metadata)
                except ShardUnusable as exc:
                    self._folder.remove(shard.number)
                    assignments.made_again(shard, str(exc))
                    continue
                if not shard.told:
                    advance(len(shard.manifest))
                yield shard.number, table
                # The caller has committed the table.
                self._folder.remove(shard.number)
                assignments.taken(shard)
        self._folder.clear()

    def work_done(self) -> WorkDone:
        """What all workers did so far."""
        work = WorkDone()
        for done in self._answers.values():
            work = work.and_on(done.work)
        return replace(work, device=work.device and f"Ray ({self._wanted} x {work.device})")

    @property
    def cores(self) -> int:
        """Of all workers together."""
        return self._wanted * self._cpus

    @property
    def cpu_s(self) -> float:
        """Of all workers so far."""
        return sum(done.cpu_s for done in self._answers.values())

    def _start(self, assignments: Assignments, stack: ExitStack) -> None:
        """Joins or starts the cluster, starts the workers, and waits for the first."""
        with self._starting():
            stack.enter_context(connected(self._settings))
            self._wanted, self._cpus = room_for(self._settings)
            run = replace(self._order.settings.run, threads=self._cpus)
            settings = replace(self._order.settings, run=run)
            self._order = replace(self._order, settings=settings, sign=self._folder.leave_sign())
            stack.callback(self._end_workers)
            self._alone_since = time.monotonic()
            for _ in range(self._wanted):
                self._order_worker()
            while not any(worker.node for worker in self._workers.values()):
                self._await(assignments, lambda _: None)
        assignments.window = self._wanted * (self._settings.queue + _WINDOW_PER_WORKER)

    def _order_worker(self) -> None:
        name = f"facepipe-{self._order.metadata['run_id']}-{uuid.uuid4().hex[:8]}"
        order, settings = self._order, self._settings
        self._workers[name] = _Worker(name, order, self._cpus, settings.gpus, settings.queue)

    def _work(self, assignments: Assignments, advance: Callable[[int], None]) -> None:
        """Gives shards to free workers, and waits a moment for answers."""
        for worker in self._workers.values():
            alone = sum(each.node is not None for each in self._workers.values()) == 1
            while worker.node and len(worker.calls) < self._settings.queue:
                shard = assignments.give(worker.name, alone=alone)
                if shard is None:
                    break
                worker.extract(shard)
        self._await(assignments, advance)
        for worker in list(self._workers.values()):
            silent = worker.silent_for()
            if silent > self._settings.shard_timeout_s:
                self._lose(worker, f"it finished no shard for {silent:.0f} s (ray.shard_timeout_s)", assignments)

    def _await(self, assignments: Assignments, advance: Callable[[int], None]) -> None:
        of: dict[Any, _Worker] = {}
        for worker in self._workers.values():
            of |= dict.fromkeys(worker.calls or ([] if worker.node else [worker.started]), worker)
        ready, others = ray.wait(list(of), num_returns=1, timeout=_TICK_S)
        if others:  # answers during a commit count before a worker counts as silent
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        for answer in ready:
            worker = of[answer]
            if worker.name not in self._workers:
                continue  # given up for another answer
            try:
                found = ray.get(answer, timeout=_TICK_S)
            except ray.exceptions.RayTaskError:
                raise  # a bug of ours, in the worker
            except ray.exceptions.RayError as exc:
                reason = " ".join(str(exc).split())
                if "error raised in its creation task" in reason:  # it would be raised again
                    raise ClusterFailed(detail=f"a node cannot load facepipe: {reason[-400:]}") from exc
                self._lose(worker, reason[:600], assignments)
                continue
            if isinstance(found, Failed):
                raise found.raised()
            if isinstance(found, Node):
                self._admit(worker, found)
            else:
                self._deaths = 0
                self._note(worker, found)
                advance(assignments.finished(worker.name, worker.finished(answer)))
        self._require_worker()

    def _admit(self, worker: _Worker, node: Node) -> None:
        own = versions()
        for what, version in own.items():
            if node.versions.get(what) != version:
                found = f"{what} {node.versions.get(what)}"
                raise NodeMismatch(node=node.name, found=found, own=f"{what} {version}")
        worker.node = node.name

    def _note(self, worker: _Worker, done: Done) -> None:
        last = self._answers.get(worker.name)
        if last is not None and done.cpu_s < last.cpu_s:
            return  # two answers arrived in reverse order
        before: Mapping[str, tuple[int, float]] = last.stages if last else {}
        for stage, (calls, seconds) in done.stages.items():
            earlier = before.get(stage, (0, 0.0))
            self._times.add(stage, calls - earlier[0], seconds - earlier[1])
        self._answers[worker.name] = done

    def _lose(self, worker: _Worker, reason: str, assignments: Assignments) -> None:
        """Replaces a lost worker. Raises ClusterFailed if they keep ending."""
        where = worker.node or "a node that it had not told yet"
        _log.warning("A Ray worker on %s is gone: %s", where, reason)
        worker.end()
        del self._workers[worker.name]
        if worker.node and not any(each.node for each in self._workers.values()):
            self._alone_since = time.monotonic()
        assignments.lost(worker.name, f"the worker on {where} ended: {reason}")
        self._deaths += 1
        if self._deaths >= _DEATHS * self._wanted:
            detail = f"{self._deaths} workers ended without a shard done in between, the last on {where}: {reason}"
            raise ClusterFailed(detail=detail)
        self._order_worker()

    def _require_worker(self) -> None:
        if any(worker.node for worker in self._workers.values()):
            return
        limit = self._settings.start_timeout_s
        if time.monotonic() - self._alone_since > limit:
            free = {name: number for name, number in ray.available_resources().items() if name in ("CPU", "GPU")}
            needs = f"each needs {self._cpus} cores and {self._settings.gpus:g} GPUs, and {free or 'nothing'} is free"
            raise ClusterFailed(detail=f"no worker started within {limit:g} s (ray.start_timeout_s): {needs}")

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            worker.end()
        self._workers = {}


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
