"""A prompt computed by another engine has the same tokens as one computed here; what goes wrong costs no answer."""

from __future__ import annotations

import itertools
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.handover.server import Peer
from engine.offline import OfflineEngine
from tests.engine.handover.pair import SECRET, Cable, Engine, Giver, config_of, engines
from tests.engine.tiny import SHAPE

GREEDY = SamplingParams(max_tokens=12, temperature=0)
SEEDED = SamplingParams(max_tokens=12, temperature=1.0, seed=7)
Asked = list[tuple[list[int], SamplingParams]]


def prompts(seed: int, count: int, longest: int = 300) -> Asked:
    """Some begin like others, some are shorter than a block, some end with a block."""
    rng = random.Random(seed)
    texts = [rng.choices(range(2, SHAPE["vocab_size"]), k=longest) for _ in range(3)]
    lengths = [rng.choice((12, 160, 161, rng.randint(20, longest))) for _ in range(count)]
    return [
        ([*rng.choice(texts)[:length], 2 + number], rng.choice((GREEDY, SEEDED)))
        for number, length in enumerate(lengths)
    ]


def answers(made: OfflineEngine, asked: Asked, late: int = 0) -> list[list[int]]:
    _, found = made.generate(asked, late=late)
    made.settle()
    made.scheduler.check_integrity()
    assert made.scheduler.pool.used == 0
    return [one.tokens for one in found]


@pytest.fixture(scope="module")
def asked() -> Asked:
    return prompts(0, 16)


@pytest.fixture(scope="module")
def alone(tiny_model: Path, asked: Asked) -> list[list[int]]:
    """By one engine that does all itself, without a prefix cache."""
    made = OfflineEngine(config_of(tiny_model, host_kv_memory=None))
    return [answers(made, [one])[0] for one in asked]


@pytest.fixture
def giver(tiny_model: Path) -> Iterator[Giver]:
    made = Giver(config_of(tiny_model, role="prefill", handover_address="tcp://127.0.0.1:0"))
    with engines(made):
        yield made


def asking(model: Path, *addresses: str, secret: dict[str, str] = SECRET, **more: object) -> Engine:
    return Engine(config_of(model, role="decode", prefill_from=addresses, **more), secret=secret)


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("tcp", {}),
        ("unix", {}),
        ("unix", {"max_batched_tokens": 64, "max_num_seqs": 8}),  # chunked
        ("tcp", {"kv_cache_dtype": "int8"}),
        ("unix", {"kv_cache_blocks": 30}),  # who asks has to preempt
        ("unix", {"host_kv_memory": 20 * 2**13}),  # some of the blocks find no room on the way
    ],
)
def test_tokens_are_those_of_one_engine(
    tiny_model: Path, tmp_path: Path, asked: Asked, scheme: str, more: dict[str, object]
) -> None:
    at = f"unix://{tmp_path}/kv.sock" if scheme == "unix" else "tcp://127.0.0.1:0"
    combined = OfflineEngine(config_of(tiny_model, **{**more, "host_kv_memory": None}))
    expected = [answers(combined, [one])[0] for one in asked]
    giver = Giver(config_of(tiny_model, role="prefill", handover_address=at, **more))
    with engines(giver):
        made = asking(tiny_model, giver.address, **more)
        with engines(made):
            assert answers(made.offline, asked) == expected
            state = made.handover.state
            assert state.fetched_blocks > 5 and state.failed == state.corrupt == 0 and state.short > 0
            # Nothing of a prompt but what comes after its last whole block is computed twice.
            assert answers(made.offline, prompts(5, 8), late=3)
            assert giver.handover.state.given_blocks == state.fetched_blocks
    assert giver.scheduler.pool.used == 0


def test_a_prompt_is_no_cache_hit_where_the_other_engine_computed_it(tiny_model: Path, giver: Giver) -> None:
    """Callers pay less for what was cached: that is what neither of them had to compute."""
    prompt = prompts(1, 1)[0][0][:1] * 3 + list(range(2, 250))
    made = asking(tiny_model, giver.address)
    with engines(made):
        first, again = (cached(made, 1, prompt), cached(made, 2, [*prompt[:200], 5, 6]))
        # The last is the beginning of a block that it has.
        assert first == 0 and again == 200
    other = asking(tiny_model, giver.address)
    with engines(other):
        assert cached(other, 3, prompt) == 240
        assert other.handover.state.fetched_blocks == 15


def cached(made: Engine, number: int, prompt: list[int]) -> int:
    """Prompt tokens that the answer to ``prompt`` says were cached."""
    scheduler = made.offline.scheduler
    scheduler.submit(Request(1000 + number, prompt, GREEDY))
    found = 0
    while not scheduler.idle:
        found += sum(output.cached for output in made.offline._step().outputs)
    return found


