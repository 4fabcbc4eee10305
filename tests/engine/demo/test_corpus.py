from __future__ import annotations

import itertools
import random
import re
from hashlib import sha256

from engine.demo import corpus


def plain(question: str) -> str:
    """A question without the trimmings that ``styled`` adds."""
    return re.sub(r"[^a-z0-9+*<>' -]", "", question.lower()).strip()


def test_a_seed_fixes_the_text() -> None:
    one, same, other = (list(itertools.islice(corpus.stream(seed), 200)) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_no_held_out_question_is_ever_trained_on() -> None:
    asked = {
        plain(conversation.turns[-1][0])
        for conversation in corpus.exam(0, 2000)
        if conversation.kind != "memory"
    }
    trained = {
        plain(question)
        for what in itertools.islice(corpus.stream(1), 60_000)
        if not isinstance(what, str)
        for question, _ in what.turns
    }
    assert len(asked) > 1000
    assert not asked & trained


def test_an_answer_follows_from_its_question() -> None:
    """Otherwise exactness would be luck."""
    rng = random.Random(5)
    answers: dict[str, str] = {}
    for _ in range(60_000):
        made = corpus.item(rng, held=False)
        assert answers.setdefault(made.question, made.answer) == made.answer


def test_sums_are_right() -> None:
    rng = random.Random(6)
    checked = 0
    for _ in range(5000):
        made = corpus.item(rng, held=rng.random() < 0.5)
        if sum_ := re.match(r"(\d+) ([+x-]) (\d+) = (\d+)", made.answer):
            a, sign, b, result = int(sum_[1]), sum_[2], int(sum_[3]), int(sum_[4])
            assert {"+": a + b, "-": a - b, "x": a * b}[sign] == result
            checked += 1
    assert checked > 500


def test_every_kind_is_examined() -> None:
    kinds = {conversation.kind for conversation in corpus.exam(0, 2000)}
    assert kinds >= {
        "countries",
        "facts",
        "arithmetic",
        "conversion",
        "stories",
        "refusals",
        "memory",
        "small talk",
    }


def test_some_conversations_have_many_turns_and_some_a_system_prompt() -> None:
    drawn = [c for c in itertools.islice(corpus.stream(3), 2000) if not isinstance(c, str)]
    assert max(len(c.turns) for c in drawn) >= 4
    assert 0.2 < sum(c.system is not None for c in drawn) / len(drawn) < 0.4


def test_it_is_the_text_that_the_committed_weights_were_trained_on() -> None:
    """Wordings and tables are data: an edit, or a formatter that rewraps them, is a change of the training set."""
    digest = sha256()
    for conversation in (*corpus.exam(0, 100), *corpus.tool_exam(0, 100)):
        digest.update(repr((conversation.kind, conversation.turns, conversation.system)).encode())
        digest.update(repr([tool.schema() for tool in conversation.tools]).encode())
    assert digest.hexdigest()[:16] == "75803b8270df7be2"
