"""``/v1/adapters``: LoRA adapters of models, for their tenant and those that it shares them with."""

from __future__ import annotations

import orjson
from starlette.types import Receive, Scope, Send

from gateway.adapters.adapter import Adapter
from gateway.adapters.derived import targets_of
from gateway.adapters.room import AdapterRoom
from gateway.adapters.uploads import Asked
from gateway.adapters.wire_form import CreateAdapterBody, write_adapter, write_deleted, write_list
from gateway.errors import BadRequest, Conflict, NotFound, UnknownModel
from gateway.runtime.runtime import Adapted
from gateway.types import Json
from gateway.web.body import read_body
from gateway.web.context import RequestContext
from gateway.web.counted import counted
from gateway.web.sending import send_body
from gateway.wire import json_body

NAME = "adapters"
"""Under which limits know these requests."""
MAX_BODY = 2**16


class Adapters:
    """GET and POST. All raise ``NotFound`` where the policy has none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with counted(scope, NAME) as headers:
            if scope["method"] == "POST":
                hidden = frozenset(
                    one.model for one in _adapted(scope).listed(RequestContext.of(scope).caller())
                )
                adapter = await _create(scope, receive)
                told = write_adapter(adapter, hides_listed=adapter.model in hidden)
                await send_body(send, orjson.dumps(told), headers=headers)
            else:
                found = _room(scope).catalogue.of(_tenant(scope))
                await send_body(send, orjson.dumps(write_list(found)), headers=headers)


class OneAdapter:
    """GET and DELETE. Only its owner deletes one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wanted, room, tenant = scope["path_params"]["adapter_id"], _room(scope), _tenant(scope)
        async with counted(scope, NAME) as headers:
            if scope["method"] == "DELETE":
                if not await room.delete(tenant, wanted):
                    raise _not_found(wanted)
                body: Json = write_deleted(wanted)
            else:
                adapter = room.catalogue.get(wanted)
                if adapter is None or not adapter.is_for(tenant):
                    raise _not_found(wanted)
                body = write_adapter(adapter)
            await send_body(send, orjson.dumps(body), headers=headers)


async def _create(scope: Scope, receive: Receive) -> Adapter:
    room, context = _room(scope), RequestContext.of(scope)
    policy, caller = context.runtime.policy, context.caller()
    data = await read_body(context.headers, receive, MAX_BODY)
    asked = json_body.check(CreateAdapterBody, json_body.read_json(data, policy.limits))
    base = policy.resolve(asked.model)
    if base is None or not (caller.may_use(base) or caller.may_use(asked.model)):
        raise UnknownModel.named(asked.model)
    if not targets_of(policy, base):
        raise BadRequest(
            f"The model '{asked.model}' takes no adapters: none of its backends is under 'adapters.servers' of the "
            "gateway's policy.",
            param="model",
            code="adapters_unsupported",
        )
    name = f"{base}:{asked.name}"
    if policy.resolve(name) is not None:
        raise Conflict(
            f"'{name}' is a model of this gateway's policy. Choose another name.",
            param="name",
            code="adapter_exists",
        )
    return await room.create(
        Asked(
            caller.tenant,
            caller.key_id,
            asked.name,
            base,
            asked.config_file_id,
            asked.weights_file_id,
            asked.sha256,
            tuple(dict.fromkeys(asked.shared_with)),
        )
    )


def _room(scope: Scope) -> AdapterRoom:
    return _adapted(scope).room


def _adapted(scope: Scope) -> Adapted:
    adapters = RequestContext.of(scope).runtime.adapters
    if adapters is None:
        raise NotFound("This gateway takes no adapters: its policy has no 'adapters'.")
    return adapters


def _tenant(scope: Scope) -> str:
    return RequestContext.of(scope).caller().tenant


def _not_found(id: str) -> NotFound:
    return NotFound(f"No such Adapter object: {id[:80]}", param="id")
