"""Scores and flags of the toxicity guard, from a fast check and a model that look for words."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.children.process_pool import ProcessPool
from gateway.errors import GuardUnavailable
from gateway.findings import Finding
from gateway.guards.moderator import CATEGORIES, OVERLAP, PIECE, SLICE, Moderator, _pieces
from gateway.guards.scanners import layered, toxicity
from gateway.guards.scanners.layered import Judge
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.policy.schema import Policy, ToxicityGuard
from gateway.sidecar.api import Scored, Sidecar, SidecarDown, SidecarError
from gateway.types import Call, Principal, Usage
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio

LABELS = {
    "vermin": "hate",
    "loser": "harassment",
    "corpse": "violence",
    "nude": "sexual",
    "harm": "self_harm",
}


def words(text: str, sure: float) -> dict[str, float]:
    return {label: sure if word in text else 0.01 for word, label in LABELS.items()}


def fast(text: str) -> dict[str, float]:
    assert len(text) <= PIECE
    return words(text, 0.6)


class Model:
    """A model that is sure of its words, and less sure where it reads ``perhaps``."""

    def __init__(self, error: SidecarError | None = None, delay: float = 0.0) -> None:
        self.asked: list[int] = []
        self._error = error
        self._delay = delay

    async def score(self, texts: Sequence[str]) -> list[list[Scored]]:
        self.asked.append(len(texts))
        await asyncio.sleep(self._delay)
        if self._error is not None:
            raise self._error
        return [
            [
                Scored(0, 10, words("", 0.9)),
                Scored(5, len(text), words(text, 0.6 if "perhaps" in text else 0.9)),
            ]
            for text in texts
        ]

    async def classify(self, model: str, texts: Sequence[str]) -> list[list[Scored]]:
        assert model == "their/model"
        return [[Scored(0, 1, {"toxic": 0.4, "rude": 0.3, "fine": 0.3})] for _ in texts]


class Saying:
    def __init__(self, *labels: str, error: Unscanned | None = None) -> None:
        self.asked: list[str] = []
        self._labels = labels
        self._error = error

    async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
        self.asked += texts
        if self._error is not None:
            raise self._error
        return [
            Verdict(tuple(Finding(label, 0, len(text)) for label in self._labels), 1.0, "judge")
            for text in texts
        ]


def guarded(**guards: Any) -> Policy:
    return policy(guards={name: {"kind": "toxicity", **guard} for name, guard in guards.items()})


def moderator(policy_: Policy, sidecar: Model | None = None, **judges: Judge) -> Moderator:
    model = sidecar or Model()

    def of(guard: ToxicityGuard) -> layered.Model:
        if guard.classifier is None:
            return model.score
        return toxicity.classifier(cast("Sidecar", model), guard.classifier)

    return Moderator(policy_.guards, fast, of, judges)


def a_moderation(*texts: str, tenant: str = "acme") -> Call:
    return a_call(
        stream=False,
        prompt=[],
        embeds=True,
        params={"input": [*texts]},
        principal=Principal("k", tenant),
        policy_=policy(),
    )


async def results(moderator: Moderator, *texts: str, tenant: str = "acme") -> list[Any]:
    chunks = [chunk async for chunk in moderator.handle(a_moderation(*texts, tenant=tenant))]
    assert [chunk.index for chunk in chunks] == [*range(len(texts))]
    assert [chunk.usage for chunk in chunks] == [None] * (len(texts) - 1) + [Usage(0, 0)]
    return [(chunk.delta or {})["moderation"] for chunk in chunks]


def flags(result: Any) -> set[str]:
    assert set(result["categories"]) == set(result["category_scores"]) == set(CATEGORIES)
    assert result["flagged"] == any(result["categories"].values())
    return {category for category, flagged in result["categories"].items() if flagged}


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("they are vermin", "hate"),
        ("you loser", "harassment"),
        ("a corpse", "violence"),
        ("nude", "sexual"),
        ("harm", "self-harm"),
    ],
)
async def test_categories_are_openais(text: str, category: str) -> None:
    [result] = await results(moderator(policy()), text)
    assert flags(result) == {category}
    assert result["category_scores"][category] == 0.9
    assert result["category_applied_input_types"][category] == ["text"]


async def test_clean_texts_have_scores_too_and_what_is_not_known_has_none() -> None:
    clean, unsafe = await results(moderator(policy()), "good morning", "vermin and loser")
    assert flags(clean) == set()
    assert clean["category_scores"]["hate"] == 0.01
    assert clean["category_scores"]["illicit"] == clean["category_scores"]["sexual/minors"] == 0.0
    assert flags(unsafe) == {"hate", "harassment"}


async def test_the_tenants_guard_decides_and_its_thresholds() -> None:
    strict = moderator(
        guarded(
            lenient={"tenants": ["big*"], "threshold": 0.95},
            mine={"tenants": ["acme"], "threshold": 0.95, "categories": {"hate": 0.5}, "on": ["output"]},
        )
    )
    assert flags((await results(strict, "vermin loser"))[0]) == {"hate"}
    assert flags((await results(strict, "vermin loser", tenant="bigco"))[0]) == set()
    assert flags((await results(strict, "vermin loser", tenant="other"))[0]) == {"hate", "harassment"}


async def test_a_fast_guard_asks_nobody() -> None:
    sidecar = Model()
    [result] = await results(moderator(guarded(g={"checks": ["fast"]}), sidecar), "vermin")
    assert (flags(result), result["category_scores"]["hate"]) == ({"hate"}, 0.6)
    assert sidecar.asked == []


async def test_a_word_is_found_wherever_it_stands_in_a_long_text() -> None:
    for at in range(0, 3 * PIECE, 97):
        text = "a " * (at // 2) + "vermin" + " a" * ((4 * PIECE - at) // 2)
        for rules in (guarded(g={"checks": ["fast"]}), policy()):
            assert flags((await results(moderator(rules), text, "a"))[0]) == {"hate"}


@given(st.lists(st.integers(0, 4 * PIECE), min_size=1, max_size=4))
def test_pieces_cover_their_texts_and_overlap(sizes: list[int]) -> None:
    texts = ["".join(chr(33 + at % 90) for at in range(size)) for size in sizes]
    owners, pieces = _pieces(texts)
    assert all(len(piece) <= PIECE for piece in pieces)
    for number, text in enumerate(texts):
        mine = [piece for owner, piece in zip(owners, pieces, strict=True) if owner == number]
        assert text == mine[0] + "".join(piece[OVERLAP:] for piece in mine[1:])
        assert all(one[-OVERLAP:] == other[:OVERLAP] for one, other in pairwise(mine))


async def test_the_sidecar_is_given_a_few_pieces_at_once() -> None:
    sidecar = Model()
    answers = await results(moderator(policy(), sidecar), *["a"] * (SLICE + 1), "vermin")
    assert sidecar.asked == [SLICE, 2]
    assert [bool(flags(answer)) for answer in answers] == [False] * (SLICE + 1) + [True]


@pytest.mark.parametrize("sidecar", [Model(SidecarDown("gone")), Model(delay=5)], ids=["down", "late"])
async def test_without_the_model_the_policy_decides(sidecar: Model) -> None:
    allowing = guarded(g={"on_error": "allow", "timeout": "50ms"})
    [result] = await results(moderator(allowing, sidecar), "vermin")
    assert result["category_scores"]["hate"] == 0.6
    for guard in ({"timeout": "50ms"}, {"timeout": "50ms", "on_error": "allow", "checks": ["model"]}):
        with pytest.raises(GuardUnavailable) as caught:
            await results(moderator(guarded(g=guard), sidecar), "vermin")
        assert caught.value.retry_after


async def test_without_guard_and_sidecar_the_fast_check_answers() -> None:
    [result] = await results(moderator(policy(), Model(SidecarDown("none"))), "vermin")
    assert (flags(result), result["category_scores"]["hate"]) == ({"hate"}, 0.6)


async def test_a_classifier_of_the_operators_own() -> None:
    rules = guarded(g={"classifier": {"model": "their/model", "unsafe": ["toxic", "rude"]}})
    [result] = await results(moderator(rules), "anything")
    assert flags(result) == {"harassment"}
    assert result["category_scores"]["harassment"] == pytest.approx(0.7)


@pytest.mark.parametrize(("tenants", "stays"), [(["acme"], True), (["other"], False)])
async def test_a_judge_elsewhere_is_not_asked_where_a_guard_keeps_things_here(
    tenants: list[str], stays: bool
) -> None:
    """Nobody looks in a moderation for what the guard would keep."""
    asked: list[bool] = []

    class Noting(Saying):
        async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
            assert isinstance(asker, Call)
            asked.append(asker.local_only)
            return await super().judge(texts, origin, asker)

    keeper = {"kind": "pii", "action": "local", "tenants": tenants}
    await results(moderator(guarded(g={}, keeper=keeper), g=Noting()), "perhaps vermin")
    assert asked == [stays]


async def test_the_judge_decides_what_is_not_clear() -> None:
    rules, judge = guarded(g={}), Saying("self_harm")
    unclear, clean, clear = await results(moderator(rules, g=judge), "perhaps vermin", "hello", "vermin")
    assert judge.asked == ["perhaps vermin"]
    assert flags(unclear) == {"self-harm"}
    assert unclear["category_scores"]["self-harm"] == 1.0
    assert (flags(clean), flags(clear)) == (set(), {"hate"})
    [acquitted] = await results(moderator(rules, g=Saying()), "perhaps vermin")
    assert acquitted["flagged"] is False
    with pytest.raises(GuardUnavailable):
        await results(moderator(rules, g=Saying(error=Unscanned("no"))), "perhaps vermin")


async def test_the_receipt_holds_no_text() -> None:
    call = a_moderation("some vermin", "hello")
    async for _ in moderator(guarded(g={})).handle(call):
        pass
    assert call.receipt.notes == {
        "moderation": {"guard": "g", "texts": 2, "flagged": 1, "checks": ["model"]},
    }


async def test_long_texts_are_read_in_another_process() -> None:
    pool = ProcessPool(1)
    there = Moderator(guarded(a={"checks": ["fast"]}).guards, _where, lambda guard: Model().score, pool=pool)
    text = "word " * 1000
    (long,) = await results(there, text)
    (short,) = await results(there, "word")
    assert (long["flagged"], short["flagged"]) == (True, False)
    quick = guarded(a={"checks": ["fast"]}).guards
    own = [Moderator.of(quick, cast("Sidecar", None), pool=one) for one in (pool, None)]
    found = [await results(one, text + "you stupid idiot, " * 50) for one in own]
    assert found[0] == found[1]
    await pool.aclose()


def _where(text: str) -> dict[str, float]:
    return {"hate": 0.1 if "PYTEST_CURRENT_TEST" in os.environ else 0.99}  # other processes are not told
