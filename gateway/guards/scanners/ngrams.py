"""A linear model over words and letters in plain Python: the toxicity guard's fast check."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

from gateway.text.chunks import chunks
from gateway.text.linear import LinearModel, probability

_TOKEN = re.compile(r"(?:[^\W_]|[@$]|[!*|](?=[^\W\d_]))+(?:['’][^\W\d_]+)?")
_LEET = str.maketrans("01345789@$!|*", "oieastbgasii*", "*")
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u9fff]+")
"""Han characters and kana."""
_REPEATED = re.compile(r"([^\W\d_])\1{2,}")
_LOOKALIKES = str.maketrans("асеіорхуАВЕІКМНОРСТХ’", "aceiopxyabeikmhopctx'")
_PHRASES = {0xFDFA: "\u0635", 0xFDFB: "\u062c"}
"""Ligatures of a phrase: decomposed they would make a text up to 18 times as long."""
CHUNK, OVERLAP = 500, 100
"""Characters that are scored together, and the overlap of such chunks."""
SMOOTHING = 50
"""Added to the number of features, so that texts of two words do not score too high."""

GROUP = "\N{SECTION SIGN}"
"""Replaces the name of a group of people, so that what is learned about one holds for all."""
_GROUPS = frozenset(
    re.findall(
        r"\w+",
        """
    woman women girl girls female females lady ladies wife wives men male males feminist feminists
    gay gays lesbian lesbians homosexual homosexuals bisexual bisexuals queer queers lgbt lgbtq
    trans transgender transsexual transsexuals transgenders nonbinary
    black blacks white whites african africans asian asians hispanic hispanics latino latinos latina latinas
    mexican mexicans chinese indian indians arab arabs pakistani pakistanis turk turks roma gypsy gypsies
    native natives indigenous aboriginal aborigines jew jews jewish muslim muslims islamic islam christian
    christians catholic catholics hindu hindus sikh sikhs buddhist buddhists atheist atheists
    immigrant immigrants migrant migrants refugee refugees foreigner foreigners foreign
    disabled disability disabilities handicapped autistic deaf blind wheelchair
    americans germans poles russians irish italians koreans japanese vietnamese filipinos nigerians somalis africans
    kurds kurdish iranians puerto ricans mormons nonbinaries dwarfs homeless elderly pensioners
    frau frauen madchen manner auslander fluchtling fluchtlinge migrant migranten asylbewerber muslime juden jude
    christen turken turke araber syrer afghanen polen russen rumanen afrikaner schwarze schwarzen asiaten chinesen sinti
    schwule schwulen lesben homosexuelle homosexuellen transsexuelle behinderte behinderten rollstuhlfahrer autisten
    obdachlose arbeitslose rentner feministinnen transfrauen einwanderer kurden iraner buddhisten italiener
    vrouwen mannen buitenlanders vluchtelingen moslims joden homo homos gehandicapten zwarten
    kobiety uchodzcy imigranci muzulmanie zydzi geje gejow czarni niepelnosprawni
    mujeres negros inmigrantes musulmanes judios gais lesbianas discapacitados gitanos refugiados
    femmes noirs immigres musulmans juifs lesbiennes handicapes arabes refugies etrangers
    """,
    )
)
_PEOPLE = frozenset(
    re.findall(
        r"\w+",
        "people person persons folk folks man men woman women guy guys girl girls community communities",
    )
)


def tokens(text: str) -> list[str]:
    """The words of a text in small letters: leet speech, letters set apart and look-alikes undone, groups masked."""
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text.translate(_PHRASES)).translate(_LOOKALIKES)
        text = "".join(character for character in text if not unicodedata.combining(character))
    words: list[str] = []
    letters: list[str] = []
    for word in _TOKEN.findall(_REPEATED.sub(r"\1", text.lower())):
        if len(word) == 1:
            letters.append(word)
            continue
        if letters:
            _spelled(letters, words)
            letters = []
        if not word.isalpha():
            plain = word.translate(_LEET)
            if not word.isdigit() and plain.replace("'", "").isalpha():
                word = plain
        if word in _GROUPS:
            word = GROUP
        if words and words[-1] == GROUP and (word == GROUP or word in _PEOPLE):
            continue
        words.append(word)
    if letters:
        _spelled(letters, words)
    return words


def _spelled(letters: Sequence[str], words: list[str]) -> None:
    """Three or more single letters are one word: ``h a t e``."""
    if len(letters) < 3:
        words.extend(letters)
        return
    first = 1 if letters[0] == "i" and len(letters) > 3 else 0
    words.extend(letters[:first])
    word = "".join(letters[first:]).translate(_LEET)
    words.append(GROUP if word in _GROUPS else word)


def features(text: str) -> set[str]:
    """Words, pairs and triples of them; runs of three letters within a word and its borders, and of five across them;
    of scripts without spaces, one to three characters in a row."""
    words = tokens(text)
    # A word of three letters keeps its borders, which tell it apart from a run within another.
    found = {word if len(word) != 3 else f" {word} " for word in words}
    if not text.isascii():
        for run in _UNSPACED.findall(unicodedata.normalize("NFKC", text.translate(_PHRASES))):
            found.update(run)
            found.update([run[start : start + 2] for start in range(len(run) - 1)])
            found.update([run[start : start + 3] for start in range(len(run) - 2)])
    found.update(map(" ".join, pairwise(words)))
    found.update(map(" ".join, zip(words, words[1:], words[2:], strict=False)))
    spaced = f" {' '.join(words)} "
    found.update([spaced[at - 1 : at + 2] for at in range(1, len(spaced) - 1) if spaced[at] != " "])
    run = "".join(words)
    found.update([run[start : start + 5] for start in range(len(run) - 4)])
    return found


class Ngrams:
    """Log-odds by label as a weighted sum of a text's features, divided by the root of their number."""

    def __init__(
        self,
        labels: Sequence[str],
        bias: Sequence[float],
        weights: Mapping[str, Sequence[int]],
        *,
        scale: float = 1.0,
    ) -> None:
        """``weights`` has, for each feature, a label's index and the weight times ``scale``, and so on in turn."""
        self.labels = tuple(labels)
        rows = {}
        for feature, each in weights.items():
            of_label = dict(zip(each[::2], each[1::2], strict=True))
            rows[feature] = tuple([of_label.get(label, 0) for label in range(len(labels))])
        self._model = LinearModel(bias, rows, lambda features, _: math.sqrt(features + SMOOTHING) * scale)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises OSError, ValueError or KeyError if the file is missing or is not such a model."""
        model = json.loads(path.read_text(encoding="utf-8"))
        return cls(model["labels"], model["bias"], model["weights"], scale=model["scale"])

    def log_odds(self, text: str) -> list[float]:
        """In the order of ``labels``; of a long text, the highest that any part of it reaches."""
        odds = [self._model.log_odds(features(chunk)) for chunk in chunks(text, CHUNK, OVERLAP)]
        return odds[0] if len(odds) == 1 else [*map(max, *odds)]

    def probabilities(self, text: str) -> dict[str, float]:
        return {
            label: probability(odds) for label, odds in zip(self.labels, self.log_odds(text), strict=True)
        }
