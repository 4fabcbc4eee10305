"""What does the gateway cost? Requests/s, latency, chunks/s and memory against a bare relay, and against its peers.

    python -m benchmarks.overhead [--repeats 5] [--litellm PYTHON] [--portkey FOLDER] [--redis] [--memory] [--json FILE]

A static server answers every request alike. The proxy under test has one core to itself, the server and the load
generator share another. All candidates take turns within every repeat; the tables show medians, and ratios to the
bare relay (``benchmarks/relay.py``) of the same run.

--litellm PYTHON   the Python of an environment with ``litellm[proxy]``
--portkey FOLDER   a folder in which ``npm install @portkey-ai/gateway`` was run
--redis            also: one and two workers with a Redis store (needs redis-server, and four cores to show the ratio)
--memory           also: resident memory over 200,000 requests
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import yaml

KEY = "tg-benchmark"
ROOT = Path(__file__).parents[1]


@dataclass
class Candidate:
    name: str
    port: int
    headers: list[str] = field(default_factory=list)
    slow: bool = False
    """Gets a twentieth of the requests."""
    streams: bool = True
    pids: list[int] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    argv: list[str], *, cores: set[int], env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[int]:
    log = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        argv,
        stdout=log,
        stderr=log,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int, path: str = "/", seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).read()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nothing answers on port {port}")


def policy(upstream: int, store: str) -> dict[str, object]:
    """Authentication, quotas of key and tenant, a budget, tiers, a fallback, prices."""
    backend = {"kind": "openai", "base_url": f"http://127.0.0.1:{upstream}/v1"}
    tenant = {"tier": "pro", "quotas": {"tokens_per_day": 10**12}, "budget": {"usd_per_month": 1e6}}
    key = {"id": "bench", "sha256": sha256(KEY.encode()).hexdigest(), "tenant": "acme"}
    return {
        "version": 1,
        "store": store,
        "backends": {"up": backend},
        "models": {
            "static": {"targets": [{"backend": "up", "model": "static"}], "fallbacks": ["other"]},
            "other": {"targets": [{"backend": "up", "model": "other"}]},
        },
        "prices": {name: {"input": 0.15, "output": 0.6} for name in ("static", "other")},
        "tiers": {"pro": {"priority": 1, "weight": 3.0}, "free": {}},
        "tenants": {"acme": tenant},
        "keys": [{**key, "quotas": {"requests_per_minute": 10**9, "tokens_per_minute": 10**10}}],
    }


def start_gateway(
    stack: ExitStack,
    upstream: int,
    *,
    cores: set[int],
    workers: int = 1,
    store: str = "memory",
    name: str = "Tollgate",
) -> Candidate:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "gateway.yaml").write_text(yaml.safe_dump(policy(upstream, store)))
    port = free_port()
    argv = [sys.executable, "-m", "gateway", "serve", "--policies", str(folder), "--port", str(port)]
    env = {"TOLLGATE_STATE_DIR": str(folder / "state"), "TOLLGATE_LOG_LEVEL": "warning"}
    pid = stack.enter_context(running([*argv, "--workers", str(workers)], cores=cores, env=env))
    wait_for(port, "/healthz")
    time.sleep(1.0)
    return Candidate(name, port, [f"authorization: Bearer {KEY}"], pids=[pid])


def start_relay(stack: ExitStack, upstream: int, cores: set[int]) -> Candidate:
    port = free_port()
    argv = [sys.executable, "-m", "uvicorn", "benchmarks.relay:app", "--port", str(port)]
    argv += ["--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning"]
    stack.enter_context(running(argv, cores=cores, env={"UPSTREAM": f"http://127.0.0.1:{upstream}"}))
    wait_for(port)
    return Candidate("bare relay (ASGI + aiohttp)", port)


def start_litellm(stack: ExitStack, upstream: int, cores: set[int], python: Path) -> Candidate:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    entry = {"model": "openai/static", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "k"}
    config = {
        "model_list": [{"model_name": "static", "litellm_params": entry}],
        "general_settings": {"master_key": "sk-bench"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    argv = [
        str(python.parent / "litellm"),
        "--config",
        str(folder / "config.yaml"),
        "--port",
        str(port),
        "--host",
    ]
    env = {"LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    stack.enter_context(running([*argv, "127.0.0.1"], cores=cores, env=env, cwd=folder))
    wait_for(port, "/health/liveliness")
    return Candidate("LiteLLM proxy", port, ["authorization: Bearer sk-bench"], slow=True)


def start_portkey(stack: ExitStack, upstream: int, cores: set[int], folder: Path) -> Candidate:
    port = free_port()
    server = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    argv = ["node", str(server), f"--port={port}", "--headless"]
    stack.enter_context(
        running(argv, cores=cores, env={"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost"}, cwd=folder)
    )
    wait_for(port)
    headers = ["x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{upstream}/v1"]
    return Candidate("Portkey gateway", port, [*headers, "authorization: Bearer k"], slow=True)


def ask(
    candidate: Candidate, cores: set[int], *, connections: int, requests: int, stream: bool = False
) -> dict[str, float]:
    argv = [
        sys.executable,
        "-m",
        "benchmarks.load",
        "ask",
        str(candidate.port),
        "--connections",
        str(connections),
    ]
    argv += ["--requests", str(requests), *(["--stream"] if stream else [])]
    argv += [part for header in candidate.headers for part in ("--header", header)]
    return generated(argv, candidate.name, cores)


def generated(argv: list[str], name: str, cores: set[int]) -> dict[str, float]:
    """What a load generator printed that ran on ``cores``; leaves the program if a request of ``name``'s failed."""
    done = subprocess.run(
        argv,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    result: dict[str, float] = json.loads(done.stdout)
    if result["failed"]:
        raise SystemExit(f"{name}: {result['failed']:.0f} requests failed")
    return result


def compare(
    candidates: list[Candidate], cores: set[int], repeats: int, scale: float
) -> list[dict[str, float | str]]:
    runs: dict[str, list[dict[str, float]]] = {candidate.name: [] for candidate in candidates}
    for candidate in candidates:
        ask(candidate, cores, connections=8, requests=60)
        try:
            ask(candidate, cores, connections=4, requests=8, stream=True)
        except (SystemExit, subprocess.CalledProcessError):
            if not candidate.slow:
                raise
            candidate.streams = False
            print(f"{candidate.name} does not stream this server's answers")
    for _ in range(repeats):
        for candidate in candidates:
            part = scale * (0.05 if candidate.slow else 1.0)
            many = ask(candidate, cores, connections=32, requests=int(8000 * part))
            alone = ask(candidate, cores, connections=1, requests=int(2000 * part))
            streams = {"chunks_per_second": 0.0}
            if candidate.streams:
                streams = ask(candidate, cores, connections=16, requests=int(600 * part), stream=True)
            runs[candidate.name].append(
                {
                    "requests_per_second": many["requests_per_second"],
                    "p99_ms": many["p99_ms"],
                    "alone_ms": alone["p50_ms"],
                    "chunks_per_second": streams["chunks_per_second"],
                }
            )
    return [{"name": name, **_medians(results)} for name, results in runs.items()]


def _medians(results: list[dict[str, float]]) -> dict[str, float]:
    return {what: statistics.median(result[what] for result in results) for what in results[0]}


def show(rows: list[dict[str, float | str]]) -> None:
    base = rows[0]
    print("| proxy | requests/s | ratio | p99 at 32 | p50 alone | added | chunks/s | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        rps, cps, alone = (float(row[w]) for w in ("requests_per_second", "chunks_per_second", "alone_ms"))
        added = alone - float(base["alone_ms"])
        print(
            f"| {row['name']} | {rps:,.0f} | {rps / float(base['requests_per_second']):.3f} "
            f"| {float(row['p99_ms']):.1f} ms | {alone:.2f} ms | {added:+.2f} ms | {cps:,.0f} "
            f"| {cps / float(base['chunks_per_second']):.3f} |"
        )


def resident(pid: int) -> float:
    """MiB of a process and all below it."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _descends(int(folder.name), pid):
            pages = int((folder / "statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total / 2**20


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def memory(
    upstream: int, proxy: set[int], load: set[int], requests: int = 200_000
) -> list[tuple[int, float]]:
    with ExitStack() as stack:
        gateway = start_gateway(stack, upstream, cores=proxy)
        points = [(0, resident(gateway.pids[0]))]
        step = requests // 10
        for number in range(1, 11):
            ask(gateway, load, connections=32, requests=step)
            points.append((number * step, resident(gateway.pids[0])))
    return points


def processor_seconds(pid: int) -> float:
    """What a process and all below it have used so far."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _descends(int(folder.name), pid):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def with_redis(upstream: int, repeats: int, scale: float) -> dict[str, dict[str, float]]:
    """One and two workers that may use all cores: requests/s, and processor time for a request."""
    cores = os.sched_getaffinity(0)
    port = free_port()
    program = shutil.which("redis-server") or "redis-server"
    found: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
    with ExitStack() as stack:
        stack.enter_context(
            running([program, "--port", str(port), "--save", "", "--appendonly", "no"], cores=cores)
        )
        store = f"redis://127.0.0.1:{port}/0"
        gateways = {
            workers: start_gateway(stack, upstream, cores=cores, workers=int(workers), store=store)
            for workers in found
        }
        for _ in range(repeats):
            for workers, gateway in gateways.items():
                before = processor_seconds(gateway.pids[0])
                result = ask(gateway, cores, connections=32, requests=int(6000 * scale))
                used = processor_seconds(gateway.pids[0]) - before
                found[workers].append(
                    {
                        "requests_per_second": result["requests_per_second"],
                        "processor_us": used / result["requests"] * 1e6,
                    }
                )
    return {workers: _medians(results) for workers, results in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of requests (1.0)")
    parser.add_argument("--litellm", type=Path, metavar="PYTHON")
    parser.add_argument("--portkey", type=Path, metavar="FOLDER")
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    first, *others = sorted(os.sched_getaffinity(0))
    proxy, load = {first}, set(others) or {first}
    found: dict[str, object] = {}
    with ExitStack() as stack:
        upstream = free_port()
        stack.enter_context(
            running([sys.executable, "-m", "benchmarks.load", "serve", str(upstream)], cores=load)
        )
        wait_for(upstream)
        with ExitStack() as proxies:
            candidates = [
                start_relay(proxies, upstream, proxy),
                start_gateway(proxies, upstream, cores=proxy),
            ]
            if given.litellm:
                candidates.append(start_litellm(proxies, upstream, proxy, given.litellm))
            if given.portkey:
                candidates.append(start_portkey(proxies, upstream, proxy, given.portkey))
            rows = compare(candidates, load, given.repeats, given.scale)
        show(rows)
        found["table"] = rows
        if given.redis:
            rows_ = with_redis(upstream, given.repeats, given.scale)
            print(
                "\n| workers, Redis store | requests/s | ratio | processor time a request |\n|---|---|---|---|"
            )
            for workers, row in rows_.items():
                ratio = row["requests_per_second"] / rows_["1"]["requests_per_second"]
                print(
                    f"| {workers} | {row['requests_per_second']:,.0f} | {ratio:.2f} | {row['processor_us']:.0f} µs |"
                )
            found["redis"] = rows_
        if given.memory:
            points = memory(upstream, proxy, load)
            print("\n| requests | resident MiB |\n|---|---|")
            for requests, size in points:
                print(f"| {requests:,} | {size:.1f} |")
            found["memory"] = points
    if given.json:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
