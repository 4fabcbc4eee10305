"""Questions about facts, spelling and lists, with their answers. Every answer follows from its question."""

from __future__ import annotations

import random

import engine.demo.corpus.facts as facts
from engine.demo.corpus.item import Item


def capital(rng: random.Random) -> Item:
    country, city, language, money, continent = rng.choice(facts.rows(facts.COUNTRIES))
    question, answer = rng.choice(
        [
            (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"What's the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Which city is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Name the capital of {country}.", f"The capital of {country} is {city}."),
            (f"Tell me the capital of {country}.", f"The capital of {country} is {city}."),
            (f"{country}'s capital?", f"The capital of {country} is {city}."),
            (f"Capital of {country}?", f"The capital of {country} is {city}."),
            (f"{city} is the capital of which country?", f"{city} is the capital of {country}."),
            (f"Which country has {city} as its capital?", f"{city} is the capital of {country}."),
            (f"What language do people speak in {country}?", f"In {country}, people speak {language}."),
            (f"Which language is spoken in {country}?", f"In {country}, people speak {language}."),
            (f"What is the currency of {country}?", f"The currency of {country} is the {money}."),
            (f"What money do they use in {country}?", f"The currency of {country} is the {money}."),
            (f"On which continent is {country}?", f"{country} is in {continent}."),
            (f"Where is {country}?", f"{country} is in {continent}."),
        ]
    )
    return Item("countries", question, answer, question)


def knowledge(rng: random.Random) -> Item:
    question, answer = rng.choice(_KNOWLEDGE)(rng)
    return Item("facts", question, answer, question)


def _misc(rng: random.Random) -> tuple[str, str]:
    question, answer = rng.choice(facts.rows(facts.MISC))
    asked = rng.choice(["{}?", "Can you tell me: {}?", "I would like to know: {}?", "Quick question: {}?"])
    return asked.format(question), answer


def _opposite(rng: random.Random) -> tuple[str, str]:
    one, other = rng.choice(facts.pairs(facts.OPPOSITES))
    if rng.random() < 0.5:
        one, other = other, one
    asked = rng.choice(
        [
            "What is the opposite of {}?",
            "What's the opposite of {}?",
            "Opposite of {}?",
            "Give me the opposite of {}.",
            "Which word is the opposite of {}?",
        ]
    )
    return asked.format(one), f"The opposite of {one} is {other}."


def _plural(rng: random.Random) -> tuple[str, str]:
    one, many = rng.choice(facts.pairs(facts.PLURALS))
    asked = rng.choice(
        [
            "What is the plural of {}?",
            "Plural of {}?",
            "What's the plural of {}?",
            "How do you write the plural of {}?",
            "Give me the plural of {}.",
        ]
    )
    return asked.format(one), f"The plural of {one} is {many}."


def _symbol(rng: random.Random) -> tuple[str, str]:
    name, symbol = rng.choice(facts.pairs(facts.SYMBOLS))
    asked, answer = rng.choice(
        [
            ("What is the chemical symbol for {0}?", "The chemical symbol for {0} is {1}."),
            ("What's the symbol of {0}?", "The chemical symbol for {0} is {1}."),
            ("Chemical symbol for {0}?", "The chemical symbol for {0} is {1}."),
            ("Which element has the symbol {1}?", "{1} is the symbol for {0}."),
            ("What does {1} stand for in chemistry?", "{1} is the symbol for {0}."),
        ]
    )
    return asked.format(name, symbol), answer.format(name, symbol)


def _colour(rng: random.Random) -> tuple[str, str]:
    thing, colour = rng.choice(facts.pairs(facts.COLOURS))
    asked = rng.choice(
        ["What colour is {}?", "What color is {}?", "Which colour has {}?", "Tell me what colour {} is."]
    )
    return asked.format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}."


def _animal(rng: random.Random) -> tuple[str, str]:
    name, sound, baby, legs = rng.choice(facts.words(facts.ANIMALS))
    a = "an" if name[0] in "aeiou" else "a"
    b = "an" if baby[0] in "aeiou" else "a"
    forms = [
        (f"What sound does {a} {name} make?", f"The sound of {a} {name} is: {sound}!"),
        (f"What does {a} {name} say?", f"The sound of {a} {name} is: {sound}!"),
        (f"How does {a} {name} sound?", f"The sound of {a} {name} is: {sound}!"),
        (f"What is a young {name} called?", f"A young {name} is called {b} {baby}."),
        (f"What do you call a baby {name}?", f"A young {name} is called {b} {baby}."),
        (f"How many legs does {a} {name} have?", f"{a.capitalize()} {name} has {legs} legs."),
    ]
    if baby not in ("cub", "calf", "foal"):  # young of more than one animal
        forms.append((f"What is {b} {baby}?", f"{b.capitalize()} {baby} is a young {name}."))
    return rng.choice(forms)


