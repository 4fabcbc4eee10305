"""``/admin/api/keys``: list, create, change, rotate, revoke keys. A key's text is in one answer, and kept nowhere."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import Field

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.control.client import TIMEOUT
from gateway.errors import BadRequest, Conflict, NotFound
from gateway.identity.api_keys import hash_key, make_key
from gateway.policy.key_store import KeyEntry, entries, revoked_hashes, version_of
from gateway.policy.problems import PolicyError
from gateway.policy.schema import DEFAULT_TIER, Budget, Key, Policy, QuotaSettings, Scope, Tenant, Tier
from gateway.policy.schema.values import Day, Duration, Name, Network, Text
from gateway.residency import stays_in
from gateway.web.operation import Operation

_UNKNOWN = Tenant()
_LOOK_EVERY = 0.05


class NewKey(Strict):
    id: Name | None = None
    """Made up where there is none."""
    tenant: Name = "default"
    tier: Name | None = None
    models: Annotated[tuple[Text, ...], Field(min_length=1)] = ("*",)
    expires: Day | None = None
    allow_ips: tuple[Network, ...] = ()
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("inference",)
    residency: tuple[Name, ...] = ()
    quotas: QuotaSettings = QuotaSettings()
    budget: Budget = Budget()


class Rotation(Strict):
    overlap: Duration = Field(default=86_400.0, validate_default=False, json_schema_extra={"default": "24h"})
    """For how long the key as it is now is still accepted."""


class KeyChange(Strict):
    """What is not given stays; null takes it away."""

    version: str | None = None
    """Of the key as it was read: where it was changed since, the change is refused (409)."""
    tier: Name | None = None
    models: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    expires: Day | None = None
    allow_ips: tuple[Network, ...] | None = None
    residency: tuple[Name, ...] | None = None
    quotas: QuotaSettings | None = None
    budget: Budget | None = None


class ChangedKey(Told):
    id: str
    file: str
    version: str
    in_force: bool
    """Every worker holds it to its new limits."""


class ListedKey(Told):
    id: str
    tenant: str
    tier: str
    own_tier: str | None = None
    """Where it has another than its tenant."""
    models: list[str]
    scopes: list[str]
    expires: str | None = None
    expired: bool
    allow_ips: list[str]
    quotas: dict[str, Any]
    budget: dict[str, Any]
    residency: list[str]
    """Regions in which its own entry says that its content stays."""
    stays_in: list[str] | None = None
    """Those that the residencies of its tenant and of the policy leave of them; left out: anywhere; empty: nowhere."""
    sha256: str | None = None
    """The beginning of the key's hash; not for who signed in by an identity provider."""
    version: str
    """Of all that is said of it, for ``changeKey``."""
    changeable: bool
    """Its limits can be changed, and it can be rotated, here: it is in a file that the gateway may write."""
    rotated_until: str | None = None
    """The key before the last rotation is accepted until then."""
    where: str
    """File and line."""


class Bounds(Told):
    """What holds for all keys of a tenant, or of a tier, together."""

    quotas: dict[str, Any]
    budget: dict[str, Any]
    residency: tuple[str, ...] = ()
    local_only: bool = False


class Keys(Told):
    keys: list[ListedKey]
    tenants: dict[str, Bounds]
    """Of those that the policy names."""
    tiers: dict[str, Bounds]
    residency: tuple[str, ...]
    """The policy's, for everybody."""


class MadeKey(Told):
    id: str
    key: str
    """It is shown this once."""
    file: str
    in_force: bool
    """Every worker accepts it."""
    previous_until: str | None = None


