"""Short stories, put together from what the question asks for, so that the same question has the same story."""

from __future__ import annotations

import random

from engine.demo.corpus.facts import NAMES
from engine.demo.corpus.item import Item

HEROES = {
    "fox": ("clever", "lived at the edge of a forest", "loved to follow strange tracks", "a silver key under a stone", "opened the door of an old hut"),
    "bear": ("gentle", "lived in a cave near a waterfall", "loved honey more than anything", "a hive that nobody had seen before", "shared the honey with the bees"),
    "cat": ("curious", "lived above a bakery", "loved to sit on the warm roof", "a tiny bell on a red string", "rang it until the whole street was awake"),
    "dog": ("loyal", "lived on a farm by the road", "loved to run beside the train", "a letter that had blown off a cart", "carried it to the right house"),
    "mouse": ("brave", "lived behind the kitchen wall", "loved the smell of cheese", "a hole that led to the garden", "invited everybody to a feast under the roses"),
    "owl": ("wise", "lived in the tower of a church", "loved to count the stars", "a star that was not on any map", "gave the star a name"),
    "rabbit": ("quick", "lived under a hedge", "loved to race the wind", "a shortcut through the hills", "won the great spring race"),
    "dragon": ("shy", "lived on top of a grey mountain", "loved to read by its own fire", "a book with an empty page", "wrote the ending by itself"),
    "robot": ("small", "lived in a shed full of tools", "loved to mend broken things", "a clock that had stopped long ago", "made the clock tick again"),
    "frog": ("cheerful", "lived in a pond full of lilies", "loved to sing in the rain", "a drum made of a walnut shell", "started a band with the crickets"),
    "horse": ("proud", "lived in a green valley", "loved to gallop at sunrise", "a bridge that had fallen down", "carried the children across the river"),
    "bird": ("tiny", "lived in an apple tree", "loved to sing before breakfast", "a feather of pure gold", "used it to line the nest"),
    "penguin": ("funny", "lived on a block of ice", "loved to slide down hills", "a hat that fitted perfectly", "wore it at every party"),
    "elephant": ("patient", "lived beside a wide river", "loved to help others", "a well that had run dry", "filled the well with its trunk"),
    "girl": ("bold", "lived in a house by the sea", "loved to draw maps", "a map with a red cross", "found a box full of old songs"),
    "boy": ("quiet", "lived at the end of a long street", "loved to listen to the radio", "a voice that called for help", "guided a lost ship home"),
    "knight": ("tired", "lived in a castle with one tower", "loved warm soup", "a sword too heavy to lift", "traded it for a soup pot"),
    "wizard": ("forgetful", "lived in a crooked house", "loved to invent new spells", "a spell that turned rain into tea", "served tea to the whole town"),
}  # fmt: skip
THEMES = {
    "friendship": "Nothing is better than a good friend",
    "courage": "Being brave means trying although you are afraid",
    "sharing": "What you share grows larger",
    "patience": "Good things come to those who wait",
    "kindness": "A kind word costs nothing",
    "curiosity": "Those who ask find more than those who know",
    "home": "The best place in the world is home",
    "honesty": "The truth is the shortest way",
}
COMPANIONS = {
    "friendship": "a stranger came by and asked for help",
    "courage": "a storm came up and it grew dark",
    "sharing": "a hungry traveller knocked at the door",
    "patience": "nothing happened for three whole days",
    "kindness": "somebody nearby began to cry",
    "curiosity": "a sound came from far away",
    "home": "the way back was suddenly gone",
    "honesty": "somebody asked whose it was",
}
DEEDS = {
    "friendship": "the two of them worked together all night",
    "courage": "{name} took a deep breath and went on",
    "sharing": "{name} gave away half of everything",
    "patience": "{name} waited and did not complain",
    "kindness": "{name} sat down and listened",
    "curiosity": "{name} followed it over seven hills",
    "home": "{name} asked the moon for the way",
    "honesty": "{name} told everything just as it was",
}


def story(rng: random.Random) -> Item:
    hero = rng.choice(list(HEROES))
    name = rng.choice([None, rng.choice(NAMES)])
    theme = rng.choice([None, None, rng.choice(list(THEMES))])
    about = f"{'an' if hero[0] in 'aeiou' else 'a'} {hero}"
    named = f" named {name}" if name else ""
    on = f" about {theme}" if theme else ""
    asked = rng.choice(
        [
            "Tell me a short story{on} with {about}{named}.", "Tell me a story about {about}{named}{on2}.",
            "Write a story about {about}{named}{on2}.", "Write a short story about {about}{named}{on2}.",
            "Can you tell me a story about {about}{named}{on2}?", "I want to hear a story about {about}{named}{on2}.",
            "Story about {about}{named}{on2}, please.", "Make up a story about {about}{named}{on2}.",
        ]
    )  # fmt: skip
    question = asked.format(on=on, about=about, named=named, on2=f" and {theme}" if theme else "")
    return Item("stories", question, tell(hero, name, theme), f"s{hero}|{name}|{theme}")


def tell(hero: str, name: str | None, theme: str | None) -> str:
    nature, home, love, find, end = HEROES[hero]
    who = name or f"the {hero}"
    theme = theme or list(THEMES)[sum(map(ord, hero)) % len(THEMES)]
    called = f" named {name}" if name else ""
    a = "an" if nature[0] in "aeiou" else "a"
    deed = DEEDS[theme].format(name=who)
    return (
        f"Once upon a time there was {a} {nature} {hero}{called}. {who[0].upper()}{who[1:]} {home} and {love}. "
        f"One day {who} found {find}. Then {COMPANIONS[theme]}, but {deed}. In the end {who} {end}. {THEMES[theme]}."
    )


HAIKU = {
    "the sea": "Waves come and waves go,\nthe grey sea breathes in and out,\na gull calls my name.",
    "winter": "Snow on the dark roof,\nthe stove hums a quiet song,\nall roads lead back home.",
    "spring": "One green leaf unfolds,\nthe old tree forgets the cold,\na bee finds the way.",
    "summer": "Long light on the grass,\nthe cat sleeps under the bench,\nno clock moves today.",
    "autumn": "Red leaves in the wind,\nthe last swallow turns its head,\nsoup warms both my hands.",
    "the moon": "A coin in the pond,\nthe moon has dropped it again,\nno frog picks it up.",
    "rain": "Drops on the window,\neach one runs a crooked race,\nnone of them will win.",
    "a computer": "A cursor that blinks,\nthe fan turns in the warm night,\nthe answer comes late.",
    "love": "Two cups on the sill,\nthe tea has grown cold again,\nwe talked through the night.",
    "the mountains": "Stone above the clouds,\nan eagle draws one circle,\nthe path ends in blue.",
}


def poem(rng: random.Random) -> Item:
    about = rng.choice(list(HAIKU))
    asked = rng.choice(
        [
            "Write a haiku about {}.",
            "Write me a poem about {}.",
            "Can you write a haiku about {}?",
            "A haiku about {}, please.",
            "Write a short poem about {}.",
            "Give me a haiku about {}.",
            "Tell me a poem about {}.",
        ]
    )
    question = asked.format(about)
    return Item("poems", question, HAIKU[about], question)
