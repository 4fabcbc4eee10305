"""One tenant's limit over several regions: what a split, or a look at each other now and then, lets in or refuses.

The product keeps a limit in one store. Regions with a store each have limits of their own, so that today an operator
divides a tenant's budget among the regions' policies (*split*). Two protocols are simulated beside it: *reconciled*,
where each region knows what the others had spent at the last exchange and its own spending since; and *leased*, where a
region spends only what a home region has granted it, and asks for more at each exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.fleet.queues import Times

Protocol = Literal["one store", "split", "reconciled", "leased"]
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Told:
    """Shares of the limit (of all windows together)."""

    protocol: Protocol
    every: float
    beyond: float
    """What was let in beyond it,"""
    unused: float
    """and what was refused while there was still some of it."""


def demand(weights: Times, seconds: int, total: float, rng: np.random.Generator, burst: float = 4.0) -> Times:
    """What is asked for, a row each second: regions ask for ``weights`` of it. Each has its day, one time zone after
    another, and bursts of a minute, in which ``burst`` times as much is asked."""
    regions = len(weights)
    at = np.arange(seconds)[:, None] / DAY
    zones = np.arange(regions)[None, :] / regions
    day = 1 + 0.8 * np.sin(2 * np.pi * (at - zones))
    bursts = np.repeat(rng.random((seconds // 60 + 1, regions)) < 0.05, 60, axis=0)[:seconds]
    rate = weights * day * np.where(bursts, burst, 1.0) * rng.gamma(4.0, 0.25, (seconds, regions))
    asked: Times = rate / rate.sum() * total
    return asked


def run(
    protocol: Protocol,
    asked: Times,
    limit: float,
    window: int,
    every: int,
    *,
    guess: Times | None = None,
    cut: tuple[int, int, int] | None = None,
) -> Told:
    """``limit`` for each ``window`` seconds; an exchange each ``every`` seconds. ``guess``: by which it is split
    (alike). ``cut``: a region that nobody reaches from one second to another: it goes on with what it has."""
    seconds, regions = asked.shape
    beyond = unused = 0.0
    recent = np.full(regions, limit / regions * every / window)
    for start in range(0, seconds, window):
        wanted = asked[start : start + window]
        spent = np.zeros(regions)
        known, said = np.zeros(regions), np.zeros(regions)
        granted = (
            limit * (np.full(regions, 1 / regions) if guess is None else guess)
            if protocol == "split"
            else np.zeros(regions)
        )
        ungranted = limit if protocol == "leased" else 0.0
        refused = 0.0
        for second, row in enumerate(wanted):
            now = start + second
            reached = np.ones(regions, np.bool_)
            if cut is not None and cut[1] <= now < cut[2]:
                reached[cut[0]] = False
            if protocol in ("reconciled", "leased") and second % every == 0:
                if protocol == "reconciled":
                    # Of one that is cut off the others know what it said last.
                    said = np.where(reached, spent, said)
                    known = np.where(reached, said.sum() - said, known)
                else:
                    if second:
                        recent = np.maximum(0.5 * recent, wanted[max(0, second - every) : second].sum(0))
                    left = granted - spent
                    wish = np.where(reached, np.maximum(0.0, 1.5 * recent - left), 0.0)
                    # Never more than half of what is left at once: the last of it is dealt in small pieces.
                    grant = wish * min(1.0, 0.5 * ungranted / max(wish.sum(), 1e-12))
                    granted += grant
                    ungranted -= grant.sum()
            if protocol == "one store":
                room = np.full(regions, max(0.0, limit - spent.sum())) * row / max(row.sum(), 1e-12)
            elif protocol == "reconciled":
                room = np.maximum(0.0, limit - known - spent)
            else:
                room = np.maximum(0.0, granted - spent)
            admitted = np.minimum(row, room)
            spent += admitted
            refused += float((row - admitted).sum())
        beyond += max(0.0, spent.sum() - limit)
        unused += min(refused, max(0.0, limit - spent.sum()))
    total = limit * -(-seconds // window)
    return Told(protocol, every, float(beyond / total), float(unused / total))
