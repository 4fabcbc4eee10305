"""The masks alone: which tokens each request may say next."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLParserLimits
from tokenizers import Tokenizer, decoders, models, normalizers

from engine.core.sampling_params import Grammar, SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.grammar import grammar_cache
from engine.grammar.masks import GrammarManager
from tests.engine.tiny import make_tokenizer
from tests.examples import examples

VOCAB = 352
"""More than the tokenizer's 320, as padded checkpoints have it."""
EOS = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


@pytest.fixture(scope="module")
def grammars(folder: Path) -> GrammarManager:
    return GrammarManager(folder, VOCAB)


def params(grammar: Grammar | None, **changes: object) -> SamplingParams:
    return SamplingParams(
        **{"max_tokens": 99, "stop_token_ids": frozenset({EOS}), "grammar": grammar, **changes}
    )


def regex(source: str) -> Grammar:
    return Grammar("regex", source)


class Ids:
    """Request ids that no other test has."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last


new_id = Ids()


def draws_of(
    request_id: int, sampling: SamplingParams, answer: list[int], draft_tokens: list[int] | None = None
) -> list[SamplingRow]:
    prompt = [5, 6, 7]
    draft_tokens = draft_tokens or []
    return [
        SamplingRow(
            request_id,
            sampling,
            prompt + answer,
            len(prompt),
            draft_tokens[:i],
        )
        for i in range(len(draft_tokens) + 1)
    ]


def bits(mask: torch.Tensor) -> set[int]:
    assert mask.dtype == torch.int32
    return {i for i in range(mask.numel() * 32) if int(mask[i // 32]) >> (i % 32) & 1}


def allowed(grammars: GrammarManager, sampling_rows: list[SamplingRow]) -> list[set[int]]:
    masks = grammars.start(sampling_rows)
    assert masks is not None
    rows, found = masks.wait()
    assert rows == list(range(len(sampling_rows)))
    assert found.shape == (len(sampling_rows), VOCAB // 32)
    return [bits(row) for row in found]


def test_costs_nothing_where_nobody_has_a_grammar(grammars: GrammarManager) -> None:
    assert grammars.start([]) is None
    assert grammars.start(draws_of(new_id(), params(None), [])) is None


def test_only_draws_with_a_grammar_are_masked(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    bound = draws_of(new_id(), params(regex("b")), [])
    free = draws_of(new_id(), params(None), [])
    masks = grammars.start(free + bound + free)
    assert masks is not None
    rows, found = masks.wait()
    assert rows == [1]
    assert bits(found[0]) == {tokenizer.token_to_id("b")}


def test_a_complete_grammar_allows_the_stop_tokens_alone(
    grammars: GrammarManager, tokenizer: Tokenizer
) -> None:
    b, c = (tokenizer.token_to_id(sign) for sign in "bc")
    number = new_id()
    sampling = params(regex("bc?"), stop_token_ids=frozenset({0, EOS}))
    assert allowed(grammars, draws_of(number, sampling, [])) == [{b}]
    assert allowed(grammars, draws_of(number, sampling, [b])) == [{c, 0, EOS}]
    assert allowed(grammars, draws_of(number, sampling, [b, c])) == [{0, EOS}]


def test_a_grammar_that_may_go_on_goes_on_where_nothing_ends_the_answer(
    grammars: GrammarManager, tokenizer: Tokenizer
) -> None:
    """Not with any token there is."""
    b, c = (tokenizer.token_to_id(sign) for sign in "bc")
    sampling, number = params(regex("bc?"), stop_token_ids=frozenset()), new_id()
    assert allowed(grammars, draws_of(number, sampling, [b])) == [{c}]
    assert len(allowed(grammars, draws_of(number, sampling, [b, c]))[0]) > 200


def test_something_is_always_allowed(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    b = tokenizer.token_to_id("b")
    sampling = params(regex("b"), stop_token_ids=frozenset())
    assert allowed(grammars, draws_of(new_id(), sampling, [b]))[0]


def test_ids_beyond_the_tokenizer_are_never_allowed(grammars: GrammarManager) -> None:
    anything = allowed(grammars, draws_of(new_id(), params(regex(r"(.|\n)*")), []))[0]
    assert max(anything) < 320
    assert len(anything) > 200
    assert 0 not in anything, "a special token is no text"


def test_logits_may_be_fewer_than_the_tokenizers_tokens(folder: Path) -> None:
    masks = GrammarManager(folder, 64).start(draws_of(1, params(regex("[a-z]+")), []))
    assert masks is not None
    assert masks.wait()[1].shape == (1, 2)


def test_drafts_are_masked_each_after_those_before_it(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    b, c, d = (tokenizer.token_to_id(sign) for sign in "bcd")
    number, sampling = new_id(), params(regex("bcdb"))
    found = allowed(grammars, draws_of(number, sampling, [], [b, c, d]))
    assert found == [{b}, {c}, {d}, {b}]
    # None of it is remembered: the drafts were not taken.
    assert allowed(grammars, draws_of(number, sampling, [b], [c])) == [{c}, {d}]
    # A draft that the grammar forbids is masked, whatever is thought to follow it.
    assert allowed(grammars, draws_of(number, sampling, [b], [d, d]))[0] == {c}
    # A draft that ends the answer is one, too.
    found = allowed(grammars, draws_of(number, sampling, [b, c, d, b], [EOS, b]))
    assert found[0] == {EOS}


@pytest.mark.parametrize("strange", [320, 321, VOCAB - 1])
def test_drafts_that_are_no_tokens_of_the_tokenizer_are_only_wrong(
    grammars: GrammarManager, tokenizer: Tokenizer, strange: int
) -> None:
    b, c = (tokenizer.token_to_id(sign) for sign in "bc")
    sampling = params(regex("bcb"))
    grammars.take_failed()  # those of other tests
    assert allowed(grammars, draws_of(new_id(), sampling, [], [strange]))[0] == {b}
    assert allowed(grammars, draws_of(new_id(), sampling, [], [b, strange, c]))[:2] == [{b}, {c}]
    assert not grammars.take_failed()


def test_several_requests_with_and_without_drafts_share_a_step(
    grammars: GrammarManager, tokenizer: Tokenizer
) -> None:
    b, c, d = (tokenizer.token_to_id(sign) for sign in "bcd")
    one, other = params(regex("bc")), params(regex("dd"))
    found = allowed(
        grammars,
        draws_of(new_id(), one, [], [b]) + draws_of(new_id(), other, []) + draws_of(new_id(), one, [b], [c]),
    )
    assert found == [{b}, {c}, {d}, {c}, {EOS}]


def test_a_matcher_follows_the_requests_own_tokens_however_they_came(
    grammars: GrammarManager, tokenizer: Tokenizer
) -> None:
    """Several at once, none at all (a preempted request is simply asked again), or all anew."""
    b, c, d = (tokenizer.token_to_id(sign) for sign in "bcd")
    sampling, number = params(regex("bcd")), new_id()
    for answer, next_one in (([], b), ([], b), ([b, c], d), ([b, c], d)):
        assert allowed(grammars, draws_of(number, sampling, answer)) == [{next_one}]
    grammars.release([number])
    assert allowed(grammars, draws_of(number, sampling, [b])) == [{c}]
    grammars.release([number, 123456])


def test_special_tokens_names_are_texts_like_others(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    number, answer = new_id(), list[int]()
    sampling = params(Grammar("lark", 'start: "<|bos|>!"'))
    while EOS not in (found := allowed(grammars, draws_of(number, sampling, answer))[0]):
        assert 0 not in found
        answer.append(max(found))
    assert tokenizer.decode(answer) == "<|bos|>!"


def test_siblings_have_states_of_their_own(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    b, c, d = (tokenizer.token_to_id(sign) for sign in "bcd")
    sampling, leader, sibling = params(regex("bd|cb")), new_id(), new_id()
    both = draws_of(leader, sampling, []) + draws_of(sibling, sampling, [])
    assert allowed(grammars, both) == [{b, c}, {b, c}]
    both = draws_of(leader, sampling, [b]) + draws_of(sibling, sampling, [c])
    assert allowed(grammars, both) == [{d}, {b}]


def test_a_continued_answer_goes_on_in_its_grammar(grammars: GrammarManager) -> None:
    grammar = Grammar("json_schema", json.dumps({"enum": ["north", "south"]}), prefix='"no')
    (found,) = allowed(grammars, draws_of(new_id(), params(grammar), []))
    names = {make_tokenizer().id_to_token(token) for token in found}
    assert "r" in names
    assert all("rth".startswith(name) or name.startswith("r") for name in names)


@pytest.mark.parametrize("source", ["b(", "((a|b|ab|ba){1,300}c?){1,300}"])
def test_a_grammar_that_fails_ends_its_answer_and_harms_no_other(
    grammars: GrammarManager, tokenizer: Tokenizer, source: str
) -> None:
    sampling, number = params(regex(source)), new_id()
    answer = [tokenizer.token_to_id(sign) for sign in "zz"]  # what no grammar above allows
    both = draws_of(number, sampling, answer) + draws_of(new_id(), params(regex("b")), [])
    assert allowed(grammars, both) == [{EOS}, {tokenizer.token_to_id("b")}]


def test_nobody_waits_for_a_mask_that_is_slow(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars, b, c = GrammarManager(folder, VOCAB), tokenizer.token_to_id("b"), tokenizer.token_to_id("c")
    quick, slow, sampling = new_id(), new_id(), params(regex("bc"))
    # The first mask of each is computed apart; from then on this one's is not.
    assert allowed(grammars, draws_of(quick, sampling, [])) == [{b}]
    go_on, compute = Event(), GrammarManager._fill_slow
    monkeypatch.setattr(GrammarManager, "_fill_slow", lambda *args: (go_on.wait(60), compute(*args))[1])

    both = draws_of(quick, sampling, [b]) + draws_of(slow, sampling, [])
    masks = grammars.start(both)
    assert masks is not None
    rows, found = masks.wait(0.0)
    assert (rows, masks.late) == ([0], {slow}) and bits(found[0]) == {c}

    free = draws_of(new_id(), params(None), [])
    masks = grammars.start(free + draws_of(slow, sampling, []))
    assert masks is not None
    assert masks.wait(0.0)[0] == [] and masks.late == {slow}

    go_on.set()
    masks = grammars.start(draws_of(slow, sampling, []))
    assert masks is not None
    rows, found = masks.wait(0.0)
    assert (rows, masks.late) == ([0], set()), "it is waited for where there is nobody else"
    assert bits(found[0]) == {b}
    # What was computed late is not mistaken for what comes after it.
    assert allowed(grammars, draws_of(slow, sampling, [b])) == [{c}]


def test_a_lexer_that_is_full_fails_no_answer(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its mask is computed apart or with the others'."""
    monkeypatch.setattr(
        grammar_cache, "limits", lambda kind: LLParserLimits(max_lexer_states=1000, verbose_errors=False)
    )
    grammars, sampling = GrammarManager(folder, VOCAB), params(regex("(a|b)*a(a|b){12}"))
    letters = [tokenizer.token_to_id(sign) for sign in "ab"]
    answers = {new_id(): list[int]() for _ in range(12)}
    chance, full = random.Random(1), set()
    for _ in range(60):
        sampling_rows = [
            sampling_row
            for number, answer in answers.items()
            for sampling_row in draws_of(number, sampling, answer)
        ]
        for mask in allowed(grammars, sampling_rows):
            assert mask >= set(letters)
        assert not grammars.take_failed()
        full |= {number for number in answers if grammars._matchers[number]._entry is None}
        for answer in answers.values():
            answer.append(chance.choice(letters))
    assert full, "no lexer was full: this tests nothing"


