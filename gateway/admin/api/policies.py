"""``/admin/api/policy``: what is in force, what was, what would be; and the way back."""

from __future__ import annotations

import asyncio
import difflib
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.errors import NotFound
from gateway.policy.candidate import problems_of
from gateway.policy.files import PolicyFile, read_files
from gateway.policy.history import KEY_FILES, Generation
from gateway.policy.key_store import state_files
from gateway.policy.problems import PolicyError
from gateway.policy.redaction import redacted, without_values
from gateway.web.operation import Operation

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}\.ya?ml$")]
NUMBER = Annotated[int, Field(ge=1, le=999_999)]


class ShownGeneration(Told):
    generation: int
    since: str
    """When it came into force."""
    files: dict[str, str]
    """By name; keys and passwords that are written there are hidden."""
    diff: str
    """What was changed from the generation before, as a unified diff; empty for the first."""


class CurrentPolicy(Told):
    policy: ShownGeneration | None = None
    """None where the gateway was not started by 'tollgate serve'."""
    rejected: str | None = None
    """Why the files as they are now are not in force."""
    backends: list[str]
    models: list[str]
    drained: list[str]


class HistoryEntry(Told):
    generation: int
    since: str
    files: list[str]
    added: int
    """Lines, since the one before."""
    removed: int


class History(Told):
    generations: list[HistoryEntry]
    """Newest first."""


class Candidate(Strict):
    files: Annotated[
        dict[FileName, str],
        Field(min_length=1, max_length=100, json_schema_extra={"additionalProperties": False}),
    ]
    """The whole policy folder, without its key files: by name, as they would be written."""


class FoundProblem(Told):
    file: str
    line: int
    message: str


class Verdict(Told):
    valid: bool
    problems: list[FoundProblem]
    warnings: list[FoundProblem]


class RollBack(Strict):
    generation: NUMBER


class RolledBack(Told):
    generation: int
    """The one whose files are back."""
    in_force: bool
    revoked_keys: int
    """Keys in these files that were not accepted before, and are not now."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def current(request: Request) -> CurrentPolicy:
        policy = request.context.runtime.policy
        newest = await asyncio.to_thread(lambda: next(site.history.generations(), None))
        rejected = site.rejected()
        return CurrentPolicy(
            policy=await asyncio.to_thread(_shown, site, newest) if newest else None,
            rejected=without_values(rejected, site.env) if rejected else None,
            backends=list(policy.backends),
            models=list(policy.models),
            drained=[name for name in policy.drained if name in policy.backends],
        )

    async def history(request: Request) -> History:
        return History(generations=await asyncio.to_thread(_history, site))

    async def generation(request: Request) -> ShownGeneration:
        number = str(request.path["generation"])
        found = None
        if number.isascii() and number.isdigit() and len(number) < 7:
            found = await asyncio.to_thread(site.history.generation, int(number))
        if found is None:
            raise NotFound(f"Generation {number} is not in the history.")
        return await asyncio.to_thread(_shown, site, found)

    async def validate(request: Request) -> Verdict:
        return await asyncio.to_thread(_verdict, site, request.body(Candidate).files)

    async def roll_back(request: Request) -> RolledBack:
        number = request.body(RollBack).generation
        if await asyncio.to_thread(site.history.generation, number) is None:
            raise NotFound(f"Generation {number} is not in the history.")
        result = await site.change(request.context, request.scope, do="roll_back", generation=number)
        return RolledBack(
            generation=number, in_force=result.get("confirmed", False), revoked_keys=result["revoked"]
        )

    return [
        (operation("GET", "/policy", "currentPolicy", "The policy in force", CurrentPolicy), current),
        (
            operation("GET", "/policy/history", "policyHistory", "The policies that were in force", History),
            history,
        ),
        (
            operation(
                *("GET", "/policy/history/{generation}", "policyGeneration", "One of them", ShownGeneration),
                errors=(404,),
            ),
            generation,
        ),
        (
            operation(
                *("POST", "/policy/validate", "validatePolicy", "What is wrong with a policy", Verdict),
                body=Candidate,
            ),
            validate,
        ),
        (
            operation(
                *("POST", "/policy/rollback", "rollBackPolicy", "Write an earlier policy back", RolledBack),
                body=RollBack,
                errors=(404, 409),
            ),
            roll_back,
        ),
    ]


def _shown(site: Site, generation: Generation) -> ShownGeneration:
    return ShownGeneration(
        generation=generation.number,
        since=generation.since,
        files=_texts(generation),
        diff="".join(_diff(site.history.generation(generation.number - 1), generation)),
    )


def _texts(generation: Generation | None) -> dict[str, str]:
    files = generation.files if generation is not None else {}
    return {name: redacted(content.decode("utf-8-sig", "replace")) for name, content in files.items()}


def _diff(before: Generation | None, after: Generation) -> list[str]:
    if before is None:
        return []
    old, new = _texts(before), _texts(after)
    lines: list[str] = []
    for name in sorted({*old, *new}):
        found = difflib.unified_diff(
            old.get(name, "").splitlines(), new.get(name, "").splitlines(), name, name, lineterm=""
        )
        lines += [line + "\n" for line in found]
    return lines


def _history(site: Site) -> list[HistoryEntry]:
    found = []
    generations = list(site.history.generations())
    for after, before in zip_longest(generations, generations[1:]):
        lines = _diff(before, after)
        found.append(
            HistoryEntry(
                generation=after.number,
                since=after.since,
                files=sorted(after.files),
                added=sum(line.startswith("+") and not line.startswith("+++ ") for line in lines),
                removed=sum(line.startswith("-") and not line.startswith("--- ") for line in lines),
            )
        )
    return found


def _verdict(site: Site, files: dict[str, str]) -> Verdict:
    own = [
        PolicyFile(Path(name), text.encode("utf-8", "surrogatepass")) for name, text in sorted(files.items())
    ]
    try:
        there = read_files(site.policies, state_files(site.state_dir))
    except PolicyError:
        there = ()
    kept = [file for file in there if file.path.name in KEY_FILES or file.path.parent != site.policies]

    valid, found = problems_of([*own, *kept], site.env)
    told = [FoundProblem(file=one.file.name, line=one.line, message=one.message) for one in found]
    return Verdict(valid=valid, problems=[] if valid else told, warnings=told if valid else [])
