"""Speculation through scheduler and worker: the same tokens, and the target's distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength, Speculation
from tests.engine import dense
from tests.engine.steps import run
from tests.engine.tiny import SHAPE
from tests.engine.worker.drafting import drive
from tests.engine.worker.test_draft_model import GREEDY, WARM, always, drafted, likeness, mixed, prompts, twin

__all__ = ["drafted", "likeness", "twin"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": 12, "late": 2, "sequences": 8},
        {"blocks": 9, "sequences": 8, "budget": 64},
        {"blocks": 8, "sequences": 8, "budget": 16},
    ],
    ids=["", "chunked_prefill", "preempted", "crowded"],
)
def test_the_scheduler_gets_the_same_tokens(
    tiny_runner: Runner, drafted: Runner, options: dict[str, int]
) -> None:
    plain = run(tiny_runner, mixed())
    reported = run(drafted, mixed(), **options)
    assert reported.tokens == plain.tokens
    assert [[one.token for one in reported.logprobs[i]] for i in (5, 6)] == [plain.tokens[i] for i in (5, 6)]
    assert (reported.preempted > 0) == ("blocks" in options)
    if not options:
        assert reported.steps < plain.steps


def test_choices_of_a_prompt_and_prefixes_are_drafted_as_well(tiny_runner: Runner, drafted: Runner) -> None:
    shared = prompts([40], seed=6)[0]
    requests = [(shared + tail, replace(WARM, seed=10 * i)) for i, tail in enumerate(prompts([3, 12, 30], 7))]
    plain = run(tiny_runner, requests, choices=3, late=4)
    reported = run(drafted, requests, choices=3, late=4, blocks=40)
    assert reported.tokens == plain.tokens
    assert reported.copies > 0
    assert reported.hit_tokens >= 64
    assert len({tuple(tokens) for tokens in reported.tokens.values()}) == 9


def test_all_drafts_of_a_twin_come_true_for_choices_and_prefixes_too(twin: Runner) -> None:
    assert twin.speculation is not None
    shared = prompts([40], seed=6)[0]
    requests = [(shared + tail, replace(WARM, seed=10 * i)) for i, tail in enumerate(prompts([3, 12, 30], 7))]
    before, right = twin.speculation.proposed, twin.speculation.accepted
    reported = run(twin, requests, choices=3, late=4)
    assert reported.copies > 0
    assert twin.speculation.proposed - before == twin.speculation.accepted - right > 100


class Stubborn:
    """Always drafts the same."""

    source = "stubborn"
    block_bytes = 0

    def __init__(self, drafted: list[int]) -> None:
        self.drafted = drafted

    def allocate(self, blocks: int) -> None:
        pass

    def begin(self, plan: Plan) -> None:
        pass

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        return {request_id: min(limit, len(self.drafted)) for request_id, limit in limits.items()}

    def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
        return dict(lengths)

    def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
        return {request_id: self.drafted[:length] for request_id, length in lengths.items()}

    def forget(self, request_ids: Sequence[int]) -> None:
        pass


SAMPLED = SamplingParams(max_tokens=3, temperature=1.2, top_k=4)


@pytest.fixture(scope="module")
def truth(tiny_model: Path) -> dict[tuple[int, ...], float]:
    """Of each answer to ``PROMPT`` of three tokens, its probability by a plain forward."""
    weights = load_file(tiny_model / "model.safetensors")

    def after(tokens: list[int]) -> dict[int, float]:
        values, ids = dense.logits(weights, SHAPE, PROMPT + tokens)[-1].topk(4)
        return dict(zip(ids.tolist(), (values.double() / 1.2).softmax(-1).tolist(), strict=True))

    return {
        (a, b, c): p * q * r
        for a, p in after([]).items()
        for b, q in after([a]).items()
        for c, r in after([a, b]).items()
    }


PROMPT = prompts([6], seed=3)[0]


def chi_square(counts: Counter[tuple[int, ...]], expected: Mapping[tuple[int, ...], float]) -> float:
    """How many standard deviations Pearson's statistic lies above its mean; rare answers are put together."""
    total = counts.total()
    rare = [answer for answer, p in expected.items() if p * total < 5]
    cells = [(counts[answer], p * total) for answer, p in expected.items() if p * total >= 5]
    cells.append((sum(counts[answer] for answer in rare), max(sum(expected[a] for a in rare) * total, 1e-9)))
    statistic = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    freedom = len(cells) - 1
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal.
    return ((statistic / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))


def answers(runner: Runner, count: int, params: SamplingParams = SAMPLED) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for start in range(0, count, 64):
        requests = [(PROMPT, replace(params, seed=seed)) for seed in range(start, start + 64)]
        found.update(tuple(tokens) for tokens in drive(runner, requests).tokens)
    return found


