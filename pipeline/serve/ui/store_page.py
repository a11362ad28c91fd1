"""What there is: counts, runs with their reports, and what the threshold is expected to do."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from pipeline.errors import RouteUnknown
from pipeline.jobs.expectation import calibration_warning, expectation
from pipeline.report.page_data import registered_page
from pipeline.serve.request_parsing import Query
from pipeline.serve.responses import tagged_response
from pipeline.serve.ui.answers import address
from pipeline.serve.ui.context import Context, Visitor, count_of, stamp
from pipeline.serve.ui.people_list import Key, cursor, cursor_key
from pipeline.store import RunRow

_RUN_COUNT: Final = 50
_ORDER: Final = "runs"
# A report is one file with its style and its pictures in it, and nothing to run or to send.
_REPORT_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; sandbox"
)


@dataclass(frozen=True)
class StorePage:
    context: Context

    async def store(self, request: Request) -> Response:
        visitor = self.context.visitor(request)
        return await self.context.answer(lambda: self._store(visitor))

    async def runs(self, request: Request) -> Response:
        """The latest first."""
        visitor, query = self.context.visitor(request), Query(request)
        count, text = count_of(query, _RUN_COUNT), query.text("after")
        after = None if text is None else cursor_key(text, _ORDER, [[0.0, ""]])

        def work() -> dict[str, Any]:
            runs = [
                run
                for run in self.context.store.runs_of(visitor.session.account_id)
                if after is None or _key(run) > after
            ]
            more = len(runs) > count
            return {
                "runs": [self._run(visitor, run) for run in runs[:count]],
                **({"next": cursor(_ORDER, _key(runs[count - 1]))} if more else {}),
            }

        return await self.context.answer(work)

    async def report(self, request: Request) -> Response:
        """A run's report as it was written. Raises RouteUnknown where there is none that may be shown."""
        visitor, run_id = self.context.visitor(request), request.path_params["run_id"]

        def work() -> bytes:
            for run in self.context.store.runs_of(visitor.session.account_id):
                if run.run_id == run_id and (file := self._report(run)) is not None:
                    with suppress(FileNotFoundError):  # it went this moment
                        return file.read_bytes()
            raise RouteUnknown()

        data = await self.context.calls.run(work)
        tag = hashlib.sha256(data).hexdigest()[:32]
        answer = tagged_response(request, data, "text/html; charset=utf-8", tag, "private, no-cache")
        answer.headers["Content-Security-Policy"] = _REPORT_POLICY
        return answer

    def _store(self, visitor: Visitor) -> dict[str, Any]:
        store, identity = self.context.store, self.context.store.identity
        rows = self.context.listed(visitor).rows.values()
        photos, faces, picture_bytes = store.counts_of(*visitor.place)
        threshold, anchor = self.context.settings.match.threshold, self.context.calibration.anchor
        records = sum(row.merged + 1 for row in rows)
        warning = calibration_warning(identity)
        directories = [row for row in store.directories() if row.account_id == visitor.session.account_id]
        return {
            "people": len(rows),
            "hidden": sum(row.hidden for row in rows),
            "unnamed": sum(row.name is None for row in rows),
            "records": records,
            "photos": photos,
            "faces": faces,
            "directories": [{"name": row.name, "identities": row.identities} for row in directories],
            "disk": {"picturesBytes": picture_bytes, "freeBytes": shutil.disk_usage(store.path).free},
            "model": {
                "embedder": identity.embedder,
                "weights": identity.weights,
                "mode": identity.mode,
                "encrypted": identity.encrypted,
                **({} if anchor is None else {"calibration": anchor}),
            },
            "threshold": threshold,
            "rates": self.context.calibration.thresholds,
            "expectation": str(expectation(self.context.calibration, threshold, records)),
            **({} if warning is None else {"warning": warning}),
        }

    def _report(self, run: RunRow) -> Path | None:
        """The report of a run over a folder whose photos may be shown: it names their paths. A manifest may name photos
        anywhere."""
        may_show = run.source_kind == "folder" and self.context.photos.may_show(run.source)
        return registered_page(self.context.store, run.run_id) if may_show else None

    def _run(self, visitor: Visitor, run: RunRow) -> dict[str, Any]:
        shown = self.context.photos.may_show(run.source)
        return {
            "id": run.run_id,
            "source": run.source if shown else PurePath(run.source).name,
            "kind": run.source_kind,
            "state": run.state,
            "rows": run.rows,
            "directory": run.directory,
            "startedAt": stamp(run.started_at),
            **({} if run.finished_at is None else {"finishedAt": stamp(run.finished_at)}),
            "report": None if self._report(run) is None else address(visitor, f"runs/{run.run_id}/report"),
        }


def _key(run: RunRow) -> Key:
    return [-run.started_at.timestamp(), run.run_id]
