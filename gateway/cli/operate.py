"""``tollgate backends``, ``caches`` and ``policy``: what operators switch while a gateway runs, and the way back."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from typing import Any

from gateway.cli import backends, cache_days, init
from gateway.cli.user import state_dir, user
from gateway.control.changes import REFUSALS
from gateway.control.client import change
from gateway.policy.history import Generation, PolicyHistory
from gateway.policy.variables import Variables
from gateway.replicas.drains import drain_for_all


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    shared = init.option()
    backends_group = _group(
        commands, "backends", "list|drain|undrain", "see backends; take them out of use, and back into it"
    )
    listed = backends_group.add_parser(
        "list",
        help="show them, with their replicas, as a running gateway has them",
        description="Show each backend and its replicas as a running gateway has them: whether it is in use, its "
        "circuit breaker, what is in flight and waits for a place there, and, where its server tells, what runs and "
        "waits in it (RUNS) and how much of its KV memory is used. A replica's share and PROBLEM are those of the "
        "worker that answers, the rest is of all workers.",
    )
    backends.add_arguments(listed)
    for name, about in (
        ("drain", "send a backend no more requests; those in flight end as ever"),
        ("undrain", "use a backend again"),
    ):
        one = backends_group.add_parser(
            name, parents=[shared], help=about, description=about.capitalize() + "."
        )
        one.add_argument("backend", metavar="NAME", help="its name in the policy")
        one.set_defaults(run=lambda arguments, do=name: _change(arguments, do=do, backend=arguments.backend))
    caches = _group(commands, "caches", "flush|days", "have cached answers forgotten; what they spared")
    flush = caches.add_parser("flush", parents=[shared], help="forget what was cached for a tenant")
    flush.add_argument("--tenant", metavar="NAME", required=True)
    flush.set_defaults(run=lambda arguments: _change(arguments, do="flush", tenant=arguments.tenant))
    days = caches.add_parser(
        "days",
        help="show what the semantic cache found, by day",
        description="Show what the semantic cache found by day (UTC's), and in shadow mode what it would have served: "
        "tokens and dollars are those of the requests that it would have spared. Each machine has its own figures.",
    )
    cache_days.add_arguments(days)
    policy = _group(commands, "policy", "history|diff|rollback", "the policies that were in force")
    history = policy.add_parser("history", parents=[shared], help="list them, the newest first")
    history.set_defaults(run=_history)
    diff = policy.add_parser("diff", parents=[shared], help="what one changed")
    diff.add_argument("generation", metavar="N", type=int)
    diff.set_defaults(run=_diff)
    rollback = policy.add_parser(
        "rollback",
        parents=[shared],
        help="write one back into the policy folder",
        description="Write the files of an earlier policy back into the policy folder. Key files stay as they are, and "
        "keys that are not accepted now are not brought back.",
    )
    rollback.add_argument("generation", metavar="N", type=int)
    rollback.set_defaults(
        run=lambda arguments: _change(arguments, do="roll_back", generation=arguments.generation)
    )


def _group(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str, about: str
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    parser = commands.add_parser(name, help=about, description=about.capitalize() + ".")
    return parser.add_subparsers(metavar=what, required=True)


def _change(arguments: argparse.Namespace, **request: Any) -> int:
    try:
        result = change(
            {**request, "by": user().content()},
            policies=arguments.policies,
            state_dir=state_dir(),
            env=Variables(),
            kept=bool(os.environ.get("TOLLGATE_STATE_DIR")),
            drain_for_all=drain_for_all,
        )
    except REFUSALS as error:
        print(f"tollgate: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"tollgate: {error.filename or arguments.policies}: {error.strerror or error}", file=sys.stderr)
        return 1
    if "for_all" in result:
        print("Done: every gateway that shares the policy's store obeys it within a second.")
    elif "confirmed" not in result:
        print(
            "Written. No running gateway was reached; one that reads these files applies it within a second."
        )
    elif result["confirmed"]:
        print("Done: it is in force.")
    else:
        print(f"Written, but the running gateway has not applied it: {result['why']}", file=sys.stderr)
        return 1
    return 0


def _history(arguments: argparse.Namespace) -> int:
    found = list(PolicyHistory(state_dir(), arguments.policies).generations())
    for one in found:
        print(f"{one.number:>6}  {one.since}  {' '.join(sorted(one.files))}")
    if not found:
        print(f"No policy has been in force yet, by what {state_dir()} holds.")
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    history = PolicyHistory(state_dir(), arguments.policies)
    after = history.generation(arguments.generation)
    if after is None:
        print(f"tollgate: generation {arguments.generation} is not in the history", file=sys.stderr)
        return 1
    old, new = _lines(history.generation(arguments.generation - 1)), _lines(after)
    for name in sorted({*old, *new}):
        for line in difflib.unified_diff(old.get(name, []), new.get(name, []), name, name, lineterm=""):
            print(line)
    return 0


def _lines(generation: Generation | None) -> dict[str, list[str]]:
    files = generation.files if generation is not None else {}
    return {name: content.decode("utf-8-sig", "replace").splitlines() for name, content in files.items()}
