from __future__ import annotations

import pytest

from engine.errors import StartupError
from engine.nodes.address import Address, parse_addresses


def test_addresses_are_read_in_their_order() -> None:
    found = parse_addresses("gpu-2:7100, 10.0.0.2:7101,[fd00::2]:1", "--nodes")
    assert found == (Address("gpu-2", 7100), Address("10.0.0.2", 7101), Address("fd00::2", 1))
    assert [str(one) for one in found] == ["gpu-2:7100", "10.0.0.2:7101", "[fd00::2]:1"]


@pytest.mark.parametrize(
    "text", ["", "host", ":7100", "host:", "host:x", "host:0", "host:65536", "fd00::2:1", "a:1,"]
)
def test_what_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(StartupError, match=r"--nodes takes HOST:PORT, such as 10\.0\.0\.2:7100"):
        parse_addresses(text, "--nodes")


def test_each_address_is_one_rank() -> None:
    with pytest.raises(StartupError, match="--nodes names a:1 twice"):
        parse_addresses("a:1,b:1,a:1", "--nodes")
