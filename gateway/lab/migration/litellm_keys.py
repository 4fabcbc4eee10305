"""LiteLLM's virtual keys and teams, out of a dump of its database: by their hashes, so that callers keep theirs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from gateway.identity.api_keys import hash_key
from gateway.lab.migration.draft import PolicyDraft, unique_name, valid_name
from gateway.lab.migration.dumps import Row
from gateway.lab.migration.limits import limits_of
from gateway.lab.migration.source import listed, mapping, says_nothing

_HASH = re.compile("[0-9a-f]{64}")
_ALL = frozenset(["*", "all-proxy-models"])
_OF_TEAM = "all-team-models"
_UNLIKE: Mapping[str, tuple[str, str]] = {
    "model_max_budget": ("keys have no budget for each model", "make a key for each, or price the model"),
    "budget_limits": ("a key has one budget", ""),
    "aliases": ("aliases are a model's, for all callers", "write `aliases` of the model"),
    "config": ("keys have no configuration of their own", ""),
    "allowed_routes": ("paths are not a key's", "`scopes` tell models and administration apart"),
    "allowed_cache_controls": ("callers send `cache-control` as they like", ""),
    "permissions": ("keys have no such permissions", "`scopes` tell models and administration apart"),
    "policies": ("guards name the keys that they look after", "write `keys` of the guard"),
    "model_tpm_limit": ("limits are of all models together", ""),
    "model_rpm_limit": ("limits are of all models together", ""),
    "auto_rotate": ("keys are rotated by an operator", "tollgate keys rotate"),
    "organization_id": (
        "there are no organizations above tenants",
        "a tier's budget is shared by all its tenants",
    ),
    "project_id": ("there are no projects above keys", ""),
}


def add_keys(
    rows: Iterable[Row],
    names: Mapping[str, str],
    groups: Mapping[str, list[str]],
    draft: PolicyDraft,
    today: date,
) -> None:
    """``names``: models by LiteLLM's names; ``groups``: those of an access group."""
    found = list(rows)
    budgets = {
        str(row["budget_id"]): row
        for row in found
        if "budget_id" in row and "token" not in row and "team_id" not in row
    }
    teams = {str(row["team_id"]): row for row in found if row.get("team_id") and "token" not in row}
    tenants = {team: _tenant(team, row, draft) for team, row in teams.items()}
    ids: dict[str, Any] = {key["id"]: key for key in draft.keys}
    hashes = {key["sha256"] for key in draft.keys}
    skipped: dict[str, int] = {}
    for row in found:
        if not row.get("token"):
            continue
        entry = _key(row, names, groups, teams, tenants, budgets, ids, draft, today)
        if isinstance(entry, str):
            skipped[entry] = skipped.get(entry, 0) + 1
        elif entry["sha256"] not in hashes:
            ids[entry["id"]] = entry
            hashes.add(entry["sha256"])
            draft.keys.append(entry)
    for why, number in skipped.items():
        draft.report.dropped(
            "LiteLLM_VerificationToken", f"{number} key{'s' * (number != 1)} left out: {why}"
        )
    if any(key.get("budget") for key in draft.keys):
        draft.report.changed(
            "LiteLLM_VerificationToken",
            "budgets begin anew: what was spent this day or month counts no more",
            "see that models under a budget have prices: `tollgate check` names those without",
        )


def _tenant(team: str, row: Row, draft: PolicyDraft) -> str:
    tenants = draft.content.setdefault("tenants", {})
    name = unique_name(str(row.get("team_alias") or team), tenants)
    tenants[name] = limits_of(row, f"team {name}", draft.report)
    if row.get("blocked") is True:
        draft.report.changed(f"team {name}", "is blocked: its keys are left out")
    return name


def _key(
    row: Row,
    names: Mapping[str, str],
    groups: Mapping[str, list[str]],
    teams: Mapping[str, Row],
    tenants: Mapping[str, str],
    budgets: Mapping[str, Row],
    ids: Mapping[str, Any],
    draft: PolicyDraft,
    today: date,
) -> dict[str, Any] | str:
    """An entry of ``keys``, or why there is none."""
    token, team = str(row["token"]), str(row.get("team_id") or "")
    if row.get("blocked") is True or teams.get(team, {}).get("blocked") is True:
        return "blocked"
    entry: dict[str, Any] = {
        "id": unique_name(str(row.get("key_alias") or row.get("key_name") or f"key-{token[:8]}"), ids),
        "sha256": token if _HASH.fullmatch(token) else hash_key(token),
    }
    where = f"key {entry['id']}"
    if team:
        entry["tenant"] = tenants.get(team) or valid_name(str(row.get("team_alias") or team))
        draft.content.setdefault("tenants", {}).setdefault(entry["tenant"], {})
    elif user := row.get("user_id"):
        entry["tenant"] = valid_name(str(user))
        draft.content.setdefault("tenants", {}).setdefault(entry["tenant"], {})
    models = _models(row, teams.get(team), names, groups, where, draft)
    if not models:
        return "none of the models that it may use was imported"
    if models != ["*"]:
        entry["models"] = models
    if expires := row.get("expires"):
        day = _day(str(expires))
        if day is None:
            draft.report.dropped(where, f"'{expires}' is no time", "write `expires`")
        elif day <= today:
            return "expired"
        else:
            entry["expires"] = day.isoformat()
    budget = budgets.get(str(row.get("budget_id") or ""), {})
    entry |= limits_of(
        {
            **{k: v for k, v in budget.items() if v is not None},
            **{k: v for k, v in row.items() if v is not None},
        },
        where,
        draft.report,
    )
    for column, (what, todo) in _UNLIKE.items():
        if not says_nothing(row.get(column)) or not says_nothing((mapping(row.get("metadata"))).get(column)):
            draft.report.dropped(where, what, todo)
    if not says_nothing(mapping(row.get("metadata")).get("guardrails")):
        draft.report.dropped(where, "guards name the keys that they look after", "write `keys` of the guard")
    return entry


def _models(
    row: Row,
    team: Row | None,
    names: Mapping[str, str],
    groups: Mapping[str, list[str]],
    where: str,
    draft: PolicyDraft,
) -> list[str]:
    """Those that it may use; nothing listed is all of its team's, and without a team all."""
    wanted = [str(one) for one in listed(row.get("models"))]
    if not wanted or _OF_TEAM in wanted:
        wanted = [str(one) for one in listed((team or {}).get("models"))] or ["*"]
    if _ALL & set(wanted):
        return ["*"]
    found: dict[str, None] = {}
    for one in wanted:
        if one in groups:
            found.update(dict.fromkeys(groups[one]))
        elif one in names:
            found[names[one]] = None
        elif "*" in one and any(fnmatchcase(name, one) for name in names):
            found[one] = None
        else:
            draft.report.dropped(where, f"no model '{one}' was imported, which it may use")
    return [*found]


def _day(text: str) -> date | None:
    """The first on which it is valid no more: the one after the moment, but for midnight."""
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    whole_day = (moment.hour, moment.minute, moment.second, moment.microsecond) == (0, 0, 0, 0)
    return moment.date() + timedelta(days=0 if whole_day else 1)
