"""Where a grammar begins does not depend on how an answer comes: token by token, in runs, or first as draft tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLTokenizer

from engine.core.sampling_params import Trigger
from engine.grammar.vocabulary import Vocabulary
from engine.grammar.watch import Begin, Watch
from tests.engine.tiny import make_tokenizer
from tests.examples import examples

TRIGGER = Trigger("<call", r"[ \n]*[\[{]")
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLTokenizer, int]:
    folder = tmp_path_factory.mktemp("watch")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return Vocabulary(folder).get()


def ids(text: str) -> list[int]:
    return list(make_tokenizer().encode(text).ids)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_a_begin_is_the_same_however_the_answer_comes(
    vocabulary: tuple[LLTokenizer, int], data: st.DataObject
) -> None:
    thought = data.draw(st.sampled_from([None, ("", "</t>"), ("<t>", "</t>")]))
    trigger = Trigger(TRIGGER.sign, TRIGGER.opening, thought)
    part = st.sampled_from(["<call", "<cal", "{", " ", "\n", "dim ", "<t>", "</t>", "é", "<"])
    tokens = ids("".join(data.draw(st.lists(part, max_size=12))))

    def first(cuts: list[int], *, drafting: bool) -> Begin | None:
        watch, start = Watch(trigger, *vocabulary), 0
        for end in [*sorted(cuts), len(tokens)]:
            if drafting:
                watch.beyond(tokens[start:] + ids("<call"))
            if begin := watch.read(PROMPT + tokens[:end], len(PROMPT)):
                return begin
            start = end
        return None

    singly = first(list(range(len(tokens))), drafting=False)
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=4))
    assert first(list(range(len(tokens))), drafting=True) == singly
    # In runs a sign that comes later, in the same one, may be behind an opening: where the grammar begins earlier.
    assert (first(cuts, drafting=True) is None) == (singly is None)


def test_a_begin_within_a_token(vocabulary: tuple[LLTokenizer, int]) -> None:
    tokenizer, end = vocabulary
    tokens = ids("dim dol")
    assert tokenizer.decode_bytes(tokens[1:2]) == b"im"
    begin = Watch(Trigger("m d"), tokenizer, end).read(PROMPT + tokens, len(PROMPT))
    assert begin == Begin(2, b"m")


def test_ids_that_are_no_tokens_are_passed_over(vocabulary: tuple[LLTokenizer, int]) -> None:
    watch = Watch(TRIGGER, *vocabulary)
    assert watch.read([*PROMPT, 350, *ids("<ca"), 351], len(PROMPT)) is None
    found = watch.read([*PROMPT, 350, *ids("<ca"), 351, *ids("ll")], len(PROMPT))
    assert found is not None
    assert found.tokens == 1
