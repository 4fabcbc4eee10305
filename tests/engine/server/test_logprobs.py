"""Tokens and their bytes beside text that is held back, cut at stop strings, or no text at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from engine.core.logprobs import TokenLogprobs
from engine.server.detokenizer import Detokenizer, StopStrings
from engine.server.logprobs import DecodedLogprobs, LogprobBuffer
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from tests.engine.server.test_detokenizer import make_sentencepiece
from tests.engine.tiny import make_tokenizer


def load(folder: Path, tokenizer: RustTokenizer) -> Tokenizer:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>"}))
    return Tokenizer(folder)


@pytest.fixture(scope="module", params=["byte-level", "byte-fallback", "demo"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizers")
    if request.param == "byte-level":
        return load(folder / "bytes", make_tokenizer())
    if request.param == "byte-fallback":
        return load(folder / "pieces", make_sentencepiece())
    return Tokenizer(locate("demo"))


def received(
    tokenizer: Tokenizer, ids: list[int], *, context: list[int] | None = None, stops: list[str] | None = None
) -> tuple[str, list[list[DecodedLogprobs]], list[str]]:
    """The text, and what went out with each token and at the end."""
    buffer = LogprobBuffer(tokenizer, context or ())
    detokenizer = Detokenizer(tokenizer.decode, context or ())
    checker = StopStrings(stops or [])
    text, groups, texts = "", [], []
    for token in ids:
        certain = detokenizer.push([token])
        buffer.push(TokenLogprobs(token, -1.0, [(token, -1.0)]), certain)
        text += checker.push(certain)
        texts.append(text)
        if checker.hit:
            return text, [*groups, buffer.cut(len(text))], texts
        groups.append(buffer.release(len(text)))
    text += checker.push(detokenizer.finish())
    texts.append(text)
    if checker.hit:
        return text, [*groups, buffer.cut(len(text))], texts
    return text + checker.finish(), [*groups, buffer.finish()], texts


def joined(groups: list[list[DecodedLogprobs]]) -> bytes:
    return b"".join(one.chosen.bytes or b"" for group in groups for one in group)


@given(text=st.text(max_size=30))
def test_the_bytes_are_the_texts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    found, groups, texts = received(tokenizer, ids)
    assert joined(groups) == found.encode()
    assert sum(map(len, groups)) == len(ids)
    # And at any moment, those that are out are those of the text that is.
    so_far = b""
    for group, reported in zip(groups[:-1], texts[:-1], strict=True):
        so_far += joined([group])
        assert so_far == reported.encode()


@given(st.lists(st.integers(0, 319), max_size=40))
def test_the_bytes_of_any_tokens_at_all_are_the_texts(tokenizer: Tokenizer, ids: list[int]) -> None:
    """Random tokens are mostly not UTF-8: both sides then stand for the same signs."""
    text, groups, _ = received(tokenizer, ids)
    if tokenizer.name_of(5).startswith("<0x"):
        # Byte fallback takes a whole run of bytes for nonsense when one of them is.
        assert sum(map(len, groups)) == len(ids)
    else:
        assert joined(groups).decode(errors="replace") == text


@given(text=st.text("abc d", max_size=30), stop=st.text("abc ", min_size=1, max_size=3))
def test_of_a_cut_answer_the_tokens_cover_what_is_left(tokenizer: Tokenizer, text: str, stop: str) -> None:
    ids = tokenizer.encode(text, special=False)
    found, groups, _ = received(tokenizer, ids, stops=[stop])
    reported = joined(groups)
    assert reported.startswith(found.encode())
    if stop not in tokenizer.decode(ids):
        assert reported == found.encode()
    elif tokens := [one for group in groups for one in group]:
        last = len(tokens[-1].chosen.bytes or b"")
        assert len(reported) - last < len(found.encode())
    else:
        assert found == ""


@given(before=st.text("ab ", min_size=1, max_size=8), text=st.text("ab é", max_size=12))
def test_offsets_count_the_answers_characters(tokenizer: Tokenizer, before: str, text: str) -> None:
    ids = tokenizer.encode(text, special=False)
    context = tokenizer.context(tokenizer.encode(before, special=False))
    found, groups, _ = received(tokenizer, ids, context=context)
    for one in (one for group in groups for one in group):
        if not one.chosen.text.startswith("bytes:"):
            assert found[one.offset :].startswith(one.chosen.text)
    assert joined(groups) == found.encode()


def test_parts_of_a_character_are_told_apart(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "bytes", make_tokenizer())
    _, groups, _ = received(tokenizer, tokenizer.encode("a€", special=False))
    assert [[one.chosen.text for one in group] for group in groups] == [
        ["a"],
        [],
        [],
        ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"],
        [],
    ]
    assert groups[3][1].top[0].text == "bytes:\\x82"


def test_a_special_token_has_a_name_and_no_bytes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "bytes", make_tokenizer())
    text, groups, _ = received(tokenizer, [1, *tokenizer.encode("a", special=False)])
    assert text == "a"
    assert [(one.chosen.text, one.chosen.bytes) for group in groups for one in group] == [
        ("<|eos|>", None),
        ("a", b"a"),
    ]
    assert tokenizer.bytes_of(100_000) is None


def test_what_json_cannot_say_is_said_as_openai_does(tmp_path: Path) -> None:
    buffer = LogprobBuffer(load(tmp_path / "bytes", make_tokenizer()))
    buffer.push(TokenLogprobs(70, -float("inf"), []), "x")
    assert buffer.finish()[0].chosen.logprob == -9999.0


def test_a_context_is_the_shortest_whole_text(tmp_path: Path) -> None:
    tokenizer = load(tmp_path / "bytes", make_tokenizer())
    ids = tokenizer.encode("a€", special=False)
    assert tokenizer.context(ids) == ids[1:]
    assert tokenizer.context(ids[:-1]) == []
    assert tokenizer.context([*ids[:1], 1]) == [ids[0], 1]
    assert tokenizer.context([]) == []
