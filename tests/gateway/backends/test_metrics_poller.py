"""What servers of others say of their load, from pages as they write them."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.metrics_poller import NAMES, MetricsPoller, load_of
from gateway.backends.transport import OutgoingTransport
from gateway.engine_load import EngineLoad
from tests.fakes import FakeUpstream, reply

pytestmark = pytest.mark.anyio

# In the form of the pages that the servers' own documentation shows.
VLLM = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 8.0
vllm:num_requests_running{engine="1",model_name="a } in a \\" name"} 4.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.0
vllm:num_requests_waiting{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 3.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 99.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.9
vllm:kv_cache_usage_perc{engine="1",model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.5
"""
SGLANG = b"""\
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct"} 0.28
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 162.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct"} 2826.0
"""
TGI = b"""\
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 3
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 4000
# TYPE tgi_queue_size gauge
tgi_queue_size 0 1700000000000
"""


def test_each_servers_figures_are_read() -> None:
    assert load_of(VLLM, NAMES["vllm"]) == EngineLoad(running=12, waiting=3, kv_usage=0.7)
    assert load_of(SGLANG, NAMES["sglang"]) == EngineLoad(running=162, waiting=2826, kv_usage=0.28)
    assert load_of(TGI, NAMES["tgi"]) == EngineLoad(running=3)
    older = VLLM.replace(b"kv_cache_usage_perc", b"gpu_cache_usage_perc")
    assert load_of(older, NAMES["vllm"]).kv_usage == 0.7


CACHES = {
    "vllm": b"""\
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="573",num_cpu_blocks="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="500"} 1.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 5.0e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 60.0
""",
    "sglang": b"""\
sglang:max_total_num_tokens{model_name="m"} 471258.0
sglang:prompt_tokens_total{model_name="m"} 4096
sglang:cached_tokens_total{cache_source="device",model_name="m"} 3000
sglang:cached_tokens_total{cache_source="host",model_name="m"} 168
""",
}


def test_what_their_kv_caches_had_and_have_room_for_is_read_where_they_say_so() -> None:
    vllm = load_of(VLLM + CACHES["vllm"], NAMES["vllm"])
    assert (vllm.kv_tokens, vllm.prompts, vllm.cached) == (16 * 1073, 100 + 5e9, 60)
    assert (vllm.running, vllm.kv_usage) == (12, 0.7)
    older = (VLLM + CACHES["vllm"]).replace(b"vllm:prefix_cache", b"vllm:gpu_prefix_cache")
    assert load_of(older, NAMES["vllm"]).cached == 60
    sglang = load_of(SGLANG + CACHES["sglang"], NAMES["sglang"])
    assert (sglang.kv_tokens, sglang.prompts, sglang.cached) == (471258, 4096, 3168)
    idle = load_of((SGLANG + CACHES["sglang"]).replace(b"} 162.0", b"} 0.0"), NAMES["sglang"])
    assert (idle.running, idle.cached) == (0, 3168)
    impossible = CACHES["sglang"].replace(b"471258.0", b"-1").replace(b"4096", b"NaN")
    assert load_of(SGLANG + impossible, NAMES["sglang"]).kv_tokens == 0


def test_a_server_that_runs_nothing_is_not_full_whatever_it_says() -> None:
    page = TGI.replace(b"size 3", b"size 0").replace(b"queue_size 0", b"queue_size 7")
    assert load_of(page, NAMES["tgi"]).saturation == 0.0
    assert load_of(VLLM, NAMES["vllm"]).saturation == 1.0


NOT_A_NUMBER, NEGATIVE = TGI.replace(b"size 3", b"size NaN"), TGI.replace(b"size 3", b"size -3")
NOTHING, HUGE = TGI.replace(b"size 3", b"size{} "), TGI.replace(b"size 3", b"size 1e300")


@pytest.mark.parametrize("page", [b"", b"<html>", SGLANG, NOT_A_NUMBER, NEGATIVE, NOTHING, HUGE])
def test_a_page_without_such_figures_or_with_impossible_ones_says_nothing(page: bytes) -> None:
    with pytest.raises(ValueError, match=r"tgi_batch_current_size"):
        load_of(page, NAMES["tgi"])


async def test_a_page_that_does_not_change_counts_no_more() -> None:
    now = 0.0
    poller = MetricsPoller(
        "http://x/v1", OutgoingTransport(), lambda load: None, names=NAMES["tgi"], clock=lambda: now
    )
    async with poller:
        assert poller.read(TGI)[0].running == 3
        now = 11.0
        with pytest.raises(ValueError, match="not changed"):
            poller.read(TGI)
        assert poller.read(TGI + b"\n")[0].running == 3


async def test_it_is_asked_beside_the_api(upstream: FakeUpstream) -> None:
    upstream.health = reply(VLLM, kind="text/plain")
    told: asyncio.Queue[EngineLoad] = asyncio.Queue()
    poller = MetricsPoller(
        upstream.base_url, OutgoingTransport(), told.put_nowait, names=NAMES["vllm"], interval=0.01
    )
    async with poller, asyncio.timeout(300):
        assert (await told.get()).running == 12
    assert {probe.path for probe in upstream.probes} == {"/metrics"}
