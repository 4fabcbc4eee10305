"""Where LiteLLM sends what names no model of its own, or what its model does not answer: aliases and fallbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.lab.migration.draft import PolicyDraft, valid_name
from gateway.lab.migration.source import Source


def add_aliases(aliases: Source, names: dict[str, str], draft: PolicyDraft) -> None:
    for alias, _ in list(aliases.left()):
        found = aliases.get(alias)
        target = str(found.get("model")) if isinstance(found, Mapping) else str(found)
        where = aliases.at(alias)
        model = names.get(target)
        if model is None:
            draft.report.dropped(where, f"no model '{target}' was imported, of which it is an alias")
            continue
        ours = valid_name(alias)
        if ours in draft.models or any(ours in one.get("aliases", ()) for one in draft.models.values()):
            draft.report.dropped(where, f"'{ours}' is a model's name already", "remove one of the two")
            continue
        draft.models[model].setdefault("aliases", []).append(ours)
        names[alias] = model
        if isinstance(found, Mapping) and found.get("hidden"):
            draft.report.changed(where, "aliases are listed in /v1/models: none is hidden")


def add_fallbacks(
    lists: Iterable[tuple[str, Any]], default: Sequence[str], names: Mapping[str, str], draft: PolicyDraft
) -> None:
    """``fallbacks: [{a: [b, c]}]``; those of ``*`` and ``default_fallbacks`` are for models without their own."""
    own: dict[str, list[str]] = {}
    usual = [*default]
    for where, listed in lists:
        for given, fallbacks in _pairs(listed):
            known = [_named(where, one, draft) for one in fallbacks]
            if given == "*":
                usual += known
            elif (model := names.get(given)) is None:
                draft.report.dropped(f"{where}.{given}", f"no model '{given}' was imported")
            else:
                own.setdefault(model, []).extend(_known(f"{where}.{given}", known, names, draft, model))
    shared = _known("default_fallbacks", usual, names, draft)
    for model, settings in draft.models.items():
        further = own.get(model, [one for one in shared if one != model])
        kept = [*settings.get("fallbacks", ()), *further]
        if kept and not _is_later(model, draft):
            settings["fallbacks"] = list(dict.fromkeys(kept))


def _is_later(model: str, draft: PolicyDraft) -> bool:
    first, dashes, number = model.rpartition("--")
    return bool(dashes) and number.isdigit() and first in draft.models


def add_larger_contexts(
    lists: Iterable[tuple[str, Any]], names: Mapping[str, str], draft: PolicyDraft
) -> None:
    for where, listed in lists:
        for given, larger in _pairs(listed):
            model = names.get(given)
            known = _known(
                f"{where}.{given}", [_named(where, one, draft) for one in larger], names, draft, model
            )
            if model is None or not known:
                draft.report.dropped(f"{where}.{given}", f"no model '{given}' with a larger one was imported")
                continue
            draft.models[model]["larger_context"] = known[0]
            if known[1:]:
                draft.report.dropped(f"{where}.{given}", "a model has one larger one: the first was taken")


def _pairs(listed: Any) -> Iterable[tuple[str, list[Any]]]:
    for one in listed if isinstance(listed, list) else [listed]:
        if isinstance(one, Mapping):
            for given, fallbacks in one.items():
                yield str(given), fallbacks if isinstance(fallbacks, list) else [fallbacks]


def _named(where: str, fallback: Any, draft: PolicyDraft) -> str:
    if isinstance(fallback, Mapping):
        draft.report.changed(
            where, "a fallback gets the caller's request: parameters of its own were left out"
        )
        return str(fallback.get("model"))
    return str(fallback)


def _known(
    where: str, given: Iterable[str], names: Mapping[str, str], draft: PolicyDraft, model: str | None = None
) -> list[str]:
    found = []
    for one in given:
        ours = names.get(one)
        if ours is None:
            draft.report.dropped(where, f"no model '{one}' was imported, on which it falls back")
        elif ours != model and ours not in found:
            found.append(ours)
    return found
