"""The composition root: settings in, an ASGI app out. Everything is wired here and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware

from gateway.observe.metrics import Metrics
from gateway.policy.reload import PolicyWatcher
from gateway.runtime import Generations
from gateway.settings import Settings
from gateway.web import routes
from gateway.web.auth import Auth
from gateway.web.door import Door


def build_app(settings: Settings) -> Starlette:
    """Loads the policy when it starts; raises ``gateway.policy.problems.PolicyError`` then if it is not sound."""
    metrics = Metrics()
    generations = Generations(
        metrics,
        folder=settings.policies,
        state_dir=settings.state_dir,
        workers=settings.workers,
        dev_key_sha256=settings.dev_key_sha256,
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watcher = PolicyWatcher(
            settings.policies,
            generations.take_up,
            on_error=metrics.policy_errors.inc,
            on_revoked=generations.revoke,
            fallback=settings.last_good,
        )
        try:
            async with watcher:
                yield
        finally:
            await generations.aclose()

    app = Starlette(
        routes=routes.build(metrics, max_body=settings.max_body_bytes),
        middleware=[
            Middleware(Door, current=generations.current, metrics=metrics, error_writer=routes.error_writer),
            Middleware(Auth, public=routes.PUBLIC),
        ],
        exception_handlers={HTTPException: routes.translate},
        lifespan=lifespan,
    )
    # A path with a slash too many is not there, rather than somewhere else.
    app.router.redirect_slashes = False
    return app
