from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gateway.findings import Finding
from gateway.guards.scanners.layered import LayeredScanner
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.sidecar.api import Scored, SidecarDown

pytestmark = pytest.mark.anyio

USER: frozenset[Origin] = frozenset({"user"})


def bad(text: str) -> Mapping[str, float]:
    """Sure of a text with ``bad`` in it, in doubt of one with ``odd``."""
    return {"a": 0.99 if "bad" in text else 0.5 if "odd" in text else 0.001, "ignored": 1.0}


class Windows:
    """A model with windows of ten characters, unless a text is shorter; scores by what a window holds."""

    def __init__(self, scores: Mapping[str, float], label: str = "a", size: int = 10) -> None:
        self.scores, self.label, self.size = scores, label, size
        self.asked: list[Sequence[str]] = []

    async def __call__(self, texts: Sequence[str]) -> list[list[Scored]]:
        self.asked.append(tuple(texts))
        return [
            [
                Scored(
                    at, min(at + self.size, len(text)), {self.label: self._score(text[at : at + self.size])}
                )
                for at in range(0, max(1, len(text)), self.size)
            ]
            for text in texts
        ]

    def _score(self, text: str) -> float:
        return max([0.01, *(score for word, score in self.scores.items() if word in text)])


class Says:
    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.asked: list[str] = []

    async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
        self.asked += texts
        return [self.verdict] * len(texts)


def layered(
    fast: bool = True,
    model: Windows | None = None,
    judge: Says | None = None,
    threshold: float = 0.5,
) -> LayeredScanner:
    return LayeredScanner(
        origins=USER,
        thresholds={"a": threshold, "b": threshold},
        fast=bad if fast else None,
        clear=(0.1, 0.9),
        model=model,
        judge=judge,
    )


def test_the_fast_check_decides_what_is_clear_and_leaves_the_rest() -> None:
    scanner = layered(model=Windows({}))
    assert scanner.quick("good", "user") == Verdict((), 0.001, "fast")
    assert scanner.quick("bad", "user") == Verdict((Finding("a", 0, 3, 0.99),), 0.99, "fast")
    assert scanner.quick("odd", "user") is None


def test_without_a_model_and_a_judge_the_fast_check_decides_alone() -> None:
    assert layered().quick("odd", "user") == Verdict((Finding("a", 0, 3, 0.5),), 0.5, "fast")
    assert layered(threshold=0.6).quick("odd", "user") == Verdict((), 0.5, "fast")


def test_without_a_fast_check_nothing_is_decided_at_once() -> None:
    assert layered(fast=False, model=Windows({})).quick("bad", "user") is None


@pytest.mark.parametrize(
    ("threshold", "text", "decided"),
    [
        (0.5, "bad", True),
        (0.95, "bad", False),
        (0.99999, "bad", True),
        (0.001, "good", False),
        (0.9, "odd", True),
    ],
)
def test_what_is_clear_moves_with_the_threshold(threshold: float, text: str, decided: bool) -> None:
    assert (layered(model=Windows({}), threshold=threshold).quick(text, "user") is not None) is decided


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_thresholds_at_either_end(threshold: float) -> None:
    verdict = layered(threshold=threshold).quick("bad", "user")
    assert verdict is not None
    assert bool(verdict.findings) is (threshold == 0.0)


def test_a_finding_spans_the_unsafe_sentences() -> None:
    text = "All is well. This is bad! And this. So bad. The end."
    verdict = layered().quick(text, "user")
    assert verdict is not None
    assert text[verdict.findings[0].start : verdict.findings[0].end] == "This is bad! And this. So bad."


async def test_the_models_windows_become_findings() -> None:
    verdicts = await layered(model=Windows({"evil": 0.8})).thorough(["0123456789 evil", "fine"], "user")
    assert verdicts == [Verdict((Finding("a", 11, 15, 0.8),), 0.8, "model"), Verdict((), 0.01, "model")]


async def test_a_hit_is_narrowed_down_by_a_second_look_and_only_a_hit() -> None:
    model = Windows({"evil": 0.8}, size=100)
    clean, hit = await layered(model=model).thorough(["Fine. Good.", "Fine. So evil. Good. Bye."], "user")
    assert clean.findings == ()
    assert hit.findings == (Finding("a", 6, 14, 0.8),)
    assert model.asked[1:] == [("Fine.", "So evil.", "Good.", "Bye.")]


async def test_a_window_that_is_unsafe_only_as_a_whole_is_found_as_a_whole() -> None:
    model = Windows({"One. Two": 0.9}, size=100)
    (verdict,) = await layered(model=model).thorough(["One. Two."], "user")
    assert verdict.findings == (Finding("a", 0, 9, 0.9),)


