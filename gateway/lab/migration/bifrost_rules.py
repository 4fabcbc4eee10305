"""Bifrost's routing rules: those that look at the model's name alone become models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.lab.migration.draft import PolicyDraft, unique_name, valid_name
from gateway.lab.migration.source import Source

_NAMED = re.compile(r"""(?:request\.)?model\s*==\s*(?:'([^']+)'|"([^"]+)")""")


def add_rules(rules: Sequence[Source], names: Mapping[str, str], draft: PolicyDraft) -> None:
    for rule in rules:
        if rule.get("enabled") is False:
            rule.skip(*dict(rule.left()))
            continue
        expression = str(rule.get("cel_expression") or "true").strip()
        asked = _NAMED.fullmatch(expression)
        if asked is None or rule.get("scope") not in (None, "global"):
            draft.report.dropped(
                rule.where,
                f"requests are not routed by expressions ({expression[:60]})",
                "give each kind of caller a key with `models` of its own, or the models `fallbacks` and weights",
            )
            rule.skip(*dict(rule.left()))
            continue
        _add_model(asked[1] or asked[2], rule, names, draft)
        rule.skip("id", "name", "description", "priority", "scope", "chain_rule")
        rule.finish()


def _add_model(name: str, rule: Source, names: Mapping[str, str], draft: PolicyDraft) -> None:
    targets: list[dict[str, Any]] = []
    for target in rule.parts("targets"):
        public = f"{target.get('provider')}/{target.get('model') or name}"
        weight = target.number("weight")
        target.skip("key_id")
        if public not in names:
            draft.report.dropped(target.where, f"no model '{public}' was imported")
        elif weight is None or weight > 0:
            own = draft.models[names[public]]["targets"]
            share = {} if weight is None else {"weight": round(weight / len(own), 6)}
            targets += [{**one, **share} for one in own]
    if not targets:
        return
    fallbacks = [_fallback(str(one), name, names) for one in rule.words("fallbacks")]
    for model in draft.models.values():  # the rule goes before a model's short name
        if valid_name(name) in model.get("aliases", ()):
            del model["aliases"]
    draft.models[unique_name(name, draft.models)] = {
        "targets": targets,
        **({"fallbacks": kept} if (kept := [one for one in fallbacks if one]) else {}),
    }


def _fallback(given: str, name: str, names: Mapping[str, str]) -> str | None:
    """A provider, or a provider's model."""
    return names.get(given) or names.get(f"{given}/{name}")
