from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.guards.scanners.escapes import Unescaping, unglued
from gateway.guards.scanners.pii import Pii
from gateway.guards.scanners.secrets import Secrets
from gateway.guards.scanners.topics import Topics
from gateway.policy.schema.guards import PiiGuard, SecretsGuard, TopicsGuard

_TEXT = st.text(st.one_of(st.characters(), st.sampled_from('\\"/\n\tu0040\U0001f600\ud83d')))
_DOCUMENT = st.recursive(
    _TEXT | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner)
)


def in_pieces(text: str, cuts: list[int]) -> str:
    unescaping = Unescaping()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return "".join(unescaping.feed(text[a:b]) for a, b in pairwise(places))


@given(_DOCUMENT, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_it_stays_the_same_json(document: Any, ascii: bool, cuts: list[int]) -> None:
    written = json.dumps(document, ensure_ascii=ascii).replace("/", "\\/")
    fresh = in_pieces(written, cuts)
    assert json.loads(fresh) == json.loads(written)
    if not any(0xD800 <= ord(sign) < 0xE000 for sign in json.dumps(document, ensure_ascii=False)):
        assert fresh == json.dumps(document, ensure_ascii=False)
    assert fresh == in_pieces(written, [])


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        (r'"ann\u0040example.org"', '"ann@example.org"'),
        (r'"\ud83d\ude00 \uD83D\uDE00"', '"\U0001f600 \U0001f600"'),
        (r'"\ud83d \ude00"', r'"\ud83d \ude00"'),
        (r'"\\u0040 \\\u0040"', r'"\\u0040 \\@"'),
        (r'"\u0022\u005c\u000a\u0007"', r'"\"\\\n\u0007"'),
        (r"C:\users\x", r"C:\users\x"),
    ],
)
def test_only_needless_escapes_go(written: str, plain: str) -> None:
    for size in range(1, len(written) + 1):
        unescaping = Unescaping()
        pieces = [unescaping.feed(written[i : i + size]) for i in range(0, len(written), size)]
        assert "".join(pieces) == plain


def test_half_an_escape_is_not_given_out() -> None:
    assert in_pieces('{"a": "b\\u00', []) == '{"a": "b'


@given(st.text(st.sampled_from('\\nrtbf"u04 x')))
def test_written_breaks_keep_their_length(text: str) -> None:
    assert len(unglued(text)) == len(text)


KEY = "sk-proj-aB3dE5gH7jK9mN1pQ3rS5tU7vW9x"


@pytest.mark.parametrize("sign", [r"\n", r"\t", r"\r\n", r"\\n"])
def test_a_written_break_hides_nothing(sign: str) -> None:
    text = f'{{"a": "one{sign}%s"}}'
    pii = Pii(PiiGuard(kind="pii", entities=("CREDIT_CARD", "EMAIL_ADDRESS")), None)
    said = text % "4111111111111111"
    verdict = pii.quick(said, "tool")
    assert verdict is not None
    assert [said[one.start : one.end] for one in verdict.findings] == ["4111111111111111"]
    said = text % KEY
    found = Secrets(SecretsGuard(kind="secrets")).quick(said, "tool").findings
    assert [said[one.start : one.end] for one in found] == [KEY]
    topics = Topics(
        TopicsGuard(kind="topics", words=("acme corp",), patterns=(r"\bproject x\b", r"\\\\server"))
    )
    said = text % "Acme Corp and project x"
    assert [one.label for one in topics.quick(said, "tool").findings] == ["word:0", "pattern:0"]
    assert topics.quick(r"see \\server", "tool").findings


@pytest.mark.parametrize("escape", [r"\n", r"\"", "\\\\"])
def test_a_long_run_of_escapes_takes_time_that_grows_with_its_length(escape: str) -> None:
    written = r"\/ " + escape * 30_000
    began = time.process_time()
    assert Unescaping().feed(written) == written.replace("\\/", "/", 1)
    assert time.process_time() - began < 2
