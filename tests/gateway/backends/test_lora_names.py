"""What servers say of their adapters: lists and pages as they write them, and as nobody should."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.lora_names import MOST_LISTED, Listing, loras_in_use, read_listing
from tests.examples import examples


def listing(*cards: object) -> bytes:
    return orjson.dumps({"object": "list", "data": cards})


def card(id: object, root: object = None, parent: object = None) -> dict[str, object]:
    return {
        "id": id,
        "object": "model",
        "root": root,
        "parent": parent,
        "permission": [{"id": "modelperm-1"}],
    }


LLAMA = card("llama", "/models/llama")


def test_adapters_are_those_with_a_parent_that_is_listed() -> None:
    found = read_listing(listing(LLAMA, card("also", "/models/llama"), card("sql", "/loras/sql", "llama")))
    assert found.adapters == {"sql": "llama"} and not found.left_out
    assert found.parent("sql", "llama") == found.parent("sql", "also") == "llama"
    assert found.parent("sql", "other") is None is found.parent("none", "llama")


@pytest.mark.parametrize(
    "odd",
    [
        *(
            card(name, None, "llama")
            for name in ("", "a b", "a:b", "-a", "ä", "a\n", "a\0b", "a" * 129, "llama", 3)
        ),
        *(card("a", None, parent) for parent in ("none", "a", 3, ["llama"])),
        *("text", None, [LLAMA], {}),
    ],
)
def test_others_are_left_out(odd: object) -> None:
    found = read_listing(listing(LLAMA, odd, card("sql", "/loras/sql", "llama")))
    assert found.adapters == {"sql": "llama"} and found.left_out == 1


def test_of_too_many_the_first_count() -> None:
    found = read_listing(listing(LLAMA, *(card(f"a{number}", None, "llama") for number in range(5000))))
    assert len(found.adapters) == MOST_LISTED and found.left_out == 5000 - MOST_LISTED


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"data": {}}', b"\xff", b"[" * 100_000])
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_listing(body)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=8)
    | st.sampled_from(["llama", "sql"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "parent", "root", "data"]), inner)
    ),
)


@given(cards=st.lists(_JSON, max_size=6))
@settings(max_examples=examples(400))
def test_no_list_breaks_it(cards: list[object]) -> None:
    found = read_listing(orjson.dumps({"data": cards}))
    assert len(found.adapters) + found.left_out <= len(cards)
    assert all(parent in found.roots and name not in found.roots for name, parent in found.adapters.items())


PAGE = b"""\
# HELP vllm:lora_requests_info Running stats on lora requests.
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="2",running_lora_adapters="old",waiting_lora_adapters=""} 1.789828498802105e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql,law",waiting_lora_adapters="sql, style"} 1.789828499e+09
vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters=""} 1.789828490e+09
"""


def test_what_is_in_use_is_what_the_latest_sample_says() -> None:
    found = loras_in_use(PAGE)
    assert found is not None and (found.names, found.slots) == (("sql", "law", "style"), 2)
    assert loras_in_use(b"vllm:num_requests_running 1.0\n") is None


@pytest.mark.parametrize(
    ("labels", "value", "names"),
    [
        (b'{max_lora="many",running_lora_adapters="a,,a"}', b"1", ("a",)),
        (b'{running_lora_adapters="a } b,c\\"d,e",max_lora="9999999999999"}', b"1", ("e",)),
        (b'{running_lora_adapters="' + b"x" * 4_000_000 + b'"}', b"1", ()),
        (b"", b"NaN", ()),
    ],
    ids=["no number", "quotes", "long", "nothing"],
)
def test_odd_labels_name_nothing_that_is_none(labels: bytes, value: bytes, names: tuple[str, ...]) -> None:
    found = loras_in_use(b"vllm:lora_requests_info" + labels + b" " + value + b"\n")
    assert found is not None and (found.names, found.slots) == (names, 0)


def test_an_empty_one_lists_nothing() -> None:
    assert not Listing().adapters and Listing().parent("a", "b") is None


def test_of_a_list_without_end_the_beginning_is_read() -> None:
    entries = [{"id": "base"}, {"id": "sql", "parent": "base"}, *[{"id": "x", "parent": "none"}] * 50_000]
    found = read_listing(orjson.dumps({"data": entries}))
    assert dict(found.adapters) == {"sql": "base"} and found.left_out == 50_000
