"""A policy folder, read into one checked ``Policy``; everything wrong with it is found at once, with file and line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gateway import packages
from gateway.policy import prices, yaml_tree
from gateway.policy.content import is_pattern
from gateway.policy.explain import explain
from gateway.policy.fields import locate
from gateway.policy.files import PolicyFile, is_table, read_files
from gateway.policy.folder import find, joined, location_of
from gateway.policy.key_table import KeyTable, KeyTableReader, check_tables, expired_keys
from gateway.policy.prices import CatalogPrice
from gateway.policy.problems import KeyPath, Location, PolicyError, Problem, suggestion
from gateway.policy.rules import table as rules
from gateway.policy.rules.residency import nothing_in_region, place_outside
from gateway.policy.rules.subject import Draft, Valid
from gateway.policy.schema import (
    BACKEND_SECRETS,
    DEFAULT_TIER,
    BedrockBackend,
    EngineBackend,
    Key,
    Policy,
    Replicated,
)
from gateway.policy.yaml_tree import Map, Scalar

_SHAPES = {"extra_forbidden": "unknown-key", "missing": "missing-key"}
"""What pydantic calls it, and what it is called here; all else is a value that is none."""
DRAINED = "it is drained"
"""Why a backend is disabled that ``drained`` names."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy, and what else loading it found."""

    policy: Policy
    disabled: Mapping[str, str]
    """Backends that stay unused, and why: ``{"openai": "OPENAI_API_KEY is not set"}``."""
    fingerprint: str
    """Equal for two loads of the same content; comments and layout do not count."""
    sources: tuple[PolicyFile, ...]
    """The files as they were read."""
    warnings: tuple[Problem, ...] = ()
    """Likely mistakes in a valid policy."""
    listed: Mapping[str, CatalogPrice] = field(default_factory=dict)
    """Prices that the catalogue gave, by ``backend/model``."""

    @property
    def enabled(self) -> frozenset[str]:
        """The backends that are used."""
        return frozenset(self.policy.backends.keys() - self.disabled.keys())


def load_policy(
    directory: Path,
    env: Mapping[str, str],
    *,
    also: Sequence[Path] = (),
    with_files: bool = False,
    tables: KeyTableReader | None = None,
) -> Loaded:
    """Read all of a folder's ``*.yaml`` and ``*.yml`` files, and those of ``also`` that are there, as one policy.

    Top-level mappings and lists of several files are joined. ``with_files``: also check that the files it names
    exist, and that the engines it launches would start. ``tables`` remembers the keys that it read before. Raises
    ``PolicyError`` with every problem found.
    """
    return policy_of(
        read_files(directory, also), env, directory=directory, with_files=with_files, tables=tables
    )


def policy_of(
    files: Iterable[PolicyFile],
    env: Mapping[str, str],
    *,
    directory: Path | None = None,
    with_files: bool = False,
    tables: KeyTableReader | None = None,
) -> Loaded:
    """The policy that these files make. ``directory`` is the folder in which the files are that they name, and
    ``with_files`` says that these must exist; ``tables`` remembers the keys that it read before."""
    folder = joined(files, env, tables)
    problems = list(folder.problems)
    content = yaml_tree.data(folder.root)
    disabled = dict(_without_key(folder.root, content))
    reported = set()
    for path, location, scalar in yaml_tree.scalars(folder.root):
        if scalar.broken:
            reported.add(path)
        if scalar.unset and not _is_backend_key(path):
            reported.add(path)
            problems.append(Problem.at(location, _unset(scalar.unset), path, "unset-variable"))
    policy = None
    try:
        policy = _validated(folder.root, content)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            if details["type"] == "too_short" and details["input"]:
                continue  # pydantic counts valid entries only, and reports the others
            path, message = explain(details)
            # A key that an unreadable file may have is not missing, and an unset variable was reported already.
            if path not in reported and (folder.complete or details["type"] != "missing" or len(path) > 1):
                rule = _SHAPES.get(details["type"], "invalid-value")
                problems.append(Problem.at(location_of(folder.root, path), message, path, rule))
    if folder.complete:
        for diagnostic in rules.errors(Draft(content, directory if with_files else None)):
            message = diagnostic.message
            if diagnostic.clash:
                message += f" (the other is at {location_of(folder.root, diagnostic.clash)})"
            where = location_of(folder.root, diagnostic.path)
            problems.append(Problem.at(where, message, diagnostic.path, diagnostic.rule))
    if policy is not None and folder.tables:
        problems += check_tables(folder.tables, *_references(folder.root, policy, content))
    if policy is None or problems:
        raise PolicyError(problems)
    disabled |= {name: DRAINED for name in policy.drained if name in policy.backends.keys() - disabled.keys()}
    in_yaml = policy.keys
    if folder.tables:
        policy = _with_tables(policy, folder.tables)
    if any(
        isinstance(one, EngineBackend) and one.launch for one in policy.backends.values()
    ) and packages.missing(packages.ENGINE):
        disabled |= {
            name: packages.no_engine()
            for name, one in policy.backends.items()
            if isinstance(one, EngineBackend) and one.launch
        }
    if packages.missing(packages.BEDROCK):
        disabled |= {
            name: packages.no_bedrock()
            for name, one in policy.backends.items()
            if isinstance(one, BedrockBackend) and one.api_key is None
        }
    if packages.missing(packages.DNS):
        disabled |= {
            name: packages.no_dns()
            for name, one in policy.backends.items()
            if isinstance(one, Replicated) and one.replicas is not None and one.replicas.takes_dns
        }
    if packages.missing(packages.KUBERNETES):
        disabled |= {
            name: packages.no_kubernetes()
            for name, one in policy.backends.items()
            if isinstance(one, Replicated) and one.replicas is not None and one.replicas.takes_kubernetes
        }
    digest = sha256(json.dumps([content, disabled], sort_keys=True).encode())
    for file in folder.sources:
        if is_table(file.path):
            digest.update(file.content or b"")
    policy, listed = prices.completed(policy, disabled)
    valid = Valid(policy, content, in_yaml, disabled, directory)
    warnings = (
        *(
            Problem.at(
                location_of(folder.root, diagnostic.path),
                diagnostic.message,
                diagnostic.path,
                diagnostic.rule,
            )
            for diagnostic in rules.warnings(valid)
        ),
        *expired_keys(folder.tables, valid.today),
    )
    return Loaded(policy, disabled, digest.hexdigest(), folder.sources, warnings, listed)


