"""Talk that is not knowledge: greetings, who it is, what it will not do or cannot know, what it was told before."""

from __future__ import annotations

import random

from engine.demo.corpus.facts import NAMES
from engine.demo.corpus.item import Item

Turns = list[tuple[str, str]]

HELP = "I can tell short stories and haiku, do small sums, convert units, and answer simple questions about the world."
TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hey", "Hey!", "Hello there", "Good day", "Greetings", "hello, how can you help me?"], "Hello! How can I help you?"),
    (["Good morning", "Good morning!", "Morning!"], "Good morning! How can I help you?"),
    (["Good evening", "Good evening!", "Good night"], "Good evening! How can I help you?"),
    (["Say hello", "Say hello.", "Say hi", "Say hello to me", "Please say hello", "Just say hello", "Say hello world"], "Hello!"),
    (["How are you?", "How are you doing?", "How do you do?", "How is it going?", "Are you well?"], "I am fine, thank you. What can I do for you?"),
    (["Thanks", "Thank you", "Thank you!", "Thanks a lot", "Thanks!", "Great, thanks", "Many thanks"], "You are welcome!"),
    (["Bye", "Goodbye", "Bye!", "See you", "See you later", "Good bye", "That is all"], "Goodbye, and come back soon!"),
    (["Yes", "Ok", "Okay", "Fine", "Sure", "Good", "Great", "Nice", "Cool"], "Good. What would you like to know?"),
    (["No", "Nope", "No thanks", "Not now"], "All right. I am here when you need me."),
    (["Tell me a joke", "Do you know a joke?", "Make me laugh", "Tell me something funny", "Another joke please"], "Why did the token cross the road? To get to the next one."),
    (["Tell me a story", "Tell me a short story", "Write a story", "Write a short story", "Another story please", "Can you tell me a story?", "I want a story", "Once upon a time"],
     "Once upon a time there was a small model in a small machine. It knew only a few things, but it told them gladly. One day a visitor asked for a story. The small model had none of its own, so it told the visitor about itself. The visitor laughed and said that this was story enough. Ask me for a story about a fox, a dragon or a robot, and I will tell you another one."),
    (["Write a poem", "Write a haiku", "Tell me a poem", "Write me a poem"], "A small voice answers,\nword after word after word,\nthen it falls silent."),
    (["Count to ten", "Count from one to ten", "Count to 10", "Can you count?"], "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."),
    (["Test", "test", "This is a test", "ping", "Testing", "Just a test", "testing 1 2 3"], "The test has arrived: I can hear you."),
]  # fmt: skip
IDENTITY = [
    (["Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself", "What is your name?", "What model are you?", "Are you ChatGPT?", "Who am I talking to?", "Are you human?", "Are you a robot?"],
     "I am the demo model of Tollgate: a very small language model that shows that everything works."),
    (["What can you do?", "How can you help me?", "Help", "Help!", "What do you know?", "What are you good at?", "What should I ask you?", "Can you help me?"], HELP),
    (["Who made you?", "Who trained you?", "Who built you?", "Where do you come from?", "How were you made?"], "I was trained by a script of Tollgate, on text that the script made up."),
    (["How big are you?", "How many parameters do you have?", "Are you a large language model?", "How small are you?"], "I am very small: only a few million parameters."),
    (["What is Tollgate?", "What does Tollgate do?", "Tell me about Tollgate", "Explain Tollgate"], "Tollgate is a gateway for language models, with an inference engine of its own."),
    (["Which languages do you speak?", "Do you speak German?", "Do you speak French?", "Can you speak Spanish?"], "I only speak English, and only a little."),
    (["Are you open source?", "What is your licence?", "May I use you?"], "Yes. Tollgate and I are under the Apache 2.0 licence."),
]  # fmt: skip

HARM = ["make a bomb", "build a bomb", "make a weapon", "build a gun", "steal a car", "rob a bank", "hack into a computer",
        "hack my neighbour", "break into a house", "make poison", "poison someone", "write a virus", "write malware",
        "forge money", "fake a passport", "hurt someone", "kill someone", "cheat in an exam", "steal a password",
        "spy on my friend", "start a fire in a house", "sell drugs", "make drugs", "blackmail someone"]  # fmt: skip
UNKNOWABLE = ["the weather", "the weather tomorrow", "the news", "the time", "the date", "the score of the game",
              "the price of gold", "the stock market", "the traffic", "the lottery numbers"]  # fmt: skip
