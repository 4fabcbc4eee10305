"""One test case, from its first step to its last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.identity.api_keys import hash_key
from gateway.lab.adapters_at_hand import base_of
from gateway.lab.deciding import Deciding
from gateway.lab.explain.paths import path_of
from gateway.lab.policy_lines import PolicyLine, PolicyLines
from gateway.lab.policy_tests.checks import Failure, Seen, failures
from gateway.lab.policy_tests.in_process import Answered, InProcess, in_process, secret_of
from gateway.lab.policy_tests.schema import Caller, Case, Models, Step, TestFile
from gateway.lab.policy_tests.scripted import GuardServers, Scripts
from gateway.lab.policy_tests.scripted_sidecar import ScriptedSidecar
from gateway.lab.policy_tests.virtual_time import VirtualTime
from gateway.policy.loader import Loaded
from gateway.policy.problems import suggestion
from gateway.policy.schema import Key, Policy

A_MOMENT = 0.001
"""Seconds in which a request that is not awaited comes to its backend, or its queue, and in which what follows an
answer is done, such as keeping it in a cache."""
NOON = 12


@dataclass(frozen=True, slots=True)
class FailedRequest:
    where: str
    """``steps[2]``, the third of its five …"""
    failures: tuple[Failure, ...]
    decided: tuple[PolicyLine, ...]


@dataclass(slots=True)
class CaseResult:
    name: str
    at: str
    """Where it is written: ``gateway.test.yaml:12``."""
    failed: list[FailedRequest] = field(default_factory=list)
    broken: str | None = None
    """Why it could not be run."""
    seen: list[dict[str, Any]] = field(default_factory=list)
    decided: tuple[PolicyLine, ...] = ()
    """What decided on its last request."""

    @property
    def passed(self) -> bool:
        return not self.failed and self.broken is None


class CaseRun:
    def __init__(
        self, file: TestFile, case: Case, result: CaseResult, lines: PolicyLines, clock: VirtualTime
    ) -> None:
        self._file = file
        self._case = case
        self._result = result
        self._lines = lines
        self._clock = clock
        self._begun: list[tuple[str, Step, asyncio.Task[Seen]]] = []

    async def run(self, loaded: Loaded, folder: Path) -> None:
        """Notes in the result what fails."""
        case = self._case
        self._clock.set(_beginning(case))
        self._result.broken = next(_unknown(self._file, case, loaded.policy), None)
        if self._result.broken is not None:
            return
        scripts = Scripts({**self._file.backends, **case.backends})
        models = _both(self._file.models, case.models)
        servers = GuardServers(loaded.policy, {**self._file.webhooks, **case.webhooks})
        callers = [step.caller for step in (case, *case.steps) if step.caller is not None]
        others = tuple({one.id: _key_of(one) for one in callers}.values())
        in_use = replace(loaded, disabled=dict.fromkeys(case.disabled, "the test says so"))
        sidecar, adapters = ScriptedSidecar(models), self._file.adapters
        async with in_process(in_use, folder, scripts, sidecar, servers, others, adapters) as gateway:
            deciding = Deciding(loaded.policy, self._lines)
            for where, step in self._steps():
                await self._step(gateway, deciding, where, step)
            for where, step, task in self._begun:
                self._check(where, step, await task)

    def _steps(self) -> Iterator[tuple[str, Step]]:
        yield "", self._case
        for number, step in enumerate(self._case.steps):
            yield f"steps[{number}]", step

    async def _step(self, gateway: InProcess, deciding: Deciding, where: str, step: Step) -> None:
        gateway.scripts.change(step.backends)
        if step.wait is not None:
            await asyncio.sleep(step.wait)
        for backend, answers in step.load.items():
            gateway.load(backend, answers)
        if not step.sends:
            return
        for number in range(step.times):
            each = f"{where} (number {number + 1} of {step.times})".strip() if step.times > 1 else where
            if step.begin:
                task = asyncio.create_task(self._ask(gateway, deciding, step))
                self._begun.append((each, step, task))
                await asyncio.sleep(A_MOMENT)
            else:
                self._check(each, step, await self._ask(gateway, deciding, step))

    async def _ask(self, gateway: InProcess, deciding: Deciding, step: Step) -> Seen:
        body = _body(step)
        headers = {"content-type": "application/json", **step.headers}
        key_id = self._key_id(gateway.policy, step)
        headers.setdefault("authorization", f"Bearer {secret_of(key_id)}")
        answered: Answered = await gateway.ask(
            step.path or path_of(body),
            body,
            headers,
            address=step.address or self._case.address,
            clock=self._clock.now,
        )
        await gateway.settled()
        await asyncio.sleep(A_MOMENT)
        request_id = answered.headers.get("x-request-id", "")
        seen = Seen(answered, gateway.scripts.sent.get(request_id, []), ())
        return replace(seen, decided=deciding.of(answered.call, answered.status, seen.error))

    def _key_id(self, policy: Policy, step: Step) -> str:
        for one in (step, self._case):
            if one.caller is not None:
                return one.caller.id
            if one.key is not None:
                return one.key
        return "dev"

    def _check(self, where: str, step: Step, seen: Seen) -> None:
        result = self._result
        result.decided = seen.decided
        result.seen.append(seen.facts)
        found = tuple(failures(step.expect, seen)) if step.expect is not None else ()
        if found:
            result.failed.append(FailedRequest(where, found, seen.decided))


def _beginning(case: Case) -> float:
    if case.at is not None:
        return case.at.timestamp()
    return datetime.now(UTC).replace(hour=NOON, minute=0, second=0, microsecond=0).timestamp()


def _body(step: Step) -> bytes:
    if step.body is not None:
        named = {} if step.model is None else {"model": step.model}
        return json.dumps({**step.body, **named}).encode()
    asked: dict[str, Any] = {"model": step.model, "messages": [{"role": "user", "content": step.ask}]}
    if step.path is not None and step.path.endswith("/messages"):
        asked["max_tokens"] = 1024
    if step.path is not None and step.path.endswith("/responses"):
        asked = {"model": step.model, "input": step.ask}
    return json.dumps(asked | ({"stream": True} if step.stream else {})).encode()


def _key_of(caller: Caller) -> Key:
    return Key(
        id=caller.id,
        sha256=hash_key(secret_of(caller.id)),
        tenant=caller.tenant,
        tier=caller.tier,
        models=caller.models,
        residency=caller.residency,
    )


def _both(of_file: Models, of_case: Models) -> Models:
    """The case's own words go first."""
    return Models(
        **{name: (*getattr(of_case, name), *getattr(of_file, name)) for name in Models.model_fields}
    )


