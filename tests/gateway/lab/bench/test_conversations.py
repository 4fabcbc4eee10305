from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.conversations import Conversation, Drawn, Given, Traced, Workload, read_prompts
from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.lengths import Lengths
from gateway.lab.bench.trace import Arrival
from gateway.lab.bench.words import WORDS, Scale

LENGTHS = Lengths(5, 50)
ONE = Scale()


def some(
    workload: Workload, count: int, draws: str = "0", words: str = "a", scale: Scale = ONE
) -> list[Conversation]:
    return list(islice(workload.conversations(draws, words, scale), count))


def said(conversation: Conversation) -> str:
    return str(conversation.turns[0].content)


def test_the_same_seeds_ask_the_same() -> None:
    workload = Drawn(LENGTHS, LENGTHS, turns=3, prefix_tokens=10, prefixes=2)
    assert some(workload, 20) == some(workload, 20)


def test_servers_get_other_words_of_the_same_lengths() -> None:
    workload = Drawn(LENGTHS, LENGTHS)
    here, there = some(workload, 20, words="here"), some(workload, 20, words="there")
    assert [len(said(one).split()) for one in here] == [len(said(one).split()) for one in there]
    assert not {said(one) for one in here} & {said(one) for one in there}
    assert [one.turns[0].output_tokens for one in here] == [one.turns[0].output_tokens for one in there]
    assert [one.turns[0].output_tokens for one in some(workload, 20, draws="1")] != [
        one.turns[0].output_tokens for one in here
    ]


def test_prefixes_are_shared() -> None:
    found = some(Drawn(LENGTHS, LENGTHS, prefix_tokens=40, prefixes=3), 50)
    prefixes = {str(one.opening[0]["content"]) for one in found}
    assert len(prefixes) == 3 and {len(prefix.split()) for prefix in prefixes} == {40}
    assert len({said(one) for one in found}) == 50


@given(st.integers(1, 5000), st.floats(0.5, 4), st.floats(0, 40))
def test_words_make_the_tokens_that_are_wanted(tokens: int, per_word: float, fixed: float) -> None:
    words = Scale(per_word, fixed).words(tokens)
    assert words >= 1
    assert words == 1 or abs(words * per_word + fixed - tokens) <= per_word / 2 + 1e-6


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 2500))
def test_a_traces_prompts_share_what_their_hashes_say(blocks: list[int], tokens: int) -> None:
    blocks = blocks[: -(-tokens // 512)]
    arrivals = [Arrival(0, tokens, 5, tuple(blocks)), Arrival(1, 2048, 5, (*blocks, 99, 99, 99, 99)[:4])]
    one, other = (said(conversation).split() for conversation in some(Traced(arrivals), 2))
    assert len(one) == tokens and len(other) == 2048
    shared = min(len(blocks) * 512, tokens, 2048)
    assert one[:shared] == other[:shared]
    assert one[shared : shared + 20] != other[shared : shared + 20] or len(one) <= shared


def test_a_trace_ends_and_its_lengths_alone_do_not() -> None:
    arrivals = [Arrival(0.0, 3, 7), Arrival(2.5, 4, 8)]
    assert [one.at for one in some(Traced(arrivals), 9)] == [0.0, 2.5]
    repeated = some(Drawn(LENGTHS, LENGTHS, lengths_of=arrivals), 4)
    assert [one.turns[0].output_tokens for one in repeated] == [7, 8, 7, 8]
    assert len({said(one) for one in repeated}) == 4


def test_words_are_short_and_single() -> None:
    assert len(set(WORDS)) == len(WORDS) and all(word.isalpha() and word.islower() for word in WORDS)


def lines(folder: Path, *rows: str) -> Path:
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    return folder / "prompts.jsonl"


def test_prompts_of_ones_own(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        '{"prompt": "one", "max_tokens": 5}',
        '{"system": "be short", "turns": ["two", "three"]}',
        "",
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "four"}], "output_tokens": 6}',
        '{"custom_id": "x", "method": "POST", "body": {"messages": [{"role": "user", "content": "five"}]}}',
    )
    rows = read_prompts(path, None, 0)
    assert [[turn.content for turn in row.turns] for row in rows] == [
        ["one"],
        ["two", "three"],
        ["four"],
        ["five"],
    ]
    assert [row.turns[0].output_tokens for row in rows] == [5, None, 6, None]
    assert [[one["content"] for one in row.opening] for row in rows] == [[], ["be short"], ["s"], []]
    assert read_prompts(path, Lengths(9, 9), 0)[1].turns[0].output_tokens == 9
    again: Iterator[Conversation] = Given(rows).conversations("", "", ONE)
    assert [said(one) for one in islice(again, 6)] == ["one", "two", "four", "five", "one", "two"]


@pytest.mark.parametrize(
    "row", ["{", "[]", "{}", '{"prompt": ""}', '{"messages": []}', '{"turns": []}', '{"messages": [{}]}']
)
def test_what_is_no_prompt_is_said(tmp_path: Path, row: str) -> None:
    with pytest.raises(OptionError, match=r"prompts\.jsonl:2: "):
        read_prompts(lines(tmp_path, '{"prompt": "good"}', row), None, 0)


def test_files_without_prompts_are_said(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no prompts"):
        read_prompts(lines(tmp_path), None, 0)
    with pytest.raises(OptionError, match="No such file"):
        read_prompts(tmp_path / "none", None, 0)