class RevokedKey(Told):
    id: str
    file: str
    in_force: bool
    """Every worker refuses it."""
    keys_left: int
    problems: str | None = None
    """What is wrong with the policy otherwise."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    def listed() -> list[ListedKey]:
        folder = site.keys.read_valid()
        revoked = revoked_hashes(folder)
        policy = site.current().policy
        return [
            _listed(one, policy, site) for one in entries(folder) if one.text("sha256").lower() not in revoked
        ]

    async def all_keys() -> list[ListedKey]:
        try:
            return await asyncio.to_thread(listed)
        except PolicyError as error:
            raise Conflict(f"The policy's files are invalid: {error}") from None

    async def show(request: Request) -> Keys:
        keys = await all_keys()
        if request.context.caller().key_id.startswith("oidc:"):
            keys = [key.model_copy(update={"sha256": None}) for key in keys]
        policy = request.context.runtime.policy
        return Keys(
            keys=keys,
            tenants={name: _bounds(one) for name, one in policy.tenants.items()},
            tiers={name: _bounds(one) for name, one in policy.tiers.items()},
            residency=policy.residency,
        )

    async def create(request: Request) -> MadeKey:
        wanted = request.body(NewKey)
        entry = wanted.model_dump(mode="json", exclude_unset=True)
        key = make_key()
        entry = {
            "id": wanted.id or f"key-{secrets.token_hex(3)}",
            "sha256": hash_key(key),
            "tenant": wanted.tenant,
            "models": list(wanted.models),
            **_set(entry),
        }
        if wanted.expires is not None and wanted.expires <= datetime.now(UTC).date():
            raise Conflict("'expires' is not in the future; the key would never work.")
        Key.model_validate(entry)
        result = await site.change(request.context, request.scope, do="create", entry=entry)
        return MadeKey(id=entry["id"], key=key, file=result["file"], in_force=result.get("confirmed", False))

    async def rotate(request: Request) -> MadeKey:
        key_id, key = await existing(request), make_key()
        overlap = request.body(Rotation).overlap
        result = await site.change(
            request.context, request.scope, do="rotate", id=key_id, sha256=hash_key(key), overlap=overlap
        )
        return MadeKey(
            id=key_id,
            key=key,
            file=result["file"],
            in_force=result.get("confirmed", False),
            previous_until=result["until"],
        )

    async def change(request: Request) -> ChangedKey:
        key_id, wanted = await existing(request), request.body(KeyChange)
        fields = wanted.model_dump(mode="json", exclude_unset=True, exclude={"version"})
        if not fields:
            raise BadRequest("Name what is to change.", code="invalid_value")
        if wanted.expires is not None and wanted.expires <= datetime.now(UTC).date():
            raise Conflict("'expires' is not in the future. To end a key now, revoke it.")
        result = await site.change(
            request.context, request.scope, do="change_key", id=key_id, fields=fields, version=wanted.version
        )
        in_force = result.get("confirmed", False) and await _in_all_workers(site, key_id, result["version"])
        return ChangedKey(id=key_id, file=result["file"], version=result["version"], in_force=in_force)

    async def revoke(request: Request) -> RevokedKey:
        key_id = await existing(request)
        result = await site.change(request.context, request.scope, do="revoke", id=key_id)
        return RevokedKey(
            id=key_id,
            file=result["file"],
            in_force=result.get("confirmed", False),
            keys_left=result["left"],
            problems=result["problems"] or None,
        )

    async def existing(request: Request) -> str:
        wanted = str(request.path["id"])
        if wanted not in {key.id for key in await all_keys()}:
            raise NotFound(f"No key has the id '{wanted}'.")
        return wanted

    return [
        (operation("GET", "/keys", "listKeys", "The keys, without their texts", Keys, errors=(409,)), show),
        (
            operation(
                "POST", "/keys", "createKey", "Make a key", MadeKey, body=NewKey, status=201, errors=(409,)
            ),
            create,
        ),
        (
            operation(
                *(
                    "POST",
                    "/keys/{id:path}/rotate",
                    "rotateKey",
                    "Replace a key; both work for a while",
                    MadeKey,
                ),
                body=Rotation,
                errors=(404, 409),
            ),
            rotate,
        ),
        (
            operation(
                *("PATCH", "/keys/{id:path}", "changeKey", "Change a key's limits", ChangedKey),
                body=KeyChange,
                errors=(404, 409),
            ),
            change,
        ),
        (
            operation(
                *("DELETE", "/keys/{id:path}", "revokeKey", "Revoke a key", RevokedKey), errors=(404, 409)
            ),
            revoke,
        ),
    ]


async def key_version(site: Site, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Which version of a key this worker holds its callers to, for the others (``gateway.control.peers``)."""
    wanted = asked.get("id")
    found = next((key for key in site.current().policy.keys if key.id == wanted), None)
    return {"version": None if found is None else version_of(found)}


async def _in_all_workers(site: Site, key_id: str, version: str) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            asked = {"do": "key", "id": key_id}
            while True:
                own = await key_version(site, asked)
                if {one.get("version") for one in (own, *await site.peers.ask_others(asked))} == {version}:
                    return True
                await asyncio.sleep(_LOOK_EVERY)
    return False


def _bounds(owner: Tenant | Tier) -> Bounds:
    limits = {"quotas": _dump(owner.quotas), "budget": _dump(owner.budget)}
    if isinstance(owner, Tier):
        return Bounds(**limits)
    return Bounds(**limits, residency=owner.residency, local_only=owner.local_only)


def _dump(limits: QuotaSettings | Budget) -> dict[str, Any]:
    return limits.model_dump(exclude_unset=True)


def _listed(entry: KeyEntry, policy: Policy, site: Site) -> ListedKey:
    key = Key.model_validate(entry.content)
    tenant = policy.tenants.get(key.tenant, _UNKNOWN)
    today: date = datetime.now(UTC).date()
    return ListedKey(
        id=key.id,
        tenant=key.tenant,
        tier=key.tier or tenant.tier or DEFAULT_TIER,
        own_tier=key.tier,
        models=list(key.models),
        scopes=list(key.scopes),
        expires=key.expires.isoformat() if key.expires else None,
        expired=key.expires is not None and key.expires <= today,
        allow_ips=list(key.allow_ips),
        quotas=_dump(key.quotas),
        budget=_dump(key.budget),
        residency=list(key.residency),
        stays_in=stays_in(policy.residency, tenant.residency, key.residency),
        sha256=key.sha256[:12],
        version=version_of(key),
        changeable=site.keys.can_change(entry),
        rotated_until=_later(key),
        where=str(entry.location),
    )


def _later(key: Key) -> str | None:
    if key.previous is None or key.previous.until <= datetime.now(UTC):
        return None
    return key.previous.until.isoformat(timespec="seconds")


def _set(entry: dict[str, Any]) -> dict[str, Any]:
    """What was given, as it is written to a file."""
    return {name: value for name, value in entry.items() if name != "id" and value not in (None, {}, [])}