@pytest.mark.parametrize("guesser", ["draft", "stubborn"])
def test_the_distribution_is_the_targets(
    drafted: Runner, truth: dict[tuple[int, ...], float], guesser: str
) -> None:
    """4,096 seeds. Draft tokens by chance (a draft that draws by the same number) and without (always the same)."""
    assert drafted.speculation is not None
    speculation = drafted.speculation
    proposer = speculation.proposer
    if guesser == "stubborn":
        likeliest = max(truth, key=lambda answer: truth[answer])
        proposer = Stubborn(list(likeliest[1:]))
    drafted.speculation = Speculation(proposer, 4, policy=FixedDraftLength(4))
    try:
        found = answers(drafted, 4096)
        acceptance = drafted.speculation.acceptance
    finally:
        drafted.speculation = speculation
    assert found.keys() <= truth.keys()
    assert 0.15 < acceptance < 0.95
    assert chi_square(found, truth) < 3


def test_the_statistic_would_show_drafts_that_are_believed(
    tiny_runner: Runner, likeness: Path, truth: dict[tuple[int, ...], float]
) -> None:
    """Of the draft alone, and where one answer in ten gives way to the likeliest."""
    draft = Runner(EngineConfig(model=likeness, kv_cache_blocks=200, threads=1))
    found = answers(draft, 512)
    within = Counter({answer: count for answer, count in found.items() if answer in truth})
    assert chi_square(within, truth) > 6
    wrong = answers(tiny_runner, 2048)
    likeliest = max(truth, key=lambda answer: truth[answer])
    for answer, count in list(wrong.items()):
        moved = round(count / 10)
        wrong[answer] -= moved
        wrong[likeliest] += moved
    assert chi_square(wrong, truth) > 5


def test_a_draft_by_the_same_number_agrees_more_often_than_one_by_another(
    tiny_model: Path, drafted: Runner
) -> None:
    """What drawing by the target's number is for: else two draws would agree by the sum of p q only."""
    requests = [
        (prompt, replace(WARM, seed=i, temperature=1.5)) for i, prompt in enumerate(prompts([20] * 24))
    ]
    reported = drive(drafted, requests)
    coupled = sum(reported.kept) / reported.checked
    assert drafted.speculation is not None
    proposer = drafted.speculation.proposer
    sampled = proposer._sampler.sample  # type: ignore[attr-defined]

    def by_another(logits: torch.Tensor, draws: list, masks: None = None) -> list[int]:
        others = [replace(one, sampling=replace(one.sampling, seed=one.sampling.seed + 999)) for one in draws]
        return sampled(logits, others, masks)

    proposer._sampler.sample = by_another  # type: ignore[attr-defined]
    try:
        other = drive(drafted, requests)
    finally:
        del proposer._sampler.sample  # type: ignore[attr-defined]
    assert other.tokens == reported.tokens
    assert coupled > 1.5 * sum(other.kept) / other.checked


@pytest.mark.parametrize("length", range(1, 12))
def test_an_answer_that_ends_within_right_drafts_ends_there(
    tiny_runner: Runner, twin: Runner, length: int
) -> None:
    (prompt,) = prompts([25], seed=12)
    limited = replace(WARM, max_tokens=length, seed=4)
    expected = run(tiny_runner, [(prompt, replace(limited, max_tokens=12))]).tokens[0]
    assert run(twin, [(prompt, limited)]).tokens[0] == expected[:length]
    stop = expected[length - 1]
    stopped = replace(limited, max_tokens=12, stop_token_ids=frozenset({stop}))
    assert run(twin, [(prompt, stopped)]).tokens[0] == expected[: expected.index(stop) + 1]


def test_drafts_end_with_what_may_be_generated(twin: Runner) -> None:
    """The last token is never followed by a draft, and a stop token is not either."""
    assert twin.speculation is not None
    history = prompts([9])[0]
    for most, expected in ((1, None), (2, None), (3, 1), (4, 2), (9, 4)):
        params = SamplingParams(max_tokens=most, temperature=0)
        scheduled = ScheduledRequest(90, history[:], 0, [0, 1], params, False, history, 9, lookahead=4)
        sampled = twin.execute(Plan([scheduled]))
        assert len(sampled.draft_tokens.get(90, [])) == (expected or 0)
        stopped = replace(params, stop_token_ids=frozenset(sampled.tokens[90]))
        assert not twin.execute(Plan([replace(scheduled, sampling=stopped)], ended=[90])).draft_tokens


class Watched(FixedDraftLength):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.steps: list[tuple[int, int, int, float]] = []
        self.judged: list[tuple[int, int, int]] = []
        self.forgotten: list[int] = []

    def observe(self, base: int, drafted: int, accepted: int, seconds: float) -> None:
        self.steps.append((base, drafted, accepted, seconds))

    def record_acceptance(self, request_id: int, drafted: int, accepted: int) -> None:
        self.judged.append((request_id, drafted, accepted))

    def forget(self, request_ids: Sequence[int]) -> None:
        self.forgotten += request_ids


