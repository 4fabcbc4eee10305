"""Text of about so many tokens, for any model.

No tokenizer is needed: the words are short and common, so that most tokenizers make one token of each, and what a
server really counts for them is measured before the load begins (``Scale``).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community "
    "name president team minute idea body information back parent face level office door health person "
    "art war history party result change morning reason research girl guy moment air teacher force "
    "education foot boy age policy music market sense nation plan college interest death experience "
    "effect use class control care field development role effort rate heart drug show leader light voice "
    "wife police mind price report decision son view relationship town road arm difference value building "
    "action model season society tax director position player record paper space ground form event "
    "official matter center couple site project activity star table need court oil situation cost "
    "industry figure street image phone data picture practice piece land product doctor wall patient "
    "worker news test movie north love support technology step baby computer type attention film tree "
    "source hair look window culture chance brother energy period course summer plant opportunity term "
    "letter condition choice rule south floor material population call economy hospital church risk fire "
    "future bank west sport board subject officer rest behavior performance top goal second bed order "
    "author blood agency nature color store sound movement page race concern series language response "
    "animal factor "
)
WORDS = tuple(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Scale:
    """How a server counts: ``fixed`` tokens of a prompt of no words, and ``per_word`` for each word."""

    per_word: float = 1.0
    fixed: float = 0.0

    def words(self, tokens: int) -> int:
        """At least one."""
        return max(1, round((tokens - self.fixed) / self.per_word))


def text(count: int, random: Random) -> str:
    return " ".join(random.choices(WORDS, k=count))
