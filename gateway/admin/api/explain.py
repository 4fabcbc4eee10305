"""``/admin/api/explain``: what would happen to a request now, by this worker's own state. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.children.process_pool import ProcessPool
from gateway.policy.loader import Loaded
from gateway.runtime.runtime import Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.web.operation import Operation

if TYPE_CHECKING:
    from gateway.lab.explain.dry_run import DryRun
    from gateway.lab.policy_lines import PolicyLines

_Header = Annotated[str, Field(max_length=4096)]


class ExplainBody(Strict):
    key: Annotated[str, Field(min_length=1, max_length=16_384)]
    """An API key's id; or the key itself, or a token."""
    body: dict[str, Any]
    """The request's."""
    path: Annotated[str, Field(max_length=200)] | None = None
    """``/v1/chat/completions``, ``/v1/messages``, ``/v1/responses`` …; else by what is in the body."""
    headers: dict[str, _Header] = Field(default={}, max_length=32)
    """The request's own, such as ``cache-control``."""


class Explained(Told):
    asked: dict[str, Any]
    outcome: dict[str, Any]
    """``status`` is null where a model would be asked."""
    steps: list[dict[str, Any]]
    """What each stage decides, with the lines of the policy that say so, and what was not done and why."""
    assumed: list[str]
    """What is not known, and what was taken in its place."""
    generation: int
    """Of the policy in force."""


class Explainer:
    """This worker's."""

    def __init__(self, state: WorkerState, pool: ProcessPool, loaded: Callable[[], Loaded | None]) -> None:
        """``pool`` is where long bodies are parsed, ``loaded`` is the policy in force, with its files."""
        self._state = state
        self._pool = pool
        self._loaded = loaded
        self._dry: DryRun | None = None
        self._lines: tuple[Loaded, PolicyLines] | None = None

    async def explain(self, runtime: Runtime, asked: ExplainBody) -> dict[str, Any]:
        # Loaded for who asks: requests to models do without it.
        from gateway.lab.explain.dry_run import DryRun
        from gateway.lab.explain.explain import explain
        from gateway.lab.explain.paths import path_of
        from gateway.lab.explain.question import Question
        from gateway.lab.policy_lines import PolicyLines

        loaded = self._loaded()
        if loaded is None:
            raise RuntimeError("no policy has been applied yet")
        if self._dry is None or self._dry.runtime is not runtime:
            self._dry = DryRun(runtime, self._state, self._pool, at_rest=False)
        if self._lines is None or self._lines[0] is not loaded:
            self._lines = (loaded, PolicyLines(loaded, self._state.env, beside=self._state.folder))
        body = orjson.dumps(asked.body)
        headers = {"content-type": "application/json", **asked.headers}
        question = Question(asked.key, body, asked.path or path_of(body), headers)
        explanation = await explain(self._dry, question, loaded, self._lines[1])
        return explanation.data()


def operations(site: Site, explainer: Explainer) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> Explained:
        told = await explainer.explain(request.context.runtime, request.body(ExplainBody))
        return Explained(**told, generation=site.generation())

    about = "What would happen to a request now; nothing is sent or counted"
    return [(operation("POST", "/explain", "explainRequest", about, Explained, body=ExplainBody), show)]
