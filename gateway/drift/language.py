"""In which language a text is, by its script and its small words: enough to see a mix change, and some ten
microseconds."""

from __future__ import annotations

import re

LOOKED_AT = 240
"""Characters of a text; the first."""
LEAST_WORDS = 2
"""Small words of a language that tell it, in a text of Latin letters."""
OTHER_LATIN, NONE = "latin", "none"
"""Of Latin letters in no language that is known here; without letters."""

_SCRIPTS: tuple[tuple[str, str], ...] = (
    ("ja", "\u3040-\u30ff"),  # before Chinese, whose characters it has, too
    ("ko", "\uac00-\ud7af\u1100-\u11ff"),
    ("zh", "\u3400-\u9fff"),
    ("ru", "\u0400-\u04ff"),
    ("ar", "\u0600-\u06ff"),
    ("he", "\u0590-\u05ff"),
    ("hi", "\u0900-\u097f"),
    ("th", "\u0e00-\u0e7f"),
    ("el", "\u0370-\u03ff"),
)
"""A script by the language that most of its texts are in."""
_OF_SCRIPTS = tuple((name, re.compile(f"[{letters}]")) for name, letters in _SCRIPTS)
_LETTER, _LATIN = re.compile(r"[^\W\d_]"), re.compile("[A-Za-z\u00c0-\u024f]")
_WORD = re.compile(r"[^\W\d_]+")
_WORDS = {
    "en": "the of to and is in you it that for are on with have be this not what how we your was can at as or from if",
    "de": "der die das und ist nicht ich ein eine zu den mit von auf für sich wie im dem des wir auch werden kann",
    "fr": "le la les et est pas une du au aux qui dans ce vous nous il elle des que pour sur avec sont comment",
    "es": "el los las y un una del por como para con está qué cómo se lo al más pero muy esto hay puede",
    "it": "il gli è che non di per con una sono come della dei nel alla più anche questo cosa quali",
    "pt": "o os não uma em para com como do da dos das que é ao mais você isso são qual pode",
    "nl": "het een en van ik niet zijn dat voor deze je zij ook met op aan wat hoe naar wordt",
    "pl": "nie się na że to jest są jak ale co czy z w do dla przez jego można",
    "sv": "och att det är inte som på med för av den till jag hur kan vad från",
    "tr": "ve bir bu için ile ne nasıl var çok daha olan gibi değil",
    "vi": "và của là có không được trong cho một những người với này",
    "id": "dan yang di ini itu dengan untuk dari tidak adalah pada apa bagaimana",
}
_LANGUAGES: dict[str, list[str]] = {}
for _name, _words in _WORDS.items():
    for _word in _words.split():
        _LANGUAGES.setdefault(_word, []).append(_name)


def language_of(text: str) -> str:
    """A code of ISO 639-1, ``latin`` or ``none``. In time linear in the text, of which the beginning is looked at."""
    text = text[:LOOKED_AT]
    if text.isascii():
        if _LETTER.search(text) is None:
            return NONE
    elif (letters := len(_LETTER.findall(text))) == 0:
        return NONE
    elif letters > 2 * len(_LATIN.findall(text)):
        counts = {name: len(pattern.findall(text)) for name, pattern in _OF_SCRIPTS}
        if counts["ja"] * 8 > counts["zh"]:  # a tenth of its letters are enough
            counts["ja"] += counts["zh"]
        name = max(counts, key=lambda one: counts[one])
        return name if counts[name] else "other"
    found: dict[str, int] = {}
    for word in _WORD.findall(text.lower()):
        for name in _LANGUAGES.get(word, ()):
            found[name] = found.get(name, 0) + 1
    best = max(found, key=lambda one: found[one], default="")
    return best if best and found[best] >= LEAST_WORDS else OTHER_LATIN
