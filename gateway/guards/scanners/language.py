"""Whether a text is English, at a glance: the embedding knows little of other languages."""

from __future__ import annotations

import re

_LETTER, _LATIN = re.compile(r"[^\W\d_]"), re.compile("[A-Za-z\u00c0-\u024f]")
_WORD = re.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    re.findall(
        r"\w+",
        """
    the of to and is in i you it that for my are on with have be this not what how she they we your was can
    all at as if or but just like get who why when should would up out about
    """,
    )
)
_FOREIGN = frozenset(
    re.findall(
        r"\w+",
        """
    der das und ist nicht ich ein eine zu den mit von auf für sich es sind du wir ihr auch wie im dem des bei nur noch
    aber wenn oder sie er mich mir dich euch het een en van ik niet zijn dat voor deze je ze zij heb jij ook te
    jest nie się na że to są jak ale tak co czy z w za el la los las que y un una de del por como más muy esto eso lo tu
    se le et est pas une du au qui dans ce vous nous il elle os um uma não com ao dos che di
    non è sono della ja og som att är inte på och
    """,
    )
) - {"to", "in"}
"""Of German, Dutch, Polish, Spanish, French, Portuguese, Italian and the Scandinavian languages."""


def is_foreign(text: str) -> bool:
    """In another script than Latin, or with more of other languages' small words than of English ones.

    What has neither counts as English.
    """
    if len(_LETTER.findall(text)) > 2 * len(_LATIN.findall(text)):
        return True
    words = _WORD.findall(text.lower())
    return sum(word in _FOREIGN for word in words) > sum(word in _ENGLISH for word in words)
