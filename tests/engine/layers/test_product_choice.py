"""The choice between two products, and that a machine makes it once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.layers import product_choice
from engine.layers.library_product import has_bfloat16
from engine.layers.linear import Linear
from engine.layers.product_choice import ProductChoice, choose, gain, measure
from kernels.native.dense import multiplies

pytestmark = pytest.mark.skipif(
    not (multiplies(torch.bfloat16) and has_bfloat16()), reason="no C compiler, or no bfloat16 in oneDNN"
)
SHAPE = (2048, 512)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine that has measured nothing."""
    monkeypatch.setattr(product_choice, "cache_folder", lambda: tmp_path)
    product_choice._choose.cache_clear()
    yield tmp_path
    product_choice._choose.cache_clear()


def test_a_gain_is_the_median_of_turns() -> None:
    product, x = torch.nn.Linear(512, 512), torch.randn(64, 512)

    def once() -> None:
        product(x)

    def often() -> None:
        for _ in range(6):
            product(x)

    with torch.inference_mode():
        assert gain({"often": often, "once": once}, "often", "once") > 2
        assert gain({"often": often, "once": once}, "once", "often") < 0.5


def test_what_was_measured_is_kept_and_told(elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "engine.layers")
    choice = choose(*SHAPE)
    product_choice._choose.cache_clear()
    assert choose(*SHAPE) == choice
    first, second = caplog.messages
    assert "2048x512" in first and "measured in" in first and "known" in second
    # Another start takes what is kept, whatever it would measure itself.
    (file,) = elsewhere.iterdir()
    other = ProductChoice(native=not choice.native, many=48)
    product_choice._write(file, {"2048x512": other})
    product_choice._choose.cache_clear()
    assert choose(*SHAPE) == other
    # Other shapes join it, and a damaged file is as none.
    choose(1024, 768)
    assert len(product_choice._read(file)) == 2
    file.write_text('{"2048x512": {"colour": 1}}')
    product_choice._choose.cache_clear()
    assert isinstance(choose(*SHAPE), ProductChoice)


def test_of_large_weights_a_part_is_measured_and_of_small_ones_nothing(elsewhere: Path) -> None:
    assert choose(64, 64) == ProductChoice() and not list(elsewhere.iterdir())
    choose(151_936, 1024)
    (file,) = elsewhere.iterdir()
    assert list(product_choice._read(file)) == ["4096x1024"]


def test_without_a_folder_it_is_measured_in_each_process(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise PermissionError("others can write to it")

    monkeypatch.setattr(product_choice, "cache_folder", none)
    monkeypatch.setattr(product_choice, "measure", lambda *shape: ProductChoice(many=99))
    assert choose(*SHAPE) == ProductChoice(many=99)


def test_the_faster_one_is_found() -> None:
    """Whichever that is here: a product that is a fifth as fast is not it."""
    assert measure(2048, 512) in {
        ProductChoice(native, many) for native in (True, False) for many in (None, 32, 128, 384)
    }


@pytest.mark.parametrize(
    "choice", [ProductChoice(), ProductChoice(many=8), ProductChoice(native=False)], ids=str
)
@pytest.mark.parametrize("shape", [(700, 777), (64, 512)], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_all_choices_are_the_same_product(
    choice: ProductChoice, shape: tuple[int, int], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("engine.layers.linear.choose", lambda *shape: choice)
    weight, b = torch.randn(shape).bfloat16(), torch.randn(shape[0]).bfloat16() if bias else None
    layer = Linear(weight, b)
    for rows in (0, 1, 7, 8, 130):
        x = torch.randn(rows, shape[1]).bfloat16()
        wanted = functional.linear(x.double(), weight.double(), None if b is None else b.double())
        # Half a last place of the result, beside what sums in float32 lose.
        torch.testing.assert_close(layer(x).double(), wanted, rtol=2**-8, atol=2e-4)


def test_invariant_layers_do_not_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("engine.layers.linear.choose")
    x = torch.randn(300, 512).bfloat16()
    layer = Linear(torch.randn(SHAPE).bfloat16(), invariant=True)
    assert torch.equal(layer(x)[5:6], layer(x[5:6]))
