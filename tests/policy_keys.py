"""The keys of the policy: as its reference tells them, and as the schema has them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from gateway.lab.reference import Key, Row, rows
from gateway.policy.fields import keys, kind_of, models_in
from gateway.policy.schema import Backend, Guard

POLICIES = Path(__file__).parents[1] / "policies"
README = (POLICIES / "README.md").read_text()

KINDS = {
    section: {kind for model in models_in(union) if (kind := kind_of(model))}
    for section, union in (("backends.", Backend), ("guards.", Guard))
}


def documented() -> Mapping[Key, Row]:
    """Key → row of the README's tables."""
    return rows(README)


def in_schema() -> dict[tuple[str | None, str], Any]:
    """(kind of backend or guard, key path) → default, ``...`` where required. What all share stands under None."""
    found: dict[tuple[str | None, str], Any] = {}
    kind = None
    for path, owner in keys():
        kind = kind_of(owner) or (kind if path.startswith(("backends.<name>.", "guards.<name>.")) else None)
        field = owner.model_fields[path.rpartition(".")[2]]
        found[kind, path] = ... if field.is_required() else field.default
    for section, kinds in KINDS.items():
        for path in [path for kind, path in documented() if kind is None and path.startswith(section)]:
            defaults = [found.pop((kind, path)) for kind in kinds]
            assert all(default == defaults[0] for default in defaults), path
            found[None, path] = defaults[0]
    return found


def field_of(key: tuple[str | None, str]) -> FieldInfo:
    """Where the schema has a key."""
    owner = next(
        owner
        for path, owner in keys()
        if path == key[1] and (not key[0] or (kind_of(owner) or key[0]) == key[0])
    )
    return owner.model_fields[key[1].rpartition(".")[2]]


def named() -> dict[str, tuple[str | None, str]]:
    """The same keys by one text each: ``backends.<name>.api_key (openai)``."""
    return {f"{path} ({kind})" if kind else path: (kind, path) for kind, path in in_schema()}
