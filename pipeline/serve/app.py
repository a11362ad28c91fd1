"""The ASGI application: all routes, their middleware and their error handlers over one IdentityService."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from pipeline.config import ServeSettings, Settings, listed
from pipeline.errors import FacepipeError, MethodUnknown, RequestError, RouteUnknown, UsageError
from pipeline.people.service import IdentityService
from pipeline.runtime.threads import usable_cores
from pipeline.serve import handlers
from pipeline.serve.auth import Authenticator
from pipeline.serve.context import Context
from pipeline.serve.hosts import head_check
from pipeline.serve.metrics import Metrics
from pipeline.serve.middleware import Handler, RequestMiddleware, error_log, named
from pipeline.serve.request_body import BodyReader, drained
from pipeline.serve.responses import error_response, request_id
from pipeline.serve.serializer import CLOUD, Serializer, image_prefix
from pipeline.serve.thread_pool import BoundedThreadPool
from pipeline.serve.ui.context import PageContext
from pipeline.serve.ui.routes import ui_routes
from pipeline.serve.ui.sessions import Sessions
from pipeline.store import LocalStore

_POST_THREADS: Final = 128
_CALL_THREADS: Final = 8
_CALL_QUEUE: Final = 256
_ORIGINAL_THREADS: Final = 2  # for photos in the web UI
_MAX_AUTH_THREADS: Final = 4  # for new credentials, and as many for known ones; each check takes 32 MiB
_MAX_BODIES: Final = 16  # of the largest size in memory at once
_MAX_DRAINED: Final = 8  # times the largest body: read and dropped, so that the sender sees the answer

logging.getLogger("facepipe").addHandler(logging.NullHandler())


def make_authenticator(client: LocalStore) -> Authenticator:
    """Verifies credentials against the store's accounts."""
    threads = max(1, min(_MAX_AUTH_THREADS, usable_cores() // 2))  # a flood of checks leaves half of the cores
    return Authenticator(client.credentials, threads=threads)


def make_app(
    service: IdentityService,
    client: LocalStore,
    settings: Settings,
    *,
    auth: Authenticator,
    ready: Callable[[], bool],
) -> Starlette:
    """The HTTP contract as an ASGI application. The end of its lifespan waits for work in progress.

    `ready` determines the answer of /readyz. Raises UsageError if cloud hosting lacks a public address or encrypted
    images.
    """
    serve = settings.serve
    if serve.hosting == CLOUD and not client.identity.encrypted:
        raise UsageError(message="Cloud hosting needs a store with encrypted images: make one with --encrypt.")
    # A thread per post, as posts mostly wait: for the models, a directory, or the disk.
    room = (serve.workers or 2 * usable_cores()) + serve.queue_images
    threads = min(room, _POST_THREADS)
    posts = BoundedThreadPool("posts", threads=threads, queue=room - threads)
    calls = BoundedThreadPool("calls", threads=_CALL_THREADS, queue=_CALL_QUEUE)
    bodies = BodyReader(
        max_bytes=serve.max_body_bytes,
        timeout_s=serve.body_timeout_s,
        total_bytes=_MAX_BODIES * serve.max_body_bytes,
    )

    def gauges() -> dict[str, tuple[str, float]]:
        directories = service.directories.all()
        return {
            "directories": ("Directories that hold an identity.", len(directories)),
            "identities": ("References in the index.", sum(map(len, directories))),
            "index_bytes": ("Memory of the index.", sum(each.memory_bytes for each in directories)),
            "queued_images": ("Images that wait for the models.", service.batcher.queued),
            "pending_posts": ("Posts at work or waiting for a thread.", posts.pending),
            "pending_calls": ("Other requests at work or waiting for a thread.", calls.pending),
            "body_bytes": ("Memory of the bodies in hand.", bodies.budget.taken),
        }

    metrics = Metrics(gauges, service.batcher.stage_s)
    serializer = Serializer(image_prefix(serve))
    originals = BoundedThreadPool("originals", threads=_ORIGINAL_THREADS, queue=_CALL_QUEUE)
    deciding = BoundedThreadPool("deciding", threads=1, queue=1)
    sessions = Sessions(idle_s=settings.ui.idle_s, session_s=settings.ui.session_s)
    auth.on_drop.append(sessions.drop)
    context = PageContext(
        service, client, settings, auth, bodies, posts, calls, serializer, metrics, ready, originals, deciding, sessions
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        for pool in (posts, calls, originals, deciding, auth):
            pool.close()

    routes = [*_contract(context), *(ui_routes(context) if settings.ui.enabled else ())]
    app = Starlette(
        routes=[Route(path, named(path, handler), methods=[method]) for method, path, handler in routes],
        middleware=[
            Middleware(drained, max_bytes=_MAX_DRAINED * serve.max_body_bytes),
            Middleware(RequestMiddleware, metrics=metrics, head_error=head_check(serve)),
            *_cors(serve),
        ],
        exception_handlers={FacepipeError: _failed, HTTPException: _unknown},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _cors(settings: ServeSettings) -> list[Middleware]:
    """Allows web pages of the configured origins. Credentials are in a header, which browsers never send by themselves,
    so even `*` gives no page an account."""
    if settings.cors_origins is None:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=listed(settings.cors_origins),
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=["ETag", "Retry-After", "X-Request-Id"],
        )
    ]


def _contract(context: Context) -> list[tuple[str, str, Handler]]:
    """Method, path and handler of each route of the contract and the health checks. Starlette answers HEAD for every
    GET."""
    route = partial(context.route, context.call)
    return [
        ("POST", "/people", partial(handlers.post, context)),
        ("GET", "/people", route(handlers.people)),
        ("GET", "/rootpeople", route(handlers.roots)),
        ("GET", "/people/external/{external_id:path}", route(handlers.by_external_id)),
        ("GET", "/people/{person_id}", route(handlers.person)),
        ("PUT", "/people/{person_id}", partial(handlers.put, context)),
        ("DELETE", "/people/{person_id}", route(handlers.delete)),
        ("PUT", "/merge", route(handlers.merge)),
        ("PUT", "/unmerge", route(handlers.unmerge)),
        ("GET", "/person/{person_id}/face", route(handlers.face)),
        ("GET", "/obj/imagekey", route(handlers.image_key)),  # before /obj/{guid}: the name is reserved
        ("GET", "/imagekey", route(handlers.image_key)),
        ("GET", "/obj/{guid}", route(handlers.stored_object)),
        ("GET", "/changes", route(handlers.changes)),
        ("GET", "/healthz", handlers.healthz),
        ("GET", "/readyz", partial(handlers.readyz, context)),
        ("GET", "/metrics", partial(handlers.metrics, context)),
        ("GET", "/docs", handlers.docs),
        ("GET", "/openapi.json", handlers.openapi),
    ]


async def _failed(request: Request, error: Exception) -> Response:
    """Answers one of the pipeline's own errors."""
    assert isinstance(error, FacepipeError)
    if error.http_status >= 500 and not isinstance(error, RequestError):
        error_log.error("id=%s %s: %s", request_id(request.scope), error.code, error, exc_info=error)
    return error_response(request.scope, error)


async def _unknown(request: Request, error: Exception) -> Response:
    """Answers unknown routes and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == MethodUnknown.http_status:
        allowed = {"Allow": ", ".join(_allowed_methods(request.scope))}
        return error_response(request.scope, MethodUnknown(method=request.method), allowed)
    return error_response(request.scope, RouteUnknown())


def _allowed_methods(scope: Scope) -> list[str]:
    """Of all routes with this path: Starlette only names those of the first."""
    routes = [route for route in scope["app"].routes if route.matches(scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods})
