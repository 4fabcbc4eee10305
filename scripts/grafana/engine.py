"""The bundled engine, or vLLM."""

from __future__ import annotations

from scripts.grafana.panels import RED, YELLOW, Dashboard, Row, graph, stat, table
from scripts.grafana.queries import ENGINE, OF_ENGINE, SERVED, SHARES, mean, quantiles, rate, ratio


def _of_gpu(figure: str) -> str:
    return f'tollgate_engine_gpu_{figure}{{instance=~"$instance"}}'


ENGINES = Dashboard(
    "tollgate-engine",
    "Tollgate / Engine",
    "The bundled engine, by vLLM's names: a vLLM server shows here as well.",
    (ENGINE, SERVED),
    (
        Row(
            "Now",
            (
                stat(
                    "Running",
                    "Requests in the batch.",
                    "short",
                    f"sum(vllm:num_requests_running{{{OF_ENGINE}}})",
                ),
                stat(
                    "Waiting",
                    "Requests that wait for a place in the batch.",
                    "short",
                    f"sum(vllm:num_requests_waiting{{{OF_ENGINE}}})",
                    levels=((1, YELLOW), (20, RED)),
                ),
                stat(
                    "KV cache",
                    "Used share of the fullest.",
                    "percentunit",
                    f"max(vllm:kv_cache_usage_perc{{{OF_ENGINE}}})",
                    levels=SHARES,
                    decimals=0,
                ),
                stat(
                    "Prompt tokens",
                    "A second.",
                    "short",
                    rate("vllm:prompt_tokens_total", OF_ENGINE),
                    decimals=1,
                ),
                stat(
                    "Generated tokens",
                    "A second.",
                    "short",
                    rate("vllm:generation_tokens_total", OF_ENGINE),
                    decimals=1,
                ),
                stat(
                    "Prefix cache hits",
                    "Share of prompt tokens that need not be computed.",
                    "percentunit",
                    ratio(
                        rate("vllm:prefix_cache_hits_total", OF_ENGINE),
                        rate("vllm:prefix_cache_queries_total", OF_ENGINE),
                    ),
                    decimals=0,
                ),
            ),
        ),
        Row(
            "Latency",
            (
                graph(
                    "Time to first token",
                    "From arrival at the engine.",
                    "s",
                    *quantiles("vllm:time_to_first_token_seconds", OF_ENGINE),
                ),
                graph(
                    "Between tokens",
                    "Of one request.",
                    "s",
                    *quantiles("vllm:inter_token_latency_seconds", OF_ENGINE),
                ),
                graph(
                    "Per output token",
                    "A request's mean.",
                    "s",
                    *quantiles("vllm:request_time_per_output_token_seconds", OF_ENGINE),
                ),
                graph(
                    "Whole request",
                    "From arrival to the last token.",
                    "s",
                    *quantiles("vllm:e2e_request_latency_seconds", OF_ENGINE),
                ),
                graph(
                    "Where a request's time goes",
                    "Means of queue, prefill and decode.",
                    "s",
                    *(
                        (mean(f"vllm:request_{part}_time_seconds", OF_ENGINE), part)
                        for part in ("queue", "prefill", "decode")
                    ),
                    stacked=True,
                ),
                graph(
                    "Computing",
                    "From the first step to the last token.",
                    "s",
                    *quantiles("vllm:request_inference_time_seconds", OF_ENGINE),
                ),
            ),
        ),
        Row(
            "Load",
            (
                graph(
                    "Requests",
                    "Running, and waiting. KEDA scales on those that wait.",
                    "short",
                    (f"sum by (instance) (vllm:num_requests_running{{{OF_ENGINE}}})", "{{instance}} running"),
                    (f"sum by (instance) (vllm:num_requests_waiting{{{OF_ENGINE}}})", "{{instance}} waiting"),
                ),
                graph(
                    "KV cache",
                    "Used share; at 1 requests are preempted, or wait.",
                    "percentunit",
                    (f"max by (instance) (vllm:kv_cache_usage_perc{{{OF_ENGINE}}})", "{{instance}}"),
                    levels=SHARES,
                    maximum=1.0,
                ),
                graph(
                    "Tokens",
                    "A second.",
                    "short",
                    (rate("vllm:prompt_tokens_total", OF_ENGINE), "prompt"),
                    (rate("vllm:generation_tokens_total", OF_ENGINE), "generated"),
                ),
                graph(
                    "Ended requests",
                    "By reason.",
                    "reqps",
                    (rate("vllm:request_success_total", OF_ENGINE, "finished_reason"), "{{finished_reason}}"),
                    stacked=True,
                ),
                graph(
                    "Preemptions",
                    "Requests that lost their KV blocks to an older one, and are computed again.",
                    "cps",
                    (rate("vllm:num_preemptions_total", OF_ENGINE, "instance"), "{{instance}}"),
                ),
                graph(
                    "Batch",
                    "Sequences in a step, mean; by the engine's own name.",
                    "short",
                    (
                        'sum by (instance) (rate(tollgate_engine_step_batch_size_sum{instance=~"$instance"}[$__rate_interval])) / sum by (instance) (rate(tollgate_engine_step_batch_size_count{instance=~"$instance"}[$__rate_interval]))',
                        "{{instance}}",
                    ),
                ),
            ),
        ),
        Row(
            "GPUs",
            (
                graph(
                    "Use",
                    "Share of the time in which a kernel runs; by the engine's own name, as all of this row.",
                    "percentunit",
                    (_of_gpu("utilization_ratio"), "{{instance}} {{gpu}}"),
                    maximum=1.0,
                ),
                graph(
                    "Memory",
                    "Used share.",
                    "percentunit",
                    (
                        f"{_of_gpu('memory_used_bytes')} / {_of_gpu('memory_total_bytes')}",
                        "{{instance}} {{gpu}}",
                    ),
                    maximum=1.0,
                ),
                graph(
                    "Memory traffic",
                    "Share of the time in which memory is read or written.",
                    "percentunit",
                    (_of_gpu("memory_utilization_ratio"), "{{instance}} {{gpu}}"),
                    maximum=1.0,
                ),
                graph(
                    "PCIe and NVLink",
                    "Both directions together.",
                    "Bps",
                    *(
                        (
                            f"{_of_gpu(f'{link}_receive_bytes_per_second')} + {_of_gpu(f'{link}_transmit_bytes_per_second')}",
                            "{{instance}} {{gpu}} " + link,
                        )
                        for link in ("pcie", "nvlink")
                    ),
                ),
                graph(
                    "Temperature",
                    "Of the chip.",
                    "celsius",
                    (_of_gpu("temperature_celsius"), "{{instance}} {{gpu}}"),
                ),
                graph("Power", "Drawn now.", "watt", (_of_gpu("power_watts"), "{{instance}} {{gpu}}")),
            ),
        ),
        Row(
            "Requests",
            (
                graph(
                    "Prompt length", "Tokens.", "short", *quantiles("vllm:request_prompt_tokens", OF_ENGINE)
                ),
                graph(
                    "Answer length",
                    "Tokens.",
                    "short",
                    *quantiles("vllm:request_generation_tokens", OF_ENGINE),
                ),
                table("Configuration", "Of the KV cache.", 'vllm:cache_config_info{instance=~"$instance"}'),
            ),
        ),
    ),
)
