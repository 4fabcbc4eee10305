"""The ASGI side of the admin API: checks what comes by the operation's types, and writes what goes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.errors import BadRequest, GatewayError, MethodNotAllowed, NotFound
from gateway.types import Principal
from gateway.web.body import read_body
from gateway.web.context import RequestContext
from gateway.web.operation import Operation
from gateway.web.sending import Headers, send_body
from gateway.wire import json_body

MAX_BODY = 2 * 2**20
"""Bytes: a policy's files are the longest."""

PRIVATE: Headers = [(b"cache-control", b"no-store")]
Model = TypeVar("Model", bound=BaseModel)


class Strict(BaseModel):
    """A body or a query that may have nothing else in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Told(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True)


@dataclass(frozen=True, slots=True)
class Request:
    context: RequestContext
    scope: Scope
    receive: Receive
    send: Send
    path: Mapping[str, Any]
    _query: BaseModel | None = None
    _body: BaseModel | None = None

    def query(self, kind: type[Model]) -> Model:
        return _as(kind, self._query)

    def body(self, kind: type[Model]) -> Model:
        return _as(kind, self._body)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not JSON."""

    body: bytes
    kind: str
    headers: Headers


Handle = Callable[[Request], Awaitable[BaseModel | Reply | None]]
"""None: it has answered itself."""
Refused = Callable[[Scope, Principal, GatewayError], Awaitable[None]]


def routes(operations: Iterable[tuple[Operation, Handle]], refused: Refused) -> list[Route]:
    """One for each path. ``refused`` is told of what a caller is refused."""
    by_path: dict[str, dict[str, tuple[Operation, Handle]]] = {}
    for operation, handle in operations:
        by_path.setdefault(operation.path, {})[operation.method] = (operation, handle)
    return [_Route(path, Resource(methods, refused), methods) for path, methods in by_path.items()]


class _Route(Route):
    """Leaves a method that it has not to a path whose pattern covers its own: ``DELETE /keys/a/rotate`` is about the
    key ``a/rotate``. Where there is none it answers for itself."""

    def __init__(self, path: str, resource: Resource, methods: Collection[str]) -> None:
        super().__init__(path, resource)
        self._taken = methods

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is Match.FULL and method_of(scope) not in self._taken:
            return Match.PARTIAL, found
        return match, found


def method_of(scope: Scope) -> str:
    return "GET" if scope["method"] == "HEAD" else str(scope["method"])


def must_be_enabled(scope: Scope) -> None:
    if not RequestContext.of(scope).runtime.policy.admin.enabled:
        raise NotFound(
            f"There is no path '{scope['path']}' here; the policy has no 'admin: {{enabled: true}}'."
        )


class Resource:
    """The methods of one path. They are there only where the policy says ``admin: {enabled: true}``."""

    def __init__(self, methods: Mapping[str, tuple[Operation, Handle]], refused: Refused) -> None:
        self._methods = methods
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        must_be_enabled(scope)
        method = method_of(scope)
        if method not in self._methods:
            allow = ", ".join(self._methods)
            raise MethodNotAllowed(f"'{scope['path']}' does not take {method}; use {allow}.", allow=allow)
        operation, handle = self._methods[method]
        try:
            request = Request(
                *(context, scope, receive, send, scope.get("path_params", {})),
                *(_read_query(operation, scope), await _read_body(operation, context, scope, receive)),
            )
            answer = await handle(request)
        except GatewayError as error:
            if context.principal is not None:
                await self._refused(scope, context.principal, error)
            raise
        if isinstance(answer, Reply):
            headers = [*PRIVATE, *answer.headers]
            await send_body(send, answer.body, kind=answer.kind.encode(), headers=headers)
        elif answer is not None:
            body = answer.model_dump_json(exclude_none=True).encode()
            await send_body(send, body, status=operation.status, headers=PRIVATE)


def _read_query(operation: Operation, scope: Scope) -> BaseModel | None:
    pairs = parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    raw: dict[str, Any] = {}
    many = _lists(operation.query)
    for name, value in pairs:
        if name in many:
            raw.setdefault(name, []).append(value)
        elif name in raw:
            raise BadRequest(f"'{name}' is given twice.", param=name, code="invalid_value")
        else:
            raw[name] = value
    if operation.query is None:
        if raw:
            name = next(iter(raw))
            raise BadRequest(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        return None
    return json_body.check(operation.query, raw)


def _lists(model: type[BaseModel] | None) -> set[str]:
    if model is None:
        return set()
    return {name for name, one in model.model_fields.items() if isinstance(one.get_default(), tuple)}


async def _read_body(
    operation: Operation, context: RequestContext, scope: Scope, receive: Receive
) -> BaseModel | None:
    data = await read_body(context.headers, receive, MAX_BODY)
    if operation.body is None:
        if data.strip():
            raise BadRequest(f"{operation.method} {scope['path']} takes no body.", code="invalid_value")
        return None
    return json_body.check(operation.body, json_body.read_json(data))


def _as(kind: type[Model], value: BaseModel | None) -> Model:
    if not isinstance(value, kind):
        raise TypeError(f"the operation has no {kind.__name__}")
    return value
