"""The command's arguments as a plan."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gateway.lab.bench.arrivals import Arrivals, parse_arrivals, parse_rate
from gateway.lab.bench.conversations import Drawn, Given, Traced, Workload, read_prompts
from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.lengths import parse_lengths
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.server import Server, api_of
from gateway.lab.bench.session import Knee, Plan
from gateway.lab.bench.slo import parse_slo
from gateway.lab.bench.trace import Arrival, read_trace
from gateway.policy.schema import parse_duration

PROMPT, OUTPUT = "256", "128"
CONCURRENCY = "8"
REQUESTS = 100
KNEE_SHARE = 0.95


def plan_of(arguments: argparse.Namespace, env: Mapping[str, str]) -> Plan:
    """Raises ``OptionError``, which names the option."""
    _check(arguments)
    duration = _span("--duration", arguments.duration) if arguments.duration is not None else None
    trace = _trace(arguments)
    loads = _loads(arguments, duration)
    traced = any(load.traced for load in loads)
    return Plan(
        _servers(arguments, env),
        loads,
        _extent(arguments, duration, traced),
        _workload(arguments, trace, traced),
        parse_slo(arguments.slo),
        seed=arguments.seed,
        rounds=arguments.rounds,
        timeout=_span("--timeout", arguments.timeout),
        think=_span("--think-time", arguments.think_time),
        per_word=arguments.tokens_per_word,
        knee=_knee(arguments, loads) if arguments.find_knee else None,
    )


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options as they were given, for the report. Keys are not among them: they stay in the environment, and of a
    header only the name is told."""
    told = {
        name: value
        for name, value in vars(arguments).items()
        if name != "run" and value not in (None, [], False)
    }
    if arguments.header:
        told["header"] = [line.partition(":")[0] for line in arguments.header]
    return told


