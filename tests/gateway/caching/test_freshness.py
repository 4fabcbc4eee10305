"""Which questions age."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching.freshness import MAX_CHARACTERS, is_time_sensitive

AGEING = """
What is the weather in Oslo?
What's the weather like tomorrow?
Who is the president of France?
Who is the current prime minister of Japan?
who's the ceo of the company
What is the latest version of Node?
Which version of Python is stable?
What is the price of gold?
How much does a Tesla cost?
What happened in the news today?
Give me this week's headlines
What time is it in Tokyo?
How old is the Pope?
How long until Christmas?
Is the metro running right now?
What is the score of the game?
Who won the match last night?
When is the next train to Leeds?
What are the opening hours of the museum?
What is the exchange rate of the euro?
What is Apple's stock price?
What movies are out this weekend?
Is the website down?
How many days until summer?
What is the population of Lagos?
What is trending?
Wie ist das Wetter heute in Berlin?
Quelle est la météo à Lyon ?
¿Qué hora es ahora en Lima?
今天天气怎么样
東京の天気は?
오늘 날씨 어때?
какая сегодня погода
Que horas são agora em Lisboa?
What is the best phone you can buy now?
What are the newest laws on drones?
Has the bill passed yet?
USD to EUR
Tesla stock
Who is the world's richest person?
How many people live in Tokyo?
What is the minimum wage in Germany?
Wer ist der Bundeskanzler?
Wer ist der König von England?
Was kostet Gold?
Benzinpreis
Aktienkurs von SAP
Wie alt ist Angela Merkel?
Wie viel Uhr ist es?
Welches Jahr haben wir?
Wann fährt der nächste Zug nach Köln?
Was ist die neueste Version von Python?
Wer hat das Spiel gewonnen?
Qui est le président de la France ?
Qui est le premier ministre ?
Quel temps fait-il à Paris ?
Quelle heure est-il ?
Quel est le prix de l'or ?
Quelle est la dernière version de Python ?
Quel âge a Macron ?
À quelle heure part le prochain train ?
¿Quién es el presidente de México?
¿Quién es el rey de España?
¿Qué hora es?
¿Qué tiempo hace en Madrid?
¿Cuánto cuesta el bitcoin?
precio del oro
¿Cuál es la última versión de Java?
¿Quién ganó el partido?
""".strip().splitlines()

LASTING = """
What is the current in a circuit with 5 volts and 10 ohms?
How does alternating current flow?
What is the latest common ancestor of humans and chimpanzees?
Who wrote "The Day Today"?
What is the theme of 'Live and Let Die'?
Who directed Apocalypse Now?
What is the capital of France?
How do I sort a list?
How do I print the current date in Python?
How does a weather vane work?
What is photosynthesis?
What does "nowadays" mean?
Who was the first president of the United States?
Who won the 1966 World Cup final?
What was the population of Spain in 1990?
How do I live with a snorer?
What is a stock split?
Translate this to German
Why do cats purr?
How do I list the files of the current directory?
What is a still life?
How many legs does a spider have?
Is there any difference between share and stock?
Was ist ein Präsident?
Wer hat den Nobelpreis erfunden?
Wer hat Faust geschrieben?
Wie funktioniert ein Kurs an der Volkshochschule?
Qui a écrit Les Misérables ?
Au cours de la réaction, que se passe-t-il ?
Quelle est la capitale de la France ?
¿Quién escribió Don Quijote?
¿Cuántos huesos tiene el cuerpo?
""".strip().splitlines()


@pytest.mark.parametrize("question", AGEING)
def test_an_answer_that_ages(question: str) -> None:
    assert is_time_sensitive(question)


@pytest.mark.parametrize("question", LASTING)
def test_an_answer_that_lasts(question: str) -> None:
    assert not is_time_sensitive(question)


def test_the_end_of_a_long_text_is_judged() -> None:
    padding = "The cat sat on the mat. " * 400
    assert is_time_sensitive(padding + "What is the weather in Oslo?")
    assert not is_time_sensitive("What is the weather in Oslo? " + padding)
    assert len(padding) > MAX_CHARACTERS


@given(st.text())
def test_anything_is_judged(text: str) -> None:
    assert is_time_sensitive(text) in {True, False}
