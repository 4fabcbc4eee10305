"""A small scheduler that takes drafts, cuts prompts and preempts when it is told to: for the worker alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from engine.core.logprobs import TokenLogprobs
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.worker.runner import Runner


@dataclass
class DriveResult:
    tokens: list[list[int]]
    logprobs: list[list[TokenLogprobs]]
    steps: int = 0
    checked: int = 0
    kept: list[int] = field(default_factory=list)
    """Draft tokens that came true, by step and request that had any."""
    preempted: int = 0


def drive(
    runner: Runner,
    requests: list[tuple[list[int], SamplingParams]],
    *,
    chunk: int = 512,
    lookahead: int = 8,
    disturb: float = 0.0,
    seed: int = 0,
    first_id: int = 0,
) -> DriveResult:
    """``disturb``: how likely a request is preempted, and how likely its drafts are cut, in each step."""
    numbers = random.Random(seed)
    reported = DriveResult([[] for _ in requests], [[] for _ in requests])
    texts = [list(prompt) for prompt, _ in requests]
    drafts: list[list[int]] = [[] for _ in requests]
    parents: list[list[int]] = [[] for _ in requests]
    computed = [0] * len(requests)
    going = set(range(len(requests)))
    width = max(-(-(len(p) + s.max_tokens + lookahead) // runner.block_size) for p, s in requests)
    tables = [list(range(i * width, (i + 1) * width)) for i in range(len(requests))]
    while going:
        plan = Plan()
        victims = [i for i in sorted(going) if computed[i] and numbers.random() < disturb]
        moved = [tables[i] for i in victims[1:] + victims[:1]]
        for i, table in zip(victims, moved, strict=True):
            # Another one's blocks: what stands there is not its own.
            computed[i], drafts[i], tables[i] = 0, [], table
            plan.preempted.append(first_id + i)
        for i in sorted(going):
            prompt, params = requests[i]
            if numbers.random() < disturb:
                drafts[i] = drafts[i][: numbers.randrange(len(drafts[i]) + 1)]
            wanted = texts[i] + drafts[i]
            end = min(len(wanted), computed[i] + chunk)
            done = end >= len(texts[i])
            plan.requests.append(
                ScheduledRequest(
                    first_id + i,
                    wanted[computed[i] : end],
                    computed[i],
                    tables[i],
                    params if done else None,
                    computed[i] >= len(prompt),
                    history=texts[i],
                    prompt_length=len(prompt),
                    num_draft_tokens=max(0, end - len(texts[i])),
                    lookahead=lookahead if done else 0,
                    draft_parents=parents[i][: max(0, end - len(texts[i]))],
                )
            )
        sampled = runner.execute(plan)
        reported.steps += 1
        reported.preempted += len(plan.preempted)
        for scheduled in plan.requests:
            i = scheduled.request_id - first_id
            computed[i] = scheduled.end - scheduled.num_draft_tokens
            drafts[i] = sampled.draft_tokens.get(scheduled.request_id, [])
            parents[i] = sampled.draft_parents.get(scheduled.request_id, [])
            if scheduled.sampling is None:
                continue
            gained = sampled.tokens[scheduled.request_id]
            reported.checked += scheduled.num_draft_tokens
            if scheduled.num_draft_tokens:
                reported.kept.append(len(gained) - 1)
            computed[i] += len(gained) - 1
            logprobs = sampled.logprobs.get(scheduled.request_id, [])
            for at, token in enumerate(gained):
                texts[i].append(token)
                reported.tokens[i].append(token)
                reported.logprobs[i] += logprobs[at : at + 1]
                if (
                    token in scheduled.sampling.stop_token_ids
                    or len(reported.tokens[i]) == scheduled.sampling.max_tokens
                ):
                    going.discard(i)
                    break
    runner.execute(Plan(ended=[first_id + i for i in range(len(requests))]))
    return reported
