"""What a reader takes for a number, key or word is one, however it is written, and stands where it is written."""

from __future__ import annotations

import asyncio
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.findings import Finding
from gateway.guards.scanners.normalised import Normalised, plain
from gateway.guards.scanners.pii import Pii
from gateway.guards.scanners.scanner import Scanner
from gateway.guards.scanners.secrets import Secrets
from gateway.guards.scanners.topics import Topics
from gateway.observe.metrics import Metrics
from gateway.policy.schema.guards import PiiGuard, SecretsGuard, TopicsGuard
from gateway.stages.guard_output import guard_output
from gateway.types import Call, Chunk, Chunks
from tests.examples import examples
from tests.fakes import a_call
from tests.scanners import background_scans_of, guards_of

PII = Pii(
    PiiGuard(kind="pii", entities=("EMAIL_ADDRESS", "CREDIT_CARD", "IBAN_CODE"), checks=("fast",)), None
)
SECRETS = Secrets(SecretsGuard(kind="secrets"))
TOPICS = Topics(TopicsGuard(kind="topics", words=("project falcon", "über uns"), patterns=(r"case-\d{1,6}",)))
HIDDEN: tuple[tuple[Scanner, str, str], ...] = (
    (PII, "EMAIL_ADDRESS", "ann.lee@example.org"),
    (PII, "CREDIT_CARD", "4556 7375 8689 9855"),
    (PII, "IBAN_CODE", "DE89 3704 0044 0532 0130 00"),
    (SECRETS, "aws_access_key", "AKIAZ7VQ4LM2XW3RT5NB"),
    (SECRETS, "github_token", "ghp_a8Kd72jfLq0ZmPx4vYtRe6WnBc1uHs9GoTi3"),
    (TOPICS, "word:0", "Project Falcon"),
    (TOPICS, "pattern:0", "case-1174"),
)
INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff\u180e\U000e0101"
TWINS = {
    "a": "а", "c": "с", "e": "е", "o": "о", "p": "р", "x": "х", "i": "і", "A": "А", "B": "В", "E": "Ε", "K": "К",
    "I": "Ι", "P": "Р", "T": "Τ", "X": "Х", " ": "\u00a0\u2007\u3000\u202f", "-": "\u2011\u2013\u2212",
}  # fmt: skip


def in_math(sign: str) -> str:
    """𝗮 for a, 𝟰 for 4."""
    if "0" <= sign <= "9":
        return chr(0x1D7EC + ord(sign) - 48)
    if "a" <= sign <= "z":
        return chr(0x1D5EE + ord(sign) - 97)
    return chr(0x1D5D4 + ord(sign) - 65) if "A" <= sign <= "Z" else sign


def disguises(sign: str) -> st.SearchStrategy[str]:
    """Ways to write one character of ASCII, beginning and ending with what can be seen."""
    ways = [st.just(sign)] * 3
    if sign != " ":
        ways += [st.just(chr(ord(sign) + 0xFEE0)), st.just(in_math(sign))]
        ways += [st.sampled_from(["\u0336", "\ufe0f\u20e3", "\u0332"]).map(lambda mark: sign + mark)]
    if sign in TWINS:
        ways.append(st.sampled_from(TWINS[sign]))
    return st.one_of(ways)


@st.composite
def disguised(draw: st.DrawFn, word: str) -> str:
    text = ""
    for place, sign in enumerate(word):
        if place:
            text += draw(st.text(INVISIBLE, max_size=2))
        text += draw(disguises(sign))
    return text


SURROUNDINGS = st.text(st.sampled_from(" .,\n好é😀ﬁ½ﷺ"), max_size=30).map(lambda text: text + " ")


@settings(max_examples=examples(200))
@given(st.sampled_from(HIDDEN), SURROUNDINGS, SURROUNDINGS, st.data())
def test_what_is_found_lies_exactly_over_what_is_written(
    hidden: tuple[Scanner, str, str], before: str, after: str, data: st.DataObject
) -> None:
    scanner, label, word = hidden
    written = data.draw(disguised(word))
    verdict = scanner.quick(before + written + " " + after, "answer")
    assert verdict is not None
    assert [(it.label, it.start, it.end) for it in verdict.findings] == [
        (label, len(before), len(before) + len(written))
    ]


