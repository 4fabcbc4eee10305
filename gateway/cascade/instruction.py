"""What a request asks for, apart from the material it brings: a lease to rewrite is no question of law."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_END = 300
"""Characters of a last paragraph that may still be part of the instruction."""
_START = 1000
"""Characters within which an instruction introduces its material."""
_COUNTED = 1200
"""Characters of an instruction in which words are counted: its beginning, and its end where it is longer."""
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUOTED = re.compile(r'"[^"\n]{40,}"?|“[^“”]{40,}”?|«[^«»]{40,}»?|„[^„“]{40,}“?')
_INTRODUCED = re.compile(r"[::][ \t]*\n")
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
_SENTENCE = re.compile(r"[.?!。?!]\s*\Z")
_TECHNICAL = re.compile(r"\b(?:[A-Z]{2,}\w*|[A-Za-z]*[a-z][A-Z]\w*|[A-Za-z]+\d\w*|\w+_\w+)\b")
_LONG = re.compile(r"[A-Za-zÀ-ÿ]{9,}")
_WORD = re.compile(r"[^\W\d_]+(?:['’]t)?")
_CONDITION = re.compile(
    r"must|should|without|exactly|ensure|assum\w+|constraints?|only|not?|never|every|each|all|any|least|most|same|"
    r"identical\w*|strict\w*|unless|until|whether|cannot|nor|both|then|per|rather|but|"
    r"(?:can|don|doesn|isn|won|shouldn|mustn)['’]t|"
    r"muss|müssen|ohne|mindestens|höchstens|genau|keine?[nrms]?|nicht|nur|jede[nrms]?|aber|"
    r"debe\w*|sin|cada|solo|sólo|todos?|todas?|nada|pero|"
    r"doi(?:t|vent)|sans|chaque|tou(?:te?s|s|t)|aucune?|seulement|pas|mais"
)
_CHINESE_CONDITION = re.compile("必须|不得|不要|每|所有|至少|至多|恰好|只|并")
_STEP = re.compile(
    r"(?:\A|[.;:,!?。;:,!?]\s*|\b(?:and|then|und|dann|y|luego|et|puis)\s+)"
    r"(?:give|show|name|state|prove|list|explain|find|say|tell|describe|compute|work out|justify|include|cite|derive|"
    r"implement|propose|fix|check|print|answer|compare|design|write|make|"
    r"gib|nenne|zeige|erkläre|begründe|vergleiche|schreibe?|finde|prüfe|"
    r"da|di|muestra|explica|justifica|compara|escribe|encuentra|demuestra|"
    r"donnez?|montrez?|expliquez?|justifiez?|comparez?|écri(?:s|vez)|trouvez?|démontrez?|corrigez?|"
    r"给出|说明|列出|证明|解释|指出|比较|写出)\b",
    re.IGNORECASE,
)


class Instruction(NamedTuple):
    text: str
    conditions: int
    """Words that bind the answer: what it must, may not, or must do for each, every, at least."""
    steps: int
    """What it asks to be done, one after another."""
    technical: int
    """Different abbreviations, identifiers and words with digits."""
    long: float
    """The share of words of nine letters and more."""


def instruction_of(text: str) -> Instruction:
    """``text`` is a user's message. Takes time in proportion to it."""
    asked = _without_material(text.strip())
    counted = asked if len(asked) <= _COUNTED else asked[: _COUNTED - _END] + asked[-_END:]
    words = _WORD.findall(counted)
    return Instruction(
        asked,
        sum(_binds(word) for word in words) + len(_CHINESE_CONDITION.findall(counted)),
        len(_STEP.findall(counted)),
        len(set(_TECHNICAL.findall(counted))),
        len(_LONG.findall(counted)) / max(len(words), 1),
    )


@lru_cache(maxsize=2**14)
def _binds(word: str) -> bool:
    """Cached, as texts share most of their words."""
    return _CONDITION.fullmatch(word.lower()) is not None


def _without_material(text: str) -> str:
    """Without code, long quotations, and the paragraphs between the first and a last one of a sentence or two."""
    text = _QUOTED.sub(" ", _CODE.sub("\n\n", text)).strip()
    introduced = _INTRODUCED.search(text, 0, _START)
    if introduced is not None:
        first, rest = text[: introduced.start()], _PARAGRAPH.split(text[introduced.end() :].strip())[1:]
    else:
        first, *rest = _PARAGRAPH.split(text)
    if rest and len(rest[-1]) <= _END and _SENTENCE.search(rest[-1]):
        return f"{first}\n{rest[-1]}"
    return first
