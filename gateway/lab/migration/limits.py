"""Budgets and quotas as other gateways write them."""

from __future__ import annotations

import re
from typing import Any

from gateway.lab.migration.report import Report
from gateway.lab.migration.source import finite

_MOST = 1e12
_SPAN = re.compile(r"(\d+)\s*(s|m|h|d|w|mo|y)")
_DAYS = {"s": 1 / 86400, "m": 1 / 1440, "h": 1 / 24, "d": 1.0, "w": 7.0, "mo": 30.0, "y": 365.0}
_WORDS = {"daily": "1d", "weekly": "1w", "monthly": "1mo"}


def budget_of(dollars: float, span: str | None, where: str, report: Report) -> dict[str, float]:
    """A budget of a calendar day or month: the nearest that no longer span goes beyond."""
    match = _SPAN.fullmatch(_WORDS.get(span or "", span or ""))
    if match is None:
        report.changed(
            where,
            "a budget without a span, which holds for good, is one of a month",
            "revoke the key when it is used up, if meant so",
        )
        return {"usd_per_month": round(dollars, 6)}
    days = int(match[1]) * _DAYS[match[2]]
    if days <= 1:
        if days < 1:
            report.changed(
                where, f"a budget of {span} is one of a day", "lower it, if that is too much at once"
            )
        return {"usd_per_day": round(dollars, 6)}
    if days < 28:
        report.changed(where, f"a budget of {span} is one of a month, in proportion, and of a day, in full")
        return {"usd_per_day": round(dollars, 6), "usd_per_month": round(dollars * 30 / days, 6)}
    if days > 31:
        report.changed(where, f"a budget of {span} is one of a month, in proportion")
        return {"usd_per_month": round(dollars * 30 / days, 6)}
    return {"usd_per_month": round(dollars, 6)}


def limits_of(row: dict[str, Any], where: str, report: Report) -> dict[str, Any]:
    """``quotas`` and ``budget`` of a row of LiteLLM's database."""
    quotas = {
        ours: number
        for theirs, ours in (
            ("rpm_limit", "requests_per_minute"),
            ("tpm_limit", "tokens_per_minute"),
            ("tpd_limit", "tokens_per_day"),
            ("max_parallel_requests", "concurrent_requests"),
        )
        if (number := whole(row.get(theirs))) is not None and number > 0
    }
    found: dict[str, Any] = {"quotas": quotas} if quotas else {}
    dollars = number_of(row.get("max_budget"))
    if dollars is not None:
        span = row.get("budget_duration")
        if not span:
            dollars = max(0.0, dollars - (number_of(row.get("spend")) or 0.0))
        found["budget"] = budget_of(dollars, str(span) if span else None, where, report)
    return found


def number_of(value: Any) -> float | None:
    """A limit of a plausible size."""
    number = finite(value)
    return None if number is None or not 0 <= number <= _MOST else number


def whole(value: Any) -> int | None:
    number = number_of(value)
    return None if number is None else round(number)


def quotas_of(what: str, most: float | None, span: str | None, where: str, report: Report) -> dict[str, int]:
    """A limit of ``requests`` or ``tokens`` in a span of another length, as one of a minute, or of a day for tokens."""
    match = _SPAN.fullmatch(span or "1m")
    if most is None or match is None or int(match[1]) == 0:
        return {}
    minutes = int(match[1]) * _DAYS[match[2]] * 1440
    if what == "tokens" and minutes >= 1440:
        if minutes > 1440:
            report.changed(where, f"tokens for {span} are tokens for a day, in proportion")
        return {"tokens_per_day": max(1, round(most * 1440 / minutes))}
    if minutes != 1:
        report.changed(
            where,
            f"{what} for {span} are {what} for a minute, in proportion",
            "raise it if callers come in bursts",
        )
    return {f"{what}_per_minute": max(1, round(most / minutes))}
