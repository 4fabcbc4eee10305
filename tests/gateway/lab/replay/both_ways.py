"""A process that answers scenarios: what a replay decides of them, and what the live gateway does.

Live is the real application in one process, over scripted backends, asked by HTTP bodies, in virtual time. A scenario
is a line of JSON on stdin: ``policy`` (YAML) and ``requests`` (as recorded). The answer is one, too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from gateway.lab.policy_tests.virtual_time import VirtualLoop, VirtualTime
from gateway.lab.replay.decisions import BLOCKED, Decision

if TYPE_CHECKING:
    from gateway.lab.policy_tests.in_process import InProcess
    from gateway.lab.policy_tests.schema import Answer
    from gateway.recording.recorded_request import RecordedRequest
    from gateway.types import Call

FIRST, PROMPT, TOKEN = 0.10007, 13e-6, 0.0100003
"""Seconds to the first token, of each token of the prompt, and between two: so that no two things happen at once, whose
order would be open."""
SERVICE = f"first={FIRST * 1e6}us,prompt={PROMPT * 1e6}us,token={TOKEN * 1e6}us"
ZERO = 1_764_590_400.0
SLACK = 0.001


def decide(scenario: Mapping[str, Any], clock: VirtualTime) -> dict[str, Any]:
    from gateway.recording.recorded_request import RecordedRequest

    requests = [RecordedRequest.from_json(one) for one in scenario["requests"]]
    with TemporaryDirectory(prefix="tollgate-both-") as place:
        folder = Path(place) / "policies"
        folder.mkdir()
        (folder / "gateway.yaml").write_text(scenario["policy"])
        trace = Path(place) / "trace.jsonl"
        trace.write_bytes(b"\n".join(one.to_json() for one in requests))
        return {
            "replayed": [*_replayed(folder, trace, clock)],
            "live": _live(folder, [*_with_answers(trace, requests)], clock),
        }


def _with_answers(trace: Path, requests: Sequence[RecordedRequest]) -> Iterator[RecordedRequest]:
    """With as many tokens as each has where it is answered now: a part of the world, not of what is decided."""
    from gateway.lab.replay.survey import survey

    known = survey(trace, None)
    for one in requests:
        tokens = one.completion_tokens
        usual = known.usual_answer(one.model)
        yield replace(one, completion_tokens=tokens if one.outcome == "completed" else max(tokens, usual))


def _replayed(folder: Path, trace: Path, clock: VirtualTime) -> Iterator[dict[str, Any]]:
    from gateway.lab.policy_tests.reader import policy_for
    from gateway.lab.replay.job import Job
    from gateway.lab.replay.run import run_job
    from gateway.metering.price import NANO

    job = Job(str(trace), str(folder), {"nobody": 1.0}, {"chat": 1.0}, services=(SERVICE,))
    for one in run_job(job, policy_for(folder, {}), {}, clock, lambda *_: None):
        yield {
            "status": one.status,
            "reason": _code(one),
            "model": one.model,
            "backend": one.backend if one.status < 400 else "",
            "why": one.why if one.status < 400 else "",
            "cost": one.cost / NANO,
            "completion": one.completion if one.status < 400 else 0,
            "waited": None if one.waited != one.waited else one.waited,
            "cached": one.why == "cache" or one.reason == "exact",
            "took": one.duration,
        }


def _code(one: Decision) -> str:
    if one.kind == BLOCKED:
        return "content_policy_violation"  # it has the guard's name
    return one.reason.partition(":")[0] if one.status >= 400 else ""


def _live(folder: Path, requests: Sequence[RecordedRequest], clock: VirtualTime) -> list[dict[str, Any]]:
    loop = VirtualLoop(clock)
    try:
        return loop.run_until_complete(_asked(folder, requests, clock))
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def _asked(
    folder: Path, requests: Sequence[RecordedRequest], clock: VirtualTime
) -> list[dict[str, Any]]:
    from gateway.lab.policy_tests.in_process import in_process
    from gateway.lab.policy_tests.reader import policy_for
    from gateway.lab.policy_tests.schema import Models
    from gateway.lab.policy_tests.scripted import GuardServers, Scripts
    from gateway.lab.policy_tests.scripted_sidecar import ScriptedSidecar

    class ByRequest(Scripts):
        """Each request has an answer of its own, found by the name that its caller gives."""

        def answer(self, backend: str, call: Call) -> Answer:
            return _answer(requests[int(call.user_agent[1:])], backend)

    loaded = policy_for(folder, {})
    servers, sidecar = GuardServers(loaded.policy, {}), ScriptedSidecar(Models())
    clock.set(requests[0].at)
    async with in_process(loaded, folder, ByRequest({}), sidecar, servers, ()) as gateway:
        begin = clock.now()
        tasks: list[asyncio.Task[dict[str, Any]]] = []
        for number, one in enumerate(requests):
            await asyncio.sleep(begin + one.at - requests[0].at - clock.now())
            tasks.append(asyncio.create_task(_ask(gateway, number, one, clock)))
        return [*await asyncio.gather(*tasks)]


def _answer(one: RecordedRequest, backend: str) -> Answer:
    from gateway.lab.policy_tests.schema import Answer
    from gateway.lab.replay.prompts import mark
    from gateway.lab.replay.replay_backend import A_REFUSAL

    if one.outcome == "failed" and one.backend == backend:
        if one.code == "upstream_unavailable":
            return Answer(unreachable=True)
        return Answer(status=one.status, message="as recorded", delay=_span(one.duration or A_REFUSAL))
    words = ["x"] * one.completion_tokens
    if one.outcome == "revoked":
        words[0] = mark(one.findings[0][0])
    return Answer(
        reply=" ".join(words),
        delay=_span(FIRST + PROMPT * one.prompt_tokens),
        token_delay=_span(TOKEN),
        prompt_tokens=one.prompt_tokens,
        completion_tokens=None,
        finish=one.finish_reason or "stop",
    )


def _span(seconds: float) -> Any:
    """As test files write it."""
    return f"{1000 * seconds:.6f}ms"


async def _ask(gateway: InProcess, number: int, one: RecordedRequest, clock: VirtualTime) -> dict[str, Any]:
    from gateway.lab.policy_tests.in_process import secret_of
    from gateway.lab.replay.prompts import Prompts

    prompts = Prompts(gateway.policy)
    asked = prompts.request(one, one.model, prompts.marks(one)[0], str(number))
    body: dict[str, Any] = {
        "model": asked.model,
        "messages": asked.messages,
        "stream": asked.stream,
        **asked.params,
    }
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {secret_of(one.key)}",
        "user-agent": f"r{number}",
    }
    answered = await gateway.ask("/v1/chat/completions", json.dumps(body).encode(), headers, clock=clock.now)
    call = answered.call
    if call is None:
        error = json.loads(answered.body)["error"]
        return _told(status=answered.status, reason=error["code"], took=answered.took)
    notes = call.receipt.notes
    status = notes["trace"]["status"]
    fine = status < 400
    return _told(
        status=status,
        reason="" if fine else str(notes["meter"]["error"]),
        model=call.candidate.model if call.candidate is not None else "",
        backend=call.candidate.target.backend if fine and call.candidate is not None else "",
        why=call.candidate.why if fine and call.candidate is not None else "",
        cost=notes.get("quota", {}).get("cost_usd", 0.0),
        completion=notes["meter"].get("completion_tokens", 0) if fine and call.cached is None else 0,
        waited=notes.get("queue", {}).get("waited"),
        cached=call.cached == "exact",
        took=answered.took,
    )


def _told(**facts: Any) -> dict[str, Any]:
    nothing = {"status": 0, "reason": "", "model": "", "backend": "", "why": "", "cost": 0.0, "completion": 0}
    return {**nothing, "waited": None, "cached": False, "took": 0.0, **facts}


def main() -> None:
    clock = VirtualTime()
    clock.begin()
    import logging
    import random

    random.uniform = lambda a, b: b  # how long before another try: both ways draw other numbers
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(decide(json.loads(line), clock)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