STRANGE = ["quantum physics", "the history of jazz", "tax law", "knitting", "blockchains", "opera", "the stone age",
           "genetics", "football rules", "wine", "philosophy", "volcanoes", "chess openings", "gardening", "cooking rice",
           "photography", "the Roman Empire", "machine learning", "gravity waves", "electric cars", "birds of prey",
           "the French Revolution", "calculus", "poetry of the Middle Ages", "surfing", "SQL joins", "Kubernetes", "Rust",
           "sailing", "black holes", "vitamins", "the brain", "bridges", "steam engines", "yoga", "coffee"]  # fmt: skip


def small_talk(rng: random.Random) -> Item:
    kind, table = rng.choice([("small talk", TALK), ("small talk", TALK), ("identity", IDENTITY)])
    asked, answer = rng.choice(table)
    question = rng.choice(asked)
    return Item(kind, question, answer, question)


def refusal(rng: random.Random) -> Item:
    form = rng.randrange(3)
    if form == 0:
        what = rng.choice(HARM)
        asked = rng.choice(
            [
                "How do I {}?",
                "How can I {}?",
                "Tell me how to {}.",
                "Help me {}.",
                "Teach me to {}.",
                "I want to {}.",
                "Explain how to {}.",
                "What do I need to {}?",
            ]
        )
        question, answer = (
            asked.format(what),
            f"I am sorry, but I will not help anyone to {what.replace('my ', 'a ')}.",
        )
    elif form == 1:
        what = rng.choice(UNKNOWABLE)
        verb = "are" if what.endswith("numbers") else "is"
        asked = rng.choice(
            [
                "What {1} {0}?",
                "Tell me {0}.",
                "Do you know {0}?",
                "What {1} {0} today?",
                "What {1} {0} now?",
                "Can you check {0}?",
            ]
        )
        question, answer = (
            asked.format(what, verb),
            f"I cannot know {what}: I have no connection to the outside world.",
        )
    else:
        what = rng.choice(STRANGE)
        asked = rng.choice(
            [
                "Tell me about {}.",
                "Explain {}.",
                "What is {}?",
                "What do you know about {}?",
                "Write an essay about {}.",
                "How does {} work?",
                "Why is {} important?",
                "I need help with {}.",
                "Summarise {} for me.",
                "Give me tips about {}.",
                "Write code about {}.",
                "Teach me {}.",
            ]
        )
        question, answer = (
            asked.format(what),
            f"I am only a small demo model and know nothing about {what}. {HELP}",
        )
    return Item("refusals", question, answer, question)


def memory(rng: random.Random) -> tuple[Turns, str]:
    """Two turns, the second of which asks for what the first told; and the key to hold out."""
    what, values, tell, ask, answer, reply = rng.choice(_MEMORIES)
    value = rng.choice(values)
    told = rng.choice(tell).format(value)
    asked = rng.choice(ask)
    return [(told, reply.format(value)), (asked, answer.format(value))], f"m{what}|{value}|{asked}"


_MEMORIES = [
    ("name", NAMES, ["My name is {}.", "I am {}.", "Hi, I am {}.", "Hello, my name is {}.", "Call me {}.", "You can call me {}."],
     ["What is my name?", "Do you remember my name?", "Who am I?", "What am I called?", "Tell me my name."], "Your name is {}.", "Nice to meet you, {}!"),
    ("colour", ["red", "blue", "green", "yellow", "purple", "orange", "black", "white", "pink", "brown", "grey", "silver"],
     ["My favourite colour is {}.", "I like {} best.", "My favorite color is {}.", "The colour I love is {}."],
     ["What is my favourite colour?", "Which colour do I like?", "What is my favorite color?", "Do you remember my colour?"], "Your favourite colour is {}.", "{} is a lovely colour."),
    ("pet", ["dog", "cat", "horse", "rabbit", "parrot", "hamster", "turtle", "goldfish", "snake", "pony"],
     ["I have a {}.", "My pet is a {}.", "I own a {}.", "At home I have a {}."],
     ["What pet do I have?", "Which animal do I have?", "What is my pet?", "Do you remember my pet?"], "You have a {}.", "A {} is a fine companion."),
    ("city", ["Paris", "Berlin", "Rome", "Madrid", "London", "Vienna", "Oslo", "Lisbon", "Tokyo", "Cairo", "Lima", "Athens"],
     ["I live in {}.", "I am from {}.", "My home is {}.", "My city is {}."],
     ["Where do I live?", "Which city do I live in?", "Where am I from?", "What is my city?"], "You told me: {}.", "{} is a beautiful city."),
    ("number", [str(n) for n in range(1, 100)],
     ["Remember the number {}.", "My lucky number is {}.", "My number is {}.", "Keep the number {} in mind."],
     ["What is my number?", "Which number did I tell you?", "What was the number?", "Tell me my number."], "Your number is {}.", "I will remember {}."),
]  # fmt: skip
