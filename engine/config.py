"""The engine's settings: parsed once, then never changed. Derived settings are a new value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.errors import StartupError
from engine.nodes.address import Address

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

_PARALLEL = ("tensor_parallel", "pipeline_parallel", "expert_parallel")

MOST_IN_TREE = 63
"""Draft tokens of a tree."""
HEADS = ("eagle", "medusa")
"""Kinds of speculation whose draft tokens come from the target's hidden states."""

STEPS = {"cpu": (64, 512), "cuda": (256, 2048)}
"""By device: sequences computed together, and tokens of a step. Neither was measured on a GPU."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process needs to know. ``None`` leaves the choice to it."""

    model: Path
    """The folder with config.json, the weights and the tokenizer."""
    task: str = "auto"
    """``generate``, ``embed`` or ``score``; ``auto``: as the model's files say."""
    matryoshka: bool = False
    """Whether an embedding model's vectors may be cut, where its files do not say so."""
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    """Threads of the matrix products."""
    max_num_seqs: int | None = None
    max_batched_tokens: int | None = None
    """Token budget of one step. A large one prefills faster, a small one keeps the gaps between tokens short.
    ``None`` for this and the one above: by device, see ``on``."""
    max_itl_ratio: float = 2.0
    """How many times as long a step may take that computes prompts beside running streams; 0: no bound."""
    chunked_prefill: bool = True
    """Whether prompts may be computed over several steps."""
    preemption: bool = True
    """Whether requests may lose their slots and blocks to others."""
    max_waiting: int = 512
    """Requests that may wait beyond those that run, before new ones are refused."""
    priority_ageing: float = 10.0
    """Seconds of waiting that count as much as one more of priority, so that nobody waits for ever."""
    block_size: int = 16
    """Tokens a KV block."""
    kv_cache_blocks: int | None = None
    kv_cache_memory: int | None = None
    """Bytes."""
    host_kv_memory: int | None = None
    """Bytes of host memory for copies of KV blocks that the cache has no room for; ``None``: none."""
    disk_kv: Path | None = None
    """The folder of a file with further copies, which outlive the process,"""
    disk_kv_size: int = 10 * 2**30
    """of at most so many bytes."""
    disk_kv_unused: int | None = None
    """Bytes that such files that no engine uses any more may take there; ``None``: four times ``disk_kv_size``."""
    role: str | None = None
    """``prefill``: computes prompts for other engines; ``decode``: has prompts computed by others; ``both``. ``None``:
    does all by itself."""
    handover_address: str | None = None
    """Where other engines ask for the KV blocks of their prompts."""
    handover_secret_file: Path | None = None
    """With what all of them know; ``None``: it is in the environment."""
    handover_transport: str = "auto"
    """``auto``: shared memory on one host, else the connection; ``nixl``: NIXL where both sides have it."""
    handover_timeout: float = 10.0
    """Seconds in which another engine does not say a word, after which a prompt is computed here."""
    handover_min_tokens: int = 256
    """Tokens of a prompt that must be missing here for another engine to be asked."""
    prefill_from: tuple[str, ...] = ()
    """Addresses of engines to ask where a request names none."""
    pinned_share: float = 0.25
    """Most of the KV blocks that prompts may ask to be kept for a time."""
    max_model_len: int | None = None
    context_caps: tuple[tuple[int, int], ...] = ()
    """(priority, longest context in tokens of requests up to it), by priority."""
    prefix_caching: bool = True
    state_checkpoints: int | None = None
    """Of models whose layers keep a state: states kept of cached prefixes. ``None``: half as many as sequences."""
    quantization: str | None = None
    """``int8``, ``int4`` or ``fp8``: how the weights of a plain checkpoint are kept."""
    weights_cache: str = "auto"
    """Where converted weights are kept: ``auto`` (beside the model, or in the user's cache), ``off`` or a folder."""
    digests: tuple[tuple[str, str], ...] = ()
    """(file's name, SHA-256) of the model's files that are checked at start; an empty name: the only file of
    weights."""
    kv_cache_dtype: str = "auto"
    """``auto`` (the compute dtype), ``int8``, ``fp8`` or ``int4``."""
    speculation: str = "off"
    """``off``, ``ngram``, ``draft``, ``eagle`` or ``medusa``: where draft tokens come from."""
    draft_model: Path | None = None
    """The folder of the small model, or of the heads, that propose draft tokens."""
    draft_quantization: str | None = None
    """The draft model's weights in 8 or 4 bits; ``None``: as its checkpoint has them. Heads follow the model's."""
    max_drafts: int = 4
    """Most draft tokens a step and request, one after another."""
    draft_tree: int = 0
    """Most draft tokens of a tree, which heads propose; 0: they propose chains."""
    adapters: tuple[tuple[str, Path], ...] = ()
    """LoRA adapters to load at start: (name, folder)."""
    max_adapters: int = 0
    """Slots on the device, each with a LoRA adapter that a step can use; 0: as many as ``adapters``."""
    max_cpu_adapters: int | None = None
    """Adapters in host memory, from which slots are filled; ``None``: four times the slots."""
    max_adapter_rank: int = 64
    tensor_parallel: int = 1
    """Ranks that share each layer."""
    pipeline_parallel: int = 1
    """Stages, each with as many ranks and some of the layers."""
    expert_parallel: int = 1
    """Ranks that have some experts each: those of ``tensor_parallel``, or 1: they have a shard of each expert."""
    nodes: tuple[Address, ...] = ()
    """Where the last ranks are: one at each address, on other hosts."""
    nodes_secret: Path | None = None
    """The file with the secret that they know, too."""
    deterministic: bool = False
    """Output is the same to the bit however requests are batched, chunked, preempted or speculated."""
    kernels: str | None = None
    """``auto``, ``triton`` or ``reference``; ``None``: as ``TOLLGATE_KERNELS`` says."""
    cuda_graphs: bool = True
    """Record decode steps as CUDA graphs, on a GPU."""
    overlap: str = "auto"
    """``on``, ``off`` or ``auto`` (on a GPU): whether a step is planned and launched while the one before it runs."""
    check_integrity: bool = False
    """Check the block pool after every step, not only when idle."""
    log_level: str = "info"

    def __post_init__(self) -> None:
        for name in ("block_size", "max_adapter_rank", *_PARALLEL):
            if getattr(self, name) < 1:
                raise StartupError(f"{_flag(name)} must be at least 1, not {getattr(self, name)}.")
        for name in (
            "max_num_seqs",
            "max_batched_tokens",
            "kv_cache_blocks",
            "kv_cache_memory",
            "host_kv_memory",
            "disk_kv_size",
            "max_model_len",
            "threads",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise StartupError(f"{_flag(name)} must be at least 1, not {value}.")
        if self.overlap == "on" and self.pipeline_parallel > 1:
            raise StartupError(
                "--overlap on does not go with --pipeline-parallel, whose stages have other steps in flight: leave out "
                "either."
            )
        if self.expert_parallel not in (1, self.tensor_parallel):
            raise StartupError(
                f"--expert-parallel {self.expert_parallel} divides experts over the ranks of --tensor-parallel: give "
                f"--tensor-parallel {self.expert_parallel}, too."
            )
        if self.pipeline_parallel > 1:
            self._check_pipeline()
        if self.nodes or self.nodes_secret is not None:
            self._check_nodes()
        if self.max_model_len == 1:
            raise StartupError("--max-model-len must allow a prompt and an answer: 2 tokens or more.")
        if self.max_adapters < 0:
            raise StartupError(f"--max-adapters must be 0 or more, not {self.max_adapters}.")
        if self.max_cpu_adapters is not None and not self.slots:
            raise StartupError("--max-cpu-adapters is for an engine with adapters: give --max-adapters.")
        if self.max_cpu_adapters is not None and self.max_cpu_adapters < self.slots:
            raise StartupError(
                f"--max-cpu-adapters must be as many as --max-adapters ({self.slots}) or more, not "
                f"{self.max_cpu_adapters}: slots are filled from there."
            )
        if self.max_itl_ratio and not 1 < self.max_itl_ratio < float("inf"):
            raise StartupError(f"--max-itl-ratio must be 0 or more than 1, not {self.max_itl_ratio}.")
        if self.max_drafts < 1:
            raise StartupError(f"--max-drafts must be at least 1, not {self.max_drafts}.")
        if self.draft_tree:
            self._check_tree()
        if self.state_checkpoints is not None and self.state_checkpoints < 0:
            raise StartupError(f"--state-checkpoints must be 0 or more, not {self.state_checkpoints}.")
        if self.draft_model is not None and self.speculation not in ("draft", *HEADS):
            raise StartupError(
                f"--draft-model is for --speculation draft, eagle or medusa, not {self.speculation}."
            )
        if self.draft_quantization is not None and self.draft_model is None:
            raise StartupError("--draft-quantization is for a --draft-model.")
        if any(tokens < 2 for _, tokens in self.context_caps):
            raise StartupError("--context-cap must allow a prompt and an answer: 2 tokens or more.")
        if self.max_waiting < 0:
            raise StartupError(f"--max-waiting must be 0 or more, not {self.max_waiting}.")
        if not 0 < self.priority_ageing < float("inf"):
            raise StartupError(f"--priority-ageing must be more than 0 seconds, not {self.priority_ageing}.")
        seqs, tokens = self.max_num_seqs, self.max_batched_tokens
        if seqs is not None and tokens is not None and tokens < seqs:
            raise StartupError(
                f"--max-batched-tokens ({self.max_batched_tokens}) must be at least --max-num-seqs "
                f"({self.max_num_seqs}): every running request gets one token a step."
            )
        if self.kv_cache_blocks is not None and self.kv_cache_memory is not None:
            raise StartupError("Give --kv-cache-blocks or --kv-cache-memory, not both.")
        if not 0 <= self.pinned_share <= 1:
            raise StartupError(f"--pinned-share must be from 0 to 1, not {self.pinned_share}.")
        if self.disk_kv is not None and self.host_kv_memory is None:
            raise StartupError(
                "--disk-kv needs --host-kv-memory: blocks go to the disk and come back through it."
            )
        if self.host_kv_memory is not None:
            self._check_tiers()
        self._check_role()

    def _check_role(self) -> None:
        """Raises ``StartupError`` for flags that a role needs, or that need one."""
        gives, asks = self.role in ("prefill", "both"), self.role in ("decode", "both")
        if self.role not in (None, "prefill", "decode", "both"):
            raise StartupError(f"--role {self.role} is not one of prefill, decode, both.")
        if gives and self.handover_address is None:
            raise StartupError(
                f"--role {self.role} needs --handover-address, where other engines ask for KV blocks, such as "
                "tcp://10.0.0.5:8200 or unix:///run/tollgate/prefill.sock."
            )
        if self.handover_address is not None and not gives:
            raise StartupError("--handover-address is for --role prefill and --role both.")
        if self.prefill_from and not asks:
            raise StartupError("--prefill-from is for --role decode and --role both.")
        if self.role is not None and self.host_kv_memory is None:
            raise StartupError("--role needs --host-kv-memory: blocks come and go through it.")
        if not 0 < self.handover_timeout < float("inf"):
            raise StartupError(
                f"--handover-timeout must be more than 0 seconds, not {self.handover_timeout}."
            )
        if self.handover_min_tokens < 0:
            raise StartupError(f"--handover-min-tokens must be 0 or more, not {self.handover_min_tokens}.")

    def _check_tree(self) -> None:
        """Raises ``StartupError`` for what does not go with trees of draft tokens."""
        if not 1 <= self.draft_tree <= MOST_IN_TREE:
            raise StartupError(
                f"--draft-tree must be from 1 to {MOST_IN_TREE} tokens, not {self.draft_tree}."
            )
        if self.speculation not in HEADS:
            raise StartupError(
                f"--draft-tree is for --speculation eagle or medusa, not {self.speculation}, which proposes chains."
            )
        given = {
            "--deterministic": self.deterministic,
            "--kv-cache-dtype int4": self.kv_cache_dtype == "int4",
            "--tensor-parallel": self.tensor_parallel > 1,
        }
        for flag, is_given in given.items():
            if is_given:
                raise StartupError(
                    f"--draft-tree does not go with {flag}: leave out either; without it heads propose chains."
                )

    @property
    def step_drafts(self) -> int:
        """Most draft tokens a step and request."""
        return self.draft_tree or self.max_drafts

    @property
    def slots(self) -> int:
        """For adapters; 0: there are none, and their machinery is left out."""
        return self.max_adapters or len(self.adapters)

    @property
    def host_adapters(self) -> int:
        return self.max_cpu_adapters or 4 * self.slots

    @property
    def ranks(self) -> int:
        """Processes that share the model."""
        return self.tensor_parallel * self.pipeline_parallel

    def _check_pipeline(self) -> None:
        """Raises ``StartupError`` for what does not go with stages."""
        given = {
            f"--speculation {self.speculation}": self.speculation != "off",
            "--adapter": bool(self.adapters),
            "--max-adapters": self.max_adapters > 0,
        }
        for flag, is_given in given.items():
            if is_given:
                raise StartupError(
                    f"{flag} is not supported with --pipeline-parallel: leave out either, or use --tensor-parallel."
                )

    def _check_nodes(self) -> None:
        """Raises ``StartupError`` for what does not go with ranks on other hosts."""
        if self.nodes_secret is None or not self.nodes:
            raise StartupError("--nodes and --nodes-secret go together: give both, or neither.")
        if len(self.nodes) >= self.ranks:
            raise StartupError(
                f"--nodes names {len(self.nodes)} ranks beside this one, but --tensor-parallel "
                f"{self.tensor_parallel} times --pipeline-parallel {self.pipeline_parallel} are {self.ranks} in all."
            )
        if self.adapters or self.max_adapters:
            raise StartupError(
                "--adapter and --max-adapters are not supported with --nodes yet: leave out either."
            )

    def _check_tiers(self) -> None:
        """Raises ``StartupError`` for what does not go with KV memory in tiers."""
        if not self.prefix_caching:
            raise StartupError("--host-kv-memory needs prefix caching: leave out --no-prefix-caching.")
        if self.ranks > 1:
            raise StartupError(
                "--host-kv-memory needs --tensor-parallel 1 and --pipeline-parallel 1 so far: each rank has a part of "
                "every block."
            )
        if self.speculation in ("draft", "eagle"):
            raise StartupError(
                f"--host-kv-memory does not go with --speculation {self.speculation} yet, whose own KV cache would "
                "lack what is loaded: use ngram or medusa."
            )

    def on(self, device: str) -> EngineConfig:
        """With the device's defaults (``cpu`` or ``cuda``) for what is not set. They follow what is set: the token
        budget is at least the number of sequences, and the number of sequences at most the budget."""
        seqs, tokens = STEPS[device]
        tokens = self.max_batched_tokens or max(tokens, self.max_num_seqs or 0)
        return replace(self, max_num_seqs=self.max_num_seqs or min(seqs, tokens), max_batched_tokens=tokens)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the HTTP process needs to know."""

    engine: EngineConfig
    served_model_name: str
    given_model_name: str = field(default="", compare=False)
    """As ``--model`` has it: another name of it."""
    any_model_name: bool = False
    """Whatever a request calls the model, unless there may be adapters."""
    host: str = "127.0.0.1"
    port: int = 8100
    """0 picks a free one."""
    share_port: bool = False
    """Other engines of this user may listen on ``port``, too, as one does that takes over from this one."""
    standby_port: int | None = None
    """Where it listens until SIGUSR1 has it take over ``port``, which it shares until then with the one before it."""
    uds: Path | None = None
    """The Unix socket to listen on in place of ``host`` and ``port``."""
    leave_with_stdin: bool = False
    """Leave when standard input ends: with who started it as a child, however that one ends."""
    adapter_token_file: Path | None = None
    """What changing adapters at run time takes; ``None``: what the environment has."""
    adapter_folders: tuple[Path, ...] = ()
    """Folders that they may be loaded from, and, the first, are uploaded to."""
    max_adapter_bytes: int = 2**30
    """Of an upload."""
    sleep_mode: bool = False
    """Whether ``/sleep`` and ``/wake_up`` are there."""
    max_body_bytes: int = 8 * 2**20
    drain_timeout: float = 30.0
    """Seconds that running requests get to finish after SIGTERM."""
    step_timeout: float = 300.0
    """Seconds without a step, though requests are open, after which the engine process is killed; 0: never."""
    write_timeout: float = 30.0
    """Seconds that a client may read next to nothing of its answer before it is disconnected; 0: for ever."""
    over_context: str = "clip"
    """For a ``max_tokens`` beyond what the prompt leaves of the context: ``clip`` or ``refuse``."""
    max_string_length: int | None = None
    """Characters of a string in a forced call whose schema does not bound it; ``None``: half as many as the context
    has tokens; 0: no bound."""
    otlp_traces_endpoint: str | None = None
    """The URL to which traces are sent by OTLP; ``None``: none are."""
    otlp_traces_protocol: str = "http"
    """``http`` (protobuf over HTTP) or ``grpc``."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise StartupError(f"--port must be from 0 to 65535, not {self.port}.")
        if self.standby_port is not None and not 1 <= self.standby_port <= 65535:
            raise StartupError(f"--standby-port must be from 1 to 65535, not {self.standby_port}.")
        if not self.engine.slots and (self.adapter_token_file is not None or self.adapter_folders):
            raise StartupError(
                "--adapter-token-file and --adapter-folder are for an engine with adapters: give --max-adapters."
            )
        if self.max_adapter_bytes < 1:
            raise StartupError(f"--max-adapter-bytes must be at least 1, not {self.max_adapter_bytes}.")
        if self.max_body_bytes < 1:
            raise StartupError(f"--max-body-bytes must be at least 1, not {self.max_body_bytes}.")
        if self.drain_timeout < 0:
            raise StartupError(f"--drain-timeout must be 0 or more, not {self.drain_timeout}.")
        if self.max_string_length is not None and self.max_string_length < 0:
            raise StartupError(f"--max-string-length must be 0 or more, not {self.max_string_length}.")
        if not 0 <= self.write_timeout < float("inf"):
            raise StartupError(f"--write-timeout must be 0 or more, not {self.write_timeout}.")
        endpoint = self.otlp_traces_endpoint
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise StartupError(
                f"--otlp-traces-endpoint must be a URL such as http://localhost:4318/v1/traces, not {endpoint}."
            )
        if not self.step_timeout >= 0:
            raise StartupError(f"--step-timeout must be 0 or more, not {self.step_timeout}.")


def parse_bytes(text: str) -> int:
    """``"512MiB"`` → 536870912. Raises ``ValueError``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", text.strip(), re.IGNORECASE)
    if found is None or found[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size such as 512MiB or 2GB")
    return int(float(found[1]) * _UNITS[found[2].lower()])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
