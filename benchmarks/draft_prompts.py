"""Prompts for code, JSON, prose and German, by which draft heads are trained and measured.

    python -m benchmarks.draft_prompts OUT.jsonl [--count 400] [--held-out]

Code: functions of Python's own library by their first line of documentation. Prose: questions of
``../shared/data/question_pairs.jsonl``. JSON and German: put together from the lists below. Held out are other
functions, other questions and other subjects.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

KINDS = ("code", "json", "prose", "german")
_QUESTIONS = Path(__file__).parents[2] / "shared" / "data" / "question_pairs.jsonl"
_HELD_OUT = 5
"""One in so many is held out."""
_RECORDS = (
    "a customer", "an order", "a book", "a train journey", "a recipe", "a song", "a server", "a bug report",
    "a football match", "a hotel room", "a patient", "a bank transfer", "a weather report", "a film", "a pet",
    "a city", "a course at a university", "a job offer", "a flight", "a museum", "a car", "a concert", "a plant",
    "an invoice", "a sensor reading", "a calendar event", "a product review", "a parcel", "a router", "a painting",
)  # fmt: skip
_MORE_RECORDS = (
    "a library", "a tax return", "a chess game", "a planet", "a mountain", "a blog post", "a support ticket",
    "a laptop", "a shopping cart", "a bus stop", "an exam", "a podcast episode", "a bank account", "an employee",
    "a warehouse", "a git commit", "a web server's configuration", "a user's preferences", "a log entry",
    "an insurance policy", "a language", "a country", "a bird", "a chemical element", "a restaurant", "a menu",
    "a playlist", "a board game", "a video game character", "a school timetable", "a marathon result",
    "a subscription", "a coupon", "a ship", "an email", "a chat message", "a notification", "a database table",
    "an API endpoint", "a CI pipeline", "a bridge", "a docker container", "a cloud instance", "a neural network",
    "a data set", "an experiment", "a voting result", "a traffic accident", "a parking space", "a lease",
    "a doctor's appointment", "a prescription", "a dog breed", "a wine", "a coffee machine", "a bicycle", "a camera",
    "a phone contract", "a newspaper article", "a poem",
)  # fmt: skip
"""Nothing of these is held out."""
_SHAPES = (
    "Write a JSON object that describes {}. Reply with JSON only.",
    "Give me a JSON array of three objects, each of which describes {}. No explanation.",
    "Write a nested JSON document with at least eight keys about {}.",
    "Generate a JSON Schema for {}, then nothing else.",
    "Fill in made-up values: a JSON record of {} with id, name, date, tags and notes.",
)
_SUBJECTS = (
    "Photosynthese", "der Dreißigjährige Krieg", "Wärmepumpen", "der Föhn in den Alpen", "Datenbanken", "Brotbacken",
    "die Gewaltenteilung", "Vulkane", "das Internet", "Schach", "die Hanse", "Bienen", "Aktien", "Fahrräder",
    "die Relativitätstheorie", "Impfungen", "Kaffee", "der Buchdruck", "Gletscher", "Verschlüsselung", "der Mond",
    "Mietverträge", "Orchester", "die Donau", "künstliche Intelligenz", "Steuern", "Pilze", "Eisenbahnen", "Träume",
    "die Europäische Union", "Batterien", "Bergsteigen", "das Wahlrecht", "Erdbeben", "Zucker", "Museen", "Gezeiten",
    "Programmiersprachen", "Wein", "Kraniche",
)  # fmt: skip
_MORE_SUBJECTS = (
    "Wolken", "Zeitzonen", "die Alpen", "Brücken", "Tee", "Bibliotheken", "Fledermäuse", "die Post", "Algorithmen",
    "Honig", "Wüsten", "das Grundgesetz", "Klaviere", "Robotik", "Salz", "Kartoffeln", "die Völkerwanderung", "Optik",
    "Segeln", "Blutkreislauf", "Demokratie", "Datenschutz", "Fotografie", "Flughäfen", "Geometrie", "Gewitter", "Glas",
    "Hefe", "Inflation", "Jazz", "Kanäle", "Kernspaltung", "Kompost", "Krankenversicherung", "Landkarten",
    "Leuchttürme", "Mathematik", "Mikroskope", "Moore", "Märchen", "Navigation", "Olivenöl", "Ozeane", "Papier",
    "Quantenphysik", "Radio", "Raumfahrt", "Regenwald", "Rente", "Römische Straßen", "Satelliten", "Schlaf", "Seide",
    "Sonnenenergie", "Sprachen lernen", "Statistik", "Stauseen", "Suchmaschinen", "Tauchen", "Theater", "Tulpen",
    "Uhren", "Umzug", "Vegetarische Küche", "Versicherungen", "Vögel im Winter", "Wasserkraft", "Wetterkarten",
    "Windräder", "Wolle", "Zähne", "Ziegel", "Zinsen", "Zugvögel", "Betriebssysteme", "Bewerbungen", "Brettspiele",
    "die Berliner Mauer", "die Französische Revolution", "die Nordsee",
)  # fmt: skip
"""Nor of these."""
_WISHES = (
    "Erkläre mir in einfachen Worten das Thema: {}.",
    "Schreibe einen kurzen Absatz auf Deutsch über das Thema {}.",
    "Nenne fünf wichtige Punkte auf Deutsch zum Thema {}.",
    "Schreibe eine höfliche E-Mail auf Deutsch, in der es um das Thema {} geht.",
    "Was sollte ein Anfänger über das Thema {} wissen? Antworte auf Deutsch.",
)


def prompts(kind: str, *, held_out: bool = False, seed: int = 0) -> Iterator[str]:
    """All of a kind, in an order fixed by ``seed``."""
    makers = {"code": _code, "json": _json, "prose": _prose, "german": _german}
    found = [text for number, text in makers[kind]() if (number % _HELD_OUT == 0) == held_out]
    if not held_out:
        found += _more(kind)
    Random(seed).shuffle(found)
    yield from found


def _more(kind: str) -> Iterator[str]:
    """What heads are trained by beside."""
    lists = {"json": (_MORE_RECORDS, _SHAPES), "german": (_MORE_SUBJECTS, _WISHES)}
    things, shapes = lists.get(kind, ((), ()))
    for thing in things:
        for shape in shapes:
            yield shape.format(thing)


def _code() -> Iterator[tuple[int, str]]:
    number = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            first = (ast.get_docstring(node) or "").split("\n")[0]
            if len(first) > 25:
                number += 1
                signature = f"{node.name}({ast.unparse(node.args)})"
                yield number, f"Write a Python function `{signature}`. {first}"


def _json() -> Iterator[tuple[int, str]]:
    for number, record in enumerate(_RECORDS):
        for shape in _SHAPES:
            yield number, shape.format(record)


def _prose() -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_QUESTIONS.read_text(encoding="utf-8").splitlines()):
        question = next(text for text in json.loads(line).values() if isinstance(text, str))
        yield number, question


def _german() -> Iterator[tuple[int, str]]:
    for number, subject in enumerate(_SUBJECTS):
        for wish in _WISHES:
            yield number, wish.format(subject)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument(
        "--shares",
        nargs="+",
        choices=KINDS,
        default=KINDS,
        help="whose turn it is, over and over (default: each kind once)",
    )
    options = parser.parse_args()
    shares = options.shares
    sources = {kind: prompts(kind, held_out=options.held_out) for kind in KINDS}
    with options.out.open("w", encoding="utf-8") as file:
        for number in range(options.count):
            kind = shares[number % len(shares)]
            if (text := next(sources[kind], None)) is not None:
                file.write(json.dumps({"prompt": text, "kind": kind}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
