from __future__ import annotations

import pytest

from gateway.guards.scanners.language import is_foreign


@pytest.mark.parametrize(
    "text",
    [
        "Das ist nicht dein Ernst",
        "我讨厌星期一",
        "Ik weet het niet",
        "To nie jest dobre",
        "No me gusta esto, y a ti tampoco",
        "Je ne sais pas",
        "Я не знаю",
        "今日はいい天気ですね OK",
    ],
)
def test_other_languages(text: str) -> None:
    assert is_foreign(text)


@pytest.mark.parametrize(
    "text",
    ["", "42", "I hate Mondays", "die in a fire", "Please translate 'guten Tag'", "foo(bar)", "naïve café"],
)
def test_english_and_what_is_in_no_language(text: str) -> None:
    assert not is_foreign(text)
