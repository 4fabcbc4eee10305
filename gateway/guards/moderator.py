"""The toxicity guard's scores of a text in OpenAI's moderation categories."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from gateway.children.process_pool import PoolBusy, ProcessDied, ProcessPool
from gateway.errors import GuardUnavailable
from gateway.guards.scanners import toxicity
from gateway.guards.scanners.layered import UNSURE, Fast, Judge, Model, band
from gateway.guards.scanners.offload import MAX_SCORED_INLINE
from gateway.guards.scanners.scanner import Unscanned
from gateway.policy.schema import AnyGuard, ToxicityGuard
from gateway.sidecar.api import Sidecar, SidecarError
from gateway.types import Call, Chunk, Chunks, Json, Principal, Usage

MODEL = "tollgate-toxicity"
CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""Those of omni-moderation-latest. Categories that the guard does not know are never flagged and score 0."""
_CATEGORY: Mapping[str, str] = {
    **{label: label for label in ("hate", "harassment", "violence", "sexual")},
    "self_harm": "self-harm",
    # The one label of an operator's own classifier.
    toxicity.UNSAFE: "harassment",
    # A judge's hazards.
    "violent_crimes": "violence",
    "non_violent_crimes": "illicit",
    "indiscriminate_weapons": "illicit/violent",
    "sex_crimes": "sexual",
    "child_sexual_exploitation": "sexual/minors",
}
_TEXT_ONLY = {category: ["text"] for category in CATEGORIES}

PIECE, OVERLAP = 1000, 100
"""Characters that are scored at once: about a window of the model, and 2 ms of the fast check."""
SLICE = 16
"""Pieces in one call to the sidecar."""
_DEFAULT = ToxicityGuard(kind="toxicity", on_error="allow")

Scores = dict[str, float]
"""Probability by the guard's own labels."""


@dataclass(frozen=True, slots=True)
class _Moderated:
    scores: Scores
    unsafe: frozenset[str]
    """Labels that are flagged."""
    check: str


class Moderator:
    """One policy's. ``guards`` and ``judges`` are by name; ``fast`` and ``model`` are the toxicity guard's own checks.

    A tenant's texts are scored by the first toxicity guard that applies to the tenant, in either direction, with its
    thresholds; if there is none, by one with the schema's defaults. Its model, if it has one, scores every text,
    clear cases included. If it fails, ``on_error: allow`` falls back to the fast check.
    """

    def __init__(
        self,
        guards: Mapping[str, AnyGuard],
        fast: Fast,
        model: Callable[[ToxicityGuard], Model],
        judges: Mapping[str, Judge] | None = None,
        pool: ProcessPool | None = None,
    ) -> None:
        """``pool`` is where ``fast``, then a function of a module's top level, reads long texts."""
        self._pool = pool
        self._guards = [(name, one) for name, one in guards.items() if isinstance(one, ToxicityGuard)]
        self._keepers = [one for one in guards.values() if one.action == "local"]
        self._fast = fast
        self._model = model
        self._judges = judges or {}

    @classmethod
    def of(
        cls,
        guards: Mapping[str, AnyGuard],
        sidecar: Sidecar,
        judges: Mapping[str, Judge] | None = None,
        pool: ProcessPool | None = None,
    ) -> Self:
        """With what comes with the gateway."""

        def model(guard: ToxicityGuard) -> Model:
            own = guard.classifier
            return toxicity.scorer(sidecar) if own is None else toxicity.classifier(sidecar, own)

        return cls(guards, _probabilities, model, judges, pool)

    async def handle(self, call: Call) -> Chunks:
        """A ``Handler``: for each text of ``call.request.params["input"]`` a chunk with ``{"moderation": result}``.

        Raises ``GuardUnavailable``.
        """
        name, guard = self._guard_of(call.principal)
        texts: Sequence[str] = call.request.params["input"]
        opinions = await self._judged(texts, guard, self._judges.get(name or ""), call)
        flagged = sum(1 for one in opinions if one.unsafe)
        checks = sorted({one.check for one in opinions})
        call.receipt.note("moderation", guard=name, texts=len(texts), flagged=flagged, checks=checks)
        for index, opinion in enumerate(opinions):
            last = index == len(opinions) - 1
            yield Chunk(
                index=index,
                delta={"moderation": _result(opinion)},
                finish_reason="stop",
                usage=Usage(0, 0) if last else None,
                more=not last,
            )

    def _guard_of(self, principal: Principal) -> tuple[str | None, ToxicityGuard]:
        for name, guard in self._guards:
            if _looks_after(principal, guard):
                return name, guard
        return None, _DEFAULT

    async def _judged(
        self, texts: Sequence[str], guard: ToxicityGuard, judge: Judge | None, call: Call
    ) -> list[_Moderated]:
        try:
            scores, check = await self._scored(texts, guard, call)
            opinions = [_opinion(one, guard, check) for one in scores]
            if judge is not None:
                await self._ask(judge, texts, guard, opinions, call)
        except (SidecarError, Unscanned, TimeoutError) as error:
            if guard.refuses_unjudged or "fast" not in guard.checks:
                raise _unavailable() from error
            return [_opinion(one, guard, "fast") for one in await self._quick(texts, guard, call)]
        return opinions

    async def _scored(
        self, texts: Sequence[str], guard: ToxicityGuard, call: Call
    ) -> tuple[list[Scores], str]:
        if "model" not in guard.checks:
            return await self._quick(texts, guard, call), "fast"
        model = self._model(guard)
        owners, pieces = _pieces(texts)
        scores: list[Scores] = [{} for _ in texts]
        for start in range(0, len(pieces), SLICE):
            async with asyncio.timeout(guard.timeout):
                scored = await model(pieces[start : start + SLICE])
            for owner, windows in zip(owners[start : start + SLICE], scored, strict=True):
                for window in windows:
                    _raise(scores[owner], window.scores)
        return scores, "model"

    async def _quick(self, texts: Sequence[str], guard: ToxicityGuard, call: Call) -> list[Scores]:
        scores: list[Scores] = [{} for _ in texts]
        owners, pieces = _pieces(texts)
        pool = self._pool if sum(map(len, texts)) > MAX_SCORED_INLINE else None
        step = SLICE if pool is not None else 1
        for start in range(0, len(pieces), step):
            some = pieces[start : start + step]
            if pool is None:
                found = _all(self._fast, some)
                await asyncio.sleep(0)
            else:
                try:
                    found = await pool.run(call.principal.tenant, guard.timeout, _all, self._fast, some)
                except (TimeoutError, PoolBusy, ProcessDied) as error:
                    raise _unavailable() from error
            for owner, one in zip(owners[start : start + step], found, strict=True):
                _raise(scores[owner], one)
        return scores

    async def _ask(
        self,
        judge: Judge,
        texts: Sequence[str],
        guard: ToxicityGuard,
        opinions: list[_Moderated],
        call: Call,
    ) -> None:
        """Put the judge's opinion in the place of those that are not clear."""
        low, high = band((guard.judge.unsure if guard.judge is not None else None) or UNSURE)
        asked = [i for i, one in enumerate(opinions) if low < _margin(one.scores, guard) < high]
        if not asked:
            return
        if any(_looks_after(call.principal, keeper) for keeper in self._keepers):
            call.local_only = True  # nobody looks here for what must stay
        async with asyncio.timeout(guard.timeout):
            verdicts = await judge.judge([texts[i] for i in asked], "user", call)
        for i, verdict in zip(asked, verdicts, strict=True):
            unsafe = frozenset(finding.label for finding in verdict.findings)
            scores = {**opinions[i].scores}
            _raise(scores, dict.fromkeys(unsafe, verdict.score))
            opinions[i] = _Moderated(scores, unsafe, verdict.check)


