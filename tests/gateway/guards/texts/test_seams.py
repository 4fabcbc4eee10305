from __future__ import annotations

import pytest

from gateway.findings import Finding
from gateway.guards.texts.request_texts import RequestTexts
from gateway.guards.texts.seams import AROUND, STRETCH, apart, seams
from gateway.types import ChatRequest, Json


def found(*contents: Json, role: str = "user") -> list[tuple[str, str, int]]:
    request = ChatRequest("m", tuple({"role": role, "content": content} for content in contents), {})
    return [tuple(seam) for seam in seams(RequestTexts.of(request).texts)]  # type: ignore[misc]


def parts(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


def test_parts_of_a_message_are_read_as_they_stand_and_with_spaces() -> None:
    assert found(parts("I want", "to", "die")) == [("I want to die", "user", 2), ("I wanttodie", "user", 2)]
    assert found(parts("I want ", "to die")) == [("I want to die", "user", 1)]
    assert found("hello", parts("a", "b"), parts("c ", "d"))[-1] == ("c d", "user", 4)


@pytest.mark.parametrize("content", ["one text", parts("one text"), parts("one text", "", " ")])
def test_one_text_has_no_seam(content: Json) -> None:
    assert found(content, content) == []


def test_long_parts_are_read_where_they_meet() -> None:
    joined = "a" * (AROUND - 1) + " " + "b " * (AROUND // 2)
    assert found(parts("a" * 5000 + " ", "b " * 5000)) == [(joined, "user", 1)]
    long = "c" * 1000
    texts = [text for text, _, _ in found(parts(long, " x ", long, long))]
    assert [len(text) for text in texts] == [2 * AROUND + 3, 2 * AROUND + 1, 2 * AROUND]


def test_what_is_read_twice_is_bounded() -> None:
    many = found(parts(*["a few words of one of ten thousand parts"] * 10_000))
    assert max(len(text) for text, _, _ in many) < STRETCH + 2 * AROUND
    assert 400_000 < sum(len(text) for text, _, _ in many) < 480_000
    longer = found(*[parts(*["a few words of one of a hundred parts"] * 100)] * 100)
    assert 100 < len(longer) < 110


@pytest.mark.parametrize("size", [2, 3, 999, 1000, 1001, 1002, 1050, 1051, 1052, 2500])
def test_any_run_of_parts_is_in_some_stretch(size: int) -> None:
    names = [f"{number:04}" for number in range(size)]
    readings = [text for text, _, _ in found(parts(*names)) if " " in text]
    assert len(set(readings)) == len(readings) == max(1, -(-(size - 50) // 951))
    most = min(size, 40)
    for start in range(size - most + 1):
        assert any(" ".join(names[start : start + most]) in text for text in readings)


def test_pictures_between_parts_do_not_keep_them_apart() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    content = [*parts("I want "), picture, *parts("to die")]
    assert [text for text, _, _ in found(content)] == ["I want to die"]


def test_a_text_that_has_a_finding_by_itself_is_not_told_twice() -> None:
    one = (Finding("x", 0, 1),)
    assert apart([one, (), one], 2) == [one, (), ()]
    assert apart([(), (), one], 2) == [(), (), one]
