"""Sound and files count by their provider's rule, in every dialect's words; what cannot be looked into, by a bound."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.audio_seconds import THOROUGH, seconds_of
from gateway.metering.estimate import Estimator
from gateway.metering.media_tokens import FILE, MILLION, USUAL_PAGES, MediaBounds, MediaReader, rule_of
from gateway.types import Usage
from tests.fakes import a_call, policy
from tests.gateway.metering.files import coded, file_of, mp3, opus, packed_pdf, pdf, wav, webm


def sound(data: bytes, format: str = "wav") -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": b64encode(data).decode(), "format": format}}


def document(data: bytes, kind: str = "application/pdf", name: str = "a.pdf") -> dict[str, Any]:
    return {"type": "file", "file": {"filename": name, "file_data": coded(data, kind)}}


def usual(part: dict[str, Any], model: str) -> float:
    return MediaReader().usual(part, model)


def most(part: dict[str, Any], kind: str, model: str) -> int:
    return MediaReader().most(part, MediaBounds.of(kind, model))


@pytest.mark.parametrize(
    ("model", "a_second", "a_page"),
    [
        ("gpt-4o-audio-preview", 10, 4_000),
        ("openai/gpt-5", 10, 4_000),
        ("claude-sonnet-4-5", 32, 4_600),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", 32, 4_600),
        ("gemini-2.5-flash", 32, 258),
        ("google/gemini-3-pro", 32, 560),
        ("voxtral-small", 12.5, 4_600),
        ("llama", 32, 4_600),
    ],
)
def test_each_providers_rule(model: str, a_second: float, a_page: int) -> None:
    assert usual(sound(wav(20)), model) == pytest.approx(20 * a_second, rel=0.01)
    assert usual(sound(mp3(1000), "mp3"), model) == pytest.approx(26.12 * a_second, rel=0.01)
    assert usual(document(pdf(3)), model) == 3 * a_page
    assert usual(document(packed_pdf(30)), model) == 30 * a_page
    assert rule_of(model).most_page >= a_page


def test_a_request_cannot_make_sound_short_by_its_words() -> None:
    """Servers that look into the file play AMR of 600 bytes a second, whatever it is called."""
    unknown = b"#!AMR\n" + bytes(48_000)
    for name in ("pcm16", "l16", "amr"):
        assert most(sound(unknown, name), "openai", "llama") >= 48_000 / 600 * 32, name
    assert usual(sound(bytes(48_000), "pcm16"), "llama") == 32, "it is one second as a rule"


@pytest.mark.parametrize("kind", ["ogg", "webm"])
def test_silence_of_more_parts_than_are_looked_at_is_not_short(kind: str) -> None:
    """Opus plays 120 ms a byte of it."""
    parts = 4_500
    if kind == "ogg":
        page = b"OggS\0\0" + bytes(20) + b"\x04" + b"\1" * 4 + b"\x19" * 4
        data, length = opus(0.02) + page * parts, parts * 4 * 0.12
    else:
        block = b"\xa3\x85\x81\0\0\x80\x19"
        data, length = webm(0.02) + block * parts, parts * 0.12
    assert seconds_of(file_of(data), most=THOROUGH) == pytest.approx(length, rel=0.01)
    assert most(sound(data, kind), "gemini", "gemini-2.5-flash") >= min(MILLION, length * 32)
    assert most(sound(data * 40, kind), "gemini", "gemini-2.5-flash") == MILLION, "no context holds more"


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-5", "gemini-2.5-pro", "llama"])
@pytest.mark.parametrize(
    "part",
    [
        sound(wav(60)),
        sound(b"?" * 9000, "mp3"),
        document(pdf(5)),
        document(b"PK\x03\x04" + bytes(9000), "", "a.docx"),
        document("Grüße, 世界! ".encode() * 200, "text/plain", "a.txt"),
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "video_url", "video_url": {"url": coded(bytes(9000), "video/mp4")}},
    ],
)
def test_no_usual_count_is_beyond_the_bound(part: dict[str, Any], model: str) -> None:
    assert 0 < usual(part, model) <= most(part, "openai", model) <= rule_of(model).file


def test_the_same_file_counts_the_same_in_each_dialect() -> None:
    data = pdf(4)
    source = {"type": "base64", "media_type": "application/pdf", "data": b64encode(data).decode()}
    blocks = [
        document(data),
        {"type": "document", "source": source},
        {"type": "document", "block": {"type": "document", "source": source}},
        {"type": "file", "file": {"file_data": b64encode(data).decode(), "filename": "a.pdf"}},
    ]
    assert {usual(block, "claude-opus-5") for block in blocks} == {4 * 4_600.0}
    assert {most(block, "anthropic", "claude-opus-5") for block in blocks} == {4 * 8_000}


def test_what_would_have_to_be_fetched_counts_as_a_usual_file() -> None:
    parts = [
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "document", "block": {"source": {"type": "url", "url": "https://example.com/a.pdf"}}},
        {"type": "file", "file": {"file_data": "https://example.com/a.pdf"}},
    ]
    for part in parts:
        assert usual(part, "gemini-2.5-pro") == USUAL_PAGES * 258
        assert most(part, "gemini", "gemini-2.5-pro") == MILLION
        assert most(part, "openai", "gpt-4o") == FILE


def test_a_film_may_fill_the_context_and_a_small_one_may_not() -> None:
    fetched = {"type": "video_url", "video_url": {"url": "https://video.example/watch?v=1"}}
    assert most(fetched, "gemini", "gemini-2.5-flash") == MILLION
    given = {"type": "video_url", "video_url": {"url": coded(bytes(300_000), "video/mp4")}}
    assert usual(given, "gemini-2.5-flash") < most(given, "gemini", "gemini-2.5-flash") < 100_000
    long = {"type": "video_url", "video_url": {"url": coded(bytes(12_000_000), "video/mp4")}}
    assert most(long, "gemini", "gemini-2.5-flash") == MILLION and most(long, "openai", "qwen-vl") == FILE


def test_a_pdf_that_calls_itself_a_text_is_none() -> None:
    assert usual(document(pdf(5), "text/plain", "a.txt"), "gpt-4o") == 5 * 4_000
    assert most(document(pdf(5), "text/plain", "a.txt"), "openai", "gpt-4o") == 5 * 5_000
    packed = document(b"PK\x03\x04" + bytes(9000), "text/plain")
    assert most(packed, "openai", "gpt-4o") == FILE


def test_a_pdf_has_the_pages_that_are_in_it() -> None:
    """What its tree says of them nobody has to believe; where not all are seen it counts as any file, or more."""
    lying = pdf(90).replace(b"/Count 90", b"/Count 1 ")
    assert most(document(lying), "openai", "gpt-4o") == 90 * 5_000
    assert usual(document(lying), "gpt-4o") == 90 * 4_000
    linear = b"%PDF-1.5\n1 0 obj\n<</Linearized 1/L 000056/N 1>>\nendobj\n".ljust(56)
    assert usual(document(linear), "gpt-4o") == 4_000
    assert most(document(linear), "openai", "gpt-4o") == FILE


def test_only_so_many_files_of_a_request_are_looked_into() -> None:
    reader, part = MediaReader(), sound(wav(1))
    counts = [reader.usual(part, "gpt-4o") for _ in range(200)]
    assert counts[0] == pytest.approx(10, rel=0.01)
    assert counts[-1] > counts[0], "by its size alone, which is more"


ODD = st.recursive(
    st.none() | st.integers() | st.text(max_size=9) | st.binary(max_size=40).map(coded),
    lambda inner: (
        st.dictionaries(
            st.sampled_from(
                ["data", "file", "file_data", "format", "source", "block", "url", "input_audio", "type"]
            ),
            inner,
        )
        | st.lists(inner)
    ),
    max_leaves=6,
)


@given(
    st.sampled_from(["input_audio", "audio_url", "video_url", "file", "document", "image", "image_url"]), ODD
)
def test_any_part_has_a_count(kind: str, odd: Any) -> None:
    for part in ({"type": kind, kind: odd}, {"type": kind, "source": odd, "block": odd, "file": odd}):
        assert usual(part, "gemini-3-pro") >= 0
        assert most(part, "gemini", "gemini-3-pro") >= 0


def test_estimates_of_requests_count_media_by_the_targets_model() -> None:
    rules = policy(
        backends={"up": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        models={"m": {"targets": [{"backend": "up", "model": "gemini-2.5-flash"}]}},
    )
    messages = (
        {"role": "user", "content": [sound(wav(30)), document(pdf(10)), {"type": "text", "text": "Hi"}]},
    )
    estimate = Estimator().estimate(a_call(policy_=rules, model="m", messages=messages))
    assert 960 + 2_580 < estimate.prompt < 1.5 * (960 + 2_580)


def test_what_was_learned_of_a_tokenizer_says_nothing_of_media() -> None:
    estimator = Estimator()
    call = a_call(messages=({"role": "user", "content": "x" * 4000},))
    for _ in range(50):
        call.estimate = estimator.estimate(call)
        estimator.learn(call, Usage(4000, 5))
    text = estimator.estimate(call).prompt
    assert text > 3_900
    heard = a_call(
        messages=({"role": "user", "content": [{"type": "text", "text": "x" * 4000}, sound(wav(60))]},)
    )
    assert estimator.estimate(heard).prompt == pytest.approx(text + 60 * 32, rel=0.01)