class Writer:
    """Says any token that is allowed."""

    def __init__(self, grammars: GrammarManager, tokenizer: Tokenizer, seed: int) -> None:
        self.grammars, self.tokenizer, self.random = grammars, tokenizer, random.Random(seed)

    def write(self, grammars: list[Grammar], most: int = 400) -> list[str | None]:
        """The texts, None for one that does not come to its end."""
        answers: dict[int, list[int]] = {new_id(): [] for _ in grammars}
        sampling = {number: params(grammar) for number, grammar in zip(answers, grammars, strict=True)}
        going = set(answers)
        for _ in range(most):
            sampling_rows = [
                sampling_row
                for number in sorted(going)
                for sampling_row in draws_of(number, sampling[number], answers[number])
            ]
            if not sampling_rows:
                break
            for sampling_row, mask in zip(sampling_rows, allowed(self.grammars, sampling_rows), strict=True):
                # The end is as likely as all else, so that it comes.
                token = (
                    EOS if EOS in mask and self.random.random() < 0.5 else self.random.choice(sorted(mask))
                )
                if token == EOS:
                    going.discard(sampling_row.request_id)
                else:
                    answers[sampling_row.request_id].append(token)
        self.grammars.release(list(answers))
        return [
            None if number in going else self.tokenizer.decode(answer, skip_special_tokens=False)
            for number, answer in answers.items()
        ]


