"""Tokens are the same wherever the blocks of a prompt come from: device, host memory, the file of an earlier start."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import pack

import pytest

from engine.config import EngineConfig
from engine.core.prefix_cache import block_key
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.offline import OfflineEngine
from engine.worker.tiers.block_file import NAME
from engine.worker.tiers.fingerprint import fingerprint, model_digest
from tests.engine.tiny import SHAPE

PARAMS = SamplingParams(max_tokens=12, temperature=0)
BLOCK = 16 * 2 * 2 * 2 * 16 * 4
"""Bytes: tokens, layers, keys and values, heads, dimensions, float32."""


@contextmanager
def engine(model: Path, **options: object) -> Iterator[OfflineEngine]:
    config = EngineConfig(model=model, kv_cache_blocks=40, threads=1, dtype="float32", **options)
    made = OfflineEngine(config, prefix_caching=True)
    try:
        yield made
    finally:
        made.close()


def conversations(seed: int, count: int, longest: int = 300) -> list[list[int]]:
    """Prompts that go on from one of five texts, each time from another place."""
    rng = random.Random(seed)
    texts = [rng.choices(range(2, SHAPE["vocab_size"]), k=longest) for _ in range(5)]
    return [[*rng.choice(texts)[: rng.randint(40, longest)], 2 + i % 300] for i in range(count)]


def answers(made: OfflineEngine, prompts: list[list[int]], late: int = 0) -> list[list[int]]:
    _, found = made.generate([(prompt, PARAMS) for prompt in prompts], late=late)
    made.scheduler.check_integrity()
    return [one.tokens for one in found]


def found_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/{NAME}*"))


def counts(made: OfflineEngine):
    assert made.scheduler.tiers is not None
    return made.scheduler.tiers.state


@pytest.fixture(scope="module")
def expected(tiny_model: Path) -> list[list[int]]:
    """Of each prompt alone, computed anew."""
    config = EngineConfig(model=tiny_model, kv_cache_blocks=40, threads=1, dtype="float32")
    alone = OfflineEngine(config)
    return [answers(alone, [prompt])[0] for prompt in conversations(0, 24)]


@pytest.mark.parametrize("slots", [30, 200])
def test_tokens_are_equal_to_the_bit_whatever_is_evicted(
    tiny_model: Path, tmp_path: Path, expected: list[list[int]], slots: int
) -> None:
    """The device has room for two conversations, the host for all five or for fewer, the disk for the rest."""
    disk = {"disk_kv": tmp_path / "kv", "disk_kv_size": 200 * BLOCK} if slots == 30 else {}
    with engine(tiny_model, host_kv_memory=slots * BLOCK, **disk) as made:
        assert answers(made, conversations(0, 24)) == expected
        made.settle()
        again = answers(made, conversations(0, 24), late=30)
        made.settle()
        found = counts(made)
        assert again == expected
        assert found.loaded > 100 and found.corrupt == 0
        assert (found.read > 20) == (slots == 30)


def test_preempted_requests_go_on_with_the_same_tokens(tiny_model: Path) -> None:
    """Six of eight blocks each, on a device of 40, whose answers are long."""
    rng = random.Random(4)
    asked = [
        (rng.choices(range(2, SHAPE["vocab_size"]), k=60), SamplingParams(max_tokens=64, temperature=0))
        for _ in range(6)
    ]
    with engine(tiny_model, host_kv_memory=60 * BLOCK) as made:
        alone = [made.generate([one])[1][0].tokens for one in asked]
        assert [one.tokens for one in made.generate(asked)[1]] == alone
        assert made.counts.preempted > 0 and counts(made).loaded > 0
        made.scheduler.check_integrity()


def test_a_restart_finds_what_is_on_disk_and_refuses_what_was_changed(
    tiny_model: Path, tmp_path: Path, expected: list[list[int]]
) -> None:
    options = {"host_kv_memory": 100 * BLOCK, "disk_kv": tmp_path / "kv", "disk_kv_size": 400 * BLOCK}
    prompts = conversations(0, 24)
    with engine(tiny_model, **options) as made:
        answers(made, prompts)
        made.settle()
        assert counts(made).written > 50
    gone = tmp_path / "kv" / ("0" * 32) / "kv_blocks"  # of a model that nobody has any more
    gone.parent.mkdir()
    gone.write_bytes(b"x")
    with engine(tiny_model, disk_kv_unused=0, **options) as made:
        assert not gone.exists()
        assert [answers(made, [prompt])[0] for prompt in prompts[:8]] == expected[:8]
        assert counts(made).read > 50 and counts(made).corrupt == 0
    with found_in(tmp_path / "kv")[0].open("r+b") as raw:
        size = raw.seek(0, 2)
        for place in range(size // 2, size, BLOCK):
            raw.seek(place)
            raw.write(b"\xa5" * 8)
        raw.seek(4096 + 400 * 64)
        start = raw.tell()
        for place in range(start, size // 2, 2 * BLOCK):
            raw.seek(place + 5000)
            raw.write(b"\xa5" * 8)
    with engine(tiny_model, **options) as made:
        assert [answers(made, [prompt])[0] for prompt in prompts] == expected
        assert counts(made).corrupt > 0


def test_the_digest_names_what_host_memory_and_disk_have(tiny_model: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    prompts = [rng.choices(range(2, SHAPE["vocab_size"]), k=161) for _ in range(12)]
    disk = {"disk_kv": tmp_path / "kv", "disk_kv_size": 90 * BLOCK}
    with engine(tiny_model, host_kv_memory=60 * BLOCK, **disk) as made:
        for prompt in prompts:
            made.generate([(prompt, SamplingParams(max_tokens=1, temperature=0))])
            made.settle()
        tiers, prefixes = made.scheduler.tiers, made.scheduler.prefixes
        assert tiers is not None and tiers.disk is not None and prefixes is not None
        here = {key for key, _ in prefixes.digest(64)}
        named = {key: (tokens, tier) for key, tokens, tier in tiers.digest(64)}
        order = [tier for _, tier in named.values()]
        # The device has the last 3 of 12 prompts, the others those before them, and the first are gone.
        assert order == ["host"] * order.count("host") + ["disk"] * order.count("disk")
        assert {"host", "disk"} == set(order) and len(order) < 10
        for prompt in prompts:
            key = prefixes.root(None).key
            for start in range(0, 160, 16):
                key = block_key(key, pack("<16I", *prompt[start : start + 16]))
            number, asked = int.from_bytes(key, "little"), Request(0, prompt, PARAMS)
            known = prefixes.match(prefixes.root(None), prompt)
            # Of a chain on disk the end is evicted first: the rest can be found.
            on_disk = [key in tiers.disk for key in tiers._keys_after(prefixes.root(None), asked)]
            assert on_disk == sorted(on_disk, reverse=True)
            assert len(tiers.missing(asked, known)) + known.depth == 10 or number not in {*here, *named}
            if number in named:
                assert named.pop(number)[0] == 160
        assert not named
        # One that comes back to the device is no further away than that.
        number, _, tier = tiers.digest(1)[0]
        prompt = prompts[-len(here) - 1]
        made.generate([(prompt, SamplingParams(max_tokens=1, temperature=0))])
        assert tier == "host" and (number, 160, "") in tiers.digest(64)
        tiers.host.pool.check_integrity()


def test_blocks_of_other_salts_are_not_found(tiny_model: Path) -> None:
    with engine(tiny_model, host_kv_memory=100 * BLOCK) as made:
        prompt = conversations(0, 24)[0]
        tiers = made.scheduler.tiers
        assert tiers is not None and made.scheduler.prefixes is not None
        for salt in (b"", b"mine"):
            made.scheduler.submit(Request(1000 + len(salt), prompt, PARAMS, salt=salt))
            while made._busy:
                made._step()
        root = made.scheduler.prefixes.root(None)
        found = {
            salt: [key for key, _ in tiers.missing(Request(0, prompt, PARAMS, salt=salt), root)]
            for salt in (b"", b"mine", b"theirs")
        }
        assert len(found[b""]) == len(found[b"mine"]) == (len(prompt) - 1) // 16
        assert not set(found[b""]) & set(found[b"mine"]) and found[b"theirs"] == []


def test_blocks_of_another_model_or_layout_are_not_found(tiny_model: Path, tmp_path: Path) -> None:
    """Engines of several models may have one folder."""
    options = {"host_kv_memory": 10 * BLOCK, "disk_kv": tmp_path / "kv", "disk_kv_size": 20 * BLOCK}
    other = tmp_path / "other"
    other.mkdir()
    for path in tiny_model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert model_digest(other) == model_digest(tiny_model)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[len(weights) // 2] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    with engine(tiny_model, **options) as made, engine(other, **options) as second:
        for one in (made, second):
            assert counts(one).disk == 0
            answers(one, conversations(1, 1))
            one.settle()
            assert counts(one).disk > 0
    assert len(found_in(tmp_path / "kv")) == 2
    for model in (tiny_model, other):
        with engine(model, **options) as made:
            assert counts(made).disk > 0
    with engine(tiny_model, block_size=8, **options) as made:
        assert counts(made).disk == 0


def test_every_part_and_every_large_matrix_of_a_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(bytes(5 * 2**20))
    before = model_digest(tmp_path)
    for place in (100, 3 * 2**20):
        with parts[1].open("r+b") as file:
            file.seek(place)
            file.write(b"x" * 2**20)
        after = model_digest(tmp_path)
        assert after != before
        before = after


@pytest.mark.parametrize(
    ("stored", "dtype", "told"),
    [
        ("auto", "float32", False),
        ("int4", "float32", False),
        ("int8", "float32", True),
        ("fp8", "float32", True),
        ("auto", "bfloat16", True),
    ],
)
def test_blocks_whose_keys_a_release_before_kept_as_they_come_fit_no_more(
    tiny_model: Path, stored: str, dtype: str, told: bool
) -> None:
    config = EngineConfig(model=tiny_model, kv_cache_dtype=stored)
    assert ("keys" in fingerprint(config, dtype, [])) == told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host_kv_memory": 100}, "less than one KV block"),
        ({"host_kv_memory": 2**50}, "more than this machine has"),
        ({"disk_kv": Path("/nowhere")}, "--disk-kv needs --host-kv-memory"),
        ({"host_kv_memory": 2**20, "prefix_caching": False}, "needs prefix caching"),
        ({"host_kv_memory": 2**20, "tensor_parallel": 2}, "--tensor-parallel 1"),
        ({"host_kv_memory": 2**20, "speculation": "eagle"}, "--speculation eagle"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tiny_model: Path, options: dict, words: str) -> None:
    with pytest.raises(StartupError, match=words), engine(tiny_model, **options):
        pass


def test_a_model_with_sliding_windows_is_refused(model_of) -> None:
    model = model_of(architectures=["MistralForCausalLM"], sliding_window=32, max_position_embeddings=256)
    with pytest.raises(StartupError, match="sliding windows"), engine(model, host_kv_memory=2**20):
        pass
