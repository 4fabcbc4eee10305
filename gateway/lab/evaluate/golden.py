"""Asks one server a golden set, before it takes over: ``python -m gateway.lab.evaluate.golden SET URL``.

The gateway runs it for the successor of a launched engine (``backends.<name>.golden``). It prints one line, and exits
with 0 where enough answers pass, 1 where they do not, and 2 where nobody can tell.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

from gateway.lab.evaluate.answer import Answer, read_answer
from gateway.lab.evaluate.case import Case, Rubric, Similar
from gateway.lab.evaluate.checks import Verdict, failed
from gateway.lab.evaluate.errors import EvaluationError, SetError
from gateway.lab.evaluate.reader import needs, read_set

AT_ONCE = 4
"""Cases that are asked side by side."""
TIMEOUT = 600.0
"""Seconds for one answer."""
_NAMED = 3
"""Failures that are told."""


async def failures(
    url: str, cases: Sequence[Case], transport: httpx.AsyncBaseTransport | None = None
) -> list[str]:
    """What is wrong with the answers of the server whose API is at ``url``, a line a case."""
    turns = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT, trust_env=False, transport=transport) as http:

        async def ask(case: Case) -> str | None:
            async with turns:
                verdict = _verdict(case, await _answer(http, case))
            return None if verdict.passed else f"{case.id}: {verdict.why or 'wrong'}"

        return [why for why in await asyncio.gather(*map(ask, cases)) if why is not None]


async def _answer(http: httpx.AsyncClient, case: Case) -> Answer:
    try:
        response = await http.post("/v1/chat/completions", json={**case.body, "model": "golden"})
        return read_answer({"response": {"status_code": response.status_code, "body": response.json()}})
    except (httpx.HTTPError, ValueError) as error:
        return Answer(error=str(error) or type(error).__name__)


def _verdict(case: Case, answer: Answer) -> Verdict:
    if answer.error:
        return failed(answer.error)
    for check in case.checks:
        if isinstance(check, Similar | Rubric):
            raise TypeError(f"{case.id}: nobody judges here")
        if not (verdict := check(answer)).passed:
            return verdict
    return Verdict(True, 1.0)


def read(path: Path) -> list[Case]:
    """Raises ``SetError``."""
    cases = read_set(path)
    if wanted := [*needs(cases)]:
        raise SetError(
            f"{path}: has checks that need a model ({', '.join(wanted)}), which a golden set of an engine cannot ask"
        )
    return cases


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="golden")
    parser.add_argument("set", type=Path)
    parser.add_argument("url")
    parser.add_argument("--at-least", type=float, default=1.0)
    given = parser.parse_args(argv)
    try:
        cases = read(given.set)
        found = asyncio.run(failures(given.url, cases))
    except EvaluationError as error:
        sys.stdout.write(f"{error}\n")
        return 2
    passed = len(cases) - len(found)
    more = f"; failed: {'; '.join(one[:120] for one in found[:_NAMED])}" if found else ""
    sys.stdout.write(f"{passed} of {len(cases)} cases pass, {given.at_least:.4g} of them should{more}\n")
    return 0 if passed >= given.at_least * len(cases) - 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
