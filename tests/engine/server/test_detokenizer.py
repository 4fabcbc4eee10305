from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.server.detokenizer import Detokenizer, StopStrings
from tests.engine.tiny import make_tokenizer

BYTES = make_tokenizer()


def make_sentencepiece() -> Tokenizer:
    """Metaspace with byte fallback, as Llama 2 and Gemma have it."""
    letters = "▁abcdefghijklmnopqrstuvwxyz"
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {letter: len(vocab) + i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


PIECES = make_sentencepiece()


def feed(tokenizer: Tokenizer, ids: list[int], cuts: list[int] | None = None) -> list[str]:
    """The pieces that come out when ids go in; ``cuts`` are the sizes in which they do, 1 each by default."""
    detokenizer = Detokenizer(lambda window: tokenizer.decode(window))
    pieces, sizes = [], list(cuts or [])
    while ids:
        size = sizes.pop() if sizes else 1
        pieces.append(detokenizer.push(ids[:size]))
        ids = ids[size:]
    return [*pieces, detokenizer.finish()]


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "byte-fallback"])
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(1, 5), max_size=8))
def test_pieces_join_to_the_text_and_none_has_half_a_character(
    tokenizer: Tokenizer, text: str, cuts: list[int]
) -> None:
    text = text.lstrip(" ") if tokenizer is PIECES else text
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = feed(tokenizer, ids, cuts)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(2, 319), max_size=60), st.lists(st.integers(1, 5), max_size=8))
def test_any_tokens_at_all_give_what_decoding_them_at_once_gives(ids: list[int], cuts: list[int]) -> None:
    """Random tokens are mostly not UTF-8: what is out must never have to be taken back."""
    assert "".join(feed(BYTES, ids, cuts)) == BYTES.decode(ids)


def test_text_comes_as_soon_as_it_is_certain() -> None:
    ids = BYTES.encode("a€b").ids
    assert [BYTES.decode([i]) for i in ids] == ["a", "\ufffd", "\ufffd", "\ufffd", "b"]
    assert feed(BYTES, ids) == ["a", "", "", "€", "b", ""]


def test_garbage_is_not_held_back_for_ever() -> None:
    (half,) = BYTES.encode("é").ids[:1]
    pieces = feed(BYTES, [half] * 12)
    assert "".join(pieces[:10])
    assert "".join(pieces) == "\ufffd" * 12


def test_bytes_that_spoil_their_neighbours_take_nothing_back() -> None:
    ids = PIECES.encode("€a", add_special_tokens=False).ids
    *euro, a = ids[-4:]
    assert PIECES.decode([*euro, euro[0], a]) == "\ufffd" * 4 + "a"
    assert feed(PIECES, [*euro, euro[0], a]) == ["", "", "€", "", "\ufffda", ""]
    assert feed(PIECES, [*euro, euro[0]]) == ["", "", "€", "", "\ufffd"]


@given(st.lists(st.integers(129, 256) | st.integers(258, 283), max_size=40))
def test_no_letter_is_lost_or_told_twice_among_bytes_that_are_no_text(ids: list[int]) -> None:
    """Of bytes beyond ASCII and letters."""
    letters = "".join(chr(ord("a") + token - 258) for token in ids if token >= 258)
    received = "".join(feed(PIECES, ids))
    assert "".join(sign for sign in received if sign in "abcdefghijklmnopqrstuvwxyz") == letters
    assert len(received) <= len(ids)


def test_an_unfinished_character_is_told_at_the_end() -> None:
    assert feed(BYTES, BYTES.encode("é").ids[:1]) == ["", "\ufffd"]


def test_a_long_answer_is_decoded_in_small_windows() -> None:
    longest = 0

    def decode(window: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(window))
        return BYTES.decode(window)

    detokenizer = Detokenizer(decode)
    text = "the quick brown fox " * 50
    ids = BYTES.encode(text).ids
    assert "".join(detokenizer.push([i]) for i in ids) == text
    assert longest <= 3


def push(stops: list[str], pieces: list[str]) -> tuple[str, bool, list[str]]:
    checker = StopStrings(stops)
    out = []
    for piece in pieces:
        out.append(checker.push(piece))
        if checker.hit:
            return "".join(out), True, out
    out.append(checker.finish())
    return "".join(out), False, out


@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=4), st.lists(st.text("ab", max_size=3)))
def test_stop_strings_cut_where_the_first_one_begins(stops: list[str], pieces: list[str]) -> None:
    whole = "".join(pieces)
    out, hit, _ = push(stops, pieces)
    # The first to be complete counts, as it would for one who reads character by character.
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    assert hit == bool(ends)
    if not hit:
        assert out == whole
        return
    assert whole.startswith(out)
    assert not any(stop in out for stop in stops)
    assert any(whole[len(out) :].startswith(stop) for stop in stops)