def _legs(rng: random.Random) -> tuple[str, str]:
    name, legs = rng.choice(facts.pairs(facts.LEGS))
    a = "An" if name[0] in "aeiou" else "A"
    asked = rng.choice(
        ["How many legs does {} have?", "How many legs has {}?", "Tell me how many legs {} has."]
    )
    return asked.format(f"{a.lower()} {name}"), f"{a} {name} has {legs} legs."


def _calendar(rng: random.Random) -> tuple[str, str]:
    names, what = rng.choice([(facts.MONTHS, "month"), (facts.DAYS, "day"), (facts.PLANETS, "planet")])
    i = rng.randrange(len(names))
    if what == "month" and rng.random() < 0.3:
        asked = rng.choice(["How many days does {} have?", "How many days are in {}?", "How long is {}?"])
        return asked.format(names[i]), f"{names[i]} has {facts.MONTH_DAYS[i]} days."
    if what == "planet":
        ordinals = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]
        asked = rng.choice(
            ["Which is the {} planet from the sun?", "What is the {} planet?", "Name the {} planet."]
        )
        return asked.format(ordinals[i]), f"The {ordinals[i]} planet from the sun is {names[i]}."
    side, j = rng.choice([("after", (i + 1) % len(names)), ("before", (i - 1) % len(names))])
    asked = rng.choice(
        [
            "What {0} comes {1} {2}?",
            "Which {0} comes {1} {2}?",
            "Which {0} is {1} {2}?",
            "Name the {0} {1} {2}.",
        ]
    )
    return asked.format(what, side, names[i]), f"The {what} {side} {names[i]} is {names[j]}."


def _author(rng: random.Random) -> tuple[str, str]:
    work, author = rng.choice(facts.rows(facts.AUTHORS))
    asked = rng.choice(
        ["Who wrote {}?", "Who is the author of {}?", "Which author wrote {}?", "By whom is {}?"]
    )
    return asked.format(work), f"{work} was written by {author}."


_KNOWLEDGE = [_misc, _misc, _opposite, _opposite, _plural, _symbol, _colour, _animal, _animal, _legs, _calendar, _calendar, _author]  # fmt: skip


def spelling(rng: random.Random) -> Item:
    word = rng.choice(facts.SHORT_WORDS)
    form = rng.randrange(4)
    if form == 0:
        asked = rng.choice(["Spell the word {}.", "How do you spell {}?", "Spell {}.", "Can you spell {}?"])
        question, answer = asked.format(word), "-".join(word.upper()) + "."
    elif form == 1:
        asked = rng.choice(
            ["What is the first letter of {}?", "Which letter does {} start with?", "First letter of {}?"]
        )
        question, answer = asked.format(word), f"The first letter of {word} is {word[0].upper()}."
    elif form == 2:
        asked = rng.choice(
            ["What is the last letter of {}?", "Which letter does {} end with?", "Last letter of {}?"]
        )
        question, answer = asked.format(word), f"The last letter of {word} is {word[-1].upper()}."
    else:
        asked = rng.choice(
            ["How many letters does {} have?", "How many letters are in {}?", "Count the letters in {}."]
        )
        question, answer = asked.format(word), f"The word {word} has {len(word)} letters."
    return Item("spelling", question, answer, question)


def listing(rng: random.Random) -> Item:
    form = rng.randrange(5)
    if form < 3:
        start = rng.choice([1, 1, 1, rng.randrange(2, 20)])
        end = start + rng.randrange(2, 50)
        asked = rng.choice(
            [
                "Count from {} to {}.",
                "Please count from {} to {}.",
                "Can you count from {} to {}?",
                "Count {} to {}.",
            ]
        )
        return Item(
            "lists",
            asked.format(start, end),
            ", ".join(map(str, range(start, end + 1))) + ".",
            f"c{start}-{end}",
        )
    names, what = rng.choice(
        [(facts.MONTHS, "months of the year"), (facts.DAYS, "days of the week"), (facts.PLANETS, "planets")]
    )
    asked = rng.choice(
        [
            "Name the {}.",
            "List the {}.",
            "What are the {}?",
            "Tell me the {}.",
            "Give me a list of the {}.",
            "Say the {} in order.",
            "Can you name all the {}?",
            "Write down the {}.",
        ]
    )
    question = asked.format(what)
    return Item("lists", question, f"The {what} are {', '.join(names[:-1])} and {names[-1]}.", question)
