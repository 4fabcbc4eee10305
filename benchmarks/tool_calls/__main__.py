"""Tool calls and structured output of a real model: how many are valid, how many are right, how long they take.

    python -m benchmarks.tool_calls --model qwen2.5-coder-1.5b-instruct-q4_k_m.gguf [--every 2] [--show]
    python -m benchmarks.tool_calls --url http://127.0.0.1:8200        # llama.cpp's server, say, on the same file

``conversations.jsonl`` has 100 conversations with the tools of ``tools.json`` and the calls that are right,
``schemas.jsonl`` 100 texts with the schema of an answer and what is right in it. Both were written for this project;
nothing was tuned on them but the order of work. Everything is asked at temperature 0, one after the other; with
``--answers FILE`` a run goes on where the one before it ended, or judges its answers anew. Columns:
*valid* fits its schema and names an offered tool, *right* is what was expected, and nothing beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import httpx

from benchmarks.served import served
from benchmarks.tool_calls.ask import FOLDER, Judged, Server, conversation, form, rows


def measure(name: str, chosen: list[dict], judge: Callable[[dict], Judged], *, show: bool) -> None:
    """Prints a row for each kind, in the order of the set, as each is done."""
    for kind, each in groupby(chosen, lambda row: row.get("kind")):
        found = []
        for row in each:
            judged = judge(row)
            found.append(judged)
            if show and not judged.right:
                asked = row.get("text") or row["messages"][0]["content"]
                print(f"  {judged.finish:10} {asked} -> {judged.shown}", file=sys.stderr, flush=True)
        print(line(f"{name}, {kind}" if kind else name, found), flush=True)


HEAD = """| set | asked | valid | right | ended by length | seconds, median | 90 % | tokens, median |
|---|---|---|---|---|---|---|---|"""


def line(name: str, each: list[Judged]) -> str:
    """A row of the table."""
    seconds = sorted(one.seconds for one in each)
    cells = [
        len(each),
        sum(one.valid for one in each),
        sum(one.right for one in each),
        sum(one.finish == "length" for one in each),
        f"{statistics.median(seconds):.1f}",
        f"{seconds[int(0.9 * (len(seconds) - 1))]:.1f}",
        f"{statistics.median(one.tokens for one in each):.0f}",
    ]
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--model", type=Path, help="served by the engine while this runs")
    where.add_argument("--url", help="of a server that is running already")
    parser.add_argument("--every", type=int, default=1, help="ask every n-th row only")
    parser.add_argument(
        "--sets", nargs="+", choices=["auto", "required", "schema"], default=["auto", "required", "schema"]
    )
    parser.add_argument("--show", action="store_true", help="print what was not right to stderr")
    parser.add_argument(
        "--answers", type=Path, help="keep answers in this file, and ask for none that it has"
    )
    parser.add_argument("--system", help="a system message of the conversations (default: none)")
    parser.add_argument(
        "--another-call",
        type=float,
        metavar="NATS",
        help="added to the logit of <tool_call> where several calls are required",
    )
    parser.add_argument("--strict", action="store_true", help="tools are strict")
    parser.add_argument("--kinds", nargs="+", help="of conversations (default: all)")
    parser.add_argument("--engine-options", default="--max-model-len 4096", help="of a served model")
    options = parser.parse_args()
    if options.model:
        with served(options.model, options.engine_options.split()) as url:
            run(url, options)
    else:
        run(options.url, options)


def run(url: str, options: argparse.Namespace) -> None:
    tools = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))
    conversations, schemas = rows("conversations.jsonl")[:: options.every], rows("schemas.jsonl")
    if options.kinds:
        conversations = [row for row in conversations if row["kind"] in options.kinds]
    # Calls can be required only where some are right.
    calling = [row for row in conversations if row["calls"]]
    with httpx.Client(base_url=url, timeout=1800) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        server = Server(
            client,
            model,
            options.answers,
            system=options.system,
            another_call=options.another_call,
            strict=options.strict,
        )
        print(f"{model}\n\n{HEAD}", flush=True)
        for name in options.sets:
            if name == "schema":
                chosen = schemas[:: options.every]
                measure(name, chosen, lambda row: form(server, row), show=options.show)
                continue
            chosen = conversations if name == "auto" else calling
            measure(
                name,
                chosen,
                lambda row, choice=name: conversation(server, row, tools, choice),
                show=options.show,
            )


if __name__ == "__main__":
    main()
