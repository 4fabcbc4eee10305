"""Deployments of other gateways in the form that ``add_models`` reads, and the keys of their callers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.identity.api_keys import hash_key
from gateway.lab.migration.draft import PolicyDraft, unique_name
from gateway.lab.migration.source import Source, is_variable, policy_text

_DIGEST = re.compile("(?:sha256:)?([0-9a-fA-F]{64})")


def deployment(name: str, params: Mapping[str, Any], where: str, draft: PolicyDraft) -> Source:
    """An entry of ``model_list``: ``name`` is what callers ask for, ``params`` are as LiteLLM names them."""
    inner = Source(params, where, draft.report)
    return Source({"model_name": name, "litellm_params": inner}, where, draft.report)


def references(content: Any, pattern: re.Pattern[str]) -> Any:
    """The content with its own way to name a variable (``env.NAME``, ``$NAME``) turned into LiteLLM's."""
    if isinstance(content, dict):
        return {name: references(one, pattern) for name, one in content.items()}
    if isinstance(content, list):
        return [references(one, pattern) for one in content]
    if isinstance(content, str) and (match := pattern.fullmatch(content.strip())):
        return f"os.environ/{match[1]}"
    return content


def add_key(
    name: str, given: Any, settings: Mapping[str, Any], env: Mapping[str, str], where: str, draft: PolicyDraft
) -> None:
    """A caller keeps the key: ``given`` is it, its digest (``sha256:…``), or the variable that holds it."""
    written = policy_text(str(given or ""))
    value = env.get(written[2:-1], "") if is_variable(written) else str(given or "")
    unique = unique_name(name, {key["id"]: key for key in draft.keys})
    if not value:
        missing = (
            f"the variable {written[2:-1]} is not set here" if is_variable(written) else "none is written"
        )
        draft.report.dropped(
            where,
            f"the policy holds keys' hashes, and {missing}",
            f"set it and import again, or: tollgate keys create --id {unique}",
        )
        return
    digest = _DIGEST.fullmatch(value)
    sha256 = digest[1].lower() if digest else hash_key(value)
    if all(key["sha256"] != sha256 for key in draft.keys):
        draft.keys.append({"id": unique, "sha256": sha256, **settings})
