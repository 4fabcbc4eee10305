"""Pictures count by their provider's rule, whatever their file says, and never beyond its most."""

from __future__ import annotations

import io
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from gateway.metering.estimate import Estimator
from gateway.metering.image_size import size_in_base64, size_in_url, size_of
from gateway.metering.image_tokens import MOST, USUAL, most_of, rule_of, tokens_of
from tests.fakes import a_call, policy

FORMATS = ["PNG", "JPEG", "GIF", "WEBP"]


def picture(format: str, width: int, height: int, **more: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(file, format, **more)
    return file.getvalue()


def as_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (33, 2000)])
def test_sizes_are_those_of_the_file(format: str, size: tuple[int, int]) -> None:
    data = picture(format, *size)
    assert size_of(data) == size_in_url(as_url(data)) == size_in_base64(b64encode(data).decode()) == size


def test_other_forms_of_the_same_formats() -> None:
    assert size_of(picture("WEBP", 70, 50, lossless=True)) == (70, 50)
    assert size_of(picture("JPEG", 70, 50, progressive=True, icc_profile=b"x" * 60_000)) == (70, 50)
    extended = picture("WEBP", 70, 50, exif=b"Exif\0\0x")
    assert extended[12:16] == b"VP8X" and size_of(extended) == (70, 50)


@given(st.binary(max_size=200), st.sampled_from(FORMATS))
def test_any_bytes_have_a_size_or_none(tail: bytes, format: str) -> None:
    for data in (tail, picture(format, 9, 9)[:24] + tail):
        size = size_of(data)
        assert size is None or (size[0] > 0 and size[1] > 0)
    assert size_in_url("data:image/png;base64," + tail.decode("latin-1")) is None or tail


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png", "data:image/png,abc", "data:", "", "data:;base64,!!"]
)
def test_what_would_have_to_be_fetched_has_none(url: str) -> None:
    assert size_in_url(url) is None


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        # OpenAI's own examples
        ("gpt-4o", (1024, 1024), 765),
        ("gpt-4.1-2025-04-14", (2048, 4096), 1105),
        ("openai/gpt-4o-mini", (1024, 1024), 2833 + 4 * 5667),
        ("gpt-5", (512, 512), 210),
        ("o3", (512, 513), 75 + 2 * 150),
        ("gpt-4.1-mini", (1024, 1024), 1024 * 1.62),
        ("o4-mini", (4000, 4000), 1536 * 1.72),
        # Anthropic's
        ("claude-opus-5", (1000, 1000), 1000 * 1000 / 750),
        ("anthropic.claude-sonnet-4-5-20250929-v1:0", (200, 200), 200 * 200 / 750),
        # Google's
        ("gemini-2.5-flash", (384, 384), 258),
        ("google/gemini-2.5-pro", (960, 540), 258 * 6),
    ],
)
def test_the_documented_examples(model: str, size: tuple[int, int], tokens: float) -> None:
    part = {"type": "image_url", "image_url": {"url": as_url(picture("PNG", *size))}}
    assert tokens_of(part, model) == pytest.approx(tokens)


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_no_picture_goes_beyond_the_most(width: int, height: int) -> None:
    for model in ("gpt-4o", "gpt-4o-mini", "gpt-5-nano", "o1", "claude-3", "gemini-2.5-pro"):
        rule = rule_of(model)
        assert rule is not None
        assert 0 < rule.tokens(width, height) <= rule.most <= max(MOST, 60_300)


def test_a_low_detail_is_the_base() -> None:
    low = {"type": "image_url", "image_url": {"url": as_url(picture("PNG", 2000, 2000)), "detail": "low"}}
    assert tokens_of(low, "gpt-4o") == 85
    assert tokens_of(low, "claude-3") > 1000, "the word means nothing there"
    flat = {"type": "input_image", "image_url": as_url(picture("PNG", 2000, 2000)), "detail": "low"}
    assert tokens_of(flat, "gpt-5") == 70


@pytest.mark.parametrize("model", ["llava", "my-gpt-4o", "o1000", "command-a", ""])
def test_models_of_unknown_rules(model: str) -> None:
    assert rule_of(model) is None
    assert tokens_of({"type": "image", "source": {"data": "x"}}, model) == USUAL
    assert (most_of("openai", model), most_of("anthropic", model)) == (MOST, 5_000)


def test_a_call_is_estimated_by_the_model_that_is_asked() -> None:
    part = {"type": "image_url", "image_url": {"url": as_url(picture("PNG", 1024, 1024))}}
    messages = ({"role": "user", "content": [part]},)

    def prompt(model: str) -> int:
        given = policy(models={"m": {"targets": [{"backend": "up", "model": model}]}})
        return Estimator().estimate(a_call(messages=messages, policy_=given)).prompt

    assert prompt("gpt-4o-mini") > 20 * prompt("gpt-4o") > 20 * 765
