"""Adapters behind two engines with fewer slots than there are: each says what the model says with it merged."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from tests.adapters import create
from tests.engine.live import EngineServer
from tests.engine.lora import ALL, merge, write_adapter
from tests.engine.tiny import write_model
from tests.serving import KEY, Gateway, key, serving

PROMPT = [5, 6, 7, 90, 91, 33, 12, 250, 8, 17, 40]
TOKENS = 6
CLOSE = 0.02
"""Logits that differ by less may change places, as sums are taken in another order."""


@dataclass
class Merged:
    """The base model, and what it would say with an adapter merged into it."""

    folder: Path

    def __post_init__(self) -> None:
        self.weights = load_file(self.folder / "model.safetensors")
        self._model = LlamaForCausalLM(LlamaConfig.from_pretrained(self.folder)).eval()
        self._tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def says(self, adapter: Path | None) -> str:
        """After ``PROMPT``, up to where two tokens are about as likely."""
        self._model.load_state_dict(merge(self.weights, adapter) if adapter is not None else self.weights)
        said: list[int] = []
        with torch.inference_mode():
            while len(said) < TOKENS:
                logits = self._model(torch.tensor([PROMPT + said])).logits[0, -1]
                (first, second), (best, _) = logits.topk(2)
                if first - second < CLOSE:
                    break
                said.append(int(best))
        return self._tokenizer.decode(said)


def adapters(folder: Path, base: Merged, count: int) -> list[Path]:
    random = Random(count)
    return [
        write_adapter(
            folder / str(number),
            base.weights,
            rank=random.choice([1, 2, 4, 8]),
            targets=tuple(random.sample(ALL, random.randint(1, len(ALL)))),
            seed=number + 1,
        )
        for number in range(count)
    ]


def zipf(count: int, requests: int) -> list[int]:
    """Which adapter is asked, one after the other: the first most, the second half as often, and so on."""
    weights = list(accumulate(1 / (number + 1) for number in range(count)))
    return Random(requests).choices(range(count), cum_weights=weights, k=requests)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Merged:
    return Merged(write_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    text = secrets.token_hex(16)
    monkeypatch.setenv("TOLLGATE_ADAPTER_TOKEN", text)
    yield text


async def traffic(
    gateway: Gateway, folders: list[Path], base: Merged, asked: list[int], *, at_once: int
) -> dict[str, float]:
    """Each of ``asked``, whose answers are compared. Returns the metrics at the end."""
    places = asyncio.Semaphore(at_once)
    expected = {number: base.says(folders[number]) for number in {*asked}}
    assert len({*expected.values()}) > len(expected) / 2
    for number, folder in enumerate(folders):
        made = await create(
            gateway.http,
            f"a{number}",
            config=(folder / "adapter_config.json").read_bytes(),
            weights=(folder / "adapter_model.safetensors").read_bytes(),
        )
        assert made.status_code == 200, made.text

    async def ask(number: int | None) -> None:
        stream = number is not None and number % 2 == 1
        body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "stream": stream}
        model = "base" if number is None else f"base:a{number}"
        async with places:
            answer = await gateway.http.post("/v1/completions", json={"model": model, **body})
        assert answer.status_code == 200, answer.text
        events = answer.text.removesuffix("data: [DONE]\n\n").split("\n\n") if stream else [answer.text]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events if event]
        said = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
        assert said.startswith(base.says(None) if number is None else expected[number])

    await asyncio.gather(ask(None), *map(ask, asked))
    return await gateway.metrics()


def an_engine(base: Merged, folder: Path, slots: int) -> EngineServer:
    folder.mkdir()
    flags = ("--served-model-name", "base", "--kv-cache-blocks", "500", "--max-num-seqs", "8")
    limits = ("--max-adapters", str(slots), "--max-cpu-adapters", str(2 * slots), "--max-adapter-rank", "8")
    place = ("--adapter-folder", str(folder))
    return EngineServer(base.folder, *flags, *limits, *place, log=folder / "log")


async def behind_engines(
    folder: Path, base: Merged, token: str, *, count: int, slots: int, known: int, requests: int, at_once: int
) -> tuple[dict[str, float], list[int]]:
    """Each engine has ``slots``, twice as many adapters in memory, and up to ``known`` on its disk. Metrics, and how
    many of them each has at the end."""
    with ExitStack() as stack:
        # Side by side: what each imports takes seconds.
        starting = [asyncio.to_thread(an_engine, base, folder / name, slots) for name in ("one", "two")]
        engines = [stack.enter_context(engine) for engine in await asyncio.gather(*starting)]
        policy = {
            "version": 1,
            "backends": {
                "engine": {
                    "kind": "engine",
                    "replicas": {"servers": [{"url": engine.url} for engine in engines]},
                }
            },
            "models": {"base": {"targets": [{"backend": "engine", "model": "base"}]}},
            "keys": [key(KEY, "acme", tenant="acme")],
            "adapters": {
                "servers": {"engine": {"slots": known, "token": token}},
                "max_tenant_adapters": count,
                "load_timeout": "300s",
            },
        }
        async with serving(folder / "policies", policy) as gateway:
            folders = adapters(folder / "adapters", base, count)
            metrics = await traffic(gateway, folders, base, zipf(count, requests), at_once=at_once)
        held = [_held(engine) for engine in engines]
    return metrics, held


def _held(engine: EngineServer) -> int:
    listed = engine.http.get("/v1/models").json()["data"]
    return sum(one["id"].startswith("adapter-") for one in listed)


def total(metrics: dict[str, float], name: str) -> float:
    return sum(value for key, value in metrics.items() if key.startswith(name))


@pytest.mark.anyio
async def test_twenty_adapters_over_two_engines_of_two_slots(
    tmp_path: Path, base: Merged, token: str
) -> None:
    metrics, held = await behind_engines(
        tmp_path, base, token, count=20, slots=2, known=5, requests=60, at_once=6
    )
    assert max(held) <= 5 and sum(held) > 0
    assert total(metrics, "tollgate_adapter_evictions_total") > 0


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_an_engine_was_started_with_is_a_model_without_an_upload(
    tmp_path: Path, base: Merged
) -> None:
    (folder,) = adapters(tmp_path / "adapters", base, 1)
    flags = ("--served-model-name", "base", "--kv-cache-blocks", "100", "--adapter", f"sql={folder}")
    with EngineServer(base.folder, *flags, log=tmp_path / "log") as engine:
        policy = {
            "version": 1,
            "backends": {"engine": {"kind": "engine", "base_url": engine.url}},
            "models": {"chat": {"targets": [{"backend": "engine", "model": "base"}]}},
            "keys": [key(KEY, "acme", tenant="acme")],
            "adapters": {"listed": {"engine": {}}},
        }
        async with serving(tmp_path / "policies", policy) as gateway:
            listed = {one["id"]: one for one in (await gateway.http.get("/v1/models")).json()["data"]}
            assert listed["chat:sql"]["parent"] == "chat"
            for model, merged in (("chat", None), ("chat:sql", folder)):
                body = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
                answer = (await gateway.http.post("/v1/completions", json=body)).json()
                assert answer["choices"][0]["text"].startswith(base.says(merged))


@pytest.mark.slow
@pytest.mark.anyio
async def test_five_hundred_adapters_over_two_engines_of_eight_slots(
    tmp_path: Path, base: Merged, token: str
) -> None:
    metrics, held = await behind_engines(
        tmp_path, base, token, count=500, slots=8, known=64, requests=3000, at_once=12
    )
    assert max(held) <= 64
    assert total(metrics, "tollgate_adapter_evictions_total") > 100