def test_a_salt_keeps_blocks_apart_and_what_all_share_does_not(tiny_model: Path, giver: Giver) -> None:
    prompt = list(range(2, 130))
    for salt, given in ((b"one", 8), (b"two", 16), (b"one", 16)):
        made = asking(tiny_model, giver.address)
        with engines(made):
            scheduler = made.offline.scheduler
            before = giver.handover.state.given_blocks
            scheduler.submit(Request(1, prompt, GREEDY, salt=salt))
            while not scheduler.idle:
                made.offline._step()
            assert giver.handover.state.given_blocks - before == 7
        # The third asks for what the first left: nothing more is computed for it.
        while not giver.scheduler.idle:
            time.sleep(0.001)
        assert len(giver.scheduler.tiers.host) == given


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_what_is_cut_or_changed_on_the_way_is_computed_here(
    tiny_model: Path, asked: Asked, alone: list[list[int]], giver: Giver, how: str
) -> None:
    """After some blocks of 8 KiB; those before are used."""
    cable = Cable(giver.address, **{how: 30_000})
    made = asking(tiny_model, cable.address)
    try:
        with engines(made):
            assert answers(made.offline, asked) == alone
            state = made.handover.state
            assert state.failed > 0 and state.corrupt == state.failed * (how == "flip")
            assert state.fetched_blocks >= 3
    finally:
        cable.close()


def test_a_changed_block_in_shared_memory_is_refused(
    tiny_model: Path, tmp_path: Path, asked: Asked, alone: list[list[int]]
) -> None:
    giver = Giver(config_of(tiny_model, role="prefill", handover_address=f"unix://{tmp_path}/kv.sock"))
    giver.handover.serving._server._arena = _Changed(giver.copier)
    with engines(giver):
        made = asking(tiny_model, giver.address)
        with engines(made):
            assert answers(made.offline, asked) == alone
            assert made.handover.state.corrupt > 0 and made.handover.state.fetched_blocks == 0


class _Changed:
    """An arena that says of each block that it is another: as if its memory had changed after that."""

    def __init__(self, arena) -> None:
        self._arena = arena
        self.shared_file, self.slots, self.block_bytes = arena.shared_file, arena.slots, arena.block_bytes

    def content(self, slot: int) -> memoryview:
        found = bytearray(self._arena.content(slot))
        found[100] ^= 1
        return memoryview(found)


