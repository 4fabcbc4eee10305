"""LiteLLM's proxy: ``config.yaml``, and a dump of its database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from gateway.lab.migration.config_file import read_yaml
from gateway.lab.migration.draft import PolicyDraft
from gateway.lab.migration.dumps import Row
from gateway.lab.migration.litellm_advice import TOP_ADVICE
from gateway.lab.migration.litellm_guards import add_guards
from gateway.lab.migration.litellm_keys import add_keys
from gateway.lab.migration.litellm_models import add_models
from gateway.lab.migration.litellm_settings import (
    add_general_settings,
    add_litellm_settings,
    add_router_settings,
    environment,
    router_of,
)
from gateway.lab.migration.litellm_ways import add_aliases, add_fallbacks, add_larger_contexts
from gateway.lab.migration.plain import plain
from gateway.lab.migration.providers import PROVIDERS, provider_of
from gateway.lab.migration.source import Source, listed, mapping

_VARIABLE = re.compile(r"os\.environ/(\w+)", re.ASCII)
_WANTED = "no configuration of LiteLLM: write the one that its proxy is started with"


def read(file: Path) -> dict[str, Any]:
    """The configuration with the files that it includes. Raises ``ConfigError``."""
    content = read_yaml(file, _WANTED)
    for name in listed(content.pop("include", None)):
        for key, value in read_yaml(file.parent / str(name), _WANTED).items():
            there = content.get(key)
            if isinstance(there, list) and isinstance(value, list):
                content[key] = [*there, *value]
            elif isinstance(there, dict) and isinstance(value, dict):
                content[key] = {**there, **value}
            else:
                content[key] = value
    return content


def imported(
    config: Mapping[str, Any],
    *,
    source: str,
    env: Mapping[str, str],
    rows: Iterable[Row] = (),
    wanted: Sequence[str] = (),
    today: date,
) -> PolicyDraft:
    """``rows``: of its database; ``wanted``: names of models that its wildcards stand for."""
    config = plain(config)
    draft = PolicyDraft(source, reserved=frozenset(_variables(config)))
    top = Source(config, "", draft.report)
    router, litellm, general = (
        top.part(name) for name in ("router_settings", "litellm_settings", "general_settings")
    )
    environment(top.part("environment_variables"), draft)
    rows = list(rows)
    mentioned = _mentioned(config.get("router_settings"), config.get("litellm_settings"), rows)
    settings = router_of(router, litellm, draft, tuple(dict.fromkeys([*wanted, *mentioned])))
    names = add_models(top.parts("model_list"), draft, settings, _credentials(top))
    add_aliases(router.part("model_group_alias"), names, draft)
    _add_ways(router, litellm, names, draft)
    add_guards(top.parts("guardrails"), draft)
    add_litellm_settings(litellm, draft)
    add_router_settings(router, draft)
    add_general_settings(general, draft, env)
    add_keys(rows, names, _access_groups(config, names), draft, today)
    top.finish(TOP_ADVICE)
    return draft


def _variables(config: Mapping[str, Any]) -> Iterator[str]:
    """Those that LiteLLM reads: they are named, or are a provider's own, where a deployment has no key."""
    yield from _VARIABLE.findall(json.dumps(config, default=str))
    for entry in map(mapping, listed(config.get("model_list"))):
        params = mapping(entry.get("litellm_params"))
        if params.get("api_key") is None:
            model, custom = str(params.get("model") or ""), params.get("custom_llm_provider")
            found = provider_of(model, str(custom or ""), has_address=True)
            if found is not None:
                yield PROVIDERS[found[0]].key


def _mentioned(router: Any, litellm: Any, rows: Iterable[Row]) -> Iterator[str]:
    """Models that fallbacks, aliases and keys name: wildcards stand for these at least."""
    for place in (router, litellm):
        said = mapping(place)
        for key in ("fallbacks", "context_window_fallbacks"):
            for one in map(mapping, listed(said.get(key))):
                yield from (name for name in one if name != "*")
                yield from (name for few in one.values() for name in listed(few) if isinstance(name, str))
        yield from (str(name) for name in listed(said.get("default_fallbacks")))
        for target in mapping(said.get("model_group_alias")).values():
            yield str(target.get("model") if isinstance(target, Mapping) else target)
    for row in rows:
        yield from (str(name) for name in listed(row.get("models")) if "*" not in str(name))


def _add_ways(router: Source, litellm: Source, names: Mapping[str, str], draft: PolicyDraft) -> None:
    """Where a request goes that its model does not answer. Either section may say it."""
    places = (router, litellm)
    lists = [(place.at("fallbacks"), found) for place in places if (found := place.get("fallbacks"))]
    default = [name for place in places for name in place.words("default_fallbacks")]
    add_fallbacks(lists, default, names, draft)
    larger = [
        (place.at("context_window_fallbacks"), found)
        for place in places
        if (found := place.get("context_window_fallbacks"))
    ]
    add_larger_contexts(larger, names, draft)


def _credentials(top: Source) -> dict[str, Mapping[str, Any]]:
    found = {}
    for entry in top.parts("credential_list"):
        found[str(entry.get("credential_name"))] = mapping(entry.get("credential_values"))
        entry.skip("credential_info")
    return found


def _access_groups(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for entry in map(mapping, listed(config.get("model_list"))):
        for group in listed(mapping(entry.get("model_info")).get("access_groups")):
            model = names.get(str(entry.get("model_name")))
            if model is not None and model not in groups.setdefault(str(group), []):
                groups[str(group)].append(model)
    return groups