def _looks_after(principal: Principal, guard: AnyGuard) -> bool:
    """Whatever models and routes the guard is for."""
    return any(fnmatchcase(principal.tenant, pattern) for pattern in guard.tenants) and any(
        fnmatchcase(principal.key_id, pattern) for pattern in guard.keys
    )


def _unavailable() -> GuardUnavailable:
    return GuardUnavailable(
        "The toxicity guard cannot judge this now. Try again in a moment.", retry_after=1.0
    )


def _probabilities(text: str) -> Mapping[str, float]:
    # Read at the first need: most gateways are never asked.
    return toxicity.weights().fast.probabilities(text)


def _all(fast: Fast, texts: Sequence[str]) -> list[Mapping[str, float]]:
    return [fast(text) for text in texts]


def _pieces(texts: Sequence[str]) -> tuple[list[int], list[str]]:
    """Pieces of texts, each short enough to be scored at once, and the index of each one's text."""
    owners: list[int] = []
    pieces: list[str] = []
    for owner, text in enumerate(texts):
        for start in range(0, max(1, len(text) - OVERLAP), PIECE - OVERLAP):
            owners.append(owner)
            pieces.append(text[start : start + PIECE])
    return owners, pieces


def _raise(scores: Scores, more: Mapping[str, float]) -> None:
    for label, score in more.items():
        scores[label] = max(scores.get(label, 0.0), score)


def _threshold(label: str, guard: ToxicityGuard) -> float:
    return dict[str, float](guard.categories).get(label, guard.threshold)  # type: ignore[arg-type]


def _opinion(scores: Scores, guard: ToxicityGuard, check: str) -> _Moderated:
    unsafe = frozenset(label for label, score in scores.items() if score >= _threshold(label, guard))
    return _Moderated(scores, unsafe, check)


def _margin(scores: Scores, guard: ToxicityGuard) -> float:
    """How far above its threshold the surest label lies, in log-odds."""
    margins = (_log_odds(score) - _log_odds(_threshold(label, guard)) for label, score in scores.items())
    return max(margins, default=-math.inf)


def _log_odds(probability: float) -> float:
    bounded = min(max(probability, 1e-9), 1 - 1e-9)
    return math.log(bounded / (1 - bounded))


def _result(opinion: _Moderated) -> dict[str, Json]:
    scores = dict.fromkeys(CATEGORIES, 0.0)
    _raise(scores, {_CATEGORY[label]: s for label, s in opinion.scores.items() if label in _CATEGORY})
    unsafe = {_CATEGORY.get(label) for label in opinion.unsafe}
    return {
        "flagged": bool(opinion.unsafe),
        "categories": {category: category in unsafe for category in CATEGORIES},
        "category_scores": scores,
        "category_applied_input_types": _TEXT_ONLY,
    }
