"""Whether files are an adapter that can be served, by their bytes alone."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.adapters.check import NotAnAdapter, check_layers, read_config
from gateway.adapters.safetensors import LENGTH, NotSafetensors, TensorShape, header_length, read_header
from tests.adapters import CONFIG, safetensors, shapes
from tests.examples import examples

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def header(data: bytes) -> dict[str, TensorShape]:
    end = LENGTH + header_length(data)
    return dict(read_header(data[LENGTH:end], len(data)))


def config(**more: Any) -> bytes:
    return json.dumps({**CONFIG, **more}).encode()


def test_a_sound_adapter_is_taken() -> None:
    layers = check_layers(read_config(config()), header(safetensors(shapes())), 2)
    assert (layers.rank, layers.targets) == (2, ("q_proj",))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"no", "not JSON"),
        (b"[]", "not a JSON object"),
        (config(peft_type="IA3"), "'IA3'"),
        (config(use_dora=True), "'use_dora'"),
        (config(modules_to_save=["lm_head"]), "'modules_to_save'"),
        (config(bias="all"), "bias 'all'"),
        (config(init_lora_weights="pissa_niter_4"), "changes the base model"),
        (config(lora_alpha="big"), "lora_alpha"),
        (config(alpha_pattern={"q_proj": None}), "alpha_pattern"),
        (config(rank_pattern=[1]), "rank_pattern"),
        (config(r=2.5), "'r'"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused_by_name(data: bytes, said: str) -> None:
    with pytest.raises(NotAnAdapter, match=said) as refused:
        check_layers(read_config(data), header(safetensors(shapes())), 64)
    assert refused.value.field == "config_file_id"


@pytest.mark.parametrize(
    ("tensors", "most", "said"),
    [
        (shapes(rank=4), 64, "ranks 4 and 4"),
        (shapes(rank=2), 1, "1 is the highest"),
        ({f"{LAYER}.lora_A.weight": [2, 8]}, 64, "lack lora_A or lora_B"),
        ({f"{LAYER}.lora_A.weight": [2, 8], f"{LAYER}.lora_B.weight": [8, 3]}, 64, "ranks 2 and 3"),
        ({f"{LAYER}.lora_magnitude_vector": [8]}, 64, "only lora_A and lora_B"),
        ({"lm_head.weight": [8, 8]}, 64, "only lora_A and lora_B"),
        (shapes(layers=("model.layers.0.mlp.up_proj",)), 64, "does not name"),
        ({}, 64, "no tensors"),
    ],
)
def test_weights_that_cannot_be_served_are_refused(
    tensors: dict[str, list[int]], most: int, said: str
) -> None:
    with pytest.raises(NotAnAdapter, match=said):
        check_layers(read_config(config()), header(safetensors(tensors)), most)


def test_other_files_are_told_from_safetensors() -> None:
    sound = safetensors(shapes())
    for data, said in (
        (b"PK\3\4" + bytes(60), "pickle"),
        (b"\x80\x02}q\x00." + bytes(60), "pickle"),
        (b"abc", "shorter"),
        (struct.pack("<Q", 2**40), "header would have"),
        (sound[:-1], "whole"),
        (sound + b"\0", "whole"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (safetensors({"a": [2]}, dtype="I32"), "of type I32"),
        (safetensors({"a": [2]}, dtype="F64"), "do not fit"),
    ):
        with pytest.raises(NotSafetensors, match=said):
            header(data)


@pytest.mark.parametrize("about", [{"format": 1}, "pt", None])
def test_metadata_that_servers_refuse_is_refused(about: Any) -> None:
    text = json.dumps({"__metadata__": about}).encode()
    with pytest.raises(NotSafetensors, match="__metadata__"):
        header(struct.pack("<Q", len(text)) + text)
    text = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    assert header(struct.pack("<Q", len(text)) + text) == {}


def test_tensors_may_not_overlap_or_leave_holes() -> None:
    def of(*places: tuple[int, int]) -> bytes:
        entries = {
            f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": [start, end]}
            for n, (start, end) in enumerate(places)
        }
        text = json.dumps(entries).encode()
        return struct.pack("<Q", len(text)) + text + bytes(8)

    assert len(header(of((0, 4), (4, 8)))) == 2
    for places in ([(0, 4)], [(0, 4), (0, 4)], [(4, 8)], [(0, 4), (8, 12)], [(-4, 0), (0, 4)]):
        with pytest.raises(NotSafetensors):
            header(of(*places))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=12,
)
_FIELDS = st.sampled_from(
    ["peft_type", "r", "lora_alpha", "target_modules", "bias", "rank_pattern", "alpha_pattern", "use_dora"]
)


@settings(max_examples=examples(200))
@given(
    st.binary(max_size=200) | st.dictionaries(_FIELDS, _JSON).map(lambda value: json.dumps(value).encode())
)
def test_no_configuration_does_more_than_be_refused(data: bytes) -> None:
    with suppress(NotAnAdapter):
        check_layers(read_config(data), header(safetensors(shapes())), 64)


@settings(max_examples=examples(200))
@given(
    st.binary(max_size=64),
    st.dictionaries(
        st.text(max_size=30) | st.just(f"{LAYER}.lora_A.weight"),
        st.fixed_dictionaries({"dtype": st.just("F32"), "shape": _JSON, "data_offsets": _JSON}) | _JSON,
        max_size=3,
    ),
    st.integers(0, 2**64 - 1) | st.none(),
)
def test_no_weights_do_more_than_be_refused(data: bytes, entries: dict[str, Any], length: int | None) -> None:
    text = json.dumps(entries).encode()
    file = struct.pack("<Q", len(text) if length is None else length) + text + data
    with suppress(NotAnAdapter, NotSafetensors):
        check_layers(read_config(config()), header(file), 64)
