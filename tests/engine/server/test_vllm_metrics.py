"""vLLM's metric names, read from a real engine as Prometheus reads them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file

from tests.engine.live import EngineServer, eventually
from tests.engine.lora import write_adapter

LABELS = {"model_name": "served", "engine": "0"}
TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0"
PER_TOKEN = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0"
LATENCY = (
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"
)
LENGTHS = "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 10000.0 20000.0"
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    "inter_token_latency_seconds": PER_TOKEN,
    "request_time_per_output_token_seconds": PER_TOKEN,
    "e2e_request_latency_seconds": LATENCY,
    "request_queue_time_seconds": LATENCY,
    "request_prefill_time_seconds": LATENCY,
    "request_decode_time_seconds": LATENCY,
    "request_inference_time_seconds": LATENCY,
    "request_prompt_tokens": LENGTHS,
    "request_generation_tokens": LENGTHS,
    "request_max_num_generation_tokens": LENGTHS,
}
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "prefix_cache_queries",
    "prefix_cache_hits",
)


@pytest.fixture(scope="module")
def server(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("vllm")
    write_adapter(folder / "fox", load_file(long_model / "model.safetensors"), rank=4)
    options = (
        "--served-model-name",
        "served",
        "--kv-cache-blocks",
        "2000",
        "--adapter",
        f"fox={folder / 'fox'}",
    )
    with EngineServer(long_model, *options, "--max-adapters", "2", log=folder / "log") as server:
        yield server


def families(server: EngineServer) -> dict[str, Metric]:
    text = server.http.get("/metrics").text
    return {
        one.name.removeprefix("vllm:"): one
        for one in text_string_to_metric_families(text)
        if one.name[:5] == "vllm:"
    }


def values(server: EngineServer) -> dict[str, float]:
    """Sums over all labels, by sample name; ``request_success_total`` by reason."""
    found: dict[str, float] = {}
    for family in families(server).values():
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                name = sample.labels.get("finished_reason", sample.name.removeprefix("vllm:"))
                found[name] = found.get(name, 0.0) + sample.value
    return found


def changes(server: EngineServer, before: dict[str, float]) -> dict[str, float]:
    return {name: value - before[name] for name, value in values(server).items() if value != before[name]}


def complete(server: EngineServer, prompt: list[int], tokens: int, **more: object) -> None:
    body = {"model": "served", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", **(body | more))
    assert answer.status_code == 200, answer.text


def test_names_types_labels_and_buckets_are_vllms(server: EngineServer) -> None:
    """All are there from the start: what no request has touched is 0, not missing."""
    found = families(server)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert found[name].type == "gauge"
        assert [sample.labels for sample in found[name].samples] == [LABELS]
    for name in COUNTERS:
        assert found[name].type == "counter"
        assert [one.labels for one in found[name].samples if one.name.endswith("_total")] == [LABELS]
    for name, buckets in HISTOGRAMS.items():
        assert found[name].type == "histogram"
        expected = [LABELS | {"le": bound} for bound in (*buckets.split(), "+Inf")]
        assert [one.labels for one in found[name].samples if one.name.endswith("_bucket")] == expected, name
    success = [one.labels for one in found["request_success"].samples if one.name.endswith("_total")]
    assert success == [LABELS | {"finished_reason": why} for why in ("stop", "length", "abort", "error")]
    (config,) = found["cache_config_info"].samples
    assert config.value == 1
    assert config.labels == {
        "block_size": "16",
        "cache_dtype": "auto",
        "enable_prefix_caching": "True",
        "num_gpu_blocks": "2000",
        "engine": "0",
    }


def test_a_request_is_counted_once_with_its_phases(server: EngineServer) -> None:
    before, began = values(server), time.monotonic()
    complete(server, [3] * 100, 6)
    took, found = time.monotonic() - began, changes(server, before)
    assert found["prompt_tokens_total"] == found["request_prompt_tokens_sum"] == 100
    assert found["generation_tokens_total"] == found["request_generation_tokens_sum"] == 6
    assert found["request_max_num_generation_tokens_sum"] == 6
    assert found["inter_token_latency_seconds_count"] == 5
    for name in HISTOGRAMS.keys() - {"inter_token_latency_seconds"}:
        assert found[f"{name}_count"] == 1, name
    assert {name: count for name, count in found.items() if name in ("stop", "length", "abort", "error")} == {
        "length": 1
    }
    queue, prefill, decode, inference, whole, first, gap = (
        found[f"{name}_seconds_sum"]
        for name in (
            "request_queue_time",
            "request_prefill_time",
            "request_decode_time",
            "request_inference_time",
            "e2e_request_latency",
            "time_to_first_token",
            "request_time_per_output_token",
        )
    )
    assert inference == pytest.approx(prefill + decode)
    assert queue + prefill <= first <= first + decode <= whole <= took
    assert gap == pytest.approx(decode / 5)
    assert found["inter_token_latency_seconds_sum"] == pytest.approx(decode)


def test_hits_of_the_prefix_cache_are_counted_in_tokens(server: EngineServer) -> None:
    before = values(server)
    complete(server, [4] * 100, 1)
    found = changes(server, before)
    assert found["prefix_cache_queries_total"] == 100
    assert "prefix_cache_hits_total" not in found
    complete(server, [4] * 100, 1)
    found = changes(server, before)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (200, 96)


def test_each_choice_is_a_request(server: EngineServer) -> None:
    before = values(server)
    complete(server, [5] * 50, 4, n=3)
    found = changes(server, before)
    assert (found["length"], found["generation_tokens_total"], found["prompt_tokens_total"]) == (3, 12, 150)
    assert found["request_queue_time_seconds_count"] == found["e2e_request_latency_seconds_count"] == 3
    assert found["request_max_num_generation_tokens_count"] == 1
    # The prompt is computed, and looked up, once.
    assert found["prefix_cache_queries_total"] == 50


def test_reasons_are_vllms(server: EngineServer) -> None:
    before = values(server)
    body = {"model": "served", "prompt": [6] * 9, "temperature": 0, "logprobs": 0}
    token = server.post("/v1/completions", **body, max_tokens=1).json()["choices"][0]
    complete(server, [6] * 9, 50, stop=[token["text"]] if token["text"] else [], ignore_eos=False)
    with server.http.stream(
        "POST", "/v1/completions", json=body | {"max_tokens": 20_000, "stream": True}
    ) as endless:
        next(endless.iter_lines())
    # 2,000 blocks are 32,000 tokens: the deadline has passed before it could begin.
    late = server.http.post(
        "/v1/completions", json=body | {"max_tokens": 4}, headers={"x-tollgate-deadline": "0.000001"}
    )
    assert late.status_code == 503
    eventually(lambda: changes(server, before).get("abort") == 1)
    found = changes(server, before)
    assert (found["error"], found["abort"], found["stop"] + found.get("length", 0)) == (1, 1, 2)


def test_gauges_follow_what_runs_and_which_adapters_it_uses(server: EngineServer) -> None:
    (idle,) = families(server)["lora_requests_info"].samples
    assert (idle.labels["max_lora"], idle.labels["running_lora_adapters"]) == ("2", "")
    body = {
        "model": "fox",
        "prompt": [7] * 40,
        "max_tokens": 20_000,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }

    done = threading.Event()

    def read() -> None:
        """Until it is enough: a client that does not read is parked, and runs no more."""
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            for _ in answer.iter_lines():
                if done.is_set():
                    return

    def running() -> bool:
        found.update(families(server))
        return found["num_requests_running"].samples[0].value == 2

    found: dict[str, Metric] = {}
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            threads.submit(read)
        try:
            eventually(running)
        finally:
            done.set()
    assert found["num_requests_waiting"].samples[0].value == 0
    assert 3 / 2000 <= found["kv_cache_usage_perc"].samples[0].value < 1
    (used,) = found["lora_requests_info"].samples
    assert (used.labels["running_lora_adapters"], used.labels["waiting_lora_adapters"]) == ("fox", "")
    assert abs(used.value - time.time()) < 3600, "a time, by which the latest is found"
    eventually(lambda: families(server)["num_requests_running"].samples[0].value == 0)
    (idle,) = families(server)["lora_requests_info"].samples
    assert idle.labels["running_lora_adapters"] == ""
    assert families(server)["kv_cache_usage_perc"].samples[0].value == 0