def _check(arguments: argparse.Namespace) -> None:
    least = {"rounds": 1, "turns": 1, "prefixes": 1, "prefix_tokens": 0, "repeats": 1}
    for name, value in least.items():
        if getattr(arguments, name) < value:
            raise OptionError(f"--{name.replace('_', '-')}: at least {value}")
    if arguments.requests is not None and arguments.requests < 1:
        raise OptionError("--requests: at least 1")
    for name in ("speed", "length_scale", "tokens_per_word", "max_rate", "tolerance"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < float("inf"):
            raise OptionError(f"--{name.replace('_', '-')}: more than 0")
    if arguments.slo_share is not None and not 0 < arguments.slo_share <= 1:
        raise OptionError("--slo-share: a share is more than 0 and at most 1, as 0.95")
    if arguments.find_knee and not arguments.slo:
        raise OptionError("--find-knee: say by --slo what must hold, as ttft=500ms,itl=100ms")
    if arguments.prompts and (arguments.trace or arguments.prompt_tokens or arguments.prefix_tokens):
        raise OptionError(
            "--prompts: brings its own texts, so no --trace, --prompt-tokens or --prefix-tokens"
        )
    if arguments.trace and (arguments.prompt_tokens or arguments.output_tokens or arguments.prefix_tokens):
        raise OptionError(
            "--trace: brings its own lengths, so no --prompt-tokens, --output-tokens or --prefix-tokens; "
            "--length-scale changes them"
        )
    if arguments.turns > 1 and (arguments.prompts or arguments.trace):
        raise OptionError("--turns: of made-up prompts alone; a file of prompts may have 'turns'")


def _span(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise OptionError(f"{option}: '{text}': {error}") from None


def _servers(arguments: argparse.Namespace, env: Mapping[str, str]) -> list[Server]:
    given = [_named(text) for text in arguments.servers]
    names = _names(given)
    models = _by_name("--model", arguments.model, names)
    variables = _by_name("--key-env", arguments.key_env, names)
    headers = dict(_header(line) for line in arguments.header)
    servers = []
    for name, (_, address) in zip(names, given, strict=True):
        url, api = api_of(address, arguments.api)
        key = ""
        if (variable := variables.get(name)) and not (key := env.get(variable, "")):
            raise OptionError(f"--key-env: the environment has no {variable}: export {variable}=…")
        servers.append(
            Server(
                name,
                url,
                api,
                models.get(name, ""),
                api.headers(key) | headers,
                stream=not arguments.whole,
                extra=_extra(arguments),
            )
        )
    return servers


def _named(text: str) -> tuple[str, str]:
    """``NAME=URL`` apart; a URL may have = in it, but not before its scheme's colon."""
    name, sign, rest = text.partition("=")
    return (name, rest) if sign and name and not set(name) & set(":/?") else ("", text)


def _names(given: Iterable[tuple[str, str]]) -> list[str]:
    names = [name or address.split("://")[-1].split("/")[0] for name, address in given]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"two servers are called '{double}': name them, as before=URL after=URL")
    return names


def _by_name(option: str, texts: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """What is said of one server goes before what is said of all."""
    known = list(names)
    of_all: dict[str, str] = {}
    of_one: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if sign and name in known:
            of_one[name] = value
        elif sign and option == "--key-env":
            raise OptionError(f"{option}: no server is called '{name}': there is {', '.join(known)}")
        else:
            of_all |= dict.fromkeys(known, text)
    return of_all | of_one


def _header(line: str) -> tuple[str, str]:
    name, sign, value = line.partition(":")
    if not sign or not name.strip():
        raise OptionError(f"--header: '{line}' is none; write 'x-tollgate-cache: bypass'")
    return name.strip().lower(), value.strip()


def _extra(arguments: argparse.Namespace) -> dict[str, Any]:
    try:
        extra = json.loads(arguments.extra_body)
        if not isinstance(extra, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise OptionError(f"--extra-body: {error}; write JSON, as '{{\"temperature\": 0}}'") from None
    return {"ignore_eos": True, **extra} if arguments.ignore_eos else extra


def _trace(arguments: argparse.Namespace) -> list[Arrival]:
    if arguments.trace is None:
        return []
    return read_trace(Path(arguments.trace), speed=arguments.speed, length_scale=arguments.length_scale)


def _loads(arguments: argparse.Namespace, duration: float | None) -> list[Load]:
    at_a_time = [_concurrency(text) for text in (arguments.concurrency or "").split(",") if text]
    arrivals = parse_arrivals(arguments.arrivals)
    if arguments.rate is not None:
        if len(at_a_time) > 1:
            raise OptionError("--concurrency: one number, where there is a --rate")
        most = at_a_time[0] if at_a_time else None
        rates = [parse_rate(text, duration) for text in arguments.rate.split(",")]
        return [Load(most, rate, arrivals) for rate in dict.fromkeys(rates)]
    if arguments.find_knee:
        if at_a_time:
            raise OptionError("--find-knee: searches for a rate: begin it with --rate, not --concurrency")
        return [Load(rate=parse_rate("1", None), arrivals=arrivals)]
    if arguments.trace is not None and not at_a_time:
        return [Load(traced=True)]
    return [Load(number) for number in dict.fromkeys(at_a_time or [_concurrency(CONCURRENCY)])]


def _concurrency(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise OptionError(f"--concurrency: '{text}' is no number of requests; write 16, or 1,4,16")
    return int(text)


def _extent(arguments: argparse.Namespace, duration: float | None, traced: bool) -> Extent:
    requests = arguments.requests
    if requests is None and duration is None and not traced:
        requests = REQUESTS
    warm_up: str = arguments.warm_up
    if warm_up.isdecimal():
        return Extent(requests, duration, warm_up_requests=int(warm_up))
    return Extent(requests, duration, warm_up_seconds=_span("--warm-up", warm_up))


def _workload(arguments: argparse.Namespace, trace: list[Arrival], traced: bool) -> Workload:
    if traced:
        return Traced(trace)
    output = parse_lengths(arguments.output_tokens or OUTPUT, "--output-tokens")
    if arguments.prompts is not None:
        own = output if arguments.output_tokens else None
        return Given(read_prompts(Path(arguments.prompts), own, arguments.seed))
    return Drawn(
        parse_lengths(arguments.prompt_tokens or PROMPT, "--prompt-tokens"),
        output,
        turns=arguments.turns,
        prefix_tokens=arguments.prefix_tokens,
        prefixes=arguments.prefixes,
        lengths_of=trace,
    )


def _knee(arguments: argparse.Namespace, loads: list[Load]) -> Knee:
    [load, *others] = loads
    rate = load.rate
    if others or rate is None or rate.first != rate.last or load.concurrency:
        raise OptionError("--find-knee: begin it with one --rate, as 4, and no --concurrency")
    return Knee(
        min(rate.last, arguments.max_rate),
        arguments.max_rate,
        KNEE_SHARE if arguments.slo_share is None else arguments.slo_share,
        arguments.repeats,
        arguments.tolerance,
        load.arrivals or Arrivals("gamma", 1.0),
    )


def writable(paths: Iterable[str | None]) -> None:
    """Say before the work that its result cannot be kept. Raises ``OptionError``."""
    for path in paths:
        if path is not None and not os.access(Path(path).absolute().parent, os.W_OK):
            raise OptionError(f"{path}: cannot be written there: no such folder, or not yours")