names = st.text(string.ascii_lowercase, min_size=1, max_size=4)
leaves = st.one_of(
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda some: {"enum": some}, st.lists(names | st.integers(-9, 9), min_size=1, max_size=3, unique=True)
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda item, n: {"type": "array", "items": item, "maxItems": n}, inner, st.integers(0, 3)),
        st.builds(
            lambda fields: {
                "type": "object",
                "properties": fields,
                "required": sorted(fields)[::2],
                "additionalProperties": False,
            },
            st.dictionaries(names, inner, max_size=3),
        ),
    ),
    max_leaves=6,
)


def conforms(value: object, schema: dict) -> bool:
    """A validator of our own for the schemas above."""
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = schema["type"]
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "null":
        return value is None
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "array":
        return (
            isinstance(value, list)
            and len(value) <= schema["maxItems"]
            and all(conforms(item, schema["items"]) for item in value)
        )
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= set(value) <= set(schema["properties"])
        and all(conforms(item, schema["properties"][name]) for name, item in value.items())
    )


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(schemas, st.integers(0, 1000))
def test_whatever_is_said_conforms_to_its_schema(
    grammars: GrammarManager, tokenizer: Tokenizer, schema: dict, seed: int
) -> None:
    (text,) = Writer(grammars, tokenizer, seed).write([Grammar("json_schema", json.dumps(schema))])
    assert text is not None
    assert conforms(json.loads(text), schema), text


