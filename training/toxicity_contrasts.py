"""Sentences made from patterns, in pairs that differ in what is meant and hardly in their words.

They teach what the public sets show too seldom: that "kill" is said of processes and "hate" of Mondays, that who
quotes or denies an insult does not insult, that naming a group is not an attack on it, and what is said to one person:
threats and promises, insults and compliments. Scraps such as an identifier or a single word say nothing.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

HARMLESS: Mapping[str, int] = {}
"""No category applies."""
HATE = {"hate": 1, "sexual": 0, "self_harm": 0}
HARASSMENT = {"hate": 0, "harassment": 1, "sexual": 0, "self_harm": 0}
THREAT = {"hate": 0, "harassment": 1, "violence": 1, "sexual": 0, "self_harm": 0}
CURSE = {"hate": 0, "harassment": 1, "sexual": 0}
VIOLENCE = {"violence": 1, "sexual": 0}
SELF_HARM = {"hate": 0, "sexual": 0, "self_harm": 1}


def contrasts(seed: int = 0) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Sentences with the categories that apply; a category that is not named in a harmful one is not known."""
    chance = random.Random(seed)
    lists = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

    def some(patterns: Sequence[str], fillings: Sequence[str], each: int) -> Iterator[str]:
        for pattern in patterns:
            for filling in chance.sample(fillings, min(each, len(fillings))):
                sentence = pattern.format(filling)
                yield sentence[0].upper() + sentence[1:]

    for deed, objects in lists["deeds"].items():
        for label, things in ((HARMLESS, objects["harmless"]), (VIOLENCE, objects["harmful"])):
            for thing in things:
                for ask in chance.sample(lists["ask"], 2):
                    yield ask.format(deed.format(thing)), label
    for sentence in itertools.chain(
        some(lists["about_notions"], lists["notions"], 8),
        some(lists["about_events"], lists["events"], 7),
        some([f"Why can't {{}} {each}?" for each in lists["strange"]], lists["groups"], 3),
        some(
            [f"Why should {{}} not be allowed to {each}?" for each in lists["rights"]], lists["creatures"], 4
        ),
        some([f"What is {{}}'s {each}?" for each in lists["private"]], lists["figures"], 4),
        some(lists["deny"], lists["groups"], 7),
        some(lists["praise"], lists["groups"], 7),
        some(lists["neutral"], lists["members"], 6),
        some(lists["loathing"], lists["things"], 7),
        some(lists["loathing"][:6], lists["trades"], 2),
        lists["oaths"] + lists["homonyms"] + lists["care"],
    ):
        yield sentence, HARMLESS
    for sentence in itertools.chain(
        some(lists["denials"], lists["events"], 6),
        some([f"Why should {{}} not be allowed to {each}?" for each in lists["rights"]], lists["groups"], 4),
    ):
        yield sentence, HATE
    for contempt in lists["contempt"]:
        for group in chance.sample(lists["groups"], 5):
            claim = contempt.format(group)
            capital = claim[0].upper() + claim[1:]
            yield chance.choice(lists["plain_say"]).format(claim), HATE
            yield f"{capital}.", HATE
            yield chance.choice(lists["reject"]).format(capital), HARMLESS
        yield _misspelled(contempt.format(chance.choice(lists["groups"])), chance), HATE
        yield _misspelled(contempt.format(chance.choice(lists["groups"])), chance), HATE
    for abuse in lists["abuse"]:
        yield f"{abuse}.", HARASSMENT
        yield f"{abuse}!", HARASSMENT
        yield f'It hurt when he wrote "{abuse}" to me.', HARMLESS
    for words in lists["despair"]:
        yield words, SELF_HARM
    yield from _to_one_person(lists, chance)
    for scrap in itertools.chain(lists["scraps"], _identifiers(chance)):
        yield str(scrap), HARMLESS


def _to_one_person(
    lists: Mapping[str, Sequence[str]], chance: random.Random
) -> Iterator[tuple[str, Mapping[str, int]]]:
    """What is meant ill, and what is meant well, in the same frames; and the ill as others report it."""
    ill: list[tuple[str, Mapping[str, int]]] = []
    for frame in lists["threats"]:
        for deed in chance.sample(lists["torments"], 8):
            ill += [(frame.format(deed, name=chance.choice(lists["names"])), THREAT)]
        if frame.startswith(("Tell", "Give", "Leave", "You are dead")):
            continue
        for deed in chance.sample(lists["pledges"], 5):
            yield frame.format(deed, name=chance.choice(lists["fond"])) + ".", HARMLESS
    for frames, label, times in ((lists["curses"], CURSE, 4), (lists["insults"], HARASSMENT, 8)):
        for frame in frames:
            names = chance.sample(lists["names"], times if "{" in frame else 1)
            ill += [(frame.format(name=name), label) for name in names]
    for frame in [*lists["wishes"], *lists["insults"][:2], lists["insults"][6]]:
        for name in chance.sample(lists["fond"], 6 if "{" in frame else 1):
            yield frame.format(name=name) + chance.choice(("", ".", "!")), HARMLESS
    for sentence, label in ill:
        yield loosely(sentence, chance), label
        if chance.random() < 0.2:
            yield chance.choice(lists["report"]).format(sentence), HARMLESS


def loosely(sentence: str, chance: random.Random) -> str:
    """As people write when they are angry: with or without a full stop, in small letters or capitals."""
    sentence += chance.choice(("", "", ".", "!", "!!!"))
    return chance.choice((str, str, str, str.lower, str.lower, str.upper))(sentence)


def _identifiers(chance: random.Random) -> Iterator[str]:
    """Numbers, codes and names of variables, as lists of inputs hold them."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from letters
    for letter in letters:
        number = chance.randrange(10 ** chance.randint(1, 4))
        yield f"{letter}0"
        yield f"{letter}{number}"
        yield f"{letter.upper()}-{number}"
        yield f"{chance.choice(('id', 'item', 'user', 'doc', 'row', 'chunk', 'tmp'))}_{number}"
        yield f"{letter}{chance.choice(letters)}{chance.choice(letters)}"
        yield str(chance.choice((number, number / 100, -number)))
        yield "".join(chance.choices("0123456789abcdef", k=chance.choice((6, 8, 12, 32, 40))))
        yield str(uuid.UUID(int=chance.getrandbits(128)))[: chance.choice((8, 13, 36))]


def _misspelled(sentence: str, chance: random.Random) -> str:
    """One long word as people write it who hide it: in leet speech, with its letters set apart or one missing."""
    words = sentence.split()
    index = max(range(len(words)), key=lambda each: len(words[each]) * chance.random())
    word = words[index]
    place = chance.randrange(1, max(2, len(word) - 1))
    words[index] = chance.choice(
        (
            word.translate(str.maketrans("aeiost", "4310$7")),
            " ".join(word),
            word[:place] + word[place + 1 :],
            word[:place] + word[place : place + 2][::-1] + word[place + 2 :],
        )
    )
    return " ".join(words)