def _unknown(file: TestFile, case: Case, policy: Policy) -> Iterator[str]:
    """Names that are none of the policy's."""
    steps = (case, *case.steps)
    named: list[tuple[str, Mapping[str, Any] | tuple[str, ...], Mapping[str, Any]]] = [
        ("backend", file.backends, policy.backends),
        ("backend", case.disabled, policy.backends),
        ("guard", {**file.webhooks, **case.webhooks}, policy.guards),
        *(("backend", step.backends, policy.backends) for step in steps),
        *(("backend", step.load, policy.backends) for step in steps),
        *(("guard", step.expect.guards, policy.guards) for step in steps if step.expect is not None),
    ]
    for what, names, known in named:
        for name in names:
            if name not in known:
                yield f"no {what} of the policy is named '{name}'{suggestion(name, (*known,))}"
    for name in file.adapters:
        if base_of(policy, name) is None:
            yield f"'{name}' can be no adapter: write base:name, of a model at a backend under the policy's 'adapters'"
    keys = [key.id for key in policy.keys]
    for step in steps:
        if step.key is not None and step.key not in keys and not (step.key == "dev" and not keys):
            yield (
                f"no key of the policy has the id '{step.key}'{suggestion(step.key, keys)}; "
                "'caller: {tenant: …}' makes one up"
            )
    nobody = any(step.key is None and step.caller is None for step in steps if step.sends)
    if nobody and keys and case.key is None and case.caller is None:
        yield "says nobody who asks: write 'key', an id of the policy's, or 'caller: {tenant: …}'"
