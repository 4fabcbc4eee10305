"""What was recorded once does the same again, with what its inputs are then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from kernels.native.calls import look_up
from kernels.native.dense import DenseWeight, multiplies
from kernels.native.recording import Memory, NotRecordable, Recording, available

pytestmark = pytest.mark.skipif(not (available() and multiplies(torch.float32)), reason="no C compiler")


@pytest.fixture(autouse=True)
def as_in_a_step() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def test_calls_in_c_and_operations_of_torch_in_their_order() -> None:
    product, table = DenseWeight(torch.randn(64, 64)), torch.randn(10, 64)
    x, ids = torch.randn(2, 64), torch.tensor([3, 4])

    def run() -> Tensor:
        y = product(table[ids] + product(x)).view(4, 32)
        y.mul_(2)  # what it writes to is not its own
        first, second = y.view(2, 64).split(32, 1)
        return product(torch.cat([second, first], 1).T.contiguous().T)

    recording = Recording(run, Memory())
    assert torch.equal(recording.result, run())
    for _ in range(3):
        x.normal_()
        ids.random_(0, 10)
        recording()
        assert torch.equal(recording.result, run())


def test_memory_serves_one_tensor_after_another() -> None:
    products = [DenseWeight(torch.randn(1024, 1024)) for _ in range(20)]
    x = torch.randn(1, 1024)

    def run() -> Tensor:
        y = x
        for product in products:
            y = product(y)
        return y

    memory = Memory()
    one = Recording(run, memory)
    gc.collect()
    assert sum(map(len, memory._free.values())) <= 2
    two = Recording(run, memory)
    # The result of each stays while the other runs.
    x.normal_()
    one()
    first = one.result.clone()
    two()
    assert torch.equal(one.result, first) and torch.equal(two.result, first)
    assert torch.equal(first, run())


def test_what_python_looks_up_is_looked_up_each_time() -> None:
    ids = torch.tensor([1, 2])

    def rows(ids: Tensor) -> Tensor:
        return torch.tensor([[float(one)] * 4 for one in ids.tolist()])

    recording = Recording(lambda: look_up(rows, ids) + 1, Memory())
    ids.copy_(torch.tensor([7, 5]))
    recording()
    assert recording.result[:, 0].tolist() == [8, 6]
    assert look_up(rows, ids)[:, 0].tolist() == [7, 5]


@pytest.mark.parametrize(
    "reads",
    [
        lambda x: x * x[0].item(),
        lambda x: x * x.tolist()[0],
        lambda x: x * float(x[0]),
        lambda x: x if x[0] > 0 else -x,
        lambda x: x * torch.from_numpy(x.numpy()),
        lambda x: x[x > 0],
        lambda x: x[x.nonzero()],
    ],
)
def test_what_depends_on_numbers_is_refused(reads: Callable[[Tensor], Tensor]) -> None:
    x = torch.ones(3)
    with pytest.raises(NotRecordable):
        Recording(lambda: reads(x), Memory())
    # And nothing listens any longer.
    assert torch.equal(reads(x).flatten(), x)