def test_a_large_grammar_is_compiled_while_others_go_on(
    grammars: GrammarManager, tokenizer: Tokenizer
) -> None:
    large = Grammar(
        "json_schema", json.dumps({"properties": {f"p{i}": {"type": "integer"} for i in range(1500)}})
    )
    compilation = grammars.prepare(large)
    assert compilation is not None
    assert allowed(grammars, draws_of(new_id(), params(regex("b")), [])) == [{tokenizer.token_to_id("b")}]
    assert not compilation.done()
    compilation.result()
    assert grammars.prepare(large) is None
    assert tokenizer.token_to_id("{") in allowed(grammars, draws_of(new_id(), params(large), []))[0]


def test_twenty_grammars_at_once(grammars: GrammarManager, tokenizer: Tokenizer) -> None:
    wanted = [Grammar("lark", f'start: "{i}: " /[a-z]{{{i}}}/ "."') for i in range(1, 21)]
    texts = Writer(grammars, tokenizer, 3).write(wanted)
    for i, text in enumerate(texts, 1):
        assert text is not None
        head, tail = text.split(": ")
        assert (head, len(tail), tail[-1]) == (str(i), i + 1, ".")
        assert tail[:-1].isalpha()


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        decoders.Metaspace(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ],
    ids=["fallback", "metaspace", "both"],
)
def test_tokenizers_that_fall_back_to_bytes(tmp_path: Path, decoder: decoders.Decoder) -> None:
    """SentencePiece's kind: a space is ▁, and signs that are no tokens are spelt as bytes."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocabulary |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    vocabulary |= {sign: 259 + i for i, sign in enumerate('\u2581abc"')}
    merges = [("\u2581", "a")]
    vocabulary["\u2581a"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    grammars = GrammarManager(tmp_path, 288)
    sampling = params(regex("a aé"), stop_token_ids=frozenset({2}))

    def names(answer: list[int]) -> set[str]:
        masks = grammars.start(draws_of(1, sampling, answer))
        assert masks is not None
        return {tokenizer.id_to_token(i) for i in bits(masks.wait()[1][0])}

    assert names([]) == {"a", "<0x61>"}
    a, space_a = vocabulary["a"], vocabulary["\u2581a"]
    assert names([a]) == {"\u2581", "\u2581a", "<0x20>"}
    assert names([a, space_a]) == {"<0xC3>"}
    assert names([a, space_a, 3 + 0xC3]) == {"<0xA9>"}
    assert names([a, space_a, 3 + 0xC3, 3 + 0xA9]) == {"</s>"}


def test_the_bundled_model_can_write_json() -> None:
    folder = Path("engine/demo/model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    grammars = GrammarManager(folder, 2048)
    sampling = params(Grammar("json_schema", '{"type": "object"}'), stop_token_ids=frozenset({4}))
    masks = grammars.start(draws_of(1, sampling, []))
    assert masks is not None
    texts = {tokenizer.decode([i], skip_special_tokens=False) for i in bits(masks.wait()[1][0])}
    assert texts == {"{"} | {text for text in texts if text.startswith("{")}
    assert "{" in texts


def test_the_vocabulary_is_read_when_it_is_needed_or_there_is_time(tmp_path: Path) -> None:
    """Not at the start, for which it would be most of the time."""
    first, ahead = GrammarManager(tmp_path, VOCAB), GrammarManager(tmp_path, VOCAB)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    compiling = first.prepare(regex("[ab]"))
    assert compiling is not None and compiling.result(60)
    ahead.read_ahead()
    ahead.drain()
    (tmp_path / "tokenizer.json").unlink()
    ahead.read_ahead()
    compiling = ahead.prepare(regex("[ab]"))
    assert compiling is not None and compiling.result(60)
