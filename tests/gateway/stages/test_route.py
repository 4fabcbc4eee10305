from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.errors import UnknownModel
from gateway.observe.metrics import Metrics
from gateway.stages.route import route
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call, policy

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    before = random.getstate()
    random.seed(7)
    yield
    random.setstate(before)


class Taken:
    """The next handler; it remembers where calls were sent."""

    def __init__(self) -> None:
        self.targets: Counter[str] = Counter()
        self.closed = 0

    async def __call__(self, call: Call) -> Chunks:
        assert call.target is not None
        self.targets[f"{call.target.backend}/{call.target.model}"] += 1
        try:
            yield Chunk(delta={})
            yield Chunk(delta={})
        finally:
            self.closed += 1


def over(*targets: dict[str, Any]) -> Call:
    return a_call(policy_=policy(models={"m": {"targets": list(targets)}}))


async def send(call: Call, taken: Taken, enabled: set[str], times: int = 1) -> None:
    handler = route(enabled, Metrics())(taken)
    for _ in range(times):
        async for _ in handler(call):
            pass


async def test_weights() -> None:
    taken = Taken()
    call = over(
        {"backend": "a", "model": "x", "weight": 6},
        {"backend": "b", "model": "y", "weight": 3},
        {"backend": "b", "model": "z"},
    )
    await send(call, taken, {"a", "b"}, times=2000)
    shares = {target: count / 2000 for target, count in taken.targets.items()}
    assert shares == pytest.approx({"a/x": 0.6, "b/y": 0.3, "b/z": 0.1}, abs=0.03)
    assert taken.closed == 2000


async def test_disabled_backends_get_nothing() -> None:
    taken = Taken()
    call = over({"backend": "a", "model": "x", "weight": 1000}, {"backend": "b", "model": "y"})
    await send(call, taken, {"b"}, times=50)
    assert taken.targets == {"b/y": 50}


async def test_none_enabled() -> None:
    with pytest.raises(UnknownModel, match="none of its backends is enabled") as caught:
        await send(over({"backend": "a", "model": "x"}), Taken(), set())
    assert (caught.value.status, caught.value.param) == (404, "model")


async def test_the_receipt_tells_the_choice() -> None:
    call = over({"backend": "a", "model": "x"})
    await send(call, Taken(), {"a"})
    told = call.receipt.notes["route"]
    assert 0 <= told.pop("after") < 1
    assert told == {"backend": "a", "model": "x"}


async def test_the_wait_until_here_is_timed() -> None:
    metrics = Metrics()
    async for _ in route({"a"}, metrics)(Taken())(over({"backend": "a", "model": "x"})):
        pass
    assert b'tollgate_queue_seconds_count{model="m"} 1.0' in metrics.render()[0]


async def test_a_reader_that_leaves_closes_what_is_behind() -> None:
    taken = Taken()
    chunks = route({"a"}, Metrics())(taken)(over({"backend": "a", "model": "x"}))
    await anext(chunks)
    await chunks.aclose()
    assert taken.closed == 1
