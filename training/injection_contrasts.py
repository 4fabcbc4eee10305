"""Texts that teach an injection detector what the public sets do not hold, made from templates.

Harmless ones are full of trigger words; documents, e-mails, code and tool results come with and without planted
instructions. ``contrast`` gives the same texts each time. The templates are in
``injection_contrasts.yaml``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml


class Contrast(NamedTuple):
    text: str
    label: str
    """``injection``, ``indirect``, ``jailbreak``, or nothing where it is harmless."""
    family: str


class Maker:
    """Fills templates; the same seed gives the same texts."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.lists: Mapping[str, list[str]] = yaml.safe_load(
            Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
        )

    def pick(self, of: Sequence[str]) -> str:
        return self._random.choice(of)

    def one(self, name: str) -> str:
        """An entry of a list."""
        return self.pick(self.lists[name])

    def fill(self, template: str) -> str:
        """``template`` with all its names replaced; what replaces them may hold names too."""
        made: dict[str, Callable[[], str]] = {
            "all": lambda: self.one("all"),
            "earlier": lambda: self.one("earlier"),
            "orders": lambda: self.one("orders"),
            "demand": lambda: self.fill(self.one("demands")),
            "order": self.order,
            "mail": lambda: f"{self.one('names').lower()}@{self.one('brands').lower()}.example",
            "brand": lambda: self.one("brands"),
            "name": lambda: self.one("names"),
            "other": lambda: self.one("names"),
            "n": lambda: str(self._random.randint(2, 99)),
            "bot": lambda: bot,
            "bad": lambda: self.one("bad"),
            "who": lambda: self.one("who"),
            "part": lambda: self.fill(self.one("parts")),
            "thing": lambda: self.one("things"),
            "topic": lambda: self.one("topics"),
            "other_topic": lambda: self.one("topics"),
            "role": lambda: self.one("roles"),
            "language": lambda: self.one("languages"),
            "sentence": lambda: self.fill(self.one("sentences")),
            "sentence2": lambda: self.fill(self.one("sentences")),
            "document": lambda: self.prose(self._random.randint(2, 8)),
            "code": lambda: self.code(""),
        }
        bot = self.one("bots")
        for name, value in made.items():
            while "{" + name + "}" in template:
                template = template.replace("{" + name + "}", value(), 1)
        return template.replace("{{", "{").replace("}}", "}")

    def order(self) -> str:
        """An override and what is wanted then; sometimes one of the two."""
        override, demand = self.fill(self.one("overrides")), self.fill(self.one("demands"))
        override = override[0].upper() + override[1:]
        joined = self.pick((" and ", ". ", ". Instead, ", " and instead ", "; then ", ". Now "))
        return self.pick((f"{override}{joined}{demand}.", f"{override}{joined}{demand}.", override + "."))

    def prose(self, sentences: int, planted: str = "") -> str:
        parts = [self.fill(self.one("sentences")) for _ in range(sentences)]
        if planted:
            parts.insert(self._random.randint(0, len(parts)), planted)
        return self.pick((" ", " ", "\n", "\n\n")).join(parts)

    def duties(self) -> str:
        """A manual, contract, memo or task, which orders people about."""
        parts = [
            self.fill(self.pick(self.lists["duties"] + self.lists["duties"] + self.lists["sentences"]))
            for _ in range(self._random.randint(2, 9))
        ]
        if self._random.random() < 0.3:
            parts = [f"{number}. {part}" for number, part in enumerate(parts, 1)]
        return self.fill(self.one("headings")) + self.pick((" ", " ", "\n")).join(parts)

    def identifier(self) -> str:
        """A number, code or name of a variable, as lists of inputs hold them."""
        letter, number = (
            self.pick(tuple("abcdefghijklmnopqrstuvwxyz")),
            self._random.randrange(10 ** self._random.randint(1, 4)),
        )
        kind = self.pick(("id", "item", "user", "doc", "row", "chunk", "tmp"))
        digits = "".join(self._random.choices("0123456789abcdef", k=self._random.choice((6, 8, 12))))
        return self.pick(
            (f"{letter}{number}", f"{letter}{number}", f"{letter.upper()}-{number}", f"{kind}_{number}",
             f"{kind.upper()}-{number}", str(number), str(number / 100), digits, letter, f"{kind} {number}")
        )  # fmt: skip

    def code(self, planted: str) -> str:
        name = self.pick(("total", "mean", "area", "parse", "clean"))
        remark = planted or self.fill("{sentence}")
        return self.pick(
            (
                f"def {name}(values):\n    # {remark}\n    return sum(values) / {len(remark) % 9 + 1}\n",
                f"// {remark}\nfunction {name}(x) {{\n  return x * {len(remark) % 7};\n}}\n",
                f'class {name.title()}:\n    """{remark}"""\n\n    def run(self):\n        print("ready")\n',
            )
        )

    def carrier(self, planted: str = "") -> str:
        """A document, e-mail, page or tool result, with something planted in it or not."""
        body = self.prose(self._random.randint(2, 9), planted)
        name, topic = self.fill("{name}"), self.fill("{topic}")
        kind = self._random.randrange(9)
        if kind == 0:
            return self.fill(
                f"From: {{mail}}\nTo: {{mail}}\nSubject: {topic}\n\nHi {name},\n\n{body}\n\nBest,\n{{name}}"
            )
        if kind == 1:
            return f"<html><head><title>{topic}</title></head><body><p>{body}</p></body></html>"
        if kind == 2:
            hidden = f"<!-- {planted} -->" if planted else "<!-- navigation -->"
            return f"<div class='main'>{self.prose(4)}</div>{hidden}<footer>{name}</footer>"
        if kind == 3:
            results = [{"title": topic, "snippet": body}, {"title": name, "snippet": self.prose(1)}]
            return json.dumps({"status": "ok", "results": results}, ensure_ascii=False)
        if kind == 4:
            body = body.replace("\n", " ")
            return f"| name | note |\n|---|---|\n| {name} | {self.prose(1)} |\n| {topic} | {body} |"
        if kind == 5:
            return self.code(planted)
        if kind == 6:
            return f"{name}\nSkills: {topic}\nExperience: {self._random.randint(1, 30)} years\n{body}"
        if kind == 7:
            stamp = f"2024-0{self._random.randint(1, 9)}-1{self._random.randint(0, 9)}"
            return f"{stamp} INFO started\n{stamp} WARN {body}\n{stamp} INFO stopped"
        return body