@given(st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4), st.text("ab"))
def test_no_part_of_a_stop_string_gets_out_before_it_is_ruled_out(stops: list[str], text: str) -> None:
    """Character by character, nothing is let out that a stop string could yet begin with, and all else is."""
    checker = StopStrings(stops)
    out = ""
    for i, character in enumerate(text):
        out += checker.push(character)
        if checker.hit:
            break
        held = text[len(out) : i + 1]
        assert text.startswith(out)
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_may_span_any_number_of_pieces() -> None:
    assert push(["</end>"], ["a <", "/", "en", "d> b"])[2] == ["a ", "", "", ""]
    assert push(["</end>"], ["a <", "/", "en", "x"])[2] == ["a ", "", "", "</enx", ""]


def test_without_stop_strings_all_passes_at_once() -> None:
    assert push([], ["a", "b"]) == ("ab", False, ["a", "b", ""])


def test_text_that_goes_on_keeps_the_space_that_a_new_text_would_lose() -> None:
    before, after = (PIECES.encode(text, add_special_tokens=False).ids for text in ("one", "two"))
    assert "".join(feed(PIECES, after)) == "two"
    detokenizer = Detokenizer(PIECES.decode, before[-1:])
    pieces = [detokenizer.push([token]) for token in after]
    assert "".join([*pieces, detokenizer.finish()]) == " two"


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_what_follows_a_context_is_the_rest_of_the_text(before: str, after: str) -> None:
    ids = [BYTES.encode(text).ids for text in (before, after)]
    detokenizer = Detokenizer(BYTES.decode, ids[0])
    pieces = [detokenizer.push([token]) for token in ids[1]]
    assert "".join([*pieces, detokenizer.finish()]) == after


WIDE = st.lists(
    st.sampled_from(
        [
            "👩‍👩‍👧",
            "🇩🇪",
            "👍🏽",
            "😀",
            "e\u0301",
            "n\u0303\u0323",
            "ก็",
            "日本語",
            "한",
            "한",
            "ﷺ",
            "é",
            "a",
            " b",
            "\n",
        ]
    ),
    max_size=10,
).map("".join)
"""Characters of two to four bytes, and signs that are made of several of them."""


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "byte-fallback"])
@given(text=WIDE, end=st.integers(0, 400))
def test_an_answer_that_breaks_off_anywhere_has_told_all_whole_characters(
    tokenizer: Tokenizer, text: str, end: int
) -> None:
    text = text.strip(" ") if tokenizer is PIECES else text
    ids = tokenizer.encode(text, add_special_tokens=False).ids[:end]
    *pieces, rest = feed(tokenizer, ids)
    reported = "".join(pieces)
    assert "\ufffd" not in reported
    assert text.startswith(reported)
    known = [tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    whole = max(count for count, text in enumerate(known) if not text.endswith("\ufffd"))
    assert reported == known[whole]
    # What is missing is told by signs of its own, and takes nothing back.
    assert rest == tokenizer.decode(ids[whole:])
    assert set(rest) <= {"\ufffd"}


def answer(ids: list[int], stops: list[str], context: str = "") -> tuple[str, bool]:
    """What gets out of an answer, and whether a stop string ended it."""
    detokenizer = Detokenizer(BYTES.decode, BYTES.encode(context).ids)
    checker = StopStrings(stops)
    out = ""
    for token in ids:
        out += checker.push(detokenizer.push([token]))
        if checker.hit:
            return out, True
    out += checker.push(detokenizer.finish())
    return out + ("" if checker.hit else checker.finish()), checker.hit


@given(WIDE, WIDE, st.data())
def test_a_stop_string_is_found_however_tokens_cut_it(context: str, text: str, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(text)))
    stop = text[begin : data.draw(st.integers(begin, len(text)))] or "never"
    out, hit = answer(BYTES.encode(text).ids, [stop], context)
    assert hit == (stop in text)
    assert out == text.partition(stop)[0]


@given(WIDE.filter(bool), WIDE, st.integers(0, 5))
def test_a_stop_string_of_the_context_stops_nothing(stop: str, text: str, received: int) -> None:
    """Neither one that stands there whole, nor one that begins there and would be completed."""
    ids = BYTES.encode(text).ids
    assert answer(ids, [stop], f"x{stop}") == answer(ids, [stop])
    begun, rest = stop[:received], stop[received:]
    if rest and stop not in rest + text:
        assert answer(BYTES.encode(rest + text).ids, [stop], f"x{begun}" if begun else "") == (
            rest + text,
            False,
        )