def test_a_step_is_charged_with_the_making_of_its_drafts() -> None:
    """By a clock that the forward pass and the guesser move."""
    now = 0.0

    class Slow(Stubborn):
        def propose(self, lengths: Mapping[int, int]) -> dict[int, list[int]]:
            nonlocal now
            now += 2
            return super().propose(lengths)

        def prepare(self, lengths: Mapping[int, int]) -> dict[int, int]:
            nonlocal now
            now += 100
            return super().prepare(lengths)

    policy = Watched(2)
    speculation = Speculation(Slow([5, 6]), 2, policy=policy, clock=lambda: now)
    params = SamplingParams(max_tokens=50)
    history = [1, 2, 3]

    def step(seconds: float, drafts: list[int], sampled: list[int], chunk: int = 0) -> list[int]:
        nonlocal now
        plan = Plan(
            [
                ScheduledRequest(
                    1,
                    [3, *drafts],
                    2,
                    [0],
                    params,
                    True,
                    history,
                    3,
                    num_draft_tokens=len(drafts),
                    lookahead=2,
                )
            ]
        )
        if chunk:
            plan.requests.append(ScheduledRequest(2, [0] * chunk, 0, [1], None, False))
        speculation.begin(plan)
        now += seconds
        return speculation.propose(plan, {1: sampled})[1]

    assert step(10, [], [4]) == [5, 6]
    assert step(11, [5, 6], [5, 7]) == [5, 6]
    assert step(12, [5], [5, 6], chunk=30) == [5, 6]
    assert step(9, [], [5]) == [5, 6]
    assert policy.steps == [(1, 0, 0, 10), (1, 2, 1, 13), (31, 1, 1, 14), (1, 0, 0, 9)]
    assert policy.judged == [(1, 2, 1), (1, 1, 1)]
    assert (speculation.proposed, speculation.accepted) == (3, 2)
    assert speculation.acceptance == pytest.approx(2 / 3)
    speculation.begin(Plan(ended=[1]))
    assert policy.forgotten == [1]


def test_lengths_that_were_measured_serve_the_runner(tiny_runner: Runner, tiny_model: Path) -> None:
    """With a clock by which drafts cost nothing they are used, with one by which they cost much they are not."""
    requests = [(prompt, replace(GREEDY, max_tokens=90)) for prompt in prompts([9, 30])]
    plain = run(tiny_runner, requests)
    config = EngineConfig(
        model=tiny_model, speculation="draft", draft_model=tiny_model, kv_cache_blocks=60, threads=1
    )
    runner = Runner(config)
    assert runner.speculation is not None
    proposer = runner.speculation.proposer
    draft = proposer.propose
    for dear, most in ((False, 0.4), (True, 1.01)):
        seconds = 0.0

        def timed(lengths: Mapping[int, int], dear: bool = dear) -> dict[int, list[int]]:
            nonlocal seconds
            seconds += 50.0 * dear
            return draft(lengths)

        def clock() -> float:
            nonlocal seconds
            seconds += 1.0
            return seconds

        proposer.propose = timed  # type: ignore[method-assign]
        runner.speculation = Speculation(proposer, 4, clock=clock)
        reported = run(runner, requests)
        assert reported.tokens == plain.tokens
        assert reported.steps <= most * plain.steps
        assert reported.steps > plain.steps * (most - 0.35)


@pytest.fixture(scope="module")
def questions() -> list[tuple[list[int], SamplingParams]]:
    tokenizer = Tokenizer(locate("demo"))
    texts = [
        "What is the capital of France?",
        "What is 17 + 25?",
        "Tell me a short story about a fox.",
        "Hello!",
    ]
    params = SamplingParams(max_tokens=40, temperature=0, stop_token_ids=tokenizer.stop_ids)
    wrapped = [f"<|bos|><|user|>{text}<|end|><|assistant|>" for text in texts]
    return [(tokenizer.encode(text, special=False), params) for text in wrapped]


@pytest.fixture(scope="module")
def demo() -> Runner:
    return Runner(EngineConfig(model=locate("demo"), kv_cache_blocks=256, threads=1))


@pytest.mark.parametrize("speculation", ["ngram", "draft"])
def test_the_demo_pair_says_what_the_demo_model_says(
    demo: Runner, questions: list[tuple[list[int], SamplingParams]], speculation: str
) -> None:
    draft = locate("demo").parent / "draft" if speculation == "draft" else None
    config = EngineConfig(
        model=locate("demo"), speculation=speculation, draft_model=draft, kv_cache_blocks=256, threads=1
    )
    runner = always(Runner(config))
    assert runner.speculation is not None
    requests = questions + [
        (prompt, replace(params, temperature=0.7, seed=5)) for prompt, params in questions
    ]
    plain = run(demo, requests)
    reported = run(runner, requests)
    assert reported.tokens == plain.tokens
    assert runner.speculation.source == speculation
    if speculation == "draft":
        assert runner.speculation.acceptance > 0.4
