"""Handlers of /healthz, /readyz and /metrics, which need no credentials."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import NotReady
from pipeline.identities.batcher import RETRY_AFTER_S
from pipeline.serve.encoding import json_response
from pipeline.serve.metrics import Metrics
from pipeline.serve.work_pool import WorkPool


class Health:
    """`ready` says whether requests can be answered now; it may block."""

    def __init__(self, metrics: Metrics, ready: Callable[[], bool], calls: WorkPool) -> None:
        self._metrics = metrics
        self._ready = ready
        self._calls = calls

    async def alive(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        if not await self._calls.run(self._ready):
            raise NotReady(retry_after_s=RETRY_AFTER_S)
        return json_response({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        text = await self._calls.run(self._metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4, "Cache-Control": "no-store"})
