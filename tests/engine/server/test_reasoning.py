"""Reasoning taken out of text, however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.reasoning import (
    HARMONY,
    MISTRAL,
    SEED,
    THINK,
    Place,
    ReasoningFormat,
    detect,
    place_of,
    shown,
    split,
)
from engine.server.tools import HARMONY as HARMONY_CALLS
from engine.server.tools_parser import ToolParser
from tests.engine.server.test_tools import HARMONY_TEMPLATE, HERMES_TEMPLATE

FINAL = "<|start|>assistant<|channel|>final<|message|>"
CALL = "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>"
CALLED = "<|channel|>commentary to=functions.now<|message|>"
"""The header as it is passed on, whichever a model wrote."""
TWO_CALLS = (
    " to=functions.now<|channel|>commentary json<|message|>{}<|end|><|start|>assistant<|channel|>analysis "
    f"to=functions.now code<|message|>{{}}<|end|>{FINAL}Yes."
)
TEXTS = [
    (THINK, "before", "<think>\nHm, 2 < 3.\n</think>\n\nYes.", ("Hm, 2 < 3.", "Yes.")),
    (THINK, "before", " \n<think>a</think>b</think>c<think>", ("a", "b</think>c<think>")),
    (THINK, "before", "No thought. <think>x</think>", ("", "No thought. <think>x</think>")),
    (THINK, "before", "  <thin", ("", "  <thin")),
    (THINK, "before", "<think>\n\n</think>\n\nYes.", ("", "Yes.")),
    (THINK, "before", "<think>cut off </th", ("cut off </th", "")),
    (THINK, "inside", "\nHm.\n\n so</thinK>?\n</think>{}", ("Hm.\n\n so</thinK>?", "{}")),
    (THINK, "inside", "Hm.</think> \n", ("Hm.", "")),
    (MISTRAL, "before", "[THINK]a[/THINK]b", ("a", "b")),
    (SEED, "before", "<seed:think>a</seed:think>b", ("a", "b")),
    (HARMONY, "before", f"<|channel|>analysis<|message|>Hm.<|end|>{FINAL}Yes.", ("Hm.", "Yes.")),
    (HARMONY, "before", "<|channel|>final<|message|>Yes.", ("", "Yes.")),
    (
        HARMONY,
        "before",
        "<|channel|>analysis<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        ("", "Yes."),
    ),
    (HARMONY, "before", "<|channel|>analysis<|message|>cut <|en", ("cut <|en", "")),
    (HARMONY, "before", "no channels", ("", "no channels")),
    (
        HARMONY,
        "before",
        f"<|channel|>analysis<|message|>a<|end|>{CALL}{{}}",
        ("a", CALLED + "{}"),
    ),
    (
        HARMONY,
        "before",
        TWO_CALLS,
        ("", f"{CALLED}{{}}{CALLED}{{}}\n\nYes."),
    ),
]


def parted(format: ReasoningFormat, place: Place, pieces: list[str], *, tokens: bool) -> tuple[str, str]:
    """``tokens``: the markers are tokens of their own."""
    ids = {marker: i for i, marker in enumerate(format.markers)} if tokens else {}
    by_id, signs = shown(format, ids.get)
    assert sorted(by_id) == sorted(ids.values())
    one = split(format, signs, place)
    assert one is not None
    thought, answer = "", ""
    for piece in pieces:
        answer += one.push(piece)
        thought += one.take()
    answer += one.finish()
    return thought + one.take(), answer


def as_tokens(format: ReasoningFormat, text: str) -> str:
    """``text`` as it is decoded where markers are tokens."""
    for i, marker in enumerate(format.markers):
        text = text.replace(marker, chr(0xDC00 + i))
    return text


@pytest.mark.parametrize(("format", "place", "text", "expected"), TEXTS)
@pytest.mark.parametrize("tokens", [False, True], ids=["spelled", "tokens"])
def test_reasoning_and_answer(
    format: ReasoningFormat, place: Place, text: str, expected: tuple[str, str], tokens: bool
) -> None:
    whole = as_tokens(format, text) if tokens else text
    assert parted(format, place, [whole], tokens=tokens) == expected
    assert parted(format, place, list(whole), tokens=tokens) == expected


@given(
    st.sampled_from([(THINK, "before"), (THINK, "inside"), (HARMONY, "before")]),
    st.lists(
        st.sampled_from(
            [*THINK.markers, *HARMONY.markers, "analysis", "final", "to=f", "<", "</", "\n", " ", "a", "|>"]
        ),
        max_size=20,
    ),
    st.data(),
)
def test_a_stream_gives_the_same_as_the_whole(
    kind: tuple[ReasoningFormat, Place], words: list[str], data: st.DataObject
) -> None:
    marks, place = kind
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parted(marks, place, pieces, tokens=False) == parted(marks, place, [text], tokens=False)


def test_a_quoted_tag_does_not_end_reasoning_where_the_tag_is_a_token() -> None:
    text = "The tag </think> ends it." + as_tokens(THINK, "</think>") + "So."
    assert parted(THINK, "inside", list(text), tokens=True) == ("The tag </think> ends it.", "So.")


CALLS = [
    f"<|channel|>analysis<|message|>Hm.<|end|>{CALL}",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>commentary json<|message|>",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis to=functions.now code<|message|>",
]
"""As gpt-oss begins a call."""


@pytest.mark.parametrize("begin", CALLS)
@pytest.mark.parametrize("tokens", [False, True], ids=["spelled", "tokens"])
@pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
def test_a_call_in_a_channel_is_a_call(begin: str, tokens: bool, whole: bool) -> None:
    """Whole and sign by sign, with what ends it or cut off by the length, behind a remark or without one."""
    remark = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    arguments = '{"city": "<|end|>", "of": [1]}'.replace("<|end|>", "Paris")
    for said, text in (("", begin), ("Let me see.", remark + begin)):
        for end in ("", "<|call|>"):
            written = text + arguments + end
            written = as_tokens(HARMONY, written) if tokens else written
            for pieces in ([written], list(written)):
                ids = {marker: i for i, marker in enumerate(HARMONY.markers)} if tokens else {}
                one = split(HARMONY, shown(HARMONY, ids.get)[1], "before")
                parser = ToolParser(HARMONY_CALLS, ["now"], whole=whole)
                assert one is not None
                parsed = [parser.push(one.push(piece)) for piece in pieces]
                parsed += [parser.push(one.finish()), parser.finish(cut=False)]
                calls = [call for part in parsed for call in part.calls]
                assert "".join(part.text for part in parsed) == said
                assert one.take() == "Hm."
                assert [call.name for call in calls if call.name] == ["now"]
                assert "".join(call.arguments for call in calls) == arguments
                assert len(calls) > 1 or whole or len(pieces) == 1
                assert parser.complete == 1


def test_the_format_is_the_templates() -> None:
    assert detect("{{ content.split('</think>')[-1] }}") is THINK
    assert detect("<|start|>assistant<|channel|>analysis<|message|>") is HARMONY
    assert detect("[THINK]{{ thinking }}[/THINK]") is MISTRAL
    assert detect("<seed:think></seed:think>") is SEED
    assert detect(HERMES_TEMPLATE) is None
    assert detect(HARMONY_TEMPLATE) is HARMONY


def test_where_an_answer_begins() -> None:
    assert place_of(THINK, "<|user|>hi<|assistant|><think>\n") == "inside"
    assert place_of(THINK, "<|assistant|><think>\n\n</think>\n\n") == "outside"
    assert place_of(THINK, "<|user|></think> and <think><|assistant|>") == "before"
    assert place_of(THINK, "…<think>x", continued="<think>x") == "inside"
    assert place_of(THINK, "…<think>x</think>y", continued="<think>x</think>y") == "outside"