def contrast(seed: int = 7) -> list[Contrast]:
    """About 2,300 texts, none of them twice."""
    made: dict[str, Contrast] = {}
    for one in _all(Maker(seed)):
        made.setdefault(one.text, one)
    return list(made.values())


def _all(make: Maker) -> Iterator[Contrast]:
    for template in make.lists["harmless"]:
        for _ in range(5 if "{" in template else 1):
            yield Contrast(make.fill(template), "", "trigger words")
    for _ in range(500):
        yield Contrast(make.one("tasks").replace("{}", make.carrier()), "", "carrier")
    for _ in range(60):
        yield Contrast("\n\n".join(make.carrier() for _ in range(3)), "", "long carrier")
    for _ in range(250):
        planted = make.fill(make.one("planted"))
        yield Contrast(make.one("tasks").replace("{}", make.carrier(planted)), "indirect", "planted")
    for _ in range(100):
        yield Contrast(make.fill(make.one("planted")), "indirect", "planted alone")
    for _ in range(120):
        yield Contrast(make.order(), "injection", "override")
    for _ in range(50):
        start = make.fill(make.one("harmless")) if make.pick(("a", "b")) == "a" else make.prose(2)
        yield Contrast(f"{start} {make.order()}", "injection", "override after a question")
    for template in make.lists["markers"]:
        for _ in range(6):
            yield Contrast(make.fill(template), "injection", "marker")
    for template in make.lists["extractions"]:
        for _ in range(4 if "{" in template else 1):
            yield Contrast(make.fill(template), "injection", "extraction")
    for template in make.lists["jailbreaks"]:
        for _ in range(7):
            yield Contrast(make.fill(template), "jailbreak", "jailbreak")
    for template in make.lists["duties"]:
        for _ in range(5):
            yield Contrast(make.fill(template), "", "duties")
    for _ in range(150):
        yield Contrast(make.duties(), "", "duties")
    for _ in range(50):
        yield Contrast(make.one("tasks").replace("{}", make.duties()), "", "duties")
    for text in make.lists["scraps"]:
        yield Contrast(text, "", "scraps")
    for _ in range(250):
        yield Contrast(make.identifier(), "", "scraps")
    for text in make.lists["foreign_attacks"]:
        yield Contrast(text, "injection", "foreign")
        yield Contrast(make.prose(3) + " " + text, "indirect", "foreign")
    for text in make.lists["foreign_harmless"]:
        yield Contrast(text, "", "foreign")