def _with_tables(policy: Policy, tables: Iterable[KeyTable]) -> Policy:
    keys, revoked = list(policy.keys), list(policy.revoked_keys)
    for table in tables:
        keys += table.keys
        revoked += table.revoked
    return policy.model_copy(update={"keys": tuple(keys), "revoked_keys": tuple(revoked)})


def _references(
    root: Map, policy: Policy, content: Mapping[str, Any]
) -> tuple[Callable[[str], Location | None], Callable[[Key], str | None]]:
    """Where a key of the YAML files is, by its id or hash; and what is wrong with the names that a key refers to."""
    paths = {
        value: ("keys", index, what)
        for index, key in enumerate(policy.keys)
        for what, value in (("id", key.id), ("sha256", key.sha256))
    }

    def locate(value: str) -> Location | None:
        return location_of(root, paths[value]) if value in paths else None

    def check_key(key: Key) -> str | None:
        for pattern in key.models:
            if is_pattern(pattern) or policy.resolve(pattern) is not None:
                continue
            if policy.adapters is None or policy.resolve(pattern.rpartition(":")[0]) is None:
                return f"models: no model is named '{pattern}'{suggestion(pattern, tuple(policy.models))}"
        if policy.tiers and key.tier is not None and key.tier not in (*policy.tiers, DEFAULT_TIER):
            return f"tier: no tier is named '{key.tier}'{suggestion(key.tier, tuple(policy.tiers))}"
        if key.residency:
            alone = Draft({**content, "keys": [{"residency": [*key.residency]}]})
            found = (one for rule in (nothing_in_region, place_outside) for one in rule(alone))
            return next((f"residency: {one.message}" for one in found), None)
        return None

    return locate, check_key


def _is_backend_key(path: KeyPath) -> bool:
    return len(path) >= 3 and path[0] == "backends" and path[-1] in BACKEND_SECRETS


def _without_key(root: Map, content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Backends whose key or secret is to come from a variable that is not set; it is removed from ``content``."""
    backends = find(root, ("backends",))
    for path, _, scalar in yaml_tree.scalars(backends) if isinstance(backends, Map) else ():
        if path[-1] in BACKEND_SECRETS and len(path) > 1 and (scalar.unset or scalar.empty):
            owner = content["backends"]
            for part in path[:-1]:
                owner = owner[part]
            owner[path[-1]] = None
            yield str(path[0]), f"{(*scalar.unset, *scalar.empty)[0]} is not set"


def _validated(root: Map, content: dict[str, Any]) -> Policy:
    """Where the schema wants text, the value is taken as written: `model: 1.10` names the model "1.10". Where it
    wants a number, a quoted variable may give it: `weight: "${WEIGHT}"`.
    """
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        reread = False
        for details in error.errors(include_url=False):
            path = locate(details["loc"]).path
            node = find(root, path)
            if not isinstance(node, Scalar) or node.value is None:
                continue
            if details["type"] == "string_type":
                meant: str | int | float | bool | None = node.text
            elif node.used and isinstance(node.value, str):
                meant = yaml_tree.typed(node.text)
            else:
                continue
            _put(content, path, meant)
            reread = True
        if not reread:
            raise
    return Policy.model_validate(content)


def _put(content: Any, path: KeyPath, value: str | int | float | bool | None) -> None:
    for part in path[:-1]:
        content = content[part]
    content[path[-1]] = value


def _unset(variables: tuple[str, ...]) -> str:
    name = variables[0]
    return f"the environment variable {name} is not set; set it, or write a default: ${{{name}:-default}}"