async def test_findings_of_overlapping_windows_are_one() -> None:
    async def overlapping(texts: Sequence[str]) -> list[list[Scored]]:
        return [[Scored(0, 6, {"a": 0.7}), Scored(4, 10, {"b": 0.9})] for _ in texts]

    scanner = LayeredScanner(
        origins=USER, thresholds={"a": 0.5, "b": 0.5}, fast=None, clear=(0.1, 0.9), model=overlapping
    )
    (verdict,) = await scanner.thorough(["evilevil12"], "user")
    assert verdict.findings == (Finding("b", 0, 10, 0.9),)


async def test_each_label_has_its_own_threshold() -> None:
    scanner = LayeredScanner(
        origins=USER,
        thresholds={"a": 0.9, "b": 0.3},
        fast=None,
        clear=(0.1, 0.9),
        model=Windows({"x": 0.5}, "b"),
    )
    (verdict,) = await scanner.thorough(["x"], "user")
    assert verdict.findings == (Finding("b", 0, 1, 0.5),)


async def test_the_judge_is_asked_only_where_the_model_is_not_sure() -> None:
    judge = Says(Verdict((), 0.0, "judge"))
    scanner = layered(model=Windows({"evil": 0.95, "odd": 0.6}), judge=judge)
    verdicts = await scanner.thorough(["evil", "odd", "fine"], "user")
    assert judge.asked == ["odd"]
    assert [verdict.check for verdict in verdicts] == ["model", "judge", "model"]
    assert [len(verdict.findings) for verdict in verdicts] == [1, 0, 0]


async def test_without_a_model_the_judge_decides_what_the_fast_check_leaves_open() -> None:
    judge = Says(Verdict((), 0.2, "judge"))
    scanner = layered(judge=judge)
    assert scanner.quick("odd", "user") is None
    assert await scanner.thorough(["odd"], "user") == [judge.verdict]


async def test_a_sidecar_that_fails_leaves_the_text_unscanned() -> None:
    async def down(texts: Sequence[str]) -> list[list[Scored]]:
        raise SidecarDown("gone")

    scanner = LayeredScanner(origins=USER, thresholds={"a": 0.5}, fast=bad, clear=(0.1, 0.9), model=down)
    with pytest.raises(Unscanned, match="gone"):
        await scanner.thorough(["odd"], "user")


async def test_with_neither_model_nor_judge_nothing_is_judged_thoroughly() -> None:
    with pytest.raises(Unscanned):
        await layered(fast=False).thorough(["odd"], "user")


class Fails(Windows):
    """Answers once, and is gone then."""

    async def __call__(self, texts: Sequence[str]) -> list[list[Scored]]:
        if self.asked:
            raise SidecarDown("gone")
        return await super().__call__(texts)


async def test_what_was_found_stands_when_nobody_can_say_where() -> None:
    text = "Fine here. A bad one."
    verdict = (await layered(model=Fails({"bad": 0.9}, size=40)).thorough([text], "user"))[0]
    assert verdict.findings == (Finding("a", 0, len(text), 0.9),)


async def test_a_window_of_very_many_sentences_is_not_searched_one_by_one() -> None:
    text = "".join(f"bad {n}. " for n in range(500))
    model = Windows({"bad": 0.9}, size=8000)
    verdict = (await layered(model=model).thorough([text], "user"))[0]
    assert [len(asked) for asked in model.asked] == [1]
    assert verdict.findings == (Finding("a", 0, len(text), 0.9),)


@pytest.mark.parametrize(
    ("clear", "unclear", "has_model", "score", "asked"),
    [
        ((0.1, 0.9), None, False, 0.15, True),
        ((0.1, 0.9), None, False, 0.05, False),
        ((0.1, 0.9), (0.3, 0.7), False, 0.15, False),
        ((0.1, 0.9), (0.3, 0.7), False, 0.5, True),
        ((0.1, 0.9), (0.0, 1.0), False, 0.0, True),
        ((0.1, 0.9), (0.0, 1.0), True, 1.0, True),
        ((0.1, 0.9), (0.05, 0.7), True, 0.06, True),
        ((0.1, 0.9), None, True, 0.15, False),
        ((0.1, 0.9), None, True, 0.5, True),
    ],
)
async def test_a_judge_is_asked_between_the_policys_probabilities(
    clear: tuple[float, float],
    unclear: tuple[float, float] | None,
    has_model: bool,
    score: float,
    asked: bool,
) -> None:
    async def model(texts: Sequence[str]) -> list[list[Scored]]:
        return [[Scored(0, len(text), {"bad": score})] for text in texts]

    class Judge:
        async def judge(self, texts: Sequence[str], origin: Origin, asker: object = None) -> list[Verdict]:
            return [Verdict((), 0.0, "judge") for _ in texts]

    scanner = LayeredScanner(
        origins=frozenset({"user"}),
        thresholds={"bad": 0.5},
        fast=lambda text: {"bad": score},
        clear=clear,
        model=model if has_model else None,
        judge=Judge(),
        unclear=unclear,
    )
    verdict = scanner.quick("some words", "user")
    if verdict is None:
        (verdict,) = await scanner.thorough(["some words"], "user")
    assert (verdict.check == "judge") == asked