PARTS = st.lists(
    st.one_of(
        st.sampled_from(HIDDEN).flatmap(lambda hidden: disguised(hidden[2])).map(lambda word: f" {word} "),
        st.text(st.sampled_from("ab 12.,\n好é\u0301сор😀ﬁж\u200b"), max_size=40),
    ),
    max_size=5,
).map("".join)


def redacted(text: str, scanner: Scanner) -> str:
    verdict = scanner.quick(text, "answer")
    assert verdict is not None
    for one in reversed(verdict.findings):
        text = f"{text[: one.start]}[{one.label.upper().replace(':', '_')}]{text[one.end :]}"
    return text


@settings(max_examples=examples(60))
@given(
    PARTS,
    st.sampled_from([PII, SECRETS, TOPICS]),
    st.lists(st.integers(0, 400), max_size=40),
    st.integers(1, 40),
)
def test_a_stream_is_redacted_as_the_whole_is(
    text: str, scanner: Scanner, cuts: list[int], interval: int
) -> None:
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(places)]

    async def model(call: Call) -> Chunks:
        for piece in pieces:
            yield Chunk(0, {"content": piece})
            await asyncio.sleep(0)
        yield Chunk(0, {}, "stop")

    async def run() -> str:
        rules = {"on": ["output"], "action": "redact", "window": 256, "interval": interval}
        flags = background_scans_of()
        handle = guard_output(guards_of(words=(scanner, rules)), flags, Metrics())(model)
        out = [chunk async for chunk in handle(a_call())]
        await flags.idle()
        return "".join((chunk.delta or {}).get("content") or "" for chunk in out)

    assert asyncio.run(run()) == redacted(text, scanner)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("4️⃣5️⃣", "45"),
        ("４٥", "45"),
        ("u\u0308ber", "über"),
        ("q\u0308", "q"),
        ("4\u03365\u0336", "45"),
        ("🅰🅱ⓒ", "ABc"),
        ("ﬁne…", "fine..."),
        ("a\u00a0–\u202fb", "a - b"),
        ("рау", "pay"),
        ("рау здесь", "рау здесь"),
        ("\u1112\u1161\u11ab", "\ud55c"),
        ("".join(chr(0xE0000 + ord(sign)) for sign in "AKIA"), "AKIA"),
    ],
)
def test_how_it_reads(written: str, read: str) -> None:
    assert plain(written) == read


@given(st.text(max_size=200))
def test_places_are_in_order_and_within_the_text(text: str) -> None:
    seen = Normalised(text)
    every = list(seen.find(lambda it: [Finding("x", at, at + 1) for at in range(len(it))]))
    assert len(every) == len(seen.text)
    for first, second in pairwise(every):
        assert 0 <= first.start < first.end <= len(text)
        # Characters that one character became share its place.
        assert first.end <= second.start or (first.start, first.end) == (second.start, second.end)
    assert plain(seen.text) == seen.text


@given(st.text(st.characters(max_codepoint=127)))
def test_ascii_stays_as_it_is(text: str) -> None:
    assert Normalised(text).text is text


@given(st.text(st.sampled_from("аеорсжяabc\u200b1 .\u0301"), max_size=200), st.data())
def test_a_piece_reads_as_it_does_in_the_whole(text: str, data: st.DataObject) -> None:
    """Where the piece has enough around it: that is what lets streams be read piece by piece."""
    words = text.split(" ")
    place = data.draw(st.integers(0, len(words) - 1))
    start = sum(len(word) + 1 for word in words[:place])
    end = start + len(words[place])
    first, last = max(0, start - 60), end + 60
    while 0 < first < start and unicodedata.combining(text[first]):
        first -= 1

    def of(part: str, begin: int) -> list[str]:
        seen = Normalised(part)
        signs = seen.find(lambda it: [Finding(sign, at, at + 1) for at, sign in enumerate(it)])
        return [one.label for one in signs if start <= one.start + begin and one.end + begin <= end]

    around = text[max(0, start - 200) : end + 200]
    assert of(text[first:last], first) == of(around, max(0, start - 200))