def test_what_makes_no_sense_ends_the_connection(
    tiny_model: Path, asked: Asked, alone: list[list[int]], giver: Giver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is right: another version may have sent it."""
    monkeypatch.setattr(Peer, "end", lambda peer, *_, **__: peer.out.put({"cached": "many"}))
    made = asking(tiny_model, giver.address)
    with engines(made):
        assert answers(made.offline, asked) == alone
        assert made.handover.state.failed > 0
        assert made.handover.fetcher is not None and not any(made.handover.fetcher.links._idle.values())


def test_a_host_that_vanishes_does_not_keep_its_place(tiny_model: Path, asked: Asked, giver: Giver) -> None:
    """By the system, whose settings these are: a connection that is kept for the next prompt says nothing for long."""
    made = asking(tiny_model, giver.address)
    with engines(made):
        answers(made.offline, asked[:6])
        assert giver.handover.serving is not None
        (peer, *_) = giver.handover.serving._server.peers
        sock = peer.wire.sock
        idle, interval, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
        )
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert idle + interval * probes <= 60


def test_who_is_asked_for_a_prompt_asks_nobody(tiny_model: Path, asked: Asked, giver: Giver) -> None:
    """Two that ask each other would hand it to and fro."""
    both = {"role": "both", "handover_address": "tcp://127.0.0.1:0", "prefill_from": (giver.address,)}
    between = Giver(config_of(tiny_model, **both))
    with engines(between):
        made = asking(tiny_model, between.address)
        with engines(made):
            answers(made.offline, asked[:6])
            assert made.handover.state.fetched_blocks > 0
        assert between.handover.state.fetched_prompts == giver.handover.state.given_prompts == 0


def test_nobody_there_and_a_wrong_name_cost_nothing(
    tiny_model: Path, asked: Asked, alone: list[list[int]]
) -> None:
    made = asking(tiny_model, "tcp://127.0.0.1:1")
    with engines(made):
        assert answers(made.offline, asked) == alone
        assert made.handover.state.failed >= 1
        made.offline.scheduler.submit(Request(99, asked[-1][0][:3] * 20, GREEDY, prefill_at="nonsense"))
        while not made.offline.scheduler.idle:
            made.offline._step()


@pytest.mark.parametrize(
    ("more", "secret", "said"),
    [
        ({"block_size": 8}, SECRET, "block_size"),
        ({"kv_cache_dtype": "int8"}, SECRET, "kv_cache_dtype"),
        ({}, {next(iter(SECRET)): "another secret of the right size"}, "does not know the secret"),
    ],
)
def test_an_engine_of_another_kind_or_without_the_secret_gets_nothing(
    tiny_model: Path,
    giver: Giver,
    caplog: pytest.LogCaptureFixture,
    more: dict[str, object],
    secret: dict[str, str],
    said: str,
) -> None:
    made = asking(tiny_model, giver.address, secret=secret, **more)
    with engines(made):
        answers(made.offline, prompts(2, 4))
        assert made.handover.state.failed >= 1 and made.handover.state.fetched_blocks == 0
    assert giver.handover.state.given_blocks == 0
    assert said in caplog.text


def test_who_asks_goes_away_and_leaves_nothing_behind(tiny_model: Path, asked: Asked) -> None:
    """In the middle of a prompt: its request is aborted there, what was lent comes back."""
    going, gone = threading.Event(), threading.Event()

    def pause() -> None:
        going.set()
        gone.wait()

    giver = Giver(
        config_of(tiny_model, role="prefill", handover_address="tcp://127.0.0.1:0", max_batched_tokens=64),
        pause=pause,
    )
    with engines(giver):
        made = asking(tiny_model, giver.address)
        scheduler = made.offline.scheduler
        for number, (prompt, params) in enumerate(prompts(3, 6)):
            scheduler.submit(Request(number, prompt, params))
        while not going.is_set():
            made.offline._step()
        for number in range(6):
            scheduler.abort(number)
        made.offline.settle()
        scheduler.check_integrity()
        made.close()
        gone.set()
        while giver.handover.state.abandoned < 1 or not giver.scheduler.idle:
            gone.wait(0.001)
    assert giver.scheduler.pool.used == 0 and giver.scheduler.tiers.host.pool.used == 0


def test_one_that_was_stopped_is_given_up(tiny_model: Path, asked: Asked, alone: list[list[int]]) -> None:
    gone = threading.Event()
    giver = Giver(
        config_of(tiny_model, role="prefill", handover_address="tcp://127.0.0.1:0"),
        pause=lambda: gone.wait() and None,
    )
    with engines(giver):
        made = asking(tiny_model, giver.address, handover_timeout=0.05)
        with engines(made):
            try:
                assert answers(made.offline, asked[:6]) == alone[:6]
                assert made.handover.state.failed > 0
            finally:
                gone.set()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"role": "prefill"}, "--handover-address"),
        ({"role": "decode", "handover_address": "tcp://127.0.0.1:0"}, "--handover-address is for"),
        (
            {"role": "prefill", "handover_address": "tcp://127.0.0.1:0", "prefill_from": ("tcp://a:1",)},
            "--prefill-from",
        ),
        ({"role": "decode", "host_kv_memory": None}, "--host-kv-memory"),
        ({"role": "decode", "speculation": "eagle"}, "--speculation eagle"),
        ({"role": "decode", "tensor_parallel": 2}, "--tensor-parallel 1"),
        ({"role": "decode", "prefix_caching": False}, "prefix caching"),
        ({"role": "other"}, "--role other"),
        ({"role": "decode", "handover_timeout": 0.0}, "--handover-timeout"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        config_of(tmp_path, **options)


@pytest.mark.parametrize(
    ("secret", "said"), [({}, "openssl rand"), ({next(iter(SECRET)): "short"}, "16 or more")]
)
def test_a_role_needs_a_secret(tiny_model: Path, secret: dict[str, str], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        asking(tiny_model, "tcp://127.0.0.1:1", secret=secret)


def test_a_prompt_that_waits_is_told_so(
    tiny_model: Path, asked: Asked, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each second, which here is between any two looks at the clock."""
    told: list[Peer] = []
    reassure = Peer.reassure

    def telling(peer: Peer) -> None:
        told.append(peer)
        reassure(peer)

    monkeypatch.setattr(Peer, "reassure", telling)
    monkeypatch.setattr("engine.handover.serving._PATIENCE", 1e9)
    options = {"max_batched_tokens": 16, "max_num_seqs": 4}
    giver = Giver(config_of(tiny_model, role="prefill", handover_address="tcp://127.0.0.1:0", **options))
    assert giver.handover.serving is not None
    giver.handover.serving._clock = itertools.count(step=2.0).__next__
    with engines(giver):
        made = asking(tiny_model, giver.address)
        with engines(made):
            assert answers(made.offline, asked) == alone
            assert told and made.handover.state.failed == 0


def test_a_request_goes_on_though_its_transfer_does_not_end(
    tiny_model: Path, asked: Asked, alone: list[list[int]], giver: Giver
) -> None:
    """Its slots stay with the transfer's thread until that has ended."""
    made = asking(tiny_model, giver.address)
    assert made.handover.fetcher is not None
    made.handover.fetcher.clock = lambda: time.monotonic() + 1e6
    with engines(made):
        assert answers(made.offline, asked) == alone
        assert made.handover.state.failed > 0
        assert made.offline.tiers is not None and made.offline.tiers.host.pool.used == 0
